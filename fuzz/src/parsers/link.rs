//! Frames of a sealed link.

#[path = "../../../node/src/link/frame.rs"]
mod frame;
#[path = "../../../node/src/link/offence.rs"]
mod offence;

use futures::executor::block_on;
use gym_protocol::buffers::Buffers;
use gym_protocol::cbor::to_wire;
use offence::LinkOffence;

/// As in `node/src/link/mod.rs`.
const MAX_PAYLOAD: usize = 4 << 20;
const MAX_HEADER: usize = 512;

/// Reads a stream of frames; what was read is what stands there.
pub(super) fn frames(bytes: &[u8]) {
    let buffers = Buffers::default();
    let mut reader = frame::Reader::new(buffers.clone());
    let mut io = futures::io::Cursor::new(bytes);
    let mut at = 0;
    while let Ok(Some(frame)) = block_on(frame::read(&mut io, &mut reader)) {
        assert_eq!(
            to_wire(&frame.header).expect("what was decoded encodes"),
            frame.associated
        );
        let head = frame::head(&frame.associated);
        let length = u32::try_from(head.len() + frame.sealed.len()).expect("a frame is short");
        let whole = [&length.to_le_bytes(), &head[..], &frame.sealed].concat();
        assert_eq!(bytes.get(at..at + whole.len()), Some(&whole[..]));
        at += whole.len();
        buffers.give(frame.sealed);
    }
}
