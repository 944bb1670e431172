//! Numbers that a network fixes at its start. The defaults are the protocol's.

use super::GYM;
use serde::{Deserialize, Serialize};

/// Constants of PROTOCOL sections 1, 2, 3, 6 and 10. Those of the file and wire formats (block and segment sizes,
/// cipher, hashes) are fixed with version 1 and are not here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Constants {
    /// Least stake by role, base units.
    pub stakes: Stakes,
    /// Rings of more members become a grid; where both take as long (`docs/scaling.md`).
    pub flat_ring_max: u32,
    /// Replica holders of a commit, where the job does not say.
    pub redundancy: u32,
    /// A timestamp further ahead of the reader's clock is refused, seconds.
    pub clock_skew_seconds: u64,
    /// A sealed link takes its next key after this many messages.
    pub ratchet_messages: u64,
    /// A sealed link takes its next key after this long, seconds.
    pub ratchet_seconds: u64,
    /// The receiver keeps a link's previous key this long, seconds.
    pub old_key_seconds: u64,
    /// A counter further behind the newest is refused as a replay; version 1 has 1,024 and takes no other.
    pub replay_window: u64,
    /// Rewards vest, and frauds are heard, for this long, seconds.
    pub challenge_seconds: u64,
    /// A stake is returned this long after it was asked back, seconds.
    pub unstake_seconds: u64,
    /// What fraud costs, parts per billion of the stake.
    pub slash_ppb: u64,
    /// Ledger epoch, seconds of block time.
    pub epoch_seconds: u64,
    /// The emission's rate halves after this many epochs.
    pub halving_epochs: u64,
    /// The most of an epoch's mining rewards that one job may take while others run, parts per billion.
    pub job_cap_ppb: u64,
    /// All base units there will ever be.
    pub supply: u64,
    /// What the supply is for.
    pub shares: Shares,
}

impl Default for Constants {
    fn default() -> Self {
        Self {
            stakes: Stakes::default(),
            flat_ring_max: 28,
            redundancy: 1,
            clock_skew_seconds: 120,
            ratchet_messages: 1 << 20,
            ratchet_seconds: 3600,
            old_key_seconds: 30,
            replay_window: 1024,
            challenge_seconds: 24 * 3600,
            unstake_seconds: 7 * 24 * 3600,
            slash_ppb: 100_000_000,
            epoch_seconds: 3600,
            halving_epochs: 4 * 8766, // hours of four years of 365.25 days
            job_cap_ppb: 250_000_000,
            supply: 1_000_000_000 * GYM,
            shares: Shares::default(),
        }
    }
}

/// Least stake by role, base units; bootstrap nodes need none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Stakes {
    /// Of a worker.
    pub worker: u64,
    /// Of a validator.
    pub validator: u64,
    /// Of an orchestrator.
    pub orchestrator: u64,
}

impl Default for Stakes {
    fn default() -> Self {
        Self {
            worker: 10_000 * GYM,
            validator: 25_000 * GYM,
            orchestrator: 50_000 * GYM,
        }
    }
}

/// The supply by purpose, parts per billion; together 10⁹.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Shares {
    /// Paid for verified training.
    pub mining: u64,
    /// Paid for stakes that vote.
    pub staking: u64,
    /// Development.
    pub development: u64,
    /// Grants and governance.
    pub community: u64,
    /// Reserve; slashes go here.
    pub reserve: u64,
}

impl Default for Shares {
    fn default() -> Self {
        Self {
            mining: 400_000_000,
            staking: 200_000_000,
            development: 150_000_000,
            community: 150_000_000,
            reserve: 100_000_000,
        }
    }
}
