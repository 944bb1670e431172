//! Reading: paths and listings.

use std::collections::BTreeSet;

use cid::Cid;

use super::dagpb::Link;
use super::hamt::{self, MURMUR3_X64_64, Slots, Step};
use super::node::{Node, Shard};
use super::path::is_safe_name;
use super::reader::{Opened, open};
use super::{ContentPath, NodeError, ReadError};
use crate::content::store::{Store, StoreError};

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
    Ok(walk(store, path)?.end)
}

/// A path from its root to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Walked {
    /// What the path leads to.
    pub(crate) end: Cid,
    /// What its parts lead to, the root first and the end last.
    pub(crate) parts: Vec<Cid>,
    /// The blocks that were read on the way, in order: of a sharded directory those that the name's hash leads through.
    pub(crate) blocks: Vec<Cid>,
}

/// Follows a path, reading one block of each directory and each level of a sharded one.
///
/// # Errors
/// As [`resolve`].
pub(crate) fn walk(store: &Store, path: &ContentPath) -> Result<Walked, ReadError> {
    let mut walked = Walked {
        end: path.root,
        parts: vec![path.root],
        blocks: Vec::new(),
    };
    for name in &path.names {
        let directory = walked.end;
        walked.end =
            find(store, &directory, name, &mut walked.blocks)?.ok_or_else(|| ReadError::NoEntry {
                name: name.clone(),
                directory,
            })?;
        walked.parts.push(walked.end);
    }
    Ok(walked)
}

/// What a name in a directory leads to.
fn find(store: &Store, directory: &Cid, name: &str, blocks: &mut Vec<Cid>) -> Result<Option<Cid>, ReadError> {
    let mut shard = match load(store, directory)? {
        Node::Shard(shard) if shard.hash == MURMUR3_X64_64 => shard,
        // Another hash is nobody's, yet what can be listed can be found.
        Node::Directory(_) | Node::Shard(_) | Node::Leaf(_) | Node::File(_) | Node::Symlink => {
            blocks.push(*directory);
            let found = list(store, directory)?
                .into_iter()
                .find(|entry| entry.name == name);
            return Ok(found.map(|entry| entry.cid));
        }
    };
    let (mut at, mut slots) = (*directory, Slots::of(name));
    loop {
        blocks.push(at);
        let step = hamt::step(&mut slots, name, &shard);
        match step.map_err(|reason| ReadError::Node { cid: at, reason })? {
            Step::Entry(cid) => return Ok(Some(cid)),
            Step::Nowhere => return Ok(None),
            Step::Shard(deeper) => at = deeper,
        }
        match load(store, &at)? {
            Node::Shard(found) => shard = found,
            Node::Directory(_) | Node::Leaf(_) | Node::File(_) | Node::Symlink => {
                return Err(ReadError::NotDirectory { cid: at });
            }
        }
    }
}

/// The entries of a directory, by name. Names that could leave the directory, or that stand twice, are refused.
///
/// # Errors
/// [`ReadError::UnsafeName`], [`ReadError::NotDirectory`] and others, naming the block.
pub fn list(store: &Store, directory: &Cid) -> Result<Vec<Entry>, ReadError> {
    let links = match load(store, directory)? {
        Node::Directory(links) => links,
        Node::Shard(shard) => unshard(store, directory, shard.prefix, shard.links)?,
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
                Ok(Node::Shard(Shard { prefix, links, .. })) => {
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
