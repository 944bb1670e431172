//! How much of a graph is meant: the trustless gateway's `dag-scope` and `entity-bytes`
//! (<https://specs.ipfs.tech/http-gateways/trustless-gateway/>).

use std::ops::Range;

use bytes::Bytes;
use cid::Cid;

use super::NodeError;
use super::node::{FileNode, Node, links, may_have_links};

/// How much of what is under a block is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// The block alone.
    Block,
    /// All of the file that it begins, or the blocks that list the directory that it begins; of anything else the block.
    Entity,
    /// Of a file the blocks that hold these bytes, with those that lead to them; of anything else as [`Scope::Entity`].
    Bytes(Range<u64>),
    /// Everything.
    All,
}

/// The links of a block that belong to `scope`, in order, each with what is meant under it.
///
/// # Errors
/// [`NodeError`] when the bytes make no sense.
pub(in crate::content) fn scoped_links(
    cid: &Cid,
    block: &Bytes,
    scope: &Scope,
) -> Result<Vec<(Cid, Scope)>, NodeError> {
    match scope {
        _ if !may_have_links(cid) => Ok(Vec::new()),
        Scope::Block => Ok(Vec::new()),
        Scope::All => {
            let all = links(cid, block)?.into_iter();
            Ok(all.map(|link| (link, Scope::All)).collect())
        }
        Scope::Entity => Ok(within(Node::decode(cid, block)?, &(0..u64::MAX))),
        Scope::Bytes(bytes) => Ok(within(Node::decode(cid, block)?, bytes)),
    }
}

fn within(node: Node, bytes: &Range<u64>) -> Vec<(Cid, Scope)> {
    match node {
        Node::File(file) => parts_within(&file, bytes),
        // Names of entries are longer than the slot's number, those of deeper shards are no more than that.
        Node::Shard(shard) => {
            let deeper = shard.links.into_iter();
            let deeper = deeper.filter(|link| link.name.len() == shard.prefix);
            deeper.map(|link| (link.cid, Scope::Entity)).collect()
        }
        Node::Leaf(_) | Node::Directory(_) | Node::Symlink => Vec::new(),
    }
}

fn parts_within(file: &FileNode, bytes: &Range<u64>) -> Vec<(Cid, Scope)> {
    let (mut found, mut at) = (Vec::new(), file.data.len() as u64);
    for part in &file.parts {
        let end = at.saturating_add(part.size);
        if at < bytes.end && bytes.start < end {
            let scope = if bytes.start <= at && end <= bytes.end {
                Scope::Entity
            } else {
                Scope::Bytes(bytes.start.saturating_sub(at)..bytes.end.min(end) - at)
            };
            found.push((part.cid, scope));
        }
        at = end;
    }
    found
}
