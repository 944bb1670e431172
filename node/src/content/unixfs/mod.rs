//! UnixFS: files and directories as blocks that any IPFS node reads (PROTOCOL section 8).
//!
//! [`add_reader`], [`add_path`] and [`add_map`] turn bytes into blocks with the CIDs of `ipfs add --cid-version=1`;
//! [`resolve`], [`list`], [`FileReader`] and [`export()`] turn blocks back, trusting nothing that a block declares.

mod add;
mod dagpb;
mod error;
mod export;
mod file;
mod flusher;
mod hamt;
mod node;
mod path;
mod patient;
mod read;
mod reader;
mod scope;
mod unfold;

pub use add::{Added, BlockSink, Discard, add_map, add_path, add_reader, measure};
pub use error::{AddError, NodeError, ReadError};
pub use export::{Absent, Limits, export, export_arriving};
pub use file::{Layout, UnknownLayout};
pub use node::{SizedLink, declared_size, links, may_have_links, sized_links};
pub use path::ContentPath;
pub(crate) use path::{escape_url, is_safe_name};
pub use read::{Entry, EntryKind, Resolved, list, resolve};
pub(crate) use read::{Walked, walk};
pub use reader::{FileCursor, FileReader};
pub use scope::Scope;
pub(in crate::content) use scope::scoped_links;

#[cfg(test)]
mod tests;
