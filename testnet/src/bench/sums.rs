//! A member's machine as a job drives it, timed.

use super::stages::{Stages, thread_cpu};
use super::words::{Hops, Setup};
use super::{data, wire};
use anyhow::Context;
use gym_protocol::ids::{CidBytes, Hash32, PeerBytes, Round, View};
use gym_protocol::message::{Entry, Manifest};
use gym_protocol::quant::{Form, SEGMENT};
use gym_protocol::ring::{Chained, Config, Contribution, Reduced, Ring, RingError, Schedule, Scope, Segment};
use hanzod::identity::NodeIdentity;
use hanzod::job::NodeHopKeys;
use std::sync::Arc;

/// The hash by which frames and hops name the manifest.
pub(super) const MANIFEST: Hash32 = Hash32([2; 32]);

/// The sums of one round.
pub(super) struct Sums {
    machine: Machine,
    form: Form,
    cpu: f64,
}

enum Machine {
    /// Every hop hashed, signed and checked.
    Signed(Box<Chained>),
    Bare(Box<Ring>),
}

impl Sums {
    /// Of a member of the ring `peers` with its contribution.
    pub(super) fn new(
        setup: &Setup,
        peers: &[PeerBytes],
        identity: &Arc<NodeIdentity>,
        own: Contribution,
    ) -> anyhow::Result<Self> {
        let before = thread_cpu();
        let wire = wire(&setup.wire)?;
        let machine = match setup.hops {
            Hops::Signed => {
                let manifest = Arc::new(manifest(peers)?);
                let scope = Scope::new(manifest, MANIFEST, wire, setup.elements, SEGMENT)
                    .context("a ring that does not fill its shape")?;
                let keys = Arc::new(NodeHopKeys(Arc::clone(identity)));
                Machine::Signed(Box::new(Chained::new(Arc::new(scope), keys, setup.slot, own)))
            }
            Hops::None => {
                let config = Config {
                    schedule: Schedule {
                        slots: setup.members,
                        elements: setup.elements,
                        segment: SEGMENT,
                    },
                    slot: setup.slot,
                    wire,
                    total_weight: data::total_weight(setup.members),
                };
                Machine::Bare(Box::new(Ring::new(config, own)))
            }
        };
        Ok(Self {
            machine,
            form: Form::of(wire),
            cpu: thread_cpu() - before,
        })
    }

    fn timed<T>(&mut self, act: impl FnOnce(&mut Machine) -> T) -> T {
        let before = thread_cpu();
        let result = act(&mut self.machine);
        self.cpu += thread_cpu() - before;
        result
    }

    pub(super) fn start(&mut self, out: &mut Vec<Segment>) {
        self.timed(|machine| match machine {
            Machine::Signed(ring) => ring.start(out),
            Machine::Bare(ring) => ring.start(out),
        });
    }

    pub(super) fn receive(&mut self, segment: Segment, out: &mut Vec<Segment>) -> Result<(), RingError> {
        self.timed(|machine| match machine {
            Machine::Signed(ring) => ring.receive(segment, out),
            Machine::Bare(ring) => ring.receive(segment, out),
        })
    }

    pub(super) fn finish(&mut self) -> Option<Reduced> {
        self.timed(|machine| match machine {
            Machine::Signed(ring) => ring.take_result(),
            Machine::Bare(ring) => ring.take_result(),
        })
    }

    /// Integers are rounded, added and packed in one pass: it counts as quantising. Hashing and signing are in it.
    pub(super) fn stages(&self) -> Stages {
        let mut stages = Stages::default();
        match self.form {
            Form::Floats(_) => stages.add = self.cpu,
            Form::Integers(_) => stages.quantise = self.cpu,
        }
        stages
    }
}

/// What is summed, as hops name it.
fn manifest(peers: &[PeerBytes]) -> anyhow::Result<Manifest> {
    let cid = CidBytes::new(vec![1; 36]).context("a CID of 36 bytes")?;
    let entries = (0..).zip(peers).map(|(slot, peer)| Entry {
        member: peer.clone(),
        cid: cid.clone(),
        weight: data::weight(slot),
        server: peer.clone(),
    });
    Ok(Manifest {
        job: cid.clone(),
        round: Round(0),
        view: View(0),
        roster: Hash32::ZERO,
        parent: Hash32::ZERO,
        entries: entries.collect(),
        grid: None,
        kept: Vec::new(),
        left_out: Vec::new(),
    })
}
