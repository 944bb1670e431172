//! The balanced tree over a file's chunks, built as they stream past.

use bytes::Bytes;
use cid::Cid;

use super::add::{AddedLink, BlockSink};
use super::dagpb::{Link, PbNode};
use super::node::file_header;
use crate::content::block::{DAG_PB, RAW, cid_of};
use crate::content::store::StoreError;

/// How files are cut and joined. Both sides of a network need not agree, but equal layouts give equal CIDs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub enum Layout {
    /// `ipfs add --cid-version=1`: chunks of 256 KiB, 174 links a node.
    #[default]
    #[serde(rename = "cidv1-raw-256k-174")]
    Cidv1Raw256k174,
    /// The profile of IPIP-499: chunks of 1 MiB, 1,024 links a node.
    #[serde(rename = "unixfs-v1-2025")]
    UnixfsV1Of2025,
}

/// A layout that nobody knows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no layout; known are cidv1-raw-256k-174 (as `ipfs add --cid-version=1`) and unixfs-v1-2025"
)]
pub struct UnknownLayout(String);

impl std::str::FromStr for Layout {
    type Err = UnknownLayout;

    fn from_str(name: &str) -> Result<Self, UnknownLayout> {
        match name {
            "cidv1-raw-256k-174" => Ok(Self::Cidv1Raw256k174),
            "unixfs-v1-2025" => Ok(Self::UnixfsV1Of2025),
            other => Err(UnknownLayout(other.to_owned())),
        }
    }
}

impl Layout {
    pub(super) fn chunk(self) -> usize {
        match self {
            Self::Cidv1Raw256k174 => 256 << 10,
            Self::UnixfsV1Of2025 => 1 << 20,
        }
    }

    fn width(self) -> usize {
        match self {
            Self::Cidv1Raw256k174 => 174,
            Self::UnixfsV1Of2025 => 1024,
        }
    }
}

/// Takes chunks in order; holds at most one unfinished node a level.
pub(super) struct FileBuilder {
    width: usize,
    /// Unfinished nodes, leaves' parents first.
    levels: Vec<Vec<Child>>,
}

/// A finished subtree.
#[derive(Clone, Copy)]
struct Child {
    cid: Cid,
    file_bytes: u64,
    total_size: u64,
}

impl FileBuilder {
    pub(super) fn new(layout: Layout) -> Self {
        Self {
            width: layout.width(),
            levels: vec![Vec::new()],
        }
    }

    pub(super) fn chunk(&mut self, data: &[u8], sink: &mut impl BlockSink) -> Result<(), StoreError> {
        let cid = cid_of(RAW, data);
        sink.put(&cid, data)?;
        let size = data.len() as u64;
        self.push(
            0,
            Child {
                cid,
                file_bytes: size,
                total_size: size,
            },
            sink,
        )
    }

    /// Closes the unfinished nodes and returns the root; a file of one chunk is that chunk.
    pub(super) fn finish(mut self, sink: &mut impl BlockSink) -> Result<AddedLink, StoreError> {
        let mut level = 0;
        loop {
            let is_top = level + 1 == self.levels.len();
            match (self.levels[level].as_slice(), is_top) {
                ([only], true) => {
                    return Ok(AddedLink {
                        cid: only.cid,
                        file_bytes: only.file_bytes,
                        total_size: only.total_size,
                    });
                }
                ([], true) => self.chunk(&[], sink)?,
                ([], false) => level += 1,
                _ => {
                    self.close(level, sink)?;
                    level += 1;
                }
            }
        }
    }

    fn push(&mut self, level: usize, child: Child, sink: &mut impl BlockSink) -> Result<(), StoreError> {
        if self.levels.len() == level {
            self.levels.push(Vec::new());
        }
        if self.levels[level].len() == self.width {
            self.close(level, sink)?;
        }
        self.levels[level].push(child);
        Ok(())
    }

    /// Writes the node over a level's children and hands it to the level above.
    fn close(&mut self, level: usize, sink: &mut impl BlockSink) -> Result<(), StoreError> {
        let children = std::mem::take(&mut self.levels[level]);
        let node = write_node(&children, sink)?;
        self.push(level + 1, node, sink)
    }
}

fn write_node(children: &[Child], sink: &mut impl BlockSink) -> Result<Child, StoreError> {
    let sizes: Vec<u64> = children.iter().map(|child| child.file_bytes).collect();
    let links = children.iter().map(unnamed_link).collect();
    let block = Bytes::from(
        PbNode {
            links,
            data: file_header(&sizes),
        }
        .encode(),
    );
    let cid = cid_of(DAG_PB, &block);
    sink.put(&cid, &block)?;
    let below: u64 = children.iter().map(|child| child.total_size).sum();
    Ok(Child {
        cid,
        file_bytes: sizes.iter().sum(),
        total_size: below + block.len() as u64,
    })
}

fn unnamed_link(child: &Child) -> Link {
    Link {
        cid: child.cid,
        name: String::new(),
        total_size: child.total_size,
    }
}
