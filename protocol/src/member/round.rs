//! One round as a member sees it: what it knows of the others, and the step it is at.

use super::attests::Heard;
use super::early::Early;
use super::keep::Keeping;
use super::times::RingTimes;
use super::view::ViewState;
use super::{Action, Config, Doing, Event, Held};
use crate::ids::{CidBytes, Hash32, PeerBytes, Round};
use crate::message::{Body, Close, Complaint, Offence, Proof, Roster, Verified};
use crate::time::{Deadline, Time};
use std::collections::{BTreeMap, BTreeSet};

/// Proofs replayed in a round.
const MAX_JUDGED: usize = 8;

/// What a checked delta says of itself.
#[derive(Clone, Debug, PartialEq)]
pub struct DeltaFacts {
    /// Whose.
    pub member: PeerBytes,
    /// For which round.
    pub round: Round,
    /// State it starts from.
    pub parent: Hash32,
    /// Completions it claims to have trained on.
    pub samples: u64,
    /// Its values, flat in name order.
    pub delta: Vec<f32>,
}

/// Another member's commit, held for it.
#[derive(Clone, Debug)]
pub(super) struct HeldReplica {
    pub(super) salt: Hash32,
    pub(super) cid: CidBytes,
    pub(super) delta: Vec<f32>,
}

/// One's own commit.
#[derive(Clone, Debug)]
pub(super) struct Own {
    pub(super) cid: CidBytes,
    pub(super) salt: Hash32,
    pub(super) delta: Vec<f32>,
    pub(super) sent_to: BTreeMap<PeerBytes, Time>,
    pub(super) refused_by: BTreeSet<PeerBytes>,
}

/// Where in the round the member is.
#[derive(Debug)]
pub(super) enum Step {
    /// Fetching the state the roster starts from.
    Syncing,
    /// Training.
    Training,
    /// The delta is there; its commit is being encoded.
    Building { delta: Vec<f32> },
    /// Committed: replicas, receipts, reveals; waiting for the manifest.
    Committed,
    /// In the ring.
    Reducing(Box<ViewState>),
    /// The mean is there; the outer step is being taken.
    Applying(Box<ViewState>),
    /// Attested; waiting for the close.
    Attested { view: Box<ViewState>, state: Hash32 },
    /// Not in the sum; waiting for the next roster.
    SittingOut,
}

/// A round under way.
#[derive(Debug)]
pub(super) struct InRound {
    pub(super) roster: Roster,
    pub(super) hash: Hash32,
    /// Indices of the roster's members by name: rosters of a thousand are looked up for every message.
    pub(super) by_name: Vec<u32>,
    pub(super) rank: usize,
    pub(super) me: PeerBytes,
    pub(super) step: Step,
    pub(super) own: Option<Own>,
    pub(super) commitments: BTreeMap<PeerBytes, Hash32>,
    /// Holders whose receipts for one's own commit have come.
    pub(super) receipts: BTreeSet<PeerBytes>,
    pub(super) revealed: BTreeSet<PeerBytes>,
    pub(super) held: BTreeMap<PeerBytes, HeldReplica>,
    /// Replicas whose commitment has not been seen yet.
    pub(super) unmatched: Vec<Event>,
    pub(super) cutoff: Option<Time>,
    /// Segments of a view whose manifest has not come yet.
    pub(super) early: Early,
    /// Who was said to have lied under which manifest: judged once.
    pub(super) judged: BTreeSet<(Hash32, PeerBytes)>,
    /// Attests of the others, and a close that waits for some of them.
    pub(super) heard: Heard,
    pub(super) close: Option<Box<Close>>,
    pub(super) times: RingTimes,
    pub(super) keeping: Keeping,
    /// What has been complained of: once a view is enough.
    pub(super) complained: BTreeSet<(Hash32, PeerBytes, Offence)>,
}

impl InRound {
    pub(super) fn new(roster: Roster, hash: Hash32, rank: usize, me: PeerBytes) -> Self {
        let mut by_name: Vec<u32> = (0u32..).take(roster.members.len()).collect();
        by_name.sort_by_key(|i| roster.members.get(*i as usize).map(|m| &m.peer));
        Self {
            roster,
            hash,
            by_name,
            rank,
            me,
            step: Step::Syncing,
            own: None,
            commitments: BTreeMap::new(),
            receipts: BTreeSet::new(),
            revealed: BTreeSet::new(),
            held: BTreeMap::new(),
            unmatched: Vec::new(),
            cutoff: None,
            early: Early::default(),
            judged: BTreeSet::new(),
            heard: Heard::default(),
            close: None,
            times: RingTimes::default(),
            keeping: Keeping::default(),
            complained: BTreeSet::new(),
        }
    }

    pub(super) fn doing(&self) -> Doing {
        match &self.step {
            Step::Syncing => Doing::Syncing,
            Step::Training => Doing::Training,
            Step::Building { .. } | Step::Committed => Doing::Committing,
            Step::Reducing(_) => Doing::Reducing,
            Step::Applying(_) | Step::Attested { .. } => Doing::Closing,
            Step::SittingOut => Doing::SittingOut,
        }
    }

    /// The training of this round.
    pub(super) fn train(&self) -> Action {
        Action::Train {
            round: self.roster.round,
            roster: self.hash,
            rank: u32::try_from(self.rank).unwrap_or(u32::MAX),
            members: u32::try_from(self.roster.members.len()).unwrap_or(u32::MAX),
        }
    }

    /// The state this round starts from.
    pub(super) fn parent(&self) -> Held {
        Held {
            closed: self.roster.round.0,
            state: self.roster.parent,
            checkpoint: self.roster.checkpoint.clone(),
        }
    }

    pub(super) fn in_roster(&self, peer: &PeerBytes) -> bool {
        let name = |i: &u32| self.roster.members.get(*i as usize).map(|m| &m.peer);
        self.by_name
            .binary_search_by(|i| name(i).cmp(&Some(peer)))
            .is_ok()
    }

    /// The state this member attested, if it got that far.
    pub(super) fn attested_state(&self) -> Option<Hash32> {
        match &self.step {
            Step::Attested { state, .. } => Some(*state),
            Step::Syncing
            | Step::Training
            | Step::Building { .. }
            | Step::Committed
            | Step::Reducing(_)
            | Step::Applying(_)
            | Step::SittingOut => None,
        }
    }

    pub(super) fn view(&self) -> Option<&ViewState> {
        match &self.step {
            Step::Reducing(v) | Step::Applying(v) | Step::Attested { view: v, .. } => Some(v),
            Step::Syncing | Step::Training | Step::Building { .. } | Step::Committed | Step::SittingOut => {
                None
            }
        }
    }

    /// Whether more than two thirds of the manifest's members signed. A member that has not seen the manifest (it sat out)
    /// takes the orchestrator's word for the number, as this version trusts its sequencer.
    pub(super) fn is_quorum(&self, close: &Close, attests: &[Verified]) -> bool {
        let Some(view) = self.view().filter(|v| v.hash == close.manifest) else {
            return true;
        };
        if close.signers.is_some() {
            let entries = view.manifest.entries.iter();
            let agree = entries.filter(|e| self.heard.agrees(&e.member, close)).count();
            return 3 * agree > 2 * view.manifest.entries.len();
        }
        let members: BTreeSet<&PeerBytes> = view.manifest.entries.iter().map(|e| &e.member).collect();
        attests.iter().all(|a| members.contains(&a.sender)) && 3 * attests.len() > 2 * members.len()
    }

    /// Residual to carry into the next delta after a close of `manifest`; `None` leaves the old one as it is.
    pub(super) fn next_residual(&self, manifest: Hash32) -> Option<Vec<f32>> {
        let view = self.view().filter(|v| v.hash == manifest)?;
        view.residual_of(&self.me)
    }

    /// Events that mean something only within a round.
    pub(super) fn handle(
        &mut self,
        now: Time,
        config: &Config,
        residual: &[f32],
        event: Event,
        out: &mut Vec<Action>,
    ) {
        match event {
            Event::Trained {
                roster,
                delta,
                samples: _,
            } if roster == self.hash => {
                self.on_trained(residual, delta, out);
            }
            Event::TrainFailed { roster, why } if roster == self.hash => {
                out.push(Action::Notice(format!(
                    "round {}: training failed: {why}; sitting out",
                    self.roster.round
                )));
                self.step = Step::SittingOut;
            }
            Event::CommitBuilt { roster, cid, salt } if roster == self.hash => {
                self.on_commit_built(now, config, cid, salt, out);
            }
            Event::Replica { roster, .. } if roster == self.hash => self.on_replica(config, event, out),
            Event::Segment { .. } => self.on_segment(now, config, event, out),
            Event::LinkOffence { from, offence } => self.on_link_offence(config, &from, offence, out),
            Event::PeerLost(peer) => self.on_peer_lost(config, &peer, out),
            Event::Applied {
                manifest,
                state,
                checkpoint,
            } => {
                self.on_applied(config, manifest, state, checkpoint, out);
            }
            Event::Trained { .. }
            | Event::TrainFailed { .. }
            | Event::CommitBuilt { .. }
            | Event::Replica { .. }
            | Event::Message(_)
            | Event::Synced(_)
            | Event::FetchFailed(_)
            | Event::Measured(_)
            | Event::Tick => {}
        }
    }

    pub(super) fn on_message(&mut self, now: Time, config: &Config, m: Verified, out: &mut Vec<Action>) {
        match m.body {
            Body::Commitment(b) => self.on_commitment(now, config, m.sender, b.commitment, out),
            Body::Receipt(b) => self.on_receipt(now, config, &m.sender, &b, out),
            Body::Cutoff(_) => self.on_cutoff(now, config, out),
            Body::Reveal(b) => self.on_reveal(config, &m.sender, b),
            Body::Manifest(b) => {
                let hash = crate::cbor::object_hash(&m.encoded);
                self.on_manifest(now, config, b, hash, out);
            }
            Body::Job(_)
            | Body::Roster(_)
            | Body::Attest(_)
            | Body::Close(_)
            | Body::Report(_)
            | Body::Ready(_)
            | Body::Complaint(_)
            | Body::Status(_)
            | Body::Links(_)
            | Body::Proof(_)
            | Body::Holding(_) => {}
        }
    }

    /// A link offence outside the ring is counted; within it, it is complained about too.
    fn on_link_offence(
        &mut self,
        config: &Config,
        from: &PeerBytes,
        offence: Offence,
        out: &mut Vec<Action>,
    ) {
        if self.view().is_some_and(|v| v.is_predecessor(from)) {
            self.accuse(config, from, offence, "over its sealed link", out);
        } else if self.is_news(from, offence) {
            let detail = format!("round {}: over its sealed link", self.roster.round);
            out.push(Action::Penalise {
                peer: from.clone(),
                offence,
                detail,
            });
        }
    }

    fn on_peer_lost(&mut self, config: &Config, peer: &PeerBytes, out: &mut Vec<Action>) {
        self.reveal_for_the_lost(config, peer, out);
        let Step::Reducing(view) = &self.step else { return };
        if view.is_neighbour(peer) && self.is_news(peer, Offence::Unreachable) {
            self.complain(config, peer, Offence::Unreachable, out);
        }
    }

    /// Has the proof of a lie replayed, for a manifest of this round: once an accused, and few in a round. The accused may be
    /// called no longer, where the round is tried again without it.
    pub(super) fn on_proof(&mut self, proof: &Proof, out: &mut Vec<Action>) {
        if proof.round == self.roster.round
            && self.judged.len() < MAX_JUDGED
            && self.judged.insert((proof.manifest, proof.accused.clone()))
        {
            out.push(Action::Judge(Box::new(proof.clone())));
        }
    }

    /// Counts an offence and complains of it: once a view, however many frames it spoils.
    pub(super) fn accuse(
        &mut self,
        config: &Config,
        peer: &PeerBytes,
        offence: Offence,
        why: &str,
        out: &mut Vec<Action>,
    ) {
        if self.is_news(peer, offence) {
            let detail = format!("round {}: {why}", self.roster.round);
            out.push(Action::Penalise {
                peer: peer.clone(),
                offence,
                detail,
            });
            self.complain(config, peer, offence, out);
        }
    }

    pub(super) fn is_news(&mut self, peer: &PeerBytes, offence: Offence) -> bool {
        let context = self.view().map_or(self.hash, |v| v.hash);
        self.complained.insert((context, peer.clone(), offence))
    }

    pub(super) fn complain(
        &mut self,
        config: &Config,
        accused: &PeerBytes,
        offence: Offence,
        out: &mut Vec<Action>,
    ) {
        let (view, context) = self
            .view()
            .map_or((crate::ids::View(0), self.hash), |v| (v.manifest.view, v.hash));
        out.push(Action::Publish(Body::Complaint(Complaint {
            job: config.job.clone(),
            round: self.roster.round,
            view,
            context,
            accused: accused.clone(),
            offence: offence.number(),
            missing: self.view().map_or(0, ViewState::missing),
        })));
        self.say_holding(config, out);
    }

    pub(super) fn on_tick(&mut self, now: Time, config: &Config, out: &mut Vec<Action>) {
        self.ask_another_holder(now, config, out);
        self.reveal_for_the_silent(now, config, out);
        self.on_ring_tick(now, config, out);
    }

    pub(super) fn ring_deadline(&self) -> Option<Deadline> {
        match &self.step {
            Step::Reducing(v) => Some((v.overdue_at(&self.times), v.waiting_for())),
            Step::Syncing
            | Step::Training
            | Step::Building { .. }
            | Step::Committed
            | Step::Applying(_)
            | Step::Attested { .. }
            | Step::SittingOut => None,
        }
    }
}
