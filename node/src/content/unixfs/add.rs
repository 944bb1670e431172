//! Adding bytes, files, directories and maps of names to bytes.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use cid::Cid;

use super::dagpb::{Link, PbNode};
use super::file::FileBuilder;
use super::node::directory_header;
use super::path::is_portable_name;
use super::{AddError, Layout, hamt};
use crate::content::block::{DAG_PB, cid_of};
use crate::content::disk::fill;
use crate::content::service::check_asker;
use crate::content::store::{Store, StoreError};

const MAX_DEPTH: usize = 64;
/// Bytes above which a directory is sharded.
const SHARD_ABOVE: usize = 256 << 10;
/// Entries of a directory, so that with its shards it stays below what is read.
const MAX_ENTRIES: usize = 900_000;

/// What was added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Added {
    /// Its root.
    pub cid: Cid,
    /// Bytes of file content.
    pub bytes: u64,
    /// Bytes of all blocks.
    pub total_size: u64,
}

/// Where blocks go.
pub trait BlockSink {
    /// Takes a block whose bytes hash to `cid`.
    ///
    /// # Errors
    /// As the store's.
    fn put(&mut self, cid: &Cid, data: &[u8]) -> Result<(), StoreError>;
}

impl BlockSink for &Store {
    fn put(&mut self, cid: &Cid, data: &[u8]) -> Result<(), StoreError> {
        self.put_hashed(cid, data).map(|_| ())
    }
}

/// Keeps nothing: computes the CID that content would have.
#[derive(Debug, Clone, Copy, Default)]
pub struct Discard;

impl BlockSink for Discard {
    fn put(&mut self, _: &Cid, _: &[u8]) -> Result<(), StoreError> {
        Ok(())
    }
}

/// Adds the bytes of a reader as one file, in memory of one chunk and one node a level.
///
/// # Errors
/// [`AddError::Read`] naming `label`, [`AddError::Store`].
pub fn add_reader(
    sink: &mut impl BlockSink,
    layout: Layout,
    label: &Path,
    mut reader: impl Read,
) -> Result<Added, AddError> {
    let mut builder = FileBuilder::new(layout);
    let mut chunk = vec![0; layout.chunk()];
    loop {
        let filled = fill(&mut reader, &mut chunk).map_err(read_error(label))?;
        if filled > 0 {
            builder.chunk(&chunk[..filled], sink)?;
        }
        if filled < chunk.len() {
            break;
        }
    }
    Ok(builder.finish(sink)?.into())
}

/// Adds a file, or a directory with everything under it. As `ipfs add -r` does, entries whose names begin with a dot
/// are left out. Links to files are followed, links to directories refused.
///
/// # Errors
/// [`AddError`], naming the path.
pub fn add_path(sink: &mut impl BlockSink, layout: Layout, path: &Path) -> Result<Added, AddError> {
    add_path_at(sink, layout, path, 0)
}

/// Bytes of file content that [`add_path`] would add.
///
/// # Errors
/// [`AddError::Read`], naming the path.
pub fn measure(path: &Path) -> Result<u64, AddError> {
    let (mut bytes, mut todo) = (0, vec![(path.to_owned(), 0)]);
    while let Some((path, depth)) = todo.pop() {
        check_asker()?;
        let found = fs::metadata(&path).map_err(read_error(&path))?;
        if found.is_dir() && depth <= MAX_DEPTH {
            todo.extend(
                visible_entries(&path)?
                    .into_iter()
                    .map(|(_, child)| (child, depth + 1)),
            );
        } else if found.is_file() {
            bytes += found.len();
        }
    }
    Ok(bytes)
}

/// Adds a directory given as names (`/` for subdirectories) and their bytes. Equal maps give equal CIDs.
///
/// # Errors
/// [`AddError::Name`], [`AddError::Clash`], [`AddError::DirectoryTooLarge`], [`AddError::Store`].
pub fn add_map(
    sink: &mut impl BlockSink,
    layout: Layout,
    files: &BTreeMap<String, Vec<u8>>,
) -> Result<Added, AddError> {
    let mut root = Tree::default();
    for (path, bytes) in files {
        root.insert(path, bytes)?;
    }
    root.write(sink, layout)
}

/// A finished file or directory as its parent links to it.
pub(super) struct AddedLink {
    pub(super) cid: Cid,
    pub(super) file_bytes: u64,
    pub(super) total_size: u64,
}

impl From<AddedLink> for Added {
    fn from(link: AddedLink) -> Self {
        Self {
            cid: link.cid,
            bytes: link.file_bytes,
            total_size: link.total_size,
        }
    }
}

fn add_path_at(
    sink: &mut impl BlockSink,
    layout: Layout,
    path: &Path,
    depth: usize,
) -> Result<Added, AddError> {
    let kind = fs::metadata(path).map_err(read_error(path))?;
    let is_link = fs::symlink_metadata(path).map_err(read_error(path))?.is_symlink();
    if is_link && depth > 0 {
        // What it points to may lie anywhere on this machine, and is not what the directory holds.
        return Err(AddError::Unsupported {
            path: path.to_owned(),
        });
    }
    if kind.is_file() {
        let file = File::open(path).map_err(read_error(path))?;
        return add_reader(sink, layout, path, file);
    }
    if !kind.is_dir() {
        return Err(AddError::Unsupported {
            path: path.to_owned(),
        });
    }
    if depth == MAX_DEPTH {
        return Err(AddError::TooDeep {
            path: path.to_owned(),
            max: MAX_DEPTH,
        });
    }
    let mut directory = DirectoryBuilder::default();
    for (name, child) in visible_entries(path)? {
        directory.entry(name, add_path_at(sink, layout, &child, depth + 1)?)?;
    }
    directory.finish(sink, layout)
}

fn visible_entries(path: &Path) -> Result<Vec<(String, PathBuf)>, AddError> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(path).map_err(read_error(path))? {
        let child = entry.map_err(read_error(path))?.path();
        let name = child
            .file_name()
            .and_then(|name| name.to_str())
            .map(str::to_owned);
        let name = name.ok_or_else(|| AddError::Unsupported { path: child.clone() })?;
        if !name.starts_with('.') {
            entries.push((name, child));
        }
    }
    entries.sort();
    Ok(entries)
}

/// A directory in the making.
#[derive(Default)]
struct DirectoryBuilder {
    links: Vec<Link>,
    bytes: u64,
    below: u64,
}

impl DirectoryBuilder {
    fn entry(&mut self, name: String, added: Added) -> Result<(), AddError> {
        if !is_portable_name(&name) {
            return Err(AddError::Name { name });
        }
        self.links.push(Link {
            cid: added.cid,
            name,
            total_size: added.total_size,
        });
        self.bytes += added.bytes;
        self.below += added.total_size;
        Ok(())
    }

    fn finish(mut self, sink: &mut impl BlockSink, layout: Layout) -> Result<Added, AddError> {
        self.links.sort_by(|a, b| a.name.cmp(&b.name));
        let entries = self.links.len();
        if entries > MAX_ENTRIES {
            return Err(AddError::DirectoryTooLarge {
                entries,
                limit: MAX_ENTRIES,
            });
        }
        let node = PbNode {
            links: self.links,
            data: directory_header(),
        };
        let size = match layout {
            Layout::Cidv1Raw256k174 => links_size(&node.links),
            Layout::UnixfsV1Of2025 => node.encode().len(),
        };
        let (cid, total_size) = if size > SHARD_ABOVE {
            let written = hamt::write(node.links, sink)?;
            (written.cid, written.total_size)
        } else {
            let block = node.encode();
            let cid = cid_of(DAG_PB, &block);
            sink.put(&cid, &block)?;
            (cid, self.below + block.len() as u64)
        };
        Ok(Added {
            cid,
            bytes: self.bytes,
            total_size,
        })
    }
}

/// A directory's size as Kubo estimates it: the bytes of names and CIDs.
pub(super) fn links_size(links: &[Link]) -> usize {
    links
        .iter()
        .map(|link| link.name.len() + link.cid.encoded_len())
        .sum()
}

/// Names sorted into directories.
#[derive(Default)]
struct Tree<'a> {
    files: BTreeMap<&'a str, &'a [u8]>,
    directories: BTreeMap<&'a str, Self>,
}

impl<'a> Tree<'a> {
    fn insert(&mut self, path: &'a str, bytes: &'a [u8]) -> Result<(), AddError> {
        let (name, rest) = path
            .split_once('/')
            .map_or((path, None), |(name, rest)| (name, Some(rest)));
        let clash = match rest {
            Some(_) => self.files.contains_key(name),
            None => self.directories.contains_key(name),
        };
        if clash {
            return Err(AddError::Clash {
                name: name.to_owned(),
            });
        }
        match rest {
            Some(rest) => self.directories.entry(name).or_default().insert(rest, bytes),
            None => {
                self.files.insert(name, bytes);
                Ok(())
            }
        }
    }

    fn write(&self, sink: &mut impl BlockSink, layout: Layout) -> Result<Added, AddError> {
        let mut directory = DirectoryBuilder::default();
        for (name, bytes) in &self.files {
            directory.entry(
                (*name).to_owned(),
                add_reader(sink, layout, Path::new(name), *bytes)?,
            )?;
        }
        for (name, tree) in &self.directories {
            directory.entry((*name).to_owned(), tree.write(sink, layout)?)?;
        }
        directory.finish(sink, layout)
    }
}

fn read_error(path: &Path) -> impl FnOnce(io::Error) -> AddError {
    let path = path.to_owned();
    move |source| AddError::Read { path, source }
}
