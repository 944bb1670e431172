//! What of bitswap can be set.

use std::time::Duration;

/// Deadlines and bounds of the exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// A peer that was asked and sends less than 64 KiB in this time, or less than an eighth of what another would, loses
    /// what it was asked for to the others.
    pub stall: Duration,
    /// How long a peer that stalled, or could not be reached, is left alone at first; doubles up to sixteen times.
    pub rest: Duration,
    /// How long a peer's "don't have" is believed.
    pub refusal: Duration,
    /// How often one fetch looks for more providers while nobody it knows can help.
    pub search: Duration,
    /// How long a peer that broke the protocol is neither asked nor served.
    pub ban: Duration,
    /// How long one message may take to arrive, or to be written, once begun.
    pub message: Duration,
    /// How long a peer may read nothing of a message that is being written to it.
    pub quiet: Duration,
    /// Bytes of replies to all peers that may be under way.
    pub replies: usize,
    /// Providers that one fetch uses.
    pub providers: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            stall: Duration::from_secs(5),
            rest: Duration::from_secs(2),
            refusal: Duration::from_secs(10),
            search: Duration::from_secs(10),
            ban: Duration::from_secs(600),
            message: Duration::from_secs(120),
            // Others open their windows in steps of 128 KiB.
            quiet: Duration::from_secs(15),
            replies: 256 << 20,
            providers: 64,
        }
    }
}
