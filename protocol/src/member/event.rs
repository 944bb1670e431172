//! What a member works with: its configuration, what happens to it, what it asks for.

use super::DeltaFacts;
use crate::buffers::Buffers;
use crate::ids::{CidBytes, Hash32, PeerBytes, Round, View};
use crate::job::spec::JobSpec;
use crate::message::{Body, Link, LinkHeader, Offence, Proof, Reason, Standing, Verified};
use crate::ring::{Hop, HopKeys, Place};
use std::sync::Arc;

/// Who this member is and what the job asks for.
#[derive(Clone, Debug)]
pub struct Config {
    /// This node.
    pub me: PeerBytes,
    /// Hash of its identity record.
    pub record: Hash32,
    /// The network.
    pub genesis: Hash32,
    /// The job.
    pub job: CidBytes,
    /// The only signer of rosters and manifests.
    pub orchestrator: PeerBytes,
    /// What it asks for.
    pub spec: JobSpec,
    /// Elements of a ring segment; smaller in tests.
    pub segment: usize,
    /// Memory of ring segments, shared with the links that carry them.
    pub buffers: Buffers,
    /// Signs this node's hops and checks others'.
    pub keys: Arc<dyn HopKeys>,
    /// Whether its sums are true.
    pub sums: Sums,
}

/// What a member adds in the ring: a false sum is for scenarios only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sums {
    /// The committed delta.
    #[default]
    True,
    /// In this round, or in all, the opposite of what it committed, signed as if it were that.
    FalseIn(Option<Round>),
}

/// The model state this node holds for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Rounds closed in it.
    pub closed: u64,
    /// Its hash.
    pub state: Hash32,
    /// Its checkpoint.
    pub checkpoint: CidBytes,
}

/// What happens to a member.
#[derive(Clone, Debug)]
pub enum Event {
    /// A checked message, from gossip, from synchronisation or one's own.
    Message(Box<Verified>),
    /// The model state is loaded: after warm-up, or after [`Action::Fetch`].
    Synced(Held),
    /// [`Action::Fetch`] did not succeed.
    FetchFailed(String),
    /// [`Action::Train`] is done: Δ = local state − round state, flat.
    Trained {
        /// Roster it was for.
        roster: Hash32,
        /// Δ without the residual.
        delta: Vec<f32>,
        /// Completions trained on.
        samples: u64,
    },
    /// [`Action::Train`] failed.
    TrainFailed {
        /// Roster it was for.
        roster: Hash32,
        /// Why.
        why: String,
    },
    /// [`Action::BuildCommit`] is done.
    CommitBuilt {
        /// Roster it is for.
        roster: Hash32,
        /// The directory {delta.bin, rollouts}.
        cid: CidBytes,
        /// A fresh secret.
        salt: Hash32,
    },
    /// A replica of another's commit is complete, and was checked.
    Replica {
        /// Who sent it; a commit comes from its own member.
        from: PeerBytes,
        /// Roster it is for.
        roster: Hash32,
        /// Its salt.
        salt: Hash32,
        /// Its directory, as recomputed here.
        cid: CidBytes,
        /// What it holds, or what is wrong with it.
        outcome: Result<DeltaFacts, Reason>,
    },
    /// A ring segment whose seal was good.
    Segment {
        /// Who sent it.
        from: PeerBytes,
        /// Its header.
        header: LinkHeader,
        /// Its elements.
        payload: Vec<u8>,
    },
    /// The link layer refused a frame.
    LinkOffence {
        /// Whose.
        from: PeerBytes,
        /// What it was.
        offence: Offence,
    },
    /// No connection to a peer is left, or it does not take what it is sent.
    PeerLost(PeerBytes),
    /// [`Action::Apply`] is done.
    Applied {
        /// Manifest it was for.
        manifest: Hash32,
        /// Hash of the state after.
        state: Hash32,
        /// Its checkpoint directory.
        checkpoint: CidBytes,
    },
    /// The driver measured its links to other members.
    Measured(Vec<Link>),
    /// A deadline may have passed.
    Tick,
}

/// What a member asks of its driver.
#[derive(Clone, Debug)]
pub enum Action {
    /// Sign and gossip.
    Publish(Body),
    /// Fetch a checkpoint, check its state hash, load it.
    Fetch(Held),
    /// Train `aggregate_interval` steps from the held state.
    Train {
        /// The round.
        round: Round,
        /// Hash of its roster: the beacon.
        roster: Hash32,
        /// Index in the roster.
        rank: u32,
        /// Members of the roster.
        members: u32,
    },
    /// The training under way will not be used.
    AbandonTraining,
    /// Encode, sign and store a commit.
    BuildCommit {
        /// The round.
        round: Round,
        /// Its roster.
        roster: Hash32,
        /// State it starts from.
        parent: Hash32,
        /// Δ with the residual, flat.
        delta: Vec<f32>,
    },
    /// Send one's own commit to a holder over the sealed link.
    SendReplica {
        /// The holder.
        to: PeerBytes,
        /// The round.
        round: Round,
        /// Its roster.
        roster: Hash32,
        /// The directory.
        cid: CidBytes,
        /// Its salt.
        salt: Hash32,
    },
    /// Send a ring segment over the sealed link.
    SendSegment {
        /// The next slot's server.
        to: PeerBytes,
        /// Associated data.
        header: LinkHeader,
        /// Elements.
        payload: Vec<u8>,
    },
    /// Keep this node's part of the chains of a finished ring for the challenge window; members are asked for it on dispute.
    KeepHops {
        /// The round.
        round: Round,
        /// Manifest it is of.
        manifest: Hash32,
        /// The hops made and taken, by place.
        hops: Vec<(Place, Hop)>,
    },
    /// Somebody is said to have lied in the ring: replay what it says and name the one at fault.
    Judge(Box<Proof>),
    /// Take the outer step with the mean, tentatively.
    Apply {
        /// The round.
        round: Round,
        /// The view.
        view: View,
        /// Manifest it is for.
        manifest: Hash32,
        /// The mean delta, flat; the machine keeps it for a next view.
        mean: Arc<Vec<f32>>,
    },
    /// The tentative state is the state.
    Promote(Held),
    /// Count a peer's offence and say it in one line.
    Penalise {
        /// Who.
        peer: PeerBytes,
        /// What.
        offence: Offence,
        /// More, for people.
        detail: String,
    },
    /// Say something to the person who runs the node.
    Notice(String),
    /// The job is over for this member.
    Finished(Standing),
}

/// What a member is doing, for status displays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// Loading base model, questions and state.
    Preparing,
    /// Waiting for a roster.
    Waiting,
    /// Fetching the state a roster starts from.
    Syncing,
    /// Training.
    Training,
    /// Committing: replicas, receipts, reveals.
    Committing,
    /// In the ring.
    Reducing,
    /// Taking the outer step, or waiting for the close.
    Closing,
    /// Not in this round's sum.
    SittingOut,
    /// Done.
    Finished,
}
