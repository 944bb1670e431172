//! What a block means: a leaf, a file's inner node, a directory, a shard of one, or a symbolic link.

use bytes::Bytes;
use cid::Cid;

use super::NodeError;
use super::dagpb::{Link, PbNode};
use crate::content::block::{DAG_PB, RAW};
use crate::content::wire::{Reader, Value, put_bytes, put_number};

const TYPE_RAW: u64 = 0;
const TYPE_DIRECTORY: u64 = 1;
const TYPE_FILE: u64 = 2;
const TYPE_SYMLINK: u64 = 4;
const TYPE_SHARD: u64 = 5;

/// The CIDs that a block links to; none for codecs other than dag-pb.
///
/// # Errors
/// [`NodeError`] when the bytes are no dag-pb node.
pub fn links(cid: &Cid, block: &[u8]) -> Result<Vec<Cid>, NodeError> {
    Ok(sized_links(cid, block)?
        .into_iter()
        .map(|link| link.cid)
        .collect())
}

/// A link and what its node declares of it, which is not verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizedLink {
    /// Where it leads.
    pub cid: Cid,
    /// Bytes of all blocks under it.
    pub declared: u64,
}

impl SizedLink {
    /// The bytes of its block, of one without links of its own.
    #[must_use]
    pub fn block_size(&self) -> Option<u64> {
        (!may_have_links(&self.cid)).then_some(self.declared)
    }
}

/// As [`links`], with what the node declares of each.
///
/// # Errors
/// [`NodeError`] when the bytes are no dag-pb node.
pub fn sized_links(cid: &Cid, block: &[u8]) -> Result<Vec<SizedLink>, NodeError> {
    if !may_have_links(cid) {
        return Ok(Vec::new());
    }
    let sized = |(cid, declared)| SizedLink { cid, declared };
    Ok(PbNode::decode_links(block)?.into_iter().map(sized).collect())
}

/// Bytes of all blocks under a block, itself included, as it declares; not verified, and blocks that stand twice count
/// twice.
///
/// # Errors
/// [`NodeError`] when the bytes are no dag-pb node.
pub fn declared_size(cid: &Cid, block: &Bytes) -> Result<u64, NodeError> {
    let own = block.len() as u64;
    if !may_have_links(cid) {
        return Ok(own);
    }
    let links = PbNode::decode(block)?.links;
    Ok(links
        .iter()
        .fold(own, |sum, link| sum.saturating_add(link.total_size)))
}

/// Whether blocks of this codec can link to others.
#[must_use]
pub fn may_have_links(cid: &Cid) -> bool {
    cid.codec() == DAG_PB
}

/// A block's meaning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Node {
    /// Bytes of a file.
    Leaf(Bytes),
    /// A file made of parts, in order.
    File(FileNode),
    /// A directory.
    Directory(Vec<Link>),
    /// One node of a large directory.
    Shard(Shard),
    Symlink,
}

/// One node of a sharded directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shard {
    /// Slots, a power of two.
    pub(super) width: u64,
    /// The hash of names that leads to them.
    pub(super) hash: u64,
    /// Characters of the slot's number that names begin with.
    pub(super) prefix: usize,
    pub(super) links: Vec<Link>,
}

/// An inner node of a file: its own bytes, then each part's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileNode {
    pub(super) data: Bytes,
    pub(super) parts: Vec<Part>,
    pub(super) size: u64,
}

/// A part of a file and how many bytes of the file it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) cid: Cid,
    pub(super) size: u64,
}

impl Node {
    pub(super) fn decode(cid: &Cid, block: &Bytes) -> Result<Self, NodeError> {
        match cid.codec() {
            RAW => Ok(Self::Leaf(block.clone())),
            DAG_PB => Self::decode_pb(PbNode::decode(block)?),
            codec => Err(NodeError::NotUnixfs { codec }),
        }
    }

    fn decode_pb(node: PbNode) -> Result<Self, NodeError> {
        let header = Header::decode(&node.data)?;
        match header.kind {
            TYPE_RAW | TYPE_FILE => FileNode::new(header, node.links).map(Self::File),
            TYPE_DIRECTORY => Ok(Self::Directory(node.links)),
            TYPE_SHARD => Ok(Self::Shard(Shard {
                width: header.fanout,
                hash: header.hash,
                prefix: shard_prefix(header.fanout)?,
                links: node.links,
            })),
            TYPE_SYMLINK => Ok(Self::Symlink),
            kind => Err(NodeError::UnknownType { kind }),
        }
    }
}

impl FileNode {
    /// Refuses a node whose sizes do not add up, and parts of no bytes, which no file needs and bombs are made of.
    fn new(header: Header, links: Vec<Link>) -> Result<Self, NodeError> {
        if links.len() != header.block_sizes.len() {
            return Err(NodeError::Sizes);
        }
        let parts: Vec<Part> = links
            .into_iter()
            .zip(&header.block_sizes)
            .map(|(link, size)| Part {
                cid: link.cid,
                size: *size,
            })
            .collect();
        let sum = parts
            .iter()
            .try_fold(header.data.len() as u64, |sum, part| sum.checked_add(part.size));
        let size = sum.filter(|sum| header.file_size.is_none_or(|declared| declared == *sum));
        match size {
            Some(size) if parts.iter().all(|part| part.size > 0) => Ok(Self {
                data: header.data,
                parts,
                size,
            }),
            _ => Err(NodeError::Sizes),
        }
    }
}

/// The bytes inside a directory's dag-pb node.
pub(super) fn directory_header() -> Bytes {
    let mut out = Vec::new();
    put_number(&mut out, 1, TYPE_DIRECTORY);
    Bytes::from(out)
}

/// The bytes inside a shard's dag-pb node; `field` says which slots are taken.
pub(super) fn shard_header(field: &[u8], hash: u64, width: u64) -> Bytes {
    let mut out = Vec::new();
    put_number(&mut out, 1, TYPE_SHARD);
    put_bytes(&mut out, 2, field);
    put_number(&mut out, 5, hash);
    put_number(&mut out, 6, width);
    Bytes::from(out)
}

/// The bytes inside a file's inner dag-pb node whose parts have these sizes.
pub(super) fn file_header(sizes: &[u64]) -> Bytes {
    let mut out = Vec::new();
    put_number(&mut out, 1, TYPE_FILE);
    put_number(&mut out, 3, sizes.iter().sum());
    for size in sizes {
        put_number(&mut out, 4, *size);
    }
    Bytes::from(out)
}

/// The UnixFS message in a node's data.
struct Header {
    kind: u64,
    data: Bytes,
    file_size: Option<u64>,
    block_sizes: Vec<u64>,
    hash: u64,
    fanout: u64,
}

impl Header {
    fn decode(bytes: &Bytes) -> Result<Self, NodeError> {
        let mut header = Self {
            kind: TYPE_RAW,
            data: Bytes::new(),
            file_size: None,
            block_sizes: Vec::new(),
            hash: 0,
            fanout: 0,
        };
        let mut fields = Reader::new(bytes);
        while let Some((number, value)) = fields.next_field()? {
            match (number, value) {
                (1, Value::Varint(kind)) => header.kind = kind,
                (2, Value::Bytes(data)) => header.data = bytes.slice_ref(data),
                (3, Value::Varint(size)) => header.file_size = Some(size),
                (4, Value::Varint(size)) => header.block_sizes.push(size),
                (4, Value::Bytes(packed)) => read_packed(packed, &mut header.block_sizes)?,
                (5, Value::Varint(hash)) => header.hash = hash,
                (6, Value::Varint(fanout)) => header.fanout = fanout,
                // Mode and times say nothing that we use.
                _ => {}
            }
        }
        Ok(header)
    }
}

fn read_packed(packed: &[u8], sizes: &mut Vec<u64>) -> Result<(), NodeError> {
    let mut reader = Reader::new(packed);
    while let Some(size) = reader.next_varint()? {
        sizes.push(size);
    }
    Ok(())
}

/// Names in a shard begin with the slot's number in hexadecimal, as wide as the largest slot.
fn shard_prefix(fanout: u64) -> Result<usize, NodeError> {
    if !fanout.is_power_of_two() || !(8..=1024).contains(&fanout) {
        return Err(NodeError::Fanout { fanout });
    }
    Ok(format!("{:X}", fanout - 1).len())
}
