//! Gossip topics: `gym/<genesis hash in hex>/<what>`.

use gym_protocol::ids::Hash32;
use libp2p::gossipsub::{IdentTopic, TopicHash};

/// What is gossiped on a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Topic {
    /// Signed jobs and their cancellation.
    Jobs,
    /// What members and orchestrator of a job say in a round.
    Rounds,
}

impl Topic {
    /// Every topic.
    pub const ALL: [Self; 2] = [Self::Jobs, Self::Rounds];

    /// The last part of the topic's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Jobs => "jobs",
            Self::Rounds => "rounds",
        }
    }

    /// The topic's full name in the network of `genesis`.
    pub(crate) fn full(self, genesis: &Hash32) -> IdentTopic {
        IdentTopic::new(format!("gym/{}/{}", genesis.to_hex(), self.name()))
    }

    /// The topic that `hash` names in the network of `genesis`.
    pub(crate) fn from_hash(hash: &TopicHash, genesis: &Hash32) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|topic| topic.full(genesis).hash() == *hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_carry_the_genesis_hash() {
        let genesis = Hash32([0xab; 32]);
        let hash = Topic::Jobs.full(&genesis).hash();
        assert_eq!(hash.as_str(), format!("gym/{}/jobs", "ab".repeat(32)));
        assert_eq!(Topic::from_hash(&hash, &genesis), Some(Topic::Jobs));
        assert_eq!(Topic::from_hash(&hash, &Hash32::ZERO), None);
    }
}
