//! What a node does in the network (PROTOCOL section 1).

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// One role; a node runs any set of them.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Trains, commits signed deltas, takes its place in the ring.
    Worker,
    /// Evaluates committed deltas and signs reports.
    Validator,
    /// Schedules jobs, proposes manifests, publishes checkpoints.
    Orchestrator,
    /// Stable address that others join through: DHT server, tests whether others can be reached, relays to those that cannot.
    Bootstrap,
}

impl Role {
    /// Every role, in the order of their bits on the wire.
    pub const ALL: [Self; 4] = [Self::Worker, Self::Validator, Self::Orchestrator, Self::Bootstrap];

    /// The name used in configuration, on the command line and in the API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Worker => "worker",
            Self::Validator => "validator",
            Self::Orchestrator => "orchestrator",
            Self::Bootstrap => "bootstrap",
        }
    }

    fn bit(self) -> u8 {
        match self {
            Self::Worker => 1,
            Self::Validator => 2,
            Self::Orchestrator => 4,
            Self::Bootstrap => 8,
        }
    }
}

/// The roles of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Roles(BTreeSet<Role>);

impl Roles {
    /// Whether `role` is among them.
    #[must_use]
    pub fn has(&self, role: Role) -> bool {
        self.0.contains(&role)
    }

    /// Whether there is none: the node then only stores and serves content.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The roles, in order.
    pub fn iter(&self) -> impl Iterator<Item = Role> + '_ {
        self.0.iter().copied()
    }

    /// One bit a role, as `hello` carries them.
    #[must_use]
    pub fn to_bits(&self) -> u8 {
        self.iter().map(Role::bit).fold(0, |bits, bit| bits | bit)
    }

    /// The roles named by `bits`; bits of roles that this version does not know are ignored.
    #[must_use]
    pub fn from_bits(bits: u8) -> Self {
        Role::ALL
            .into_iter()
            .filter(|role| bits & role.bit() != 0)
            .collect()
    }
}

impl FromIterator<Role> for Roles {
    fn from_iter<I: IntoIterator<Item = Role>>(roles: I) -> Self {
        Self(roles.into_iter().collect())
    }
}

impl fmt::Display for Roles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("none");
        }
        let names: Vec<_> = self.iter().map(Role::name).collect();
        f.write_str(&names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_round_trip_and_unknown_ones_are_ignored() {
        for bits in 0..16 {
            assert_eq!(Roles::from_bits(bits).to_bits(), bits);
        }
        assert_eq!(Roles::from_bits(0xf3).to_string(), "worker, validator");
    }
}
