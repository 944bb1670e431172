//! The delta file (PROTOCOL section 3): a worker's change of the adapter, or any set of named tensors.
//!
//! [`encode`] signs and writes one, [`decode`] reads one within [`Limits`] and hands out nothing whose checksum, names,
//! shapes and values it has not checked, [`Delta::verify`] checks signatures, sequence and clock. One set of tensors has
//! one encoding a compression. [`encode_to`] and [`decode_from`] do the same with streams, beside the tensors in a few
//! mebibytes of memory, hashing in a thread while they compress, decompress, read and write.
//!
//! `content_hash` is SHA3-256 over every tensor's head and uncompressed data, then the metadata block with its length
//! when there is one; the u32 0 that ends the tensors is not in it. It does not depend on the compressor.

mod auth;
mod convert;
mod decode;
mod encode;
mod error;
pub mod format;
mod hash;
mod lz4;
mod metadata;
mod shuffle;
mod source;
mod tensor;
mod verify;

pub use auth::{Attestation, Auth, AuthBody, DOMAIN, DeltaSignatures, DeltaSigner};
pub use decode::{Delta, Header, Limits, Offsets, decode, decode_from};
pub use encode::{Trailers, encode, encode_as_given, encode_file, encode_to};
pub use error::{DeltaDecodeError, DeltaEncodeError, ValueError};
pub use format::{Compression, DType};
pub use metadata::{MAX_EXTRA, Metadata, Timestamp, TimestampError};
pub use tensor::{DTypeError, RawTensor, RawTensors, TensorView};
pub use verify::{DeltaVerifyError, Expected};

#[cfg(test)]
mod tests;
