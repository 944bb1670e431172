//! Reading: blocks are verified and stored as they pass, in memory of one block.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use cid::Cid;

use super::CarError;
use super::header::{self, MAX_HEADER, Start};
use crate::content::block::{BlockError, MAX_BLOCK};
use crate::content::disk::fill;
use crate::content::store::{Store, StoreError};

/// Bytes of a CID, with room for any hash that can be verified.
const MAX_CID: u64 = 256;
/// The fixed part of a version 2 file after its first header: characteristics, then three offsets.
const WRAPPER: usize = 40;

/// What was taken in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imported {
    /// The roots that the file names, all of them held now; what is under them may not be.
    pub roots: Vec<Cid>,
    /// Blocks read.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Takes a file in; `progress` is told the bytes read and the file's size.
///
/// # Errors
/// [`CarError`], with the offset.
pub fn read_file(
    store: &Store,
    path: &Path,
    mut progress: impl FnMut(u64, u64),
) -> Result<Imported, CarError> {
    let fail = |source| CarError::Io {
        action: "read",
        path: path.to_owned(),
        source,
    };
    let file = File::open(path).map_err(fail)?;
    let size = file.metadata().map_err(fail)?.len();
    read(store, BufReader::with_capacity(1 << 20, file), |bytes| {
        progress(bytes, size)
    })
}

/// Takes the blocks of a CAR stream in and makes them durable. `progress` is told the bytes read.
///
/// # Errors
/// [`CarError`], with the offset; blocks before it stay.
pub fn read(store: &Store, source: impl Read, mut progress: impl FnMut(u64)) -> Result<Imported, CarError> {
    let mut input = Input { source, offset: 0 };
    let (roots, end) = start(&mut input)?;
    let mut imported = Imported {
        roots,
        blocks: 0,
        bytes: 0,
    };
    while end.is_none_or(|end| input.offset < end) {
        let offset = input.offset;
        let Some(length) = input.length()? else { break };
        if length == 0 {
            // Padding, as some writers leave after the last block.
            continue;
        }
        let section = input.section(length, MAX_CID + MAX_BLOCK as u64, offset)?;
        imported.bytes += take_in(store, &section, offset)?;
        imported.blocks += 1;
        progress(input.offset);
    }
    store.flush()?;
    match imported.roots.iter().find(|root| !store.has(root)) {
        Some(cid) => Err(CarError::NoRoot { cid: *cid }),
        None => Ok(imported),
    }
}

/// Reads up to the first block: the roots, and where the blocks end if that is not the end of the file.
fn start(input: &mut Input<impl Read>) -> Result<(Vec<Cid>, Option<u64>), CarError> {
    match head(input)? {
        Start::Roots(roots) => Ok((roots, None)),
        Start::Wrapped => {
            let wrapper = input.section(WRAPPER as u64, WRAPPER as u64, input.offset)?;
            let number = |at: usize| {
                wrapper
                    .get(at..at + 8)
                    .and_then(|bytes| bytes.try_into().ok())
                    .map_or(0, u64::from_le_bytes)
            };
            let (begin, size) = (number(16), number(24));
            let end = begin.checked_add(size).ok_or(CarError::Header {
                reason: "its inner file has an impossible place",
            })?;
            input.skip_to(begin)?;
            match head(input)? {
                Start::Roots(roots) => Ok((roots, Some(end))),
                Start::Wrapped => Err(CarError::Header {
                    reason: "a version 2 file lies inside a version 2 file",
                }),
            }
        }
    }
}

fn head(input: &mut Input<impl Read>) -> Result<Start, CarError> {
    let offset = input.offset;
    let length = input.length()?.filter(|length| (1..=MAX_HEADER).contains(length));
    let length = length.ok_or(CarError::Header {
        reason: "it does not begin with the length of a header",
    })?;
    header::decode(&input.section(length, MAX_HEADER, offset)?)
}

/// Verifies and stores one section; returns the block's bytes.
fn take_in(store: &Store, section: &[u8], offset: u64) -> Result<u64, CarError> {
    let mut rest = section;
    let cid = Cid::read_bytes(&mut rest).map_err(|_| CarError::Frame {
        offset,
        reason: "there is no valid CID",
    })?;
    match store.put(&cid, rest) {
        Ok(_) => Ok(rest.len() as u64),
        Err(StoreError::Block(reason @ BlockError::UnsupportedHash { .. })) => {
            Err(CarError::Unsupported { offset, reason })
        }
        Err(StoreError::Block(reason)) => Err(CarError::Block { offset, reason }),
        Err(error) => Err(error.into()),
    }
}

struct Input<R> {
    source: R,
    offset: u64,
}

impl<R: Read> Input<R> {
    /// A length before a section; nothing at the end of the file.
    fn length(&mut self) -> Result<Option<u64>, CarError> {
        let (start, mut value) = (self.offset, 0_u64);
        for index in 0..10 {
            let mut byte = [0];
            if fill(&mut self.source, &mut byte)? == 0 {
                if index == 0 {
                    return Ok(None);
                }
                return Err(CarError::Truncated { offset: self.offset });
            }
            self.offset += 1;
            if index == 9 && byte[0] > 1 {
                break;
            }
            value |= u64::from(byte[0] & 0x7f) << (7 * index);
            if byte[0] & 0x80 == 0 {
                return Ok(Some(value));
            }
        }
        Err(CarError::Frame {
            offset: start,
            reason: "a length is no number",
        })
    }

    /// `length` bytes, at most `limit`.
    fn section(&mut self, length: u64, limit: u64, offset: u64) -> Result<Vec<u8>, CarError> {
        if length > limit {
            return Err(CarError::Frame {
                offset,
                reason: "a block is over the limit of 2 MiB",
            });
        }
        let mut bytes = vec![0; length as usize];
        let filled = fill(&mut self.source, &mut bytes)?;
        self.offset += filled as u64;
        if filled < bytes.len() {
            return Err(CarError::Truncated { offset: self.offset });
        }
        Ok(bytes)
    }

    fn skip_to(&mut self, offset: u64) -> Result<(), CarError> {
        let gap = offset.checked_sub(self.offset).ok_or(CarError::Header {
            reason: "its inner file begins inside its header",
        })?;
        let skipped = io::copy(&mut self.source.by_ref().take(gap), &mut io::sink())?;
        self.offset += skipped;
        if skipped < gap {
            return Err(CarError::Truncated { offset: self.offset });
        }
        Ok(())
    }
}
