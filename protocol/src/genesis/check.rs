//! Ranges of a genesis file's values.

use super::{Constants, Genesis, GenesisError, PROTOCOL_VERSION, Stake, StakedRole};
use crate::ids::PeerBytes;
use std::collections::BTreeSet;
use std::fmt::Display;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

pub(super) fn check(genesis: &Genesis) -> Result<(), GenesisError> {
    check_name(&genesis.network)?;
    let version = genesis.version;
    require(
        version == PROTOCOL_VERSION,
        "version",
        version,
        "1, the version this program speaks",
    )?;
    let created = &genesis.created;
    let parses = OffsetDateTime::parse(created, &Rfc3339).is_ok();
    require(
        parses,
        "created",
        format!("{created:?}"),
        "a time as in 2026-01-31T12:00:00Z",
    )?;
    for (i, address) in genesis.bootstrap.iter().enumerate() {
        check_address(i, address)?;
    }
    check_constants(&genesis.constants)?;
    check_stakes("validators", &genesis.validators, &genesis.constants)?;
    check_stakes("stakes", &genesis.stakes, &genesis.constants)?;
    check_unique("balances", genesis.balances.iter().map(|b| (&b.peer, None)))?;
    let stakes = genesis.validators.iter().chain(&genesis.stakes);
    check_unique("stakes and validators", stakes.map(|s| (&s.peer, Some(s.role))))?;
    check_total(genesis)
}

fn require(ok: bool, key: impl Display, got: impl Display, must: impl Display) -> Result<(), GenesisError> {
    if ok {
        return Ok(());
    }
    Err(GenesisError::Range {
        key: key.to_string(),
        got: got.to_string(),
        must: must.to_string(),
    })
}

fn check_name(name: &str) -> Result<(), GenesisError> {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let ok = (1..=64).contains(&name.len()) && name.bytes().all(plain);
    require(
        ok,
        "network",
        format!("{name:?}"),
        "1 to 64 of a-z, 0-9 and \"-\"",
    )
}

/// The node parses the address in full; this finds what is surely none.
fn check_address(i: usize, address: &str) -> Result<(), GenesisError> {
    let peer = address
        .rsplit_once("/p2p/")
        .map(|(_, peer)| peer.parse::<PeerBytes>());
    let ok = address.starts_with('/') && address.len() <= 256 && matches!(peer, Some(Ok(_)));
    let must = "a multiaddr such as /ip4/203.0.113.7/tcp/4011/p2p/12D3KooW…, ending in the node's peer id";
    require(ok, format!("bootstrap[{i}]"), format!("{address:?}"), must)
}

/// Links have this window and no other (PROTOCOL section 2).
const REPLAY_WINDOW: u64 = 1024;
const BILLION: u64 = 1_000_000_000;

fn check_constants(c: &Constants) -> Result<(), GenesisError> {
    let within = |key: &str, value: u64, least: u64, most: u64| {
        let must = format!("{least} to {most}");
        require(
            (least..=most).contains(&value),
            format!("constants.{key}"),
            value,
            must,
        )
    };
    within("flat_ring_max", c.flat_ring_max.into(), 2, 4096)?;
    within("redundancy", c.redundancy.into(), 0, 8)?;
    within("clock_skew_seconds", c.clock_skew_seconds, 1, 3600)?;
    within("ratchet_messages", c.ratchet_messages, 1, 1 << 32)?;
    within("ratchet_seconds", c.ratchet_seconds, 1, 86_400)?;
    within("old_key_seconds", c.old_key_seconds, 0, c.ratchet_seconds)?;
    require(
        c.replay_window == REPLAY_WINDOW,
        "constants.replay_window",
        c.replay_window,
        format!("{REPLAY_WINDOW}, the window that links of this version have"),
    )?;
    within("challenge_seconds", c.challenge_seconds, 1, 1 << 32)?;
    within("unstake_seconds", c.unstake_seconds, 1, 1 << 32)?;
    within("slash_ppb", c.slash_ppb, 0, BILLION)?;
    within("epoch_seconds", c.epoch_seconds, 1, 1 << 32)?;
    within("halving_epochs", c.halving_epochs, 1, 1 << 32)?;
    within("job_cap_ppb", c.job_cap_ppb, 1, BILLION)?;
    within("supply", c.supply, 1, i64::MAX as u64)?;
    let s = &c.shares;
    let shares = [s.mining, s.staking, s.development, s.community, s.reserve];
    let total: u128 = shares.iter().copied().map(u128::from).sum();
    require(
        total == BILLION.into(),
        "the sum of constants.shares",
        total,
        "1000000000 (parts per billion)",
    )
}

fn check_stakes(list: &str, stakes: &[Stake], constants: &Constants) -> Result<(), GenesisError> {
    for (i, stake) in stakes.iter().enumerate() {
        let least = match stake.role {
            StakedRole::Worker => constants.stakes.worker,
            StakedRole::Validator => constants.stakes.validator,
            StakedRole::Orchestrator => constants.stakes.orchestrator,
        };
        let must = format!("at least {least}, the least stake of the role");
        require(
            stake.amount >= least,
            format!("{list}[{i}].stake"),
            stake.amount,
            must,
        )?;
    }
    Ok(())
}

fn check_unique<'a>(
    list: &str,
    entries: impl Iterator<Item = (&'a PeerBytes, Option<StakedRole>)>,
) -> Result<(), GenesisError> {
    let mut seen = BTreeSet::new();
    for entry in entries {
        let twice = || format!("{} twice", entry.0);
        require(
            seen.insert(entry),
            list,
            twice(),
            "a list that names each peer and role once",
        )?;
    }
    Ok(())
}

fn check_total(genesis: &Genesis) -> Result<(), GenesisError> {
    let stakes = genesis.validators.iter().chain(&genesis.stakes).map(|s| s.amount);
    let amounts = stakes.chain(genesis.balances.iter().map(|b| b.amount));
    let total: u128 = amounts.map(u128::from).sum();
    let supply = genesis.constants.supply;
    let must = format!("at most constants.supply, {supply}");
    require(
        total <= supply.into(),
        "the sum of all stakes and balances",
        total,
        must,
    )
}
