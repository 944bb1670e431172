//! Blocks that have just come, kept in memory for whoever reads them next.
//!
//! A fetch whose content is written out at once would read from the disk, and hash, what it wrote there a moment ago.
//! While somebody holds a [`Recall`], the last blocks that arrived, which were verified then, are given out of memory.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use cid::Cid;

use super::layout::Key;
use super::{Store, lock};

/// Bytes kept, all holders together.
const LIMIT: usize = 16 << 20;

/// Has arriving blocks kept in memory while it lives. See [`Store::recall`].
#[derive(Debug)]
#[must_use]
pub struct Recall<'a>(&'a Store);

impl Store {
    /// Keeps the last 16 MiB of arriving blocks in memory until the guard is dropped.
    pub fn recall(&self) -> Recall<'_> {
        lock(&self.recalled).holders += 1;
        Recall(self)
    }

    /// Takes note of a block that has just been verified and stored.
    pub(in crate::content) fn remember(&self, cid: &Cid, data: Bytes) {
        lock(&self.recalled).insert(Key::of(cid), data);
    }
}

impl Drop for Recall<'_> {
    fn drop(&mut self) {
        let mut recalled = lock(&self.0.recalled);
        recalled.holders -= 1;
        if recalled.holders == 0 {
            *recalled = Recalled::default();
        }
    }
}

/// The blocks, oldest first.
#[derive(Debug, Default)]
pub(super) struct Recalled {
    holders: usize,
    bytes: usize,
    blocks: HashMap<Key, Bytes>,
    order: VecDeque<Key>,
}

impl Recalled {
    pub(super) fn get(&self, key: &Key) -> Option<Bytes> {
        self.blocks.get(key).cloned()
    }

    pub(super) fn forget(&mut self, key: &Key) {
        if let Some(data) = self.blocks.remove(key) {
            self.bytes -= data.len();
        }
    }

    fn insert(&mut self, key: Key, data: Bytes) {
        if self.holders == 0 {
            return;
        }
        self.forget(&key);
        self.bytes += data.len();
        self.order.push_back(key.clone());
        self.blocks.insert(key, data);
        while self.bytes > LIMIT || self.order.len() > 2 * self.blocks.len() + 16 {
            let Some(oldest) = self.order.pop_front() else {
                break;
            };
            self.forget(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::block::{RAW, cid_of};

    fn block(number: u8, size: usize) -> (Key, Bytes) {
        let data = Bytes::from(vec![number; size]);
        (Key::of(&cid_of(RAW, &data)), data)
    }

    #[test]
    fn the_last_blocks_are_kept_within_the_limit() {
        let mut recalled = Recalled {
            holders: 1,
            ..Recalled::default()
        };
        let blocks: Vec<_> = (0..40).map(|number| block(number, 1 << 20)).collect();
        for (key, data) in &blocks {
            recalled.insert(key.clone(), data.clone());
        }
        assert_eq!(recalled.bytes, LIMIT);
        assert_eq!(recalled.get(&blocks[23].0), None);
        assert_eq!(recalled.get(&blocks[24].0), Some(blocks[24].1.clone()));
        recalled.forget(&blocks[24].0);
        assert_eq!(recalled.get(&blocks[24].0), None);
        assert_eq!(recalled.bytes, LIMIT - (1 << 20));
    }

    #[test]
    fn nothing_is_kept_for_nobody() {
        let mut recalled = Recalled::default();
        let (key, data) = block(1, 10);
        recalled.insert(key.clone(), data);
        assert_eq!(recalled.get(&key), None);
    }
}
