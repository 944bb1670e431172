//! Writing a delta file.

use super::auth::{Auth, AuthBody, DOMAIN, DeltaSigner};
use super::error::{DeltaEncodeError, ValueError};
use super::format::{
    CHECKSUM_LEN, Compression, FLAG_AUTH, FLAG_METADATA, HEADER_LEN, MAGIC, Part, VERSION, block, tensor_head,
};
use super::hash::ContentHasher;
use super::lz4::FrameWriter;
use super::metadata::{MAX_EXTRA, Metadata};
use super::shuffle;
use super::tensor::{RawTensors, TensorView};
use crate::cbor;
use crate::ids::Hash32;
use crate::tensor::TensorSet;
use std::fmt;
use std::io::{self, BufWriter, Cursor, Seek, SeekFrom, Write};

/// Writes a signed delta, what a worker commits.
///
/// # Errors
/// A tensor whose data does not fit its shape or is not finite; metadata out of bounds.
pub fn encode(
    tensors: &TensorSet,
    metadata: &Metadata,
    auth: &AuthBody,
    compression: Compression,
    signer: &dyn DeltaSigner,
) -> Result<Vec<u8>, DeltaEncodeError> {
    let trailers = Trailers {
        metadata: Some(metadata),
        auth: Some((auth, signer)),
    };
    let views = tensors
        .0
        .iter()
        .map(|(name, tensor)| TensorView::f32(name, tensor));
    in_memory(views, trailers, compression, Values::Checked)
}

/// What follows the tensors.
#[derive(Clone, Copy, Default)]
pub struct Trailers<'a> {
    /// Sets flag bit 0.
    pub metadata: Option<&'a Metadata>,
    /// Sets flag bit 1.
    pub auth: Option<(&'a AuthBody, &'a dyn DeltaSigner)>,
}

impl fmt::Debug for Trailers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let auth = self.auth.map(|(body, _)| body);
        f.debug_struct("Trailers")
            .field("metadata", &self.metadata)
            .field("auth", &auth)
            .finish()
    }
}

/// Writes tensors of any dtype with the trailers given; with none it is a plain tensor file.
///
/// # Errors
/// As [`encode`].
pub fn encode_file(
    tensors: &RawTensors,
    trailers: Trailers<'_>,
    compression: Compression,
) -> Result<Vec<u8>, DeltaEncodeError> {
    let views = tensors.iter().map(|(name, tensor)| tensor.view(name));
    in_memory(views, trailers, compression, Values::Checked)
}

/// As [`encode_file`], but values are written as they are, NaN included: a file that readers must refuse, for the
/// scenarios that see them do so.
///
/// # Errors
/// As [`encode`], values apart.
pub fn encode_as_given(
    tensors: &RawTensors,
    trailers: Trailers<'_>,
    compression: Compression,
) -> Result<Vec<u8>, DeltaEncodeError> {
    let views = tensors.iter().map(|(name, tensor)| tensor.view(name));
    in_memory(views, trailers, compression, Values::AsGiven)
}

fn in_memory<'a>(
    tensors: impl IntoIterator<Item = TensorView<'a>>,
    trailers: Trailers<'_>,
    compression: Compression,
    values: Values,
) -> Result<Vec<u8>, DeltaEncodeError> {
    let mut out = Cursor::new(Vec::new());
    write_file(tensors, trailers, compression, values, &mut out)?;
    Ok(out.into_inner())
}

/// Writes tensors, ascending by name, to a stream as they come, with the trailers given. The stream can seek because the
/// header, which comes last, has a checksum over everything; until then its bytes are zero, so that a file cut short is
/// none. Beside a tensor it holds at most a few mebibytes; a thread hashes meanwhile what has been written. Returns the
/// content hash.
///
/// # Errors
/// As [`encode`]; names that do not ascend; a stream that fails.
pub fn encode_to<'a>(
    tensors: impl IntoIterator<Item = TensorView<'a>>,
    trailers: Trailers<'_>,
    compression: Compression,
    out: &mut (impl Write + Seek),
) -> Result<Hash32, DeltaEncodeError> {
    let mut out = BufWriter::with_capacity(64 << 10, out);
    write_file(tensors, trailers, compression, Values::Checked, &mut out)
}

/// Whether values are looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Values {
    Checked,
    AsGiven,
}

fn write_file<'a>(
    tensors: impl IntoIterator<Item = TensorView<'a>>,
    trailers: Trailers<'_>,
    compression: Compression,
    values: Values,
    out: &mut (impl Write + Seek),
) -> Result<Hash32, DeltaEncodeError> {
    let flags = flags(trailers);
    let start = out.stream_position().map_err(failed("the header"))?;
    out.write_all(&[0; HEADER_LEN]).map_err(failed("the header"))?;
    let mut hasher = ContentHasher::new();
    write_tensors(tensors, compression, values, &mut hasher, out)?;
    if flags != 0 {
        out.write_all(&0u32.to_le_bytes())
            .map_err(failed("the tensors' end"))?;
    }
    if let Some(metadata) = trailers.metadata {
        let block = metadata_block(metadata)?;
        hasher.update(&block);
        out.write_all(&block).map_err(failed("metadata"))?;
    }
    let content_hash = hasher.finish();
    if let Some((body, signer)) = trailers.auth {
        let block = auth_block(body, signer, &content_hash)?;
        out.write_all(&block).map_err(failed("auth"))?;
    }
    write_header(out, start, &header(compression, flags, &content_hash)).map_err(failed("the header"))?;
    Ok(content_hash)
}

fn failed(what: &str) -> impl FnOnce(io::Error) -> DeltaEncodeError {
    move |source| DeltaEncodeError::Write {
        what: what.to_owned(),
        source,
    }
}

fn write_tensors<'a>(
    tensors: impl IntoIterator<Item = TensorView<'a>>,
    compression: Compression,
    values: Values,
    hasher: &mut ContentHasher,
    out: &mut impl Write,
) -> Result<(), DeltaEncodeError> {
    let mut previous: Option<&str> = None;
    for tensor in tensors {
        let refused = |source| DeltaEncodeError::Tensor {
            tensor: tensor.name.to_owned(),
            source,
        };
        if let Some(previous) = previous.filter(|previous| *previous >= tensor.name) {
            let previous = previous.to_owned();
            return Err(refused(ValueError::Order { previous }));
        }
        previous = Some(tensor.name);
        let parts = tensor.check_form().map_err(refused)?;
        if values == Values::Checked {
            tensor.check().map_err(refused)?;
        }
        write_tensor(&tensor, parts, compression, hasher, out).map_err(failed(tensor.name))?;
    }
    Ok(())
}

/// Bytes that are hashed and written in turns, so that both go on at once.
const TURN: usize = 1 << 20;

fn write_tensor(
    tensor: &TensorView<'_>,
    parts: [Part; 2],
    compression: Compression,
    hasher: &mut ContentHasher,
    out: &mut impl Write,
) -> io::Result<()> {
    let head = tensor_head(tensor.name, tensor.dtype, tensor.shape);
    hasher.update(&head);
    out.write_all(&head)?;
    let len = tensor.data.len();
    let turns = (0..len.div_ceil(TURN)).map(|i| i * TURN..len.min((i + 1) * TURN));
    match compression {
        Compression::None => {
            for turn in turns {
                hasher.update(&tensor.data[turn.clone()]);
                out.write_all(&tensor.data[turn])?;
            }
            Ok(())
        }
        Compression::Lz4 => {
            let mut frame = FrameWriter::new(len, out);
            for turn in turns {
                hasher.update(&tensor.data[turn.clone()]);
                frame.write(&tensor.data[turn])?;
            }
            frame.finish()
        }
        Compression::ShuffleLz4 => {
            let mut frame = FrameWriter::new(len, out);
            let mut shuffled = Vec::with_capacity(len.min(TURN));
            for turn in turns {
                hasher.update(&tensor.data[turn.clone()]);
                shuffled.clear();
                shuffle::gather(&tensor.data, parts, turn, &mut shuffled);
                frame.write(&shuffled)?;
            }
            frame.finish()
        }
    }
}

fn flags(trailers: Trailers<'_>) -> u8 {
    let metadata = trailers.metadata.map_or(0, |_| FLAG_METADATA);
    metadata | trailers.auth.map_or(0, |_| FLAG_AUTH)
}

fn metadata_block(metadata: &Metadata) -> Result<Vec<u8>, DeltaEncodeError> {
    let count = metadata.extra.len();
    if count > MAX_EXTRA {
        return Err(DeltaEncodeError::Extra { count });
    }
    encoded_block("metadata", cbor::to_dag(metadata))
}

fn auth_block(
    body: &AuthBody,
    signer: &dyn DeltaSigner,
    content_hash: &Hash32,
) -> Result<Vec<u8>, DeltaEncodeError> {
    let signed = body.signed_bytes(content_hash);
    let signed = signed.map_err(|source| DeltaEncodeError::Block {
        block: "auth",
        source,
    })?;
    let auth = Auth {
        body: body.clone(),
        signatures: signer.sign(DOMAIN, &signed),
    };
    encoded_block("auth", cbor::to_dag(&auth))
}

/// Most bytes of a metadata or auth block.
pub(super) const MAX_BLOCK: usize = 64 << 10;

fn encoded_block(
    name: &'static str,
    bytes: Result<Vec<u8>, cbor::CborError>,
) -> Result<Vec<u8>, DeltaEncodeError> {
    let failed = |source| DeltaEncodeError::Block { block: name, source };
    let bytes = bytes.map_err(failed)?;
    if bytes.len() > MAX_BLOCK {
        return Err(failed(cbor::CborError::TooLong {
            len: bytes.len(),
            limit: MAX_BLOCK,
        }));
    }
    Ok(block(&bytes))
}

fn header(compression: Compression, flags: u8, content_hash: &Hash32) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header[..5].copy_from_slice(&MAGIC);
    header[5..8].copy_from_slice(&[VERSION, compression.number(), flags]);
    header[8..].copy_from_slice(&content_hash.0[..CHECKSUM_LEN]);
    header
}

/// Writes the header where the file began and goes back to its end.
fn write_header(out: &mut (impl Write + Seek), start: u64, header: &[u8]) -> io::Result<()> {
    let end = out.stream_position()?;
    out.seek(SeekFrom::Start(start))?;
    out.write_all(header)?;
    out.seek(SeekFrom::Start(end))?;
    out.flush()
}
