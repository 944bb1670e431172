//! What an orchestrator works with: its configuration, what happens to it, what it asks for.

use super::Answered;
use crate::ids::{CidBytes, Hash32, PeerBytes, Round};
use crate::job::spec::JobSpec;
use crate::member::{DeltaFacts, Held};
use crate::message::{Body, Offence, Reason, Standing, Verified};
use crate::ring::Finding;

/// Who orchestrates what.
#[derive(Clone, Debug)]
pub struct Config {
    /// This node.
    pub me: PeerBytes,
    /// The network.
    pub genesis: Hash32,
    /// The job.
    pub job: CidBytes,
    /// What it asks for.
    pub spec: JobSpec,
    /// Training questions in the set.
    pub rows: u64,
    /// Elements of a ring segment; smaller in tests.
    pub segment: usize,
    /// More contributions than this are summed in a grid (a constant of the network).
    pub flat_ring_max: u32,
}

/// What happens to an orchestrator.
#[derive(Clone, Debug)]
pub enum Event {
    /// A checked message.
    Message(Box<Verified>),
    /// Checkpoint 0, made from the job's seed.
    Prepared(Held),
    /// Checkpoint 0 could not be made.
    PrepareFailed(String),
    /// [`Action::CheckDelta`] is done.
    DeltaChecked {
        /// Its roster.
        roster: Hash32,
        /// Whose.
        member: PeerBytes,
        /// Its directory.
        cid: CidBytes,
        /// What it says of itself, or what is wrong.
        outcome: Result<DeltaFacts, Reason>,
    },
    /// [`Action::Audit`] is done.
    Audited {
        /// The manifest.
        manifest: Hash32,
        /// What it came to.
        outcome: Audited,
        /// What follows from the committed deltas, where all of the sum was replayed.
        follows: Option<Follows>,
    },
    /// [`Action::Probe`] is done.
    Probed {
        /// Who was asked.
        peer: PeerBytes,
        /// Under which manifest.
        manifest: Hash32,
        /// Whether it answered.
        answered: Answered,
    },
    /// No connection to this peer is left.
    PeerLost(PeerBytes),
    /// A connection to this peer is there.
    PeerSeen(PeerBytes),
    /// The submitter takes the job back.
    Cancel,
    /// A deadline may have passed.
    Tick,
}

/// What an audit of a round's sum came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Audited {
    /// What was replayed is what the members' hops say.
    Sound,
    /// Somebody lied.
    Found(Box<Finding>),
    /// It could not be told, and why: the round closes on its attests.
    Open(String),
}

/// What a round must end in: the outer step of the replayed mean from the round's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Follows {
    /// The state's hash.
    pub state: Hash32,
    /// Its checkpoint's directory.
    pub checkpoint: CidBytes,
}

/// What an orchestrator asks of its driver.
#[derive(Clone, Debug)]
pub enum Action {
    /// Sign and gossip.
    Publish(Body),
    /// Make checkpoint 0.
    Prepare,
    /// Fetch a committed delta and check its form; the holders have it too.
    CheckDelta {
        /// Its roster.
        roster: Hash32,
        /// The round.
        round: Round,
        /// Whose.
        member: PeerBytes,
        /// Its directory.
        cid: CidBytes,
        /// Who has it.
        from: Vec<PeerBytes>,
    },
    /// Replay the manifest's sum from its committed deltas, all of it or a random part, and hold it against the members' hops;
    /// where it is all of it, take the outer step too.
    Audit {
        /// The round.
        round: Round,
        /// The manifest.
        manifest: Hash32,
    },
    /// Ask a peer for a sign of life.
    Probe {
        /// Whom.
        peer: PeerBytes,
        /// The manifest under which it was called silent.
        manifest: Hash32,
        /// How long it may take.
        within_ms: u64,
    },
    /// Close the round: sign and gossip.
    Close {
        /// The close with its certificate.
        body: crate::message::Close,
        /// The attests that it carries.
        attests: Vec<Verified>,
    },
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
    /// The job is over.
    Finished(Standing),
}

/// What an orchestrator is doing, for status displays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// Making checkpoint 0.
    Preparing,
    /// Waiting for enough members.
    Recruiting,
    /// Members train.
    Training,
    /// Commits are revealed and checked.
    Collecting,
    /// Members reduce and attest.
    Reducing,
    /// Below `min_workers`.
    Paused,
    /// Over.
    Finished,
}
