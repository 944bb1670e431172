//! `/gym/hello/1`: two nodes tell each other their network and who they are. Peers of another genesis are refused with
//! words that say why, on both sides (PROTOCOL sections 0 and 1).

use gym_protocol::cbor::{self, BoundedBytes, BoundedText, CborError};
use gym_protocol::ids::Hash32;
use serde::{Deserialize, Serialize};

/// The version of the protocol spoken.
pub(crate) const VERSION: u32 = 1;
/// The longest hello or reply: a record with two ML-DSA signatures and keys, and room.
pub(crate) const MAX_HELLO: usize = 48 * 1024;

/// What a node says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Version of the protocol.
    pub version: u32,
    /// Hash of its genesis file.
    pub genesis: Hash32,
    /// One bit a role.
    pub roles: u8,
    /// Its signed identity record, DAG-CBOR.
    pub record: BoundedBytes<{ 32 * 1024 }>,
    /// Program and version.
    pub agent: BoundedText<96>,
    /// When this process started, milliseconds since the Unix epoch: another value means another process, with which
    /// the earlier one's connections are dead whatever the transport still believes.
    pub started: u64,
}

/// The answer to a [`Hello`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// Welcome; the answerer's own hello.
    Welcome(Hello),
    /// No; why, in words for the other's log.
    Refused(BoundedText<256>),
}

impl Hello {
    pub(crate) fn encode(&self) -> Result<Vec<u8>, CborError> {
        cbor::to_wire(self)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, CborError> {
        cbor::from_wire(bytes, MAX_HELLO)
    }

    /// Why this node cannot be in one network with `self`, said to `self`'s sender.
    pub(crate) fn misfit(&self, ours: &Self) -> Option<String> {
        if self.version != ours.version {
            return Some(format!(
                "you speak protocol version {}, I speak version {}: the older program needs an update",
                self.version, ours.version
            ));
        }
        (self.genesis != ours.genesis).then(|| {
            format!(
                "your genesis hash is {}, mine is {}: these are different networks; check the genesis file and the \
                 bootstrap address",
                self.genesis.short(),
                ours.genesis.short()
            )
        })
    }
}

impl Reply {
    pub(crate) fn encode(&self) -> Result<Vec<u8>, CborError> {
        cbor::to_wire(self)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, CborError> {
        cbor::from_wire(bytes, MAX_HELLO)
    }

    /// A refusal in at most 256 bytes.
    pub(crate) fn refuse(reason: &str) -> Self {
        let cut = reason.floor_char_boundary(256);
        Self::Refused(BoundedText::try_from(reason[..cut].to_owned()).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(genesis: u8) -> Hello {
        Hello {
            version: VERSION,
            genesis: Hash32([genesis; 32]),
            roles: 5,
            record: vec![1; 9000].try_into().unwrap(),
            agent: "hanzod/0.1.0".to_owned().try_into().unwrap(),
            started: 1_700_000_000_000,
        }
    }

    #[test]
    fn hello_and_reply_round_trip() {
        let hello = hello(1);
        assert_eq!(Hello::decode(&hello.encode().unwrap()).unwrap(), hello);
        for reply in [Reply::Welcome(hello), Reply::refuse("no")] {
            assert_eq!(Reply::decode(&reply.encode().unwrap()).unwrap(), reply);
        }
    }

    #[test]
    fn another_network_is_told_what_to_check() {
        let reason = hello(1).misfit(&hello(2)).unwrap();
        assert!(
            reason.contains("your genesis hash is 01010101, mine is 02020202"),
            "{reason}"
        );
        assert_eq!(hello(1).misfit(&hello(1)), None);
    }

    #[test]
    fn a_long_refusal_is_cut() {
        let Reply::Refused(text) = Reply::refuse(&"ä".repeat(300)) else {
            panic!("refused")
        };
        assert_eq!(text.len(), 256);
    }
}
