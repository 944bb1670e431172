//! Bitswap 1.2: blocks asked for and given over libp2p (PROTOCOL section 8).
//!
//! [`Behaviour`] is what the swarm's owner composes; [`Fetcher`] is how the rest of the node asks for blocks. Inside,
//! `client` decides what to ask whom and `ledger` what to give whom, both pure; `handler` reads and writes the
//! streams of one connection; `message` is the wire form.
//!
//! ```text
//! Fetcher ──▶ Behaviour ─ client (wants, peers, windows, deadlines)
//!                 │     └ ledger (peers' wants, turns)
//!                 ├─ blocking jobs ─▶ Store
//!                 └─ handler × connection ─ message, reply
//! ```

mod behaviour;
mod buffers;
mod client;
mod config;
mod event;
mod fetcher;
mod handler;
mod jobs;
mod ledger;
mod line;
mod message;
mod reply;
mod stream;

pub use behaviour::Behaviour;
pub use config::Config;
pub use event::{Announcement, Counters, Event, Offence};
pub use fetcher::{Arrival, Fetcher, Offline, Session, SessionId, Wanted};
pub use message::MessageError;

use libp2p::StreamProtocol;

/// The protocol's name on the wire.
pub const PROTOCOL: StreamProtocol = StreamProtocol::new("/ipfs/bitswap/1.2.0");
/// The largest message that is read, in bytes; a longer one is refused by its length alone.
pub const MAX_MESSAGE: usize = 4 << 20;
/// Block bytes after which a reply is closed; other implementations stall on replies much above it.
pub const MAX_REPLY: usize = 2_000_000;
/// Wants that one peer may have open with us, and we with it.
pub const MAX_WANTS: usize = 1024;
