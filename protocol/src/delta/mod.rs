//! The delta file (PROTOCOL section 3): a worker's change of the adapter, or any set of named tensors.
//!
//! [`encode`] signs and writes one, [`decode`] reads one within [`Limits`] and hands out nothing whose checksum, names,
//! shapes and values it has not checked, [`Delta::verify`] checks signatures, sequence and clock. One set of tensors has
//! one encoding a compression. Files are whole in memory.
//!
//! `content_hash` is SHA3-256 over every tensor's head and uncompressed data, then the metadata block with its length
//! when there is one; the u32 0 that ends the tensors is not in it. It does not depend on the compressor.

mod auth;
mod convert;
mod decode;
mod encode;
mod error;
pub mod format;
mod lz4;
mod metadata;
mod shuffle;
mod tensor;
mod verify;

pub use auth::{Attestation, Auth, AuthBody, DOMAIN, DeltaSignatures, DeltaSigner};
pub use decode::{Delta, Header, Limits, decode};
pub use encode::{Trailers, encode, encode_as_given, encode_file};
pub use error::{DeltaDecodeError, DeltaEncodeError, ValueError};
pub use format::{Compression, DType};
pub use metadata::{MAX_EXTRA, Metadata, Timestamp, TimestampError};
pub use tensor::{DTypeError, RawTensor, RawTensors};
pub use verify::{DeltaVerifyError, Expected};

#[cfg(test)]
mod tests;
