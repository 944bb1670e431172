//! A reply's frame, written as its blocks are read, so that each byte is copied once.

use bytes::Bytes;
use cid::Cid;

use super::MAX_REPLY;
use super::buffers::{Buffers, WORTH_BORROWING};
use super::message::{Held, block_start, encode_presence};
use crate::content::store::{Reading, StoreError};
use crate::content::wire::{put_bytes, put_varint};

/// Room before the body for its length.
const HEADROOM: usize = 5;
/// What a block's fields take beside its bytes, at most.
const AROUND_A_BLOCK: usize = 32;

/// A reply under construction.
#[derive(Debug)]
pub(super) struct Writer<'a> {
    buffers: &'a Buffers,
    /// Headroom, then the body.
    bytes: Vec<u8>,
    presences: Vec<(Cid, Held)>,
    blocks: u64,
    block_bytes: usize,
}

/// A reply ready to be sent.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) frame: Bytes,
    pub(super) blocks: u64,
    pub(super) bytes: u64,
}

/// Whether a block found its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fits {
    Yes,
    /// The reply is closed: it would have become too long.
    No,
}

impl<'a> Writer<'a> {
    /// An empty reply.
    pub(super) fn new(buffers: &'a Buffers) -> Self {
        Self {
            bytes: start(Vec::new()),
            buffers,
            presences: Vec::new(),
            blocks: 0,
            block_bytes: 0,
        }
    }

    /// Appends a block unless the reply is full; `more` of about its size may follow.
    ///
    /// # Errors
    /// The store's; the reply is as it was before then.
    pub(super) fn block(&mut self, cid: &Cid, found: Reading<'_>, more: usize) -> Result<Fits, StoreError> {
        let size = found.size();
        if self.blocks > 0 && self.block_bytes.saturating_add(size) > MAX_REPLY {
            return Ok(Fits::No);
        }
        if self.blocks == 0 {
            let all = (more + 1).saturating_mul(size.saturating_add(AROUND_A_BLOCK));
            if all >= WORTH_BORROWING {
                self.bytes = start(self.buffers.take());
            }
            self.bytes.reserve(all.min(MAX_REPLY + MAX_REPLY / 16));
        }
        let start = self.bytes.len();
        block_start(&mut self.bytes, cid, size);
        let data = self.bytes.len();
        let read = found.append_to(&mut self.bytes);
        if read.is_err() {
            self.bytes.truncate(start);
            read?;
        }
        let appended = self.bytes.len() - data;
        debug_assert_eq!(appended, size, "a verified block has the size it was found with");
        self.blocks += 1;
        self.block_bytes += appended;
        Ok(Fits::Yes)
    }

    /// Notes whether a block is held.
    pub(super) fn presence(&mut self, cid: &Cid, held: Held) {
        self.presences.push((*cid, held));
    }

    /// The frame; nothing when there is nothing to say.
    pub(super) fn finish(mut self) -> Option<Reply> {
        if self.blocks == 0 && self.presences.is_empty() {
            return None;
        }
        for (cid, held) in &self.presences {
            put_bytes(&mut self.bytes, 4, &encode_presence(cid, *held));
        }
        let mut length = Vec::with_capacity(HEADROOM);
        put_varint(&mut length, (self.bytes.len() - HEADROOM) as u64);
        let start = HEADROOM - length.len();
        self.bytes[start..HEADROOM].copy_from_slice(&length);
        Some(Reply {
            frame: self.buffers.lend(self.bytes).slice(start..),
            blocks: self.blocks,
            bytes: self.block_bytes as u64,
        })
    }
}

/// Headroom and the want list: old nodes crash on a message without one.
fn start(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.clear();
    bytes.resize(HEADROOM, 0);
    put_bytes(&mut bytes, 1, &[]);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::bitswap::message::Message;
    use crate::content::block::{RAW, cid_of};
    use crate::content::store::{Config, Store};

    #[test]
    fn a_reply_is_the_message_that_it_says_it_is() {
        let root = tempfile::tempdir().unwrap();
        let store = Store::open(Config {
            root: root.path().into(),
            limit: u64::MAX,
        })
        .unwrap();
        let sizes = [1, 100, 300 << 10, 0, 1 << 20, 900 << 10];
        let blocks: Vec<(Cid, Bytes)> = sizes
            .iter()
            .map(|size| {
                let data = Bytes::from(vec![*size as u8; *size]);
                (store.put_new(RAW, &data).unwrap(), data)
            })
            .collect();
        let absent = cid_of(RAW, b"absent");
        let buffers = Buffers::default();
        let mut writer = Writer::new(&buffers);
        for (index, (cid, _)) in blocks.iter().enumerate() {
            let found = store.open_block(cid).unwrap().unwrap();
            let fits = writer.block(cid, found, 5 - index).unwrap();
            assert_eq!(fits, if index < 5 { Fits::Yes } else { Fits::No });
        }
        writer.presence(&absent, Held::No);
        let reply = writer.finish().unwrap();
        assert_eq!((reply.blocks, reply.bytes), (5, 101 + (300 << 10) + (1 << 20)));
        let message = Message {
            blocks: blocks[..5].to_vec(),
            presences: vec![(absent, Held::No)],
            ..Message::default()
        };
        assert_eq!(reply.frame, message.encode_frame());
        assert!(Writer::new(&buffers).finish().is_none());
    }

    #[test]
    fn a_damaged_block_leaves_no_trace() {
        let root = tempfile::tempdir().unwrap();
        let store = Store::open(Config {
            root: root.path().into(),
            limit: u64::MAX,
        })
        .unwrap();
        let cid = store.put_new(RAW, &[7; 1000]).unwrap();
        let shard = std::fs::read_dir(root.path().join("blocks"))
            .unwrap()
            .next()
            .unwrap()
            .unwrap();
        let file = std::fs::read_dir(shard.path()).unwrap().next().unwrap().unwrap();
        std::fs::write(file.path(), [8; 1000]).unwrap();
        let buffers = Buffers::default();
        let mut writer = Writer::new(&buffers);
        let found = store.open_block(&cid).unwrap().unwrap();
        assert!(matches!(
            writer.block(&cid, found, 0),
            Err(StoreError::Corrupt { .. })
        ));
        assert!(writer.finish().is_none());
        assert!(!store.has(&cid));
    }
}
