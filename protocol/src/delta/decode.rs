//! Reading a delta file within limits.

use super::auth::Auth;
use super::encode::MAX_BLOCK;
use super::error::DeltaDecodeError as Error;
use super::format::{
    CHECKSUM_LEN, Compression, DType, FLAG_AUTH, FLAG_METADATA, HEADER_LEN, MAGIC, MAX_NAME, MAX_RANK,
    VERSION, block, elements, tensor_head,
};
use super::metadata::{MAX_EXTRA, Metadata};
use super::tensor::{DTypeError, RawTensor, RawTensors, to_set};
use super::{lz4, shuffle};
use crate::cbor;
use crate::ids::Hash32;
use crate::tensor::TensorSet;
use serde::{Serialize, de::DeserializeOwned};
use sha3::{Digest, Sha3_256};

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
}

impl Delta {
    /// The tensors as f32.
    ///
    /// # Errors
    /// When one has another dtype.
    pub fn tensor_set(&self) -> Result<TensorSet, DTypeError> {
        to_set(&self.tensors)
    }
}

/// Reads a file: structure first, then the checksum over all content, then values, then the trailers' meaning.
///
/// # Errors
/// The first thing wrong, with offset and tensor.
pub fn decode(bytes: &[u8], limits: &Limits) -> Result<Delta, Error> {
    let (len, limit) = (bytes.len(), limits.file_bytes);
    if len > limit {
        return Err(Error::FileTooLong { len, limit });
    }
    let mut reader = Reader { bytes, at: 0 };
    let header = read_header(&mut reader)?;
    let tensors = read_tensors(&mut reader, &header, limits)?;
    let metadata = read_block(&mut reader, &header, FLAG_METADATA, "metadata")?;
    let auth = read_block(&mut reader, &header, FLAG_AUTH, "auth")?;
    reader.end()?;
    let content_hash = content_hash(&tensors, metadata.map(|m| m.bytes));
    check_checksum(&header, &content_hash)?;
    for (name, tensor) in &tensors {
        tensor.check(name).map_err(|source| Error::Value {
            tensor: name.clone(),
            source,
        })?;
    }
    let metadata = metadata.map(parse_metadata).transpose()?;
    let auth = auth.map(parse_auth).transpose()?;
    Ok(Delta {
        header,
        tensors,
        metadata,
        auth,
        content_hash,
    })
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a [u8] {
        &self.bytes[self.at..]
    }

    fn take(&mut self, n: usize, what: &'static str) -> Result<&'a [u8], Error> {
        let rest = self.rest();
        let Some(taken) = rest.get(..n) else {
            return Err(Error::Truncated {
                offset: self.at,
                need: n - rest.len(),
                what,
            });
        };
        self.at += n;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], Error> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N, what)?);
        Ok(array)
    }

    fn byte(&mut self, what: &'static str) -> Result<u8, Error> {
        self.array::<1>(what).map(|[byte]| byte)
    }

    fn u32(&mut self, what: &'static str) -> Result<u32, Error> {
        self.array(what).map(u32::from_le_bytes)
    }

    fn end(&self) -> Result<(), Error> {
        let count = self.rest().len();
        if count > 0 {
            return Err(Error::Trailing {
                offset: self.at,
                count,
            });
        }
        Ok(())
    }
}

fn read_header(reader: &mut Reader<'_>) -> Result<Header, Error> {
    let found = reader.array::<5>("magic")?;
    if found != MAGIC {
        return Err(Error::Magic { found });
    }
    let found = reader.byte("version")?;
    if found != VERSION {
        return Err(Error::Version { found });
    }
    let found = reader.byte("compression")?;
    let compression = Compression::from_number(found).ok_or(Error::Compression { found })?;
    let flags = reader.byte("flags")?;
    if flags & !(FLAG_METADATA | FLAG_AUTH) != 0 {
        return Err(Error::Flags { found: flags });
    }
    debug_assert_eq!(reader.at + CHECKSUM_LEN, HEADER_LEN);
    Ok(Header {
        compression,
        flags,
        checksum: reader.array("checksum")?,
    })
}

fn read_tensors(reader: &mut Reader<'_>, header: &Header, limits: &Limits) -> Result<RawTensors, Error> {
    let mut tensors = RawTensors::new();
    let mut left = limits.tensor_bytes;
    while let Some(name) = read_name(reader, header, &tensors)? {
        if tensors.len() == limits.tensors {
            return Err(Error::TooManyTensors {
                offset: reader.at,
                limit: limits.tensors,
            });
        }
        let tensor = read_tensor(reader, &name, header.compression, left)?;
        left -= tensor.data.len();
        tensors.insert(name, tensor);
    }
    Ok(tensors)
}

/// The next tensor's name; `None` at the tensors' end: the file's without trailers, else a u32 0.
fn read_name(reader: &mut Reader<'_>, header: &Header, before: &RawTensors) -> Result<Option<String>, Error> {
    if header.flags == 0 && reader.rest().is_empty() {
        return Ok(None);
    }
    let offset = reader.at;
    let length = reader.u32("tensor name length")?;
    if length == 0 && header.flags != 0 {
        return Ok(None);
    }
    if length == 0 || length as usize > MAX_NAME {
        return Err(Error::NameLength { offset, length });
    }
    let bytes = reader.take(length as usize, "tensor name")?;
    let name = str::from_utf8(bytes).map_err(|_| Error::NameUtf8 { offset: offset + 4 })?;
    match before.last_key_value() {
        Some((previous, _)) if name <= previous.as_str() => Err(Error::NameOrder {
            offset,
            tensor: name.to_owned(),
            previous: previous.clone(),
        }),
        _ => Ok(Some(name.to_owned())),
    }
}

fn read_tensor(
    reader: &mut Reader<'_>,
    name: &str,
    compression: Compression,
    left: usize,
) -> Result<RawTensor, Error> {
    let tensor = || name.to_owned();
    let found = reader.byte("dtype")?;
    let dtype = DType::from_number(found);
    let dtype = dtype.ok_or_else(|| Error::DType {
        offset: reader.at - 1,
        tensor: tensor(),
        found,
    })?;
    let rank = reader.byte("rank")?;
    if usize::from(rank) > MAX_RANK {
        return Err(Error::Rank {
            offset: reader.at - 1,
            tensor: tensor(),
            found: rank,
        });
    }
    let offset = reader.at;
    let mut shape = Vec::with_capacity(rank.into());
    for _ in 0..rank {
        shape.push(u64::from_le_bytes(reader.array("shape")?));
    }
    let elements = elements(&shape).and_then(|n| Some((n, dtype.byte_len(n)?)));
    let Some((elements, need)) = elements else {
        return Err(Error::ShapeOverflow {
            offset,
            tensor: tensor(),
            shape,
        });
    };
    if need > left {
        return Err(Error::TooLarge {
            offset: reader.at,
            tensor: tensor(),
            need,
            left,
        });
    }
    let data = read_data(reader, name, compression, need)?;
    let data = match (compression, dtype.parts(elements)) {
        (Compression::ShuffleLz4, Some(parts)) => shuffle::unshuffle(&data, parts),
        _ => data,
    };
    Ok(RawTensor { dtype, shape, data })
}

fn read_data(
    reader: &mut Reader<'_>,
    name: &str,
    compression: Compression,
    need: usize,
) -> Result<Vec<u8>, Error> {
    if compression == Compression::None {
        return reader.take(need, "tensor data").map(<[u8]>::to_vec);
    }
    let start = reader.at;
    let failed = |e: lz4::FrameError| Error::Lz4 {
        offset: start + e.at,
        tensor: name.to_owned(),
        reason: e.reason,
    };
    let length = lz4::extent(reader.rest(), need).map_err(failed)?;
    lz4::decompress(reader.take(length, "LZ4 frame")?, need).map_err(failed)
}

#[derive(Clone, Copy)]
struct Block<'a> {
    name: &'static str,
    offset: usize,
    bytes: &'a [u8],
}

fn read_block<'a>(
    reader: &mut Reader<'a>,
    header: &Header,
    flag: u8,
    name: &'static str,
) -> Result<Option<Block<'a>>, Error> {
    if header.flags & flag == 0 {
        return Ok(None);
    }
    let offset = reader.at;
    let length = reader.u32(name)? as usize;
    if length > MAX_BLOCK {
        return Err(Error::BlockLength {
            block: name,
            offset,
            length,
            limit: MAX_BLOCK,
        });
    }
    let bytes = reader.take(length, name)?;
    Ok(Some(Block {
        name,
        offset: offset + 4,
        bytes,
    }))
}

fn content_hash(tensors: &RawTensors, metadata: Option<&[u8]>) -> Hash32 {
    let mut hasher = Sha3_256::new();
    for (name, tensor) in tensors {
        hasher.update(tensor_head(name, tensor.dtype, &tensor.shape));
        hasher.update(&tensor.data);
    }
    if let Some(metadata) = metadata {
        hasher.update(block(metadata));
    }
    Hash32(hasher.finalize().into())
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

fn parse_block<T: Serialize + DeserializeOwned>(block: Block<'_>) -> Result<T, Error> {
    let Block { name, offset, bytes } = block;
    cbor::from_dag(bytes, MAX_BLOCK).map_err(|source| Error::Block {
        block: name,
        offset,
        source,
    })
}

fn parse_metadata(block: Block<'_>) -> Result<Metadata, Error> {
    let metadata: Metadata = parse_block(block)?;
    let count = metadata.extra.len();
    if count > MAX_EXTRA {
        return Err(Error::Extra { count });
    }
    if let Some(timestamp) = &metadata.timestamp {
        timestamp.unix_seconds().map_err(|source| Error::Timestamp {
            block: block.name,
            source,
        })?;
    }
    Ok(metadata)
}

fn parse_auth(block: Block<'_>) -> Result<Auth, Error> {
    let auth: Auth = parse_block(block)?;
    let seconds = auth.body.timestamp.unix_seconds();
    seconds.map_err(|source| Error::Timestamp {
        block: block.name,
        source,
    })?;
    Ok(auth)
}
