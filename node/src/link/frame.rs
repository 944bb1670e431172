//! A sealed frame's bytes: `u32 header length ‖ header ‖ sealed payload`, inside the stream's own length frame.

use super::{LinkOffence, MAX_HEADER, MAX_PAYLOAD};
use futures::{AsyncRead, AsyncReadExt};
use gym_crypto::link::FIRST_OVERHEAD_BYTES;
use gym_protocol::buffers::Buffers;
use gym_protocol::cbor;
use gym_protocol::message::LinkHeader;
use std::io;
use std::time::Instant;

/// The longest frame: header, payload and the first message's overhead.
pub(super) const MAX_FRAME: usize = 4 + MAX_HEADER + MAX_PAYLOAD + FIRST_OVERHEAD_BYTES;

/// What is allocated for a payload before anything of it has come.
const FIRST_PIECE: usize = 64 * 1024;

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

/// Why no frame was read.
#[derive(Debug, thiserror::Error)]
pub(super) enum FrameError {
    /// The stream broke, or ended within a frame.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The bytes are no frame.
    #[error("no frame: {0}")]
    Offence(LinkOffence),
}

/// Reads one frame; `None` when the stream ends before its first byte. `reader` remembers how much has come before.
pub(super) async fn read<T: AsyncRead + Unpin>(
    io: &mut T,
    reader: &mut Reader,
) -> Result<Option<Frame>, FrameError> {
    let mut lengths = [0; 8];
    if io.read(&mut lengths[..1]).await? == 0 {
        return Ok(None);
    }
    reader.began = Instant::now();
    io.read_exact(&mut lengths[1..4]).await?;
    let whole = u32_at(&lengths, 0);
    if whole > MAX_FRAME {
        return Err(FrameError::Offence(LinkOffence::Oversized));
    }
    let bad = || FrameError::Offence(LinkOffence::BadHeader);
    let after = whole.checked_sub(4).ok_or_else(bad)?;
    io.read_exact(&mut lengths[4..]).await?;
    let header_length = u32_at(&lengths, 4);
    if header_length > MAX_HEADER || header_length > after {
        return Err(bad());
    }
    let mut associated = vec![0; header_length];
    io.read_exact(&mut associated).await?;
    let header = cbor::from_wire(&associated, MAX_HEADER).map_err(|_| bad())?;
    let sealed = reader.payload(io, after - header_length).await?;
    Ok(Some(Frame {
        header,
        associated,
        sealed,
    }))
}

fn u32_at(bytes: &[u8; 8], at: usize) -> usize {
    let four = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
    u32::from_le_bytes(four) as usize
}

/// Reads payloads of one link into memory that is used again.
#[derive(Debug)]
pub(super) struct Reader {
    buffers: Buffers,
    /// The longest payload so far.
    longest: usize,
    /// When the first byte of the latest frame came.
    pub(super) began: Instant,
}

impl Reader {
    pub(super) fn new(buffers: Buffers) -> Self {
        Self {
            buffers,
            longest: 0,
            began: Instant::now(),
        }
    }

    /// Memory grows with what arrives, not with what is announced: a payload longer than the link has brought before is
    /// read piece by piece.
    async fn payload<T: AsyncRead + Unpin>(&mut self, io: &mut T, length: usize) -> io::Result<Vec<u8>> {
        let mut payload = match self.buffers.take(length) {
            Some(buffer) => buffer,
            None => vec![0; length.min(self.longest.max(FIRST_PIECE))],
        };
        let mut filled = 0;
        loop {
            io.read_exact(&mut payload[filled..]).await?;
            filled = payload.len();
            if filled == length {
                break;
            }
            payload.resize(length.min(4 * filled), 0);
        }
        self.longest = self.longest.max(length);
        Ok(payload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::executor::block_on;
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

    /// Reads the frames of a stream that is `bytes`.
    fn frames(bytes: &[u8]) -> Result<Vec<Frame>, FrameError> {
        let mut reader = Reader::new(Buffers::default());
        let mut io = futures::io::Cursor::new(bytes);
        let mut frames = Vec::new();
        while let Some(frame) = block_on(read(&mut io, &mut reader))? {
            frames.push(frame);
        }
        Ok(frames)
    }

    /// As it is on the stream.
    fn written(head: &[u8], sealed: &[u8]) -> Vec<u8> {
        let length = ((head.len() + sealed.len()) as u32).to_le_bytes();
        [&length, head, sealed].concat()
    }

    #[test]
    fn frames_round_trip() {
        let associated = cbor::to_wire(&header()).unwrap();
        assert!(associated.len() <= MAX_HEADER);
        let head = head(&associated);
        let payloads = [vec![], b"sealed".to_vec(), vec![7; 1 << 20], vec![8; 1 << 19]];
        let stream: Vec<u8> = payloads.iter().flat_map(|p| written(&head, p)).collect();
        let read = frames(&stream).unwrap();
        assert_eq!(read.len(), payloads.len());
        for (frame, payload) in read.into_iter().zip(payloads) {
            assert_eq!(
                (frame.header, &frame.associated, frame.sealed),
                (header(), &associated, payload)
            );
        }
    }

    #[test]
    fn an_end_is_quiet_between_frames_only() {
        let whole = written(&head(&cbor::to_wire(&header()).unwrap()), b"sealed");
        for cut in 0..whole.len() {
            match frames(&whole[..cut]) {
                Ok(read) => assert!(cut == 0 && read.is_empty()),
                Err(FrameError::Io(e)) => assert_eq!(e.kind(), io::ErrorKind::UnexpectedEof),
                Err(FrameError::Offence(what)) => panic!("cut at {cut}: {what}"),
            }
        }
    }

    #[test]
    fn broken_frames_are_refused() {
        let offence = |bytes: &[u8]| match frames(bytes) {
            Err(FrameError::Offence(what)) => what,
            other => panic!("{other:?}"),
        };
        assert_eq!(offence(&u32::MAX.to_le_bytes()), LinkOffence::Oversized);
        assert_eq!(offence(&3u32.to_le_bytes()), LinkOffence::BadHeader);
        let good = written(&head(&cbor::to_wire(&header()).unwrap()), b"sealed");
        let mut long = good.clone();
        long[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(offence(&long), LinkOffence::BadHeader);
        let mut beyond = good.clone();
        beyond[4..8].copy_from_slice(&(good.len() as u32 - 7).to_le_bytes());
        assert_eq!(offence(&beyond), LinkOffence::BadHeader);
        let mut other = good;
        other[8] ^= 0x20;
        assert_eq!(offence(&other), LinkOffence::BadHeader);
    }
}
