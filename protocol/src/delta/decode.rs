//! Reading a delta file within limits.

use super::auth::Auth;
use super::encode::MAX_BLOCK;
use super::error::DeltaDecodeError as Error;
use super::format::{
    CHECKSUM_LEN, Compression, DType, FLAG_AUTH, FLAG_METADATA, MAGIC, MAX_NAME, MAX_RANK, Part, VERSION,
    block, elements, tensor_head,
};
use super::hash::ContentHasher;
use super::lz4::Frame;
use super::metadata::{MAX_EXTRA, Metadata};
use super::shuffle;
use super::source::{self, Source};
use super::tensor::{DTypeError, RawTensor, RawTensors, into_set, to_set};
use crate::cbor;
use crate::ids::Hash32;
use crate::tensor::TensorSet;
use serde::{Serialize, de::DeserializeOwned};
use std::io::Read;

/// What a reader is willing to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the file.
    pub file_bytes: usize,
    /// Bytes of all tensors, uncompressed.
    pub tensor_bytes: usize,
    /// Tensors.
    pub tensors: usize,
}

impl Limits {
    /// Limits for a delta of `elements` f32 values: its tensors, and as much again for names and trailers as they can
    /// reasonably take.
    #[must_use]
    pub fn for_f32(elements: usize) -> Self {
        let tensor_bytes = elements.saturating_mul(4);
        let slack = (tensor_bytes / 8).max(4 << 20);
        Self {
            file_bytes: tensor_bytes.saturating_add(slack),
            tensor_bytes,
            tensors: 65_536,
        }
    }
}

/// The first 24 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// How tensor data is stored.
    pub compression: Compression,
    /// [`FLAG_METADATA`] and [`FLAG_AUTH`].
    pub flags: u8,
    /// First 16 bytes of the content hash.
    pub checksum: [u8; CHECKSUM_LEN],
}

/// A file that is well-formed, undamaged and finite. Who made it is not checked yet: [`Delta::verify`].
#[derive(Clone, Debug, PartialEq)]
pub struct Delta {
    /// The header.
    pub header: Header,
    /// The tensors.
    pub tensors: RawTensors,
    /// The metadata, if any.
    pub metadata: Option<Metadata>,
    /// The auth block, if any.
    pub auth: Option<Auth>,
    /// SHA3-256 of tensors and metadata.
    pub content_hash: Hash32,
    /// Where things stand in the file.
    pub offsets: Offsets,
}

/// Where a file's parts begin, in bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offsets {
    /// The metadata block's length, if there is one.
    pub metadata: Option<usize>,
    /// The auth block's length, if there is one.
    pub auth: Option<usize>,
    /// The file's end.
    pub end: usize,
}

impl Delta {
    /// The tensors as f32.
    ///
    /// # Errors
    /// When one has another dtype.
    pub fn tensor_set(&self) -> Result<TensorSet, DTypeError> {
        to_set(&self.tensors)
    }

    /// The tensors as f32, taken tensor by tensor, so that at no time all are there twice.
    ///
    /// # Errors
    /// As [`Self::tensor_set`].
    pub fn into_tensor_set(self) -> Result<TensorSet, DTypeError> {
        into_set(self.tensors)
    }
}

/// Reads a file that is in memory, as [`decode_from`].
///
/// # Errors
/// The first thing wrong, with offset and tensor.
pub fn decode(bytes: &[u8], limits: &Limits) -> Result<Delta, Error> {
    if bytes.len() > limits.file_bytes {
        let limit = limits.file_bytes;
        return Err(Error::FileTooLong { limit });
    }
    decode_from(bytes, limits)
}

/// Reads a file from a stream to its end: structure first, then the checksum over all content, then values, then the
/// trailers' meaning. Beside the tensors it holds at most a few mebibytes; a thread hashes meanwhile what has been read.
///
/// # Errors
/// The first thing wrong, with offset and tensor.
pub fn decode_from(stream: impl Read, limits: &Limits) -> Result<Delta, Error> {
    let mut source = Source::new(stream, limits.file_bytes);
    let header = read_header(&mut source)?;
    let mut hasher = ContentHasher::new();
    let (tensors, bad_value) = read_tensors(&mut source, &header, limits, &mut hasher)?;
    let metadata = read_block(&mut source, &header, FLAG_METADATA, "metadata")?;
    let auth = read_block(&mut source, &header, FLAG_AUTH, "auth")?;
    let offsets = Offsets {
        metadata: metadata.as_ref().map(|block| block.offset),
        auth: auth.as_ref().map(|block| block.offset),
        end: source.offset(),
    };
    source.end()?;
    if let Some(metadata) = &metadata {
        hasher.update(&block(&metadata.bytes));
    }
    let content_hash = hasher.finish();
    check_checksum(&header, &content_hash)?;
    match bad_value {
        None => Ok(Delta {
            header,
            tensors,
            metadata: metadata.as_ref().map(parse_metadata).transpose()?,
            auth: auth.as_ref().map(parse_auth).transpose()?,
            content_hash,
            offsets,
        }),
        Some(bad_value) => Err(bad_value),
    }
}

fn read_header(source: &mut Source<impl Read>) -> Result<Header, Error> {
    let found = source.array::<5>("magic")?;
    if found != MAGIC {
        return Err(Error::Magic { found });
    }
    let found = source.byte("version")?;
    if found != VERSION {
        return Err(Error::Version { found });
    }
    let found = source.byte("compression")?;
    let compression = Compression::from_number(found).ok_or(Error::Compression { found })?;
    let flags = source.byte("flags")?;
    if flags & !(FLAG_METADATA | FLAG_AUTH) != 0 {
        return Err(Error::Flags { found: flags });
    }
    Ok(Header {
        compression,
        flags,
        checksum: source.array("checksum")?,
    })
}

/// The tensors, fed to the hasher, and the first value among them that no file may hold: it is an error only when the
/// checksum shows that it was written so.
fn read_tensors(
    source: &mut Source<impl Read>,
    header: &Header,
    limits: &Limits,
    hasher: &mut ContentHasher,
) -> Result<(RawTensors, Option<Error>), Error> {
    let mut tensors = RawTensors::new();
    let mut bad_value = None;
    let mut left = limits.tensor_bytes;
    while let Some(name) = read_name(source, header, &tensors)? {
        if tensors.len() == limits.tensors {
            return Err(Error::TooManyTensors {
                offset: source.offset(),
                limit: limits.tensors,
            });
        }
        let head = read_head(source, &name, left)?;
        let offset = source.offset();
        let tensor = read_tensor(source, &name, head, header.compression, hasher)?;
        left -= tensor.data.len();
        if bad_value.is_none() {
            bad_value = tensor.view(&name).check().err().map(|source| Error::Value {
                offset: match header.compression {
                    Compression::None => offset + source.position(tensor.dtype, &tensor.shape),
                    Compression::Lz4 | Compression::ShuffleLz4 => offset,
                },
                tensor: name.clone(),
                source,
            });
        }
        tensors.insert(name, tensor);
    }
    Ok((tensors, bad_value))
}

/// The next tensor's name; `None` at the tensors' end: the file's without trailers, else a u32 0.
fn read_name(
    source: &mut Source<impl Read>,
    header: &Header,
    before: &RawTensors,
) -> Result<Option<String>, Error> {
    if header.flags == 0 && source.is_at_end()? {
        return Ok(None);
    }
    let offset = source.offset();
    let length = source.u32("tensor name length")?;
    if length == 0 && header.flags != 0 {
        return Ok(None);
    }
    if length == 0 || length as usize > MAX_NAME {
        return Err(Error::NameLength { offset, length });
    }
    let bytes = source.bytes(length as usize, "tensor name")?;
    let name = String::from_utf8(bytes).map_err(|_| Error::NameUtf8 { offset: offset + 4 })?;
    match before.last_key_value() {
        Some((previous, _)) if name <= *previous => Err(Error::NameOrder {
            offset,
            tensor: name,
            previous: previous.clone(),
        }),
        _ => Ok(Some(name)),
    }
}

/// What stands between a tensor's name and its data.
struct Head {
    dtype: DType,
    shape: Vec<u64>,
    parts: [Part; 2],
}

impl Head {
    /// Bytes of the data, uncompressed.
    fn need(&self) -> usize {
        self.parts[0].len() + self.parts[1].len()
    }
}

fn read_head(source: &mut Source<impl Read>, name: &str, left: usize) -> Result<Head, Error> {
    let tensor = || name.to_owned();
    let offset = source.offset();
    let found = source.byte("dtype")?;
    let dtype = DType::from_number(found).ok_or_else(|| Error::DType {
        offset,
        tensor: tensor(),
        found,
    })?;
    let offset = source.offset();
    let found = source.byte("rank")?;
    if usize::from(found) > MAX_RANK {
        return Err(Error::Rank {
            offset,
            tensor: tensor(),
            found,
        });
    }
    let offset = source.offset();
    let mut shape = Vec::with_capacity(found.into());
    for _ in 0..found {
        shape.push(u64::from_le_bytes(source.array("shape")?));
    }
    let Some(parts) = elements(&shape).and_then(|n| dtype.parts(n)) else {
        return Err(Error::ShapeOverflow {
            offset,
            tensor: tensor(),
            shape,
        });
    };
    let head = Head { dtype, shape, parts };
    if head.need() > left {
        return Err(Error::TooLarge {
            offset: source.offset(),
            tensor: tensor(),
            need: head.need(),
            left,
        });
    }
    Ok(head)
}

fn read_tensor(
    source: &mut Source<impl Read>,
    name: &str,
    head: Head,
    compression: Compression,
    hasher: &mut ContentHasher,
) -> Result<RawTensor, Error> {
    hasher.update(&tensor_head(name, head.dtype, &head.shape));
    let need = head.need();
    let mut data = Vec::new();
    match compression {
        Compression::None => {
            while data.len() < need {
                let step = source.append_step(&mut data, need, "tensor data")?;
                hasher.update(&data[data.len() - step..]);
            }
        }
        Compression::Lz4 => {
            let mut frame = Frame::open(source, name, need)?;
            while let Some(block) = frame.next(source)? {
                let from = data.len();
                source::grow(&mut data, from + block.len(), need);
                data[from..].copy_from_slice(block);
                hasher.update(block);
            }
        }
        Compression::ShuffleLz4 => {
            let mut frame = Frame::open(source, name, need)?;
            let mut at = 0;
            while let Some(block) = frame.next(source)? {
                shuffle::scatter(&mut data, head.parts, at, block, |bytes| hasher.update(bytes));
                at += block.len();
            }
        }
    }
    Ok(RawTensor {
        dtype: head.dtype,
        shape: head.shape,
        data,
    })
}

struct Block {
    name: &'static str,
    offset: usize,
    bytes: Vec<u8>,
}

fn read_block(
    source: &mut Source<impl Read>,
    header: &Header,
    flag: u8,
    name: &'static str,
) -> Result<Option<Block>, Error> {
    if header.flags & flag == 0 {
        return Ok(None);
    }
    let offset = source.offset();
    let length = source.u32(name)? as usize;
    if length > MAX_BLOCK {
        return Err(Error::BlockLength {
            block: name,
            offset,
            length,
            limit: MAX_BLOCK,
        });
    }
    let bytes = source.bytes(length, name)?;
    Ok(Some(Block { name, offset, bytes }))
}

fn check_checksum(header: &Header, content_hash: &Hash32) -> Result<(), Error> {
    let actual = &content_hash.0[..CHECKSUM_LEN];
    if header.checksum != actual {
        return Err(Error::Checksum {
            stated: hex::encode(header.checksum),
            actual: hex::encode(actual),
        });
    }
    Ok(())
}

fn parse_block<T: Serialize + DeserializeOwned>(block: &Block) -> Result<T, Error> {
    cbor::from_dag(&block.bytes, MAX_BLOCK).map_err(|source| Error::Block {
        block: block.name,
        offset: block.offset + 4,
        source,
    })
}

fn parse_metadata(block: &Block) -> Result<Metadata, Error> {
    let metadata: Metadata = parse_block(block)?;
    let count = metadata.extra.len();
    if count > MAX_EXTRA {
        return Err(Error::Extra {
            offset: block.offset + 4,
            count,
        });
    }
    if let Some(timestamp) = &metadata.timestamp {
        timestamp.unix_seconds().map_err(|source| Error::Timestamp {
            block: block.name,
            offset: block.offset + 4,
            source,
        })?;
    }
    Ok(metadata)
}

fn parse_auth(block: &Block) -> Result<Auth, Error> {
    let auth: Auth = parse_block(block)?;
    let seconds = auth.body.timestamp.unix_seconds();
    seconds.map_err(|source| Error::Timestamp {
        block: block.name,
        offset: block.offset + 4,
        source,
    })?;
    Ok(auth)
}
