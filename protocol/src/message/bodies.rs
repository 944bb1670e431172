//! Bodies of the signed messages. Stored objects are DAG-CBOR maps; transient ones are CBOR arrays in field order.

use super::kept::Kept;
use crate::cbor::{Bounded, BoundedBytes};
use crate::ids::{CidBytes, Hash32, PeerBytes, Round, View};
use crate::job::spec::JobSpec;
use crate::ring::{Grid, PLACED_BYTES};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

/// Declares a struct that is a CBOR array of its fields in order.
macro_rules! wire_struct {
    ($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $field:ident : $ty:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name {
            $($(#[$fdoc])* pub $field: $ty,)*
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                ($(&self.$field,)*).serialize(s)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let ($($field,)*) = <($($ty,)*)>::deserialize(d)?;
                Ok(Self { $($field),* })
            }
        }
    };
}
pub(super) use wire_struct;

/// A job as its orchestrator announces it. The job's id is the CID (dag-cbor, sha2-256) of this body.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobBody {
    /// What is asked for.
    pub spec: Box<JobSpec>,
    /// Who schedules it; the only signer of its rosters and manifests.
    pub orchestrator: PeerBytes,
    /// Milliseconds since the Unix epoch, so that the same file submitted twice is two jobs.
    pub submitted: u64,
    /// Training questions in the set.
    pub rows: u64,
}

/// A place in a roster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RosterMember {
    /// Who.
    pub peer: PeerBytes,
    /// Hash of the identity record whose keys it signs with.
    pub record: Hash32,
    /// `at` of the [`Ready`] it is called by: a node that restarted since does not answer to it.
    pub ready_at: u64,
}

/// The frozen, ordered members of a round (PROTOCOL section 5). Its hash is the round beacon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Roster {
    /// The job.
    pub job: CidBytes,
    /// The round.
    pub round: Round,
    /// Which try at this round: it is tried again when no quorum closed it.
    pub attempt: u32,
    /// Members in order.
    pub members: Vec<RosterMember>,
    /// State hash the round starts from.
    pub parent: Hash32,
    /// Checkpoint of that state.
    pub checkpoint: CidBytes,
}

/// One contribution to the sum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Whose commit.
    pub member: PeerBytes,
    /// Its directory.
    pub cid: CidBytes,
    /// min(samples claimed, samples assigned).
    pub weight: u64,
    /// Who contributes it in the ring: the member, or a holder of its replica.
    pub server: PeerBytes,
}

/// Why a member's work is not in the sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// No commitment before the deadline.
    NoCommitment,
    /// A commitment without the receipts it needs.
    NoReceipts,
    /// Salt and CID were not revealed.
    NoReveal,
    /// Salt and CID do not open the commitment.
    FalseReveal,
    /// The delta could not be fetched.
    Unavailable,
    /// The delta file is malformed or its signatures are wrong.
    Malformed,
    /// The delta holds a NaN, an infinity or a number too large to be summed.
    NotFinite,
    /// The delta starts from another state.
    StaleParent,
    /// Two different commitments in one round.
    Equivocation,
}

impl Reason {
    /// For people.
    #[must_use]
    pub fn explain(self) -> &'static str {
        match self {
            Self::NoCommitment => "no commitment before the deadline",
            Self::NoReceipts => "its commitment has not the receipts it needs",
            Self::NoReveal => "salt and CID were not revealed",
            Self::FalseReveal => "salt and CID do not open the commitment",
            Self::Unavailable => "the delta could not be fetched",
            Self::Malformed => "the delta file is malformed or wrongly signed",
            Self::NotFinite => "the delta holds a NaN, an infinity or a number too large to be summed",
            Self::StaleParent => "the delta starts from another state",
            Self::Equivocation => "two different commitments in one round",
        }
    }
}

/// A member whose work is not in the sum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeftOut {
    /// Who.
    pub member: PeerBytes,
    /// Why.
    pub reason: Reason,
}

/// What is summed, in ring order (PROTOCOL section 5); decided once a view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The job.
    pub job: CidBytes,
    /// The round.
    pub round: Round,
    /// The view.
    pub view: View,
    /// Hash of the roster.
    pub roster: Hash32,
    /// State hash the round starts from.
    pub parent: Hash32,
    /// Contributions in ring order; in a grid row by row.
    pub entries: Vec<Entry>,
    /// Rows and columns, above `flat_ring_max` contributions; absent for one ring.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grid: Option<Grid>,
    /// Chunks whose means an earlier view of the round has finished, in order: they are not summed again. Absent where there
    /// are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<Kept>,
    /// Members without one.
    pub left_out: Vec<LeftOut>,
}

/// A member's word on the state that a round ends in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attest {
    /// The job.
    pub job: CidBytes,
    /// The round.
    pub round: Round,
    /// The view.
    pub view: View,
    /// Hash of the manifest.
    pub manifest: Hash32,
    /// State before.
    pub parent: Hash32,
    /// State after.
    pub state: Hash32,
    /// Checkpoint directory of the state after.
    pub checkpoint: CidBytes,
}

/// More than two thirds of a manifest's members with one value: the round is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Close {
    /// The job.
    pub job: CidBytes,
    /// The round.
    pub round: Round,
    /// The view.
    pub view: View,
    /// Hash of the manifest.
    pub manifest: Hash32,
    /// State after.
    pub state: Hash32,
    /// Its checkpoint.
    pub checkpoint: CidBytes,
    /// The attests' envelopes, by signer; none where `signers` is given.
    pub attests: Vec<ByteBuf>,
    /// Who attested where the attests do not fit a message: a bit for each of the manifest's entries, the lowest first. Each
    /// signer has gossiped its own attest, and who missed it asks for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signers: Option<ByteBuf>,
}

/// Attests that a close carries: about 5 KB each, so that it stays well below [`super::MAX_ENVELOPE`].
pub const MAX_INLINE_ATTESTS: usize = 128;

impl Close {
    /// The close with its certificate: the attests themselves while they fit a message, else who of the manifest's members
    /// has signed.
    #[must_use]
    pub fn certified<'a>(
        mut self,
        attests: &[super::Verified],
        members: impl Iterator<Item = &'a PeerBytes>,
    ) -> Self {
        if attests.len() <= MAX_INLINE_ATTESTS {
            self.attests = attests.iter().map(|a| a.envelope.clone().into()).collect();
            return self;
        }
        let signed: std::collections::BTreeSet<&PeerBytes> = attests.iter().map(|a| &a.sender).collect();
        let mut bits = Vec::new();
        for (i, member) in members.enumerate() {
            bits.resize(i / 8 + 1, 0u8);
            if let (true, Some(byte)) = (signed.contains(member), bits.last_mut()) {
                *byte |= 1 << (i % 8);
            }
        }
        self.signers = Some(ByteBuf::from(bits));
        self
    }

    /// Attests in the certificate, or named by it.
    #[must_use]
    pub fn signatures(&self) -> usize {
        let bits = |b: &ByteBuf| b.iter().map(|byte| byte.count_ones() as usize).sum();
        self.signers.as_ref().map_or(self.attests.len(), bits)
    }

    /// Whether the certificate names the manifest's entry `i`.
    #[must_use]
    pub fn names(&self, i: usize) -> bool {
        let byte = self.signers.as_ref().and_then(|bits| bits.get(i / 8));
        byte.is_some_and(|byte| byte >> (i % 8) & 1 == 1)
    }
}

/// A validator's word on a committed delta or a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// The job.
    pub job: CidBytes,
    /// Rounds closed before the state that was measured against.
    pub round: Round,
    /// What was evaluated.
    pub subject: Subject,
    /// Held-out questions asked.
    pub questions: u64,
    /// Right answers of the round state by greedy decoding.
    pub correct_before: u64,
    /// Right answers with the subject in place.
    pub correct_after: u64,
}

/// What a [`Report`] is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Subject {
    /// One member's committed delta.
    Delta {
        /// Whose.
        member: PeerBytes,
        /// Its directory.
        cid: CidBytes,
    },
    /// A whole checkpoint, against the base alone.
    Checkpoint {
        /// Its directory.
        cid: CidBytes,
    },
}

/// How a job stands when no round is running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// Waiting for members.
    Paused,
    /// All rounds closed.
    Done,
    /// Ended by its submitter.
    Cancelled,
    /// Ended by an error.
    Failed,
}

wire_struct! {
    /// "I hold the base model and the questions and can start": a worker, to the orchestrator.
    Ready {
        /// The job.
        job: CidBytes,
        /// Rounds closed in the state it holds.
        closed: u64,
        /// Hash of its identity record.
        record: Hash32,
        /// Milliseconds since the Unix epoch; later than any of an earlier process of this node.
        at: u64,
    }
}

wire_struct! {
    /// A promise of a delta before it is shown.
    Commitment {
        /// The job.
        job: CidBytes,
        /// The round.
        round: Round,
        /// Hash of the roster.
        roster: Hash32,
        /// SHA3-256(`gym/commit/v1` ‖ genesis ‖ PeerId ‖ salt ‖ CID).
        commitment: Hash32,
    }
}

wire_struct! {
    /// "I hold a checked replica of this member's commit."
    Receipt {
        /// The job.
        job: CidBytes,
        /// The round.
        round: Round,
        /// Hash of the roster.
        roster: Hash32,
        /// Whose commit.
        member: PeerBytes,
        /// Its commitment.
        commitment: Hash32,
        /// Its directory.
        cid: CidBytes,
    }
}

wire_struct! {
    /// The orchestrator's word that the commit deadline has passed: members share no clock, it measures for them.
    Cutoff {
        /// The job.
        job: CidBytes,
        /// The round.
        round: Round,
        /// Hash of the roster.
        roster: Hash32,
    }
}

wire_struct! {
    /// Opens a commitment; by the member, or by a holder of its replica.
    Reveal {
        /// The job.
        job: CidBytes,
        /// The round.
        round: Round,
        /// Hash of the roster.
        roster: Hash32,
        /// Whose commitment.
        member: PeerBytes,
        /// The salt.
        salt: Hash32,
        /// The directory.
        cid: CidBytes,
    }
}

wire_struct! {
    /// A member's complaint about another.
    Complaint {
        /// The job.
        job: CidBytes,
        /// The round.
        round: Round,
        /// The view; zero before there is one.
        view: View,
        /// Hash of the manifest, or of the roster before there is one.
        context: Hash32,
        /// Who is accused.
        accused: PeerBytes,
        /// [`Offence`] number.
        offence: u8,
        /// Ring segments the accuser still misses: who misses most waits for the one at fault, the others wait for it.
        missing: u32,
    }
}

wire_struct! {
    /// The orchestrator's word on a job outside its rounds.
    Status {
        /// The job.
        job: CidBytes,
        /// Rounds closed.
        closed: u64,
        /// [`Standing`] as a number: 0 paused, 1 done, 2 cancelled, 3 failed.
        standing: u8,
        /// For people; at most 512 bytes are kept.
        why: String,
    }
}

/// Links that one message names.
pub const MAX_LINKS: usize = 256;

wire_struct! {
    /// What a member measured of its links to others: the ring's order follows from it (PROTOCOL section 6).
    Links {
        /// The job.
        job: CidBytes,
        /// Each peer once.
        links: Bounded<Link, MAX_LINKS>,
    }
}

wire_struct! {
    /// A measured link.
    Link {
        /// To whom.
        peer: PeerBytes,
        /// One way, microseconds: half a round trip.
        delay_us: u32,
        /// Bytes a millisecond it carried; 0 when nothing was measured.
        bytes_per_ms: u32,
    }
}

/// Hops that one proof holds.
pub const MAX_PROOF_HOPS: usize = 256;

wire_struct! {
    /// Who lied in the ring, with the signatures that show it (PROTOCOL section 7.5): anyone who replays the manifest's
    /// committed deltas comes to the same.
    Proof {
        /// The job.
        job: CidBytes,
        /// The round.
        round: Round,
        /// Hash of the manifest.
        manifest: Hash32,
        /// Who.
        accused: PeerBytes,
        /// Hops with their places, as chains are handed out.
        hops: BoundedBytes<{ MAX_PROOF_HOPS * PLACED_BYTES }>,
    }
}

macro_rules! offences {
    ($($(#[$doc:meta])* $name:ident = $n:literal, $label:literal, $text:literal;)*) => {
        /// What a peer did wrong. The number is on the wire, the label in metrics, the text in logs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Offence { $($(#[$doc])* $name,)* }

        impl Offence {
            /// Every offence.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// Its number on the wire.
            #[must_use]
            pub fn number(self) -> u8 { match self { $(Self::$name => $n,)* } }

            /// The offence of a number.
            #[must_use]
            pub fn from_number(n: u8) -> Option<Self> { match n { $($n => Some(Self::$name),)* _ => None } }

            /// Its name in metrics.
            #[must_use]
            pub fn label(self) -> &'static str { match self { $(Self::$name => $label,)* } }

            /// For people, after "peer X: ".
            #[must_use]
            pub fn explain(self) -> &'static str { match self { $(Self::$name => $text,)* } }
        }
    };
}

offences! {
    /// Nothing came within the deadline.
    Timeout = 0, "timeout", "did not send its ring segment within the deadline";
    /// It cannot be reached.
    Unreachable = 1, "unreachable", "cannot be reached";
    /// A frame whose seal does not open.
    BadSeal = 2, "bad_seal", "sent a chunk whose seal does not open (bad tag)";
    /// A frame cut short.
    Truncated = 3, "truncated", "sent a truncated chunk";
    /// A chunk for another round.
    WrongRound = 4, "wrong_round", "sent a chunk for the wrong round";
    /// A segment that the schedule does not expect from it.
    Unexpected = 5, "unexpected", "sent a segment the ring does not expect";
    /// A value that is not finite or outside its bounds.
    BadValue = 6, "bad_value", "sent a value that is not finite or out of bounds";
    /// A committed delta with a NaN, an infinity or a number too large to be summed.
    DeltaNotFinite = 7, "delta_not_finite", "committed a delta that holds a NaN, an infinity or a number too large to be summed";
    /// A committed delta that is malformed or wrongly signed.
    DeltaMalformed = 8, "delta_malformed", "committed a delta that is malformed or wrongly signed";
    /// An attested state that the quorum does not share.
    StateDiffers = 9, "state_differs", "attested a state hash that differs from the quorum's";
    /// Two different commitments in one round.
    Equivocation = 10, "equivocation", "sent two different commitments in one round";
    /// A message that does not parse or whose signature is wrong.
    BadMessage = 11, "bad_message", "sent a message that does not parse or is wrongly signed";
    /// A chunk whose hop is wrongly signed, or says that something else was sent.
    BadHop = 12, "bad_hop", "sent a chunk that is not what its hop signature says";
    /// A sum that does not follow from what came in and the committed delta.
    FalseSum = 13, "false_sum", "lied about a sum: its signed hops do not follow from the committed deltas";
}

impl Offence {
    /// Silence may be the network's fault; the rest is the peer's own.
    #[must_use]
    pub fn is_silence(self) -> bool {
        matches!(self, Self::Timeout | Self::Unreachable)
    }
}
