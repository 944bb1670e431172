//! The genesis file (PROTOCOL section 1): what the nodes of one network agree on before they meet.
//!
//! A person writes TOML ([`template`] gives a commented one); [`Genesis::parse`] checks it; [`Genesis::hash`] names the
//! network. Nodes with different hashes refuse each other. A key that is left out has the protocol's default, and the
//! hash is over the full body, so leaving it out and writing the default are the same genesis.

mod check;
mod constants;
mod file;
mod peer;

pub use constants::{Constants, Shares, Stakes};
pub use file::template;
pub use peer::PeerParseError;

use crate::cbor::{self, CborError};
use crate::ids::{Hash32, PeerBytes};
use serde::{Deserialize, Serialize};

/// The version of the protocol that a genesis file of this code speaks.
pub const PROTOCOL_VERSION: u32 = 1;
/// Base units of one GYM.
pub const GYM: u64 = 1_000_000_000;
/// The longest genesis file read, in bytes.
pub const MAX_FILE: usize = 4 << 20;

/// A checked genesis.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Genesis {
    /// The network's name: 1 to 64 of a-z, 0-9 and `-`.
    pub network: String,
    /// [`PROTOCOL_VERSION`].
    pub version: u32,
    /// When it was written, RFC 3339; tells apart two networks with one name.
    pub created: String,
    /// Addresses (multiaddr) of the bootstrap nodes, each ending in `/p2p/<peer id>`.
    pub bootstrap: Vec<String>,
    /// Numbers of the protocol that the network fixes.
    pub constants: Constants,
    /// The first validators.
    pub validators: Vec<Stake>,
    /// Other opening stakes.
    pub stakes: Vec<Stake>,
    /// Opening balances.
    pub balances: Vec<Balance>,
}

/// An opening stake, with the identity record that it pins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stake {
    /// Who.
    pub peer: PeerBytes,
    /// SHA3-256 of its first identity record's body.
    pub record: Hash32,
    /// What the stake is for.
    pub role: StakedRole,
    /// Base units.
    pub amount: u64,
}

/// A role that needs a stake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StakedRole {
    /// Trains.
    Worker,
    /// Re-checks work.
    Validator,
    /// Schedules jobs.
    Orchestrator,
}

/// An opening balance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Balance {
    /// Whose.
    pub peer: PeerBytes,
    /// Base units.
    pub amount: u64,
}

/// Why a genesis file is refused. The message names the key and says what it may be.
#[derive(Debug, thiserror::Error)]
pub enum GenesisError {
    /// Refused unread.
    #[error("the genesis file has {len} bytes; at most {MAX_FILE} are read")]
    TooLong {
        /// Its bytes.
        len: usize,
    },
    /// Not TOML, an unknown key or a wrong type; the source names line and column.
    #[error("the genesis file does not parse: {0}")]
    Parse(#[from] toml::de::Error),
    /// A value out of its range.
    #[error("genesis file: {key} is {got}; it must be {must}")]
    Range {
        /// The key, dotted, with its place in a list.
        key: String,
        /// What the file says.
        got: String,
        /// What is allowed.
        must: String,
    },
}

impl Genesis {
    /// Parses and checks a genesis file.
    ///
    /// # Errors
    /// An unknown key, a wrong type or a value out of range, named.
    pub fn parse(toml: &str) -> Result<Self, GenesisError> {
        if toml.len() > MAX_FILE {
            return Err(GenesisError::TooLong { len: toml.len() });
        }
        let file: file::GenesisFile = toml::from_str(toml)?;
        let genesis = file.into_genesis()?;
        check::check(&genesis)?;
        Ok(genesis)
    }

    /// The network's name for machines: SHA3-256 of the DAG-CBOR body.
    ///
    /// # Errors
    /// None for a parsed genesis: its body always encodes.
    pub fn hash(&self) -> Result<Hash32, CborError> {
        Ok(cbor::object_hash(&cbor::to_dag(self)?))
    }
}

#[cfg(test)]
mod tests;
