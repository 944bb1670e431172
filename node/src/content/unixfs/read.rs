//! Reading: paths, listings, and a file's bytes as a stream.

use std::collections::BTreeSet;
use std::io::{self, Read};

use bytes::{Buf, Bytes};
use cid::Cid;

use super::dagpb::Link;
use super::node::{FileNode, Node, Part};
use super::path::is_safe_name;
use super::{ContentPath, NodeError, ReadError};
use crate::content::store::{Store, StoreError};

/// Levels of a file's tree; 174^8 chunks are more than any disk holds.
const MAX_TREE_DEPTH: usize = 16;
/// Entries of one sharded directory.
const MAX_SHARD_ENTRIES: usize = 1 << 20;

/// What a path leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resolved {
    /// Its CID.
    pub cid: Cid,
    /// File or directory.
    pub kind: EntryKind,
}

/// File or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EntryKind {
    /// A file.
    File,
    /// A directory.
    Directory,
}

/// One name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name.
    pub name: String,
    /// What it names.
    pub cid: Cid,
    /// Bytes of everything under it as the directory declares; not verified.
    pub declared_size: u64,
}

/// Follows a path to its end.
///
/// # Errors
/// [`ReadError`], naming the block or the name.
pub fn resolve(store: &Store, path: &ContentPath) -> Result<Resolved, ReadError> {
    let cid = follow(store, path)?;
    let kind = match open(store, &cid)? {
        Opened::File(_) => EntryKind::File,
        Opened::Directory => EntryKind::Directory,
    };
    Ok(Resolved { cid, kind })
}

/// The CID that a path leads to.
pub(super) fn follow(store: &Store, path: &ContentPath) -> Result<Cid, ReadError> {
    let mut cid = path.root;
    for name in &path.names {
        let found = list(store, &cid)?.into_iter().find(|entry| entry.name == *name);
        cid = found
            .ok_or_else(|| ReadError::NoEntry {
                name: name.clone(),
                directory: cid,
            })?
            .cid;
    }
    Ok(cid)
}

/// The entries of a directory, by name. Names that could leave the directory, or that stand twice, are refused.
///
/// # Errors
/// [`ReadError::UnsafeName`], [`ReadError::NotDirectory`] and others, naming the block.
pub fn list(store: &Store, directory: &Cid) -> Result<Vec<Entry>, ReadError> {
    let links = match load(store, directory)? {
        Node::Directory(links) => links,
        Node::Shard { prefix, links } => unshard(store, directory, prefix, links)?,
        Node::Leaf(_) | Node::File(_) => return Err(ReadError::NotDirectory { cid: *directory }),
        Node::Symlink => return Err(ReadError::Symlink { cid: *directory }),
    };
    let mut seen = BTreeSet::new();
    for link in &links {
        if !is_safe_name(&link.name) || !seen.insert(link.name.as_str()) {
            return Err(ReadError::UnsafeName {
                name: link.name.clone(),
                directory: *directory,
            });
        }
    }
    let mut entries: Vec<Entry> = links.into_iter().map(Entry::from).collect();
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(entries)
}

impl From<Link> for Entry {
    fn from(link: Link) -> Self {
        Self {
            name: link.name,
            cid: link.cid,
            declared_size: link.total_size,
        }
    }
}

/// A file's bytes, read block by block; memory is a block and one list of parts a level.
#[derive(Debug)]
pub struct FileReader<'a> {
    store: &'a Store,
    size: u64,
    /// Bytes left to pass over before anything is given out.
    skip: u64,
    current: Bytes,
    /// What is still to be read, next last, with its level in the tree.
    todo: Vec<(Part, usize)>,
}

impl<'a> FileReader<'a> {
    /// Opens the file at `path`, at its start.
    ///
    /// # Errors
    /// [`ReadError::IsDirectory`] and others, naming the block.
    pub fn open(store: &'a Store, path: &ContentPath) -> Result<Self, ReadError> {
        let cid = follow(store, path)?;
        match open(store, &cid)? {
            Opened::File(reader) => Ok(reader),
            Opened::Directory => Err(ReadError::IsDirectory { cid }),
        }
    }

    fn over(store: &'a Store) -> Self {
        Self {
            store,
            size: 0,
            skip: 0,
            current: Bytes::new(),
            todo: Vec::new(),
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

    /// The next bytes, at most a block; nothing at the end.
    ///
    /// # Errors
    /// [`ReadError`], naming the block.
    pub fn next_bytes(&mut self) -> Result<Option<Bytes>, ReadError> {
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
            } else if let Err(error) = self.load_part(part, depth) {
                // Whoever can fetch the block tries again.
                self.todo.push((part, depth));
                return Err(error);
            }
        }
    }

    fn load_part(&mut self, part: Part, depth: usize) -> Result<(), ReadError> {
        let found = match load(self.store, &part.cid)? {
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
            Node::Directory(_) | Node::Shard { .. } => return Err(ReadError::IsDirectory { cid: part.cid }),
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

/// A file or directory, its first block read once.
pub(super) enum Opened<'a> {
    /// At its start.
    File(FileReader<'a>),
    Directory,
}

/// Opens whatever a CID names.
pub(super) fn open<'a>(store: &'a Store, cid: &Cid) -> Result<Opened<'a>, ReadError> {
    let mut reader = FileReader::over(store);
    reader.size = match load(store, cid)? {
        Node::Leaf(data) => {
            reader.current = data;
            reader.current.len() as u64
        }
        Node::File(node) => reader.enter(node, 0),
        Node::Directory(_) | Node::Shard { .. } => return Ok(Opened::Directory),
        Node::Symlink => return Err(ReadError::Symlink { cid: *cid }),
    };
    Ok(Opened::File(reader))
}

impl Read for FileReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.current.is_empty() || self.skip > 0 {
            self.current = self.next_bytes().map_err(io::Error::other)?.unwrap_or_default();
        }
        let count = out.len().min(self.current.len());
        self.current.copy_to_slice(&mut out[..count]);
        Ok(count)
    }
}

/// Loads and decodes a block.
pub(super) fn load(store: &Store, cid: &Cid) -> Result<Node, ReadError> {
    let block = match store.get(cid) {
        Ok(Some(block)) => block,
        Ok(None) => return Err(ReadError::Missing { cid: *cid }),
        Err(error) => return Err(error.into()),
    };
    Node::decode(cid, &block).map_err(|reason| ReadError::Node { cid: *cid, reason })
}

/// Gathers the entries of a sharded directory. Parts that are not here are told all at once: who fetched them one by one
/// would begin anew for each.
fn unshard(store: &Store, root: &Cid, prefix: usize, links: Vec<Link>) -> Result<Vec<Link>, ReadError> {
    let mut entries = Vec::new();
    let mut todo: Vec<(usize, Link)> = links.into_iter().map(|link| (prefix, link)).collect();
    let (mut loaded, mut missing) = (BTreeSet::new(), Vec::new());
    while let Some((prefix, mut link)) = todo.pop() {
        let Some(name) = link.name.get(prefix..).map(str::to_owned) else {
            return Err(ReadError::UnsafeName {
                name: link.name,
                directory: *root,
            });
        };
        if !name.is_empty() {
            link.name = name;
            entries.push(link);
        } else if !loaded.insert(link.cid) {
            // Names in two places are never the same, so this can only be a bomb.
            let reason = NodeError::RepeatedShard;
            return Err(ReadError::Node {
                cid: link.cid,
                reason,
            });
        } else {
            match load(store, &link.cid) {
                Ok(Node::Shard { prefix, links }) => {
                    todo.extend(links.into_iter().map(|link| (prefix, link)));
                }
                Ok(_) => return Err(ReadError::NotDirectory { cid: link.cid }),
                Err(error) => missing.push(error.missing_block().ok_or(error)?),
            }
        }
        if entries.len() + todo.len() + loaded.len() > MAX_SHARD_ENTRIES {
            let limit = MAX_SHARD_ENTRIES as u64;
            return Err(ReadError::OverLimit {
                cid: *root,
                limit,
                what: "entries",
            });
        }
    }
    if missing.is_empty() {
        return Ok(entries);
    }
    Err(ReadError::MissingParts {
        directory: *root,
        parts: missing,
    })
}

impl ReadError {
    /// Whether the content itself is refused: what a stranger made would harm, or makes no sense.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Node { .. }
            | Self::PartSize { .. }
            | Self::Symlink { .. }
            | Self::UnsafeName { .. }
            | Self::UnportableName { .. }
            | Self::NoSpace { .. }
            | Self::OverLimit { .. } => true,
            Self::Missing { .. }
            | Self::MissingParts { .. }
            | Self::Store(_)
            | Self::NoEntry { .. }
            | Self::Path { .. }
            | Self::IsDirectory { .. }
            | Self::NotDirectory { .. }
            | Self::Exists { .. }
            | Self::Write { .. } => false,
        }
    }

    /// A block that has to be fetched before another try makes sense.
    #[must_use]
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "few of them are about a block that is not here"
    )]
    pub fn missing_block(&self) -> Option<Cid> {
        match self {
            Self::Missing { cid } | Self::Store(StoreError::Corrupt { cid }) => Some(*cid),
            Self::MissingParts { parts, .. } => parts.first().copied(),
            _ => None,
        }
    }

    /// All blocks of which that is known.
    #[must_use]
    #[expect(clippy::wildcard_enum_match_arm, reason = "one is about several")]
    pub fn missing_blocks(&self) -> Vec<Cid> {
        match self {
            Self::MissingParts { parts, .. } => parts.clone(),
            other => other.missing_block().into_iter().collect(),
        }
    }
}
