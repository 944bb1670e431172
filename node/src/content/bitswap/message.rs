//! The messages of bitswap 1.2 and their bounds. Every count is checked before memory is spent on it.

use bytes::Bytes;
use cid::Cid;
use cid::multihash::Multihash;
use multihash_codetable::{Code, MultihashDigest};

use super::MAX_MESSAGE;
use crate::content::block::{DAG_PB, MAX_BLOCK};
use crate::content::wire::{
    Reader, Value, Varint, WireError, put_bytes, put_number, put_varint, read_varint,
};

/// Entries (wants, cancels) or presences in one message. Ours have at most 1,024; others cancel in larger heaps.
const MAX_ENTRIES: usize = 16_384;
const MAX_BLOCKS: usize = 4096;
const SHA2_256: u64 = 0x12;

/// Why a message is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// Longer than a message may be.
    #[error("a message of {declared} bytes is over the limit of {MAX_MESSAGE}")]
    TooLong {
        /// The length it declares.
        declared: u64,
    },
    /// A length that is no integer.
    #[error("the length of a message is malformed")]
    Length,
    /// Not protobuf.
    #[error("malformed message: {0}")]
    Wire(#[from] WireError),
    /// A CID or a block's prefix that is not one, or whose hash we cannot compute.
    #[error("malformed message: bad CID or block prefix")]
    BadCid,
    /// More entries than a message may have.
    #[error("a message with more than {MAX_ENTRIES} wants")]
    TooManyEntries,
    /// More blocks than a message may have.
    #[error("a message with more than {MAX_BLOCKS} blocks")]
    TooManyBlocks,
    /// A block over the limit.
    #[error("a block of {size} bytes is over the limit of {MAX_BLOCK}")]
    BlockTooLarge {
        /// Its size.
        size: usize,
    },
}

/// A whole message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) scope: Scope,
    pub(super) entries: Vec<Entry>,
    pub(super) blocks: Vec<(Cid, Bytes)>,
    pub(super) presences: Vec<(Cid, Held)>,
}

/// Whether the entries are all that the sender wants, or changes to it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Scope {
    #[default]
    Changes,
    Everything,
}

/// A want or the end of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) cid: Cid,
    pub(super) kind: EntryKind,
    pub(super) absent: Absent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EntryKind {
    Block,
    Have,
    Cancel,
}

/// What the sender wants to hear about a block that is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Absent {
    Tell,
    Silence,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Held {
    Yes,
    No,
}

impl Entry {
    /// A want that expects an answer either way.
    pub(super) fn want(cid: Cid, kind: EntryKind) -> Self {
        Self {
            cid,
            kind,
            absent: Absent::Tell,
        }
    }

    pub(super) fn cancel(cid: Cid) -> Self {
        Self {
            cid,
            kind: EntryKind::Cancel,
            absent: Absent::Silence,
        }
    }
}

impl Message {
    /// The message with its length before it.
    pub(super) fn encode_frame(&self) -> Bytes {
        let body = self.encode();
        let mut frame = Vec::with_capacity(body.len() + 5);
        put_varint(&mut frame, body.len() as u64);
        frame.extend_from_slice(&body);
        Bytes::from(frame)
    }

    fn encode(&self) -> Vec<u8> {
        let blocks: usize = self.blocks.iter().map(|(_, data)| data.len() + 64).sum();
        let mut out = Vec::with_capacity(blocks + 64 * (self.entries.len() + self.presences.len()) + 16);
        // Old nodes crash on a message without the list, so an empty one is written too.
        put_bytes(&mut out, 1, &self.encode_wants());
        for (cid, data) in &self.blocks {
            block_start(&mut out, cid, data.len());
            out.extend_from_slice(data);
        }
        for (cid, held) in &self.presences {
            put_bytes(&mut out, 4, &encode_presence(cid, *held));
        }
        out
    }

    fn encode_wants(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for entry in &self.entries {
            put_bytes(&mut out, 1, &encode_entry(entry));
        }
        if self.scope == Scope::Everything {
            put_number(&mut out, 2, 1);
        }
        out
    }

    /// Decodes a message's body and computes its blocks' CIDs.
    pub(super) fn decode(body: &Bytes) -> Result<Self, MessageError> {
        let mut message = Self::default();
        let mut fields = Reader::new(body);
        while let Some(field) = fields.next_field()? {
            match field {
                (1, Value::Bytes(wants)) => message.decode_wants(wants)?,
                (3, Value::Bytes(block)) => message.decode_block(body, block)?,
                (4, Value::Bytes(presence)) => message.decode_presence(presence)?,
                // Blocks of bitswap 1.0 and the count of pending bytes say nothing that we use.
                _ => {}
            }
        }
        message.unshare(body.len());
        Ok(message)
    }

    /// Copies blocks that are the smaller part of their message, which they would else hold in memory.
    fn unshare(&mut self, body: usize) {
        let bytes: usize = self.blocks.iter().map(|(_, data)| data.len()).sum();
        if 2 * bytes < body {
            for (_, data) in &mut self.blocks {
                *data = Bytes::copy_from_slice(data);
            }
        }
    }

    fn decode_wants(&mut self, bytes: &[u8]) -> Result<(), MessageError> {
        let mut fields = Reader::new(bytes);
        while let Some(field) = fields.next_field()? {
            match field {
                (1, Value::Bytes(_)) if self.entries.len() == MAX_ENTRIES => {
                    return Err(MessageError::TooManyEntries);
                }
                (1, Value::Bytes(entry)) => self.entries.push(decode_entry(entry)?),
                (2, Value::Varint(full)) if full != 0 => self.scope = Scope::Everything,
                _ => {}
            }
        }
        Ok(())
    }

    fn decode_block(&mut self, body: &Bytes, bytes: &[u8]) -> Result<(), MessageError> {
        if self.blocks.len() == MAX_BLOCKS {
            return Err(MessageError::TooManyBlocks);
        }
        let (mut prefix, mut data): (&[u8], &[u8]) = (&[], &[]);
        let mut fields = Reader::new(bytes);
        while let Some(field) = fields.next_field()? {
            match field {
                (1, Value::Bytes(found)) => prefix = found,
                (2, Value::Bytes(found)) => data = found,
                _ => {}
            }
        }
        if data.len() > MAX_BLOCK {
            return Err(MessageError::BlockTooLarge { size: data.len() });
        }
        self.blocks
            .push((cid_from_prefix(prefix, data)?, body.slice_ref(data)));
        Ok(())
    }

    fn decode_presence(&mut self, bytes: &[u8]) -> Result<(), MessageError> {
        if self.presences.len() == MAX_ENTRIES {
            return Err(MessageError::TooManyEntries);
        }
        let (mut cid, mut held) = (None, Held::Yes);
        let mut fields = Reader::new(bytes);
        while let Some(field) = fields.next_field()? {
            match field {
                (1, Value::Bytes(found)) => cid = Some(decode_cid(found)?),
                (2, Value::Varint(kind)) => held = if kind == 0 { Held::Yes } else { Held::No },
                _ => {}
            }
        }
        self.presences.push((cid.ok_or(MessageError::BadCid)?, held));
        Ok(())
    }
}

/// The body's length at the start of a frame, once enough of it is there, and how many bytes it took.
pub(super) fn frame_length(start: &[u8]) -> Result<Option<(usize, usize)>, MessageError> {
    match read_varint(start) {
        Varint::Value(declared, used) => match usize::try_from(declared) {
            Ok(length) if length <= MAX_MESSAGE => Ok(Some((length, used))),
            _ => Err(MessageError::TooLong { declared }),
        },
        Varint::Incomplete => Ok(None),
        Varint::TooLong => Err(MessageError::Length),
    }
}

fn encode_entry(entry: &Entry) -> Vec<u8> {
    let mut out = Vec::with_capacity(48);
    put_bytes(&mut out, 1, &entry.cid.to_bytes());
    put_number(&mut out, 2, 1);
    match entry.kind {
        EntryKind::Cancel => put_number(&mut out, 3, 1),
        EntryKind::Have => put_number(&mut out, 4, 1),
        EntryKind::Block => {}
    }
    if entry.absent == Absent::Tell {
        put_number(&mut out, 5, 1);
    }
    out
}

fn decode_entry(bytes: &[u8]) -> Result<Entry, MessageError> {
    let (mut cid, mut cancel, mut have, mut tell) = (None, 0, 0, 0);
    let mut fields = Reader::new(bytes);
    while let Some(field) = fields.next_field()? {
        match field {
            (1, Value::Bytes(found)) => cid = Some(decode_cid(found)?),
            (3, Value::Varint(value)) => cancel = value,
            (4, Value::Varint(value)) => have = value,
            (5, Value::Varint(value)) => tell = value,
            _ => {}
        }
    }
    let kind = match (cancel, have) {
        (0, 0) => EntryKind::Block,
        (0, _) => EntryKind::Have,
        _ => EntryKind::Cancel,
    };
    let absent = if tell == 0 { Absent::Silence } else { Absent::Tell };
    Ok(Entry {
        cid: cid.ok_or(MessageError::BadCid)?,
        kind,
        absent,
    })
}

/// Everything of a message's block but its `size` bytes, which follow.
pub(super) fn block_start(out: &mut Vec<u8>, cid: &Cid, size: usize) {
    let mut prefix = Vec::with_capacity(16);
    put_varint(&mut prefix, cid.version().into());
    put_varint(&mut prefix, cid.codec());
    put_varint(&mut prefix, cid.hash().code());
    put_varint(&mut prefix, u64::from(cid.hash().size()));
    let mut fields = Vec::with_capacity(32);
    put_bytes(&mut fields, 1, &prefix);
    put_varint(&mut fields, 2 << 3 | 2);
    put_varint(&mut fields, size as u64);
    put_varint(out, 3 << 3 | 2);
    put_varint(out, (fields.len() + size) as u64);
    out.extend_from_slice(&fields);
}

pub(super) fn encode_presence(cid: &Cid, held: Held) -> Vec<u8> {
    let mut out = Vec::with_capacity(48);
    put_bytes(&mut out, 1, &cid.to_bytes());
    put_number(&mut out, 2, u64::from(held == Held::No));
    out
}

fn decode_cid(bytes: &[u8]) -> Result<Cid, MessageError> {
    Cid::try_from(bytes).map_err(|_| MessageError::BadCid)
}

/// A block travels with everything of its CID but the hash, which the receiver computes.
fn cid_from_prefix(prefix: &[u8], data: &[u8]) -> Result<Cid, MessageError> {
    let mut reader = Reader::new(prefix);
    let mut next = || -> Result<u64, MessageError> { reader.next_varint()?.ok_or(MessageError::BadCid) };
    let (version, codec, code, size) = (next()?, next()?, next()?, next()?);
    if code != SHA2_256 || size != 32 {
        return Err(MessageError::BadCid);
    }
    let hash: Multihash<64> = Code::Sha2_256.digest(data);
    match (version, codec) {
        (1, codec) => Ok(Cid::new_v1(codec, hash)),
        (0, DAG_PB) => Cid::new_v0(hash).map_err(|_| MessageError::BadCid),
        _ => Err(MessageError::BadCid),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::block::{RAW, cid_of};
    use proptest::prelude::*;

    fn body(message: &Message) -> Bytes {
        Bytes::from(message.encode())
    }

    /// What fuzzing found (`fuzz/src/node.rs`: files whose first byte is 0 modulo 4).
    #[test]
    fn the_fuzz_corpus_runs() {
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus/node");
        let mut files = 0;
        for file in std::fs::read_dir(corpus).unwrap() {
            let bytes = Bytes::from(std::fs::read(file.unwrap().path()).unwrap());
            if bytes.first().is_some_and(|what| what % 4 == 0) {
                files += 1;
                let _ = Message::decode(&bytes.slice(1..));
            }
        }
        assert!(files > 0, "no files in {corpus}");
    }

    #[test]
    fn messages_round_trip() {
        let cid = cid_of(RAW, b"data");
        let v0 = Cid::new_v0(*cid.hash()).unwrap();
        let message = Message {
            scope: Scope::Everything,
            entries: vec![
                Entry::want(cid, EntryKind::Block),
                Entry::want(v0, EntryKind::Have),
                Entry::cancel(cid),
            ],
            blocks: vec![
                (cid, Bytes::from_static(b"data")),
                (v0, Bytes::from_static(b"data")),
            ],
            presences: vec![(cid, Held::Yes), (v0, Held::No)],
        };
        assert_eq!(Message::decode(&body(&message)).unwrap(), message);
        let frame = message.encode_frame();
        let (length, used) = frame_length(&frame).unwrap().unwrap();
        assert_eq!(length + used, frame.len());
    }

    #[test]
    fn the_want_list_is_always_written() {
        assert_eq!(Message::default().encode(), [0x0a, 0x00]);
    }

    #[test]
    fn a_long_message_is_refused_by_its_length() {
        let mut start = Vec::new();
        put_varint(&mut start, MAX_MESSAGE as u64 + 1);
        assert!(matches!(frame_length(&start), Err(MessageError::TooLong { .. })));
        assert_eq!(frame_length(&[0x80]).unwrap(), None);
    }

    #[test]
    fn a_million_wants_are_refused() {
        // The smallest entries there are; a CID-less one is refused at once, so these carry identity CIDs.
        let mut wants = Vec::new();
        for _ in 0..100_000 {
            put_bytes(&mut wants, 1, &[0x0a, 0x04, 0x01, 0x55, 0x00, 0x00]);
        }
        let mut body = Vec::new();
        put_bytes(&mut body, 1, &wants);
        assert!(body.len() < MAX_MESSAGE);
        assert_eq!(Message::decode(&body.into()), Err(MessageError::TooManyEntries));
    }

    #[test]
    fn a_block_over_the_limit_is_refused() {
        let data = Bytes::from(vec![0; MAX_BLOCK + 1]);
        let message = Message {
            blocks: vec![(cid_of(RAW, &data), data)],
            ..Message::default()
        };
        assert!(matches!(
            Message::decode(&body(&message)),
            Err(MessageError::BlockTooLarge { .. })
        ));
    }

    proptest! {
        #[test]
        fn foreign_messages_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Message::decode(&Bytes::from(bytes));
        }
    }
}
