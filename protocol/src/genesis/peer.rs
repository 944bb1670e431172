//! Peer ids as text: base58btc, as libp2p prints them.

use crate::ids::{MAX_ID_BYTES, PeerBytes};
use std::str::FromStr;

/// Why a text is no peer id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerParseError {
    /// A character outside the base58 alphabet (it has no 0, O, I and l).
    #[error("character {found:?} at position {position} is not base58")]
    Character {
        /// The character.
        found: char,
        /// Its place, from 0.
        position: usize,
    },
    /// Not the length of a peer id.
    #[error("it has the wrong length for a peer id")]
    Length,
}

/// base58 characters that 64 bytes can take.
const MAX_TEXT: usize = 88;

impl FromStr for PeerBytes {
    type Err = PeerParseError;

    fn from_str(text: &str) -> Result<Self, PeerParseError> {
        if text.is_empty() || text.len() > MAX_TEXT {
            return Err(PeerParseError::Length);
        }
        let mut bytes: Vec<u8> = Vec::new(); // little-endian
        for (position, found) in text.chars().enumerate() {
            let digit = digit(found).ok_or(PeerParseError::Character { found, position })?;
            multiply_add(&mut bytes, digit);
        }
        let zeros = text.chars().take_while(|c| *c == '1').count();
        bytes.resize(bytes.len() + zeros, 0);
        bytes.reverse();
        if bytes.len() > MAX_ID_BYTES {
            return Err(PeerParseError::Length);
        }
        Self::new(bytes).ok_or(PeerParseError::Length)
    }
}

fn digit(c: char) -> Option<u32> {
    const ALPHABET: &str = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";
    ALPHABET.find(c).map(|i| i as u32)
}

/// number ← number × 58 + digit.
fn multiply_add(number: &mut Vec<u8>, digit: u32) {
    let mut carry = digit;
    for byte in number.iter_mut() {
        carry += u32::from(*byte) * 58;
        *byte = carry as u8;
        carry >>= 8;
    }
    if carry > 0 {
        number.push(carry as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_libp2p_peer_id_reads() {
        let text = "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN";
        let peer: PeerBytes = text.parse().unwrap();
        assert_eq!(peer.as_bytes()[..6], [0, 0x24, 8, 1, 0x12, 0x20]);
        assert_eq!(peer.to_string(), text);
        let wrong = "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nX0N".parse::<PeerBytes>();
        assert_eq!(
            wrong,
            Err(PeerParseError::Character {
                found: '0',
                position: 50
            })
        );
        assert_eq!("".parse::<PeerBytes>(), Err(PeerParseError::Length));
    }

    proptest! {
        #[test]
        fn text_roundtrips(bytes in proptest::collection::vec(any::<u8>(), 1..=64)) {
            let peer = PeerBytes::new(bytes).unwrap();
            prop_assert_eq!(peer.to_string().parse::<PeerBytes>().unwrap(), peer);
        }
    }
}
