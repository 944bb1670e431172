//! A sealed frame's bytes: `u32 header length ‖ header ‖ sealed payload`, inside the stream's own length frame.

use super::{LinkOffence, MAX_HEADER, MAX_PAYLOAD};
use gym_crypto::link::FIRST_OVERHEAD_BYTES;
use gym_protocol::cbor;
use gym_protocol::message::LinkHeader;

/// The longest frame: header, payload and the first message's overhead.
pub(super) const MAX_FRAME: usize = 4 + MAX_HEADER + MAX_PAYLOAD + FIRST_OVERHEAD_BYTES;

/// A frame taken apart; nothing of it is verified yet.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) header: LinkHeader,
    /// The header's bytes, the associated data.
    pub(super) associated: Vec<u8>,
    pub(super) sealed: Vec<u8>,
}

/// The bytes before the sealed payload.
pub(super) fn head(associated: &[u8]) -> Vec<u8> {
    // A header is at most MAX_HEADER long: it fits.
    let mut head = (associated.len() as u32).to_le_bytes().to_vec();
    head.extend_from_slice(associated);
    head
}

/// Takes a frame apart.
pub(super) fn parse(mut bytes: Vec<u8>) -> Result<Frame, LinkOffence> {
    let length: [u8; 4] = bytes
        .get(..4)
        .and_then(|b| b.try_into().ok())
        .ok_or(LinkOffence::BadHeader)?;
    let end = 4 + u32::from_le_bytes(length) as usize;
    if end > 4 + MAX_HEADER || end > bytes.len() {
        return Err(LinkOffence::BadHeader);
    }
    let sealed = bytes.split_off(end);
    let associated = bytes.split_off(4);
    let header = cbor::from_wire(&associated, MAX_HEADER).map_err(|_| LinkOffence::BadHeader)?;
    Ok(Frame {
        header,
        associated,
        sealed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gym_protocol::ids::{CidBytes, Hash32, PeerBytes};

    fn header() -> LinkHeader {
        LinkHeader {
            kind: 0,
            job: CidBytes::new(vec![1; 36]).unwrap(),
            round: 7,
            view: 1,
            manifest: Hash32([2; 32]),
            phase: 2,
            step: 3,
            chunk: 4,
            segment: 5,
            slot: 6,
            sender: PeerBytes::new(vec![3; 38]).unwrap(),
            receiver: PeerBytes::new(vec![4; 38]).unwrap(),
        }
    }

    #[test]
    fn frames_round_trip() {
        let associated = cbor::to_wire(&header()).unwrap();
        assert!(associated.len() <= MAX_HEADER);
        let bytes = [head(&associated).as_slice(), b"sealed"].concat();
        let frame = parse(bytes).unwrap();
        assert_eq!(
            (frame.header, frame.associated, frame.sealed),
            (header(), associated, b"sealed".to_vec())
        );
    }

    #[test]
    fn broken_headers_are_refused() {
        let good = head(&cbor::to_wire(&header()).unwrap());
        for cut in 0..good.len() {
            assert_eq!(parse(good[..cut].to_vec()).unwrap_err(), LinkOffence::BadHeader);
        }
        let mut long = good.clone();
        long[..4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(parse(long).unwrap_err(), LinkOffence::BadHeader);
        let mut other = good;
        other[4] ^= 0x20;
        assert_eq!(parse(other).unwrap_err(), LinkOffence::BadHeader);
    }
}
