//! What can go wrong when content is added or read.

use std::io;
use std::path::PathBuf;

use cid::Cid;

use crate::content::store::StoreError;
use crate::content::wire::WireError;

/// Why a block is no valid UnixFS node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    /// Not protobuf.
    #[error("malformed node: {0}")]
    Wire(#[from] WireError),
    /// A field that dag-pb does not have.
    #[error("malformed node: unknown field {number}")]
    UnknownField {
        /// Its number.
        number: u64,
    },
    /// A link without a valid CID or with a name that is no UTF-8.
    #[error("malformed node: a link has no valid CID or name")]
    BadLink,
    /// A codec that carries no files.
    #[error("codec {codec:#x} is not UnixFS; expected raw or dag-pb")]
    NotUnixfs {
        /// The CID's codec.
        codec: u64,
    },
    /// A UnixFS type that is not known.
    #[error("unknown UnixFS type {kind}")]
    UnknownType {
        /// The type's number.
        kind: u64,
    },
    /// A file node whose sizes do not add up.
    #[error("the sizes a file node declares do not match its parts")]
    Sizes,
    /// A sharded directory of an impossible width.
    #[error("sharded directory of width {fanout}; expected a power of two from 8 to 1024")]
    Fanout {
        /// The declared width.
        fanout: u64,
    },
    /// A part of a sharded directory that stands in it twice.
    #[error("a sharded directory holds this part of itself twice, as a bomb does")]
    RepeatedShard,
}

/// Why content could not be added. Blocks written before the failure stay and are reused by the next try.
#[derive(Debug, thiserror::Error)]
pub enum AddError {
    /// The input could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A block could not be stored.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A name that no file system should be given.
    #[error(
        "{name:?} cannot name a file in content: it is empty, too long, special on some system (a device such as CON, a colon, \
         a dot or space at the end), or holds a separator; rename it"
    )]
    Name {
        /// The name.
        name: String,
    },
    /// One name is both a file and a directory.
    #[error("{name:?} is both a file and a directory")]
    Clash {
        /// The name.
        name: String,
    },
    /// More entries than any program reads from one directory.
    #[error(
        "a directory of {entries} entries is over the limit of {limit}; sort its files into subdirectories"
    )]
    DirectoryTooLarge {
        /// How many entries it has.
        entries: usize,
        /// How many it may have.
        limit: usize,
    },
    /// Names that a sharded directory cannot tell apart.
    #[error(
        "{name:?} and another name in its directory have the same hash, which a sharded directory cannot hold; rename it"
    )]
    Collision {
        /// One of the names.
        name: String,
    },
    /// Neither a file nor a directory, or a symbolic link inside a directory, or a name that is no UTF-8.
    #[error("{} is a symbolic link, no regular file, or has no UTF-8 name; remove it, or copy the whole with `cp -rL` and add the copy", path.display())]
    Unsupported {
        /// Where.
        path: PathBuf,
    },
    /// Directories nested deeper than any real tree.
    #[error("{} is nested more than {max} directories deep", path.display())]
    TooDeep {
        /// Where.
        path: PathBuf,
        /// The bound.
        max: usize,
    },
}

/// Why content could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// A block is not on disk.
    #[error("block {cid} is not in the store; fetch its content first with `hanzod content get`")]
    Missing {
        /// The block.
        cid: Cid,
    },
    /// Parts of a sharded directory are not on disk.
    #[error(
        "{} parts of the sharded directory {directory} are not in the store; fetch its content first with `hanzod content get`",
        parts.len()
    )]
    MissingParts {
        /// The directory.
        directory: Cid,
        /// Those that are known.
        parts: Vec<Cid>,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A block makes no sense.
    #[error("block {cid}: {reason}")]
    Node {
        /// The block.
        cid: Cid,
        /// Why.
        reason: NodeError,
    },
    /// A part of a file is not as long as its parent says.
    #[error("block {cid} holds {found} bytes of a file where its parent declares {declared}")]
    PartSize {
        /// The part.
        cid: Cid,
        /// What it holds.
        found: u64,
        /// What was declared.
        declared: u64,
    },
    /// No such entry.
    #[error("there is no {name:?} in directory {directory}")]
    NoEntry {
        /// The name.
        name: String,
        /// The directory's CID.
        directory: Cid,
    },
    /// A path that is not `CID/name/name`.
    #[error("{path:?} is no content path; expected CID, CID/path or /ipfs/CID/path")]
    Path {
        /// What was given.
        path: String,
    },
    /// A directory where a file was expected.
    #[error("{cid} is a directory; name a file in it, or export it whole")]
    IsDirectory {
        /// Its CID.
        cid: Cid,
    },
    /// A file where a directory was expected.
    #[error("{cid} is a file and has no entries")]
    NotDirectory {
        /// Its CID.
        cid: Cid,
    },
    /// A symbolic link, which is never followed or written.
    #[error("{cid} is a symbolic link, which is refused")]
    Symlink {
        /// Its CID.
        cid: Cid,
    },
    /// A name that could leave the directory it is written to, or one that stands twice.
    #[error("directory {directory} has an entry named {name:?}, which is refused")]
    UnsafeName {
        /// The name.
        name: String,
        /// The directory's CID.
        directory: Cid,
    },
    /// A name that some systems take for a device, a drive or another name.
    #[error(
        "directory {directory} has an entry named {name:?}, which is not written to disk: some systems take it for a device \
         or another name. `hanzod content cat {directory}/NAME` reads its entries one by one"
    )]
    UnportableName {
        /// The name.
        name: String,
        /// The directory's CID.
        directory: Cid,
    },
    /// It does not fit the disk.
    #[error(
        "{cid} unfolds to {bytes} bytes, and the disk of {} has {free} free; nothing was written. Free some space or \
         choose a target on another disk", path.display()
    )]
    NoSpace {
        /// What was to be written.
        cid: Cid,
        /// Bytes it takes.
        bytes: u64,
        /// Bytes there are.
        free: u64,
        /// Where.
        path: PathBuf,
    },
    /// More than the caller allows: a bomb, or a limit set too low.
    #[error(
        "{cid} unfolds to more than {limit} {what}, which is refused: it is a bomb, or larger than anything this program reads out"
    )]
    OverLimit {
        /// The root.
        cid: Cid,
        /// The bound.
        limit: u64,
        /// Of what: bytes, entries or levels.
        what: &'static str,
    },
    /// The target is there already.
    #[error("{} exists; remove it or choose another target", path.display())]
    Exists {
        /// The target.
        path: PathBuf,
    },
    /// A file could not be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}
