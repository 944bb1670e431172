//! CAR files: content in one file, as `ipfs dag export` writes and `ipfs dag import` reads it
//! (<https://ipld.io/specs/transport/car/>). Version 1 is written, versions 1 and 2 are read.
//!
//! ```text
//! varint length, DAG-CBOR {"roots": [CID], "version": 1}
//! varint length, CID, block        once a block
//! ```

mod error;
mod header;
mod read;
mod write;

pub use error::CarError;
pub use read::{Imported, read, read_file};
pub use write::{Duplicates, Exported, Frames, More, write, write_file};

#[cfg(test)]
mod tests;
