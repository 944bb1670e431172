//! Writing a delta file.

use super::auth::{Auth, AuthBody, DOMAIN, DeltaSigner};
use super::error::DeltaEncodeError;
use super::format::{
    CHECKSUM_LEN, Compression, FLAG_AUTH, FLAG_METADATA, HEADER_LEN, MAGIC, VERSION, block, tensor_head,
};
use super::metadata::{MAX_EXTRA, Metadata};
use super::tensor::{RawTensor, RawTensors, from_set};
use super::{lz4, shuffle};
use crate::cbor;
use crate::ids::Hash32;
use crate::tensor::TensorSet;
use sha3::{Digest, Sha3_256};
use std::fmt;

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
    encode_file(&from_set(tensors), trailers, compression)
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
    for (name, tensor) in tensors {
        tensor.check(name).map_err(|source| DeltaEncodeError::Tensor {
            tensor: name.to_owned(),
            source,
        })?;
    }
    encode_as_given(tensors, trailers, compression)
}

/// As [`encode_file`], but values are written as they are, NaN included: a file that readers must refuse, for the
/// scenarios that see them do so.
///
/// # Errors
/// Metadata out of bounds.
pub fn encode_as_given(
    tensors: &RawTensors,
    trailers: Trailers<'_>,
    compression: Compression,
) -> Result<Vec<u8>, DeltaEncodeError> {
    let mut hasher = Sha3_256::new();
    let mut out = vec![0; HEADER_LEN];
    for (name, tensor) in tensors {
        write_tensor(&mut out, &mut hasher, name, tensor, compression)?;
    }
    let flags = flags(trailers);
    if flags != 0 {
        out.extend_from_slice(&0u32.to_le_bytes());
    }
    if let Some(metadata) = trailers.metadata {
        let bytes = metadata_block(metadata)?;
        hasher.update(&bytes);
        out.extend_from_slice(&bytes);
    }
    let content_hash = Hash32(hasher.finalize().into());
    if let Some((body, signer)) = trailers.auth {
        out.extend_from_slice(&auth_block(body, signer, &content_hash)?);
    }
    write_header(&mut out, compression, flags, &content_hash);
    Ok(out)
}

fn write_tensor(
    out: &mut Vec<u8>,
    hasher: &mut Sha3_256,
    name: &str,
    tensor: &RawTensor,
    compression: Compression,
) -> Result<(), DeltaEncodeError> {
    let head = tensor_head(name, tensor.dtype, &tensor.shape);
    hasher.update(&head);
    hasher.update(&tensor.data);
    out.extend_from_slice(&head);
    let compressed = match compression {
        Compression::None => {
            out.extend_from_slice(&tensor.data);
            return Ok(());
        }
        Compression::Lz4 => lz4::compress(&tensor.data),
        Compression::ShuffleLz4 => lz4::compress(&shuffled(tensor)),
    };
    let frame = compressed.map_err(|source| DeltaEncodeError::Compress {
        tensor: name.to_owned(),
        source,
    })?;
    out.extend_from_slice(&frame);
    Ok(())
}

fn shuffled(tensor: &RawTensor) -> Vec<u8> {
    let elements = super::format::elements(&tensor.shape);
    match elements.and_then(|n| tensor.dtype.parts(n)) {
        Some(parts) => shuffle::shuffle(&tensor.data, parts),
        None => tensor.data.clone(), // a shape without a size, which `encode_file` refuses
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

fn write_header(out: &mut [u8], compression: Compression, flags: u8, content_hash: &Hash32) {
    out[..5].copy_from_slice(&MAGIC);
    out[5] = VERSION;
    out[6] = compression.number();
    out[7] = flags;
    out[8..HEADER_LEN].copy_from_slice(&content_hash.0[..CHECKSUM_LEN]);
}
