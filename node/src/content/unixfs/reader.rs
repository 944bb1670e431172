//! A file's bytes as a stream.

use std::io::{self, Read};

use bytes::{Buf, Bytes};
use cid::Cid;

use super::node::{FileNode, Node, Part};
use super::read::{follow, load};
use super::{ContentPath, ReadError};
use crate::content::store::Store;

/// Levels of a file's tree; 174^8 chunks are more than any disk holds.
const MAX_TREE_DEPTH: usize = 16;

/// Where somebody is in a file that is read block by block; memory is a block and one list of parts a level.
#[derive(Debug, Default)]
pub struct FileCursor {
    size: u64,
    /// Bytes left to pass over before anything is given out.
    skip: u64,
    current: Bytes,
    /// What is still to be read, next last, with its level in the tree.
    todo: Vec<(Part, usize)>,
}

impl FileCursor {
    /// The start of the file at `path`.
    ///
    /// # Errors
    /// [`ReadError::IsDirectory`] and others, naming the block.
    pub fn open(store: &Store, path: &ContentPath) -> Result<Self, ReadError> {
        let cid = follow(store, path)?;
        match open(store, &cid)? {
            Opened::File(reader) => Ok(reader.cursor),
            Opened::Directory => Err(ReadError::IsDirectory { cid }),
        }
    }

    /// The file's size in bytes, as its root declares; what is read agrees with it or fails.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Passes over the next `count` bytes without loading the blocks that hold only them.
    #[must_use]
    pub fn skip_bytes(mut self, count: u64) -> Self {
        self.skip = count;
        self
    }

    /// The next bytes, at most a block; nothing at the end. After an error about a missing block it can be called again.
    ///
    /// # Errors
    /// [`ReadError`], naming the block.
    pub fn next_bytes(&mut self, store: &Store) -> Result<Option<Bytes>, ReadError> {
        loop {
            let passed = self.skip.min(self.current.len() as u64);
            self.current.advance(passed as usize);
            self.skip -= passed;
            if !self.current.is_empty() {
                return Ok(Some(std::mem::take(&mut self.current)));
            }
            let Some((part, depth)) = self.todo.pop() else {
                return Ok(None);
            };
            if part.size <= self.skip {
                self.skip -= part.size;
            } else if let Err(error) = self.load_part(store, part, depth) {
                // Whoever can fetch the block tries again.
                self.todo.push((part, depth));
                return Err(error);
            }
        }
    }

    fn load_part(&mut self, store: &Store, part: Part, depth: usize) -> Result<(), ReadError> {
        let found = match load(store, &part.cid)? {
            Node::Leaf(data) => {
                self.current = data;
                self.current.len() as u64
            }
            Node::File(_) if depth == MAX_TREE_DEPTH => {
                let limit = MAX_TREE_DEPTH as u64;
                return Err(ReadError::OverLimit {
                    cid: part.cid,
                    limit,
                    what: "levels",
                });
            }
            Node::File(node) => self.enter(node, depth),
            Node::Directory(_) | Node::Shard(_) => return Err(ReadError::IsDirectory { cid: part.cid }),
            Node::Symlink => return Err(ReadError::Symlink { cid: part.cid }),
        };
        if found == part.size {
            Ok(())
        } else {
            Err(ReadError::PartSize {
                cid: part.cid,
                found,
                declared: part.size,
            })
        }
    }

    fn enter(&mut self, node: FileNode, depth: usize) -> u64 {
        self.current = node.data;
        self.todo
            .extend(node.parts.into_iter().rev().map(|part| (part, depth + 1)));
        node.size
    }
}

/// A file's bytes out of one store.
#[derive(Debug)]
pub struct FileReader<'a> {
    store: &'a Store,
    cursor: FileCursor,
}

impl<'a> FileReader<'a> {
    /// Opens the file at `path`, at its start.
    ///
    /// # Errors
    /// As [`FileCursor::open`].
    pub fn open(store: &'a Store, path: &ContentPath) -> Result<Self, ReadError> {
        let cursor = FileCursor::open(store, path)?;
        Ok(Self { store, cursor })
    }

    /// As [`FileCursor::size`].
    #[must_use]
    pub fn size(&self) -> u64 {
        self.cursor.size
    }

    /// As [`FileCursor::skip_bytes`].
    #[must_use]
    pub fn skip_bytes(mut self, count: u64) -> Self {
        self.cursor.skip = count;
        self
    }

    /// As [`FileCursor::next_bytes`].
    ///
    /// # Errors
    /// [`ReadError`], naming the block.
    pub fn next_bytes(&mut self) -> Result<Option<Bytes>, ReadError> {
        self.cursor.next_bytes(self.store)
    }
}

/// A file or directory, its first block read once.
pub(super) enum Opened<'a> {
    /// At its start.
    File(FileReader<'a>),
    Directory,
}

/// Opens whatever a CID names.
pub(super) fn open<'a>(store: &'a Store, cid: &Cid) -> Result<Opened<'a>, ReadError> {
    let mut cursor = FileCursor::default();
    cursor.size = match load(store, cid)? {
        Node::Leaf(data) => {
            cursor.current = data;
            cursor.current.len() as u64
        }
        Node::File(node) => cursor.enter(node, 0),
        Node::Directory(_) | Node::Shard(_) => return Ok(Opened::Directory),
        Node::Symlink => return Err(ReadError::Symlink { cid: *cid }),
    };
    Ok(Opened::File(FileReader { store, cursor }))
}

impl Read for FileReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.cursor.current.is_empty() || self.cursor.skip > 0 {
            self.cursor.current = self.next_bytes().map_err(io::Error::other)?.unwrap_or_default();
        }
        let count = out.len().min(self.cursor.current.len());
        self.cursor.current.copy_to_slice(&mut out[..count]);
        Ok(count)
    }
}
