//! What the benchmark and its members say to each other: one JSON object a line over their pipes.

use super::stages::Stages;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What a member is to be.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Setup {
    /// Its slot.
    pub(super) slot: u32,
    /// Slots of the ring.
    pub(super) members: u32,
    /// Elements that each member brings.
    pub(super) elements: usize,
    /// Precision on the wire, by name.
    pub(super) wire: String,
    /// An empty folder of its own.
    pub(super) home: PathBuf,
    /// The address to listen on.
    pub(super) listen: String,
    /// Whether hops are signed.
    pub(super) hops: Hops,
    /// Whether frames may take sockets of their own.
    pub(super) direct_sockets: hanzod::net::DirectSockets,
}

/// Whether what members send on is hashed, signed and checked, as in a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(super) enum Hops {
    /// As in a job.
    Signed,
    /// Not at all: what hashing and signing cost is the difference.
    None,
}

/// From the benchmark to a member.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// Start, and say where you listen.
    Start(Setup),
    /// These are the members (peer ids in hex) in ring order, and this is where the next one after you listens.
    Meet { ring: Vec<String>, address: String },
    /// Make the round's delta.
    Prepare { round: u64 },
    /// Reduce it now.
    Go,
}

/// From a member.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// It listens.
    Listening { peer: String, address: String },
    /// It knows the next.
    Met,
    /// It has the round's delta.
    Prepared,
    /// It has the mean.
    Done(Box<Measured>),
    /// It cannot go on.
    Failed(String),
}

/// One round of one member.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Measured {
    /// From the order to the mean, seconds.
    pub(super) wall_s: f64,
    /// Processor time of the process meanwhile, seconds.
    pub(super) cpu_s: f64,
    /// What it went into.
    pub(super) stages: Stages,
    /// Sealed ring payload handed to the stream, bytes.
    pub(super) sealed_bytes: u64,
    /// Frame headers and lengths around it.
    pub(super) header_bytes: u64,
    /// Handshakes since the process began, bytes.
    pub(super) handshake_bytes: u64,
    /// BLAKE3 of the mean's bits, hex.
    pub(super) mean: String,
}
