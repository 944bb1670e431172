//! The TOML form of a genesis, and a commented template of it.

use super::{Balance, Constants, Genesis, GenesisError, PROTOCOL_VERSION, PeerParseError, Stake, StakedRole};
use crate::ids::{Hash32, PeerBytes};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GenesisFile {
    network: String,
    #[serde(default = "version")]
    version: u32,
    created: String,
    #[serde(default)]
    bootstrap: Vec<String>,
    #[serde(default)]
    constants: Constants,
    #[serde(default)]
    validators: Vec<ValidatorEntry>,
    #[serde(default)]
    stakes: Vec<StakeEntry>,
    #[serde(default)]
    balances: Vec<BalanceEntry>,
}

fn version() -> u32 {
    PROTOCOL_VERSION
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ValidatorEntry {
    peer: String,
    record: String,
    stake: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StakeEntry {
    peer: String,
    record: String,
    role: StakedRole,
    stake: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BalanceEntry {
    peer: String,
    amount: u64,
}

impl GenesisFile {
    pub(super) fn into_genesis(self) -> Result<Genesis, GenesisError> {
        let validators = list("validators", self.validators, ValidatorEntry::resolve)?;
        let stakes = list("stakes", self.stakes, StakeEntry::resolve)?;
        let balances = list("balances", self.balances, BalanceEntry::resolve)?;
        Ok(Genesis {
            network: self.network,
            version: self.version,
            created: self.created,
            bootstrap: self.bootstrap,
            constants: self.constants,
            validators,
            stakes,
            balances,
        })
    }
}

fn list<A, B>(
    key: &str,
    entries: Vec<A>,
    resolve: impl Fn(A, &str) -> Result<B, GenesisError>,
) -> Result<Vec<B>, GenesisError> {
    entries
        .into_iter()
        .enumerate()
        .map(|(i, e)| resolve(e, &format!("{key}[{i}]")))
        .collect()
}

impl ValidatorEntry {
    fn resolve(self, key: &str) -> Result<Stake, GenesisError> {
        Ok(Stake {
            peer: peer(key, &self.peer)?,
            record: record(key, &self.record)?,
            role: StakedRole::Validator,
            amount: self.stake,
        })
    }
}

impl StakeEntry {
    fn resolve(self, key: &str) -> Result<Stake, GenesisError> {
        Ok(Stake {
            peer: peer(key, &self.peer)?,
            record: record(key, &self.record)?,
            role: self.role,
            amount: self.stake,
        })
    }
}

impl BalanceEntry {
    fn resolve(self, key: &str) -> Result<Balance, GenesisError> {
        Ok(Balance {
            peer: peer(key, &self.peer)?,
            amount: self.amount,
        })
    }
}

fn peer(key: &str, text: &str) -> Result<PeerBytes, GenesisError> {
    let refuse = |why: &str| GenesisError::Range {
        key: format!("{key}.peer"),
        got: format!("{text:?}"),
        must: format!("a peer id as `hanzod status` prints it ({why})"),
    };
    let peer: PeerBytes = text.parse().map_err(|e: PeerParseError| refuse(&e.to_string()))?;
    let bytes = peer.as_bytes();
    if bytes.len() != ED25519_PEER.len() + 32 || !bytes.starts_with(&ED25519_PEER) {
        return Err(refuse("it is not that of an Ed25519 key"));
    }
    Ok(peer)
}

/// What every Ed25519 peer id begins with: an identity multihash of 36 bytes, key type 1, 32 bytes of key.
const ED25519_PEER: [u8; 6] = [0, 36, 8, 1, 18, 32];

fn record(key: &str, text: &str) -> Result<Hash32, GenesisError> {
    Hash32::from_hex(text).map_err(|e| GenesisError::Range {
        key: format!("{key}.record"),
        got: format!("{text:?}"),
        must: format!("the SHA3-256 of an identity record, 64 hexadecimal digits ({e})"),
    })
}

/// A genesis file with the protocol's defaults, each key explained: what `genesis new` writes. `created` is RFC 3339.
#[must_use]
pub fn template(network: &str, created: &str) -> String {
    TEMPLATE
        .replace("@network@", network)
        .replace("@created@", created)
}

const TEMPLATE: &str = include_str!("template.toml");
