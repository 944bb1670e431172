//! Delta files. Nobody guesses a SHA3-256, so a file whose only fault is its checksum is mended and read again.

use gym_protocol::delta::{
    Compression, Delta, DeltaDecodeError, Limits, Trailers, decode, decode_from, encode_file,
};
use std::io::Read as _;

/// What the reader takes: the corpus test holds its memory against them.
pub const LIMITS: Limits = Limits {
    file_bytes: 1 << 20,
    tensor_bytes: 1 << 20,
    tensors: 64,
};

/// Reads a file; what is accepted must survive being written again.
pub fn run(data: &[u8]) {
    let Some(delta) = read(data) else { return };
    for compression in Compression::ALL {
        let plain = Trailers {
            metadata: delta.metadata.as_ref(),
            auth: None,
        };
        let written = encode_file(&delta.tensors, plain, compression).expect("what was read can be written");
        let limits = Limits {
            file_bytes: 4 << 20,
            ..LIMITS
        };
        let again = decode(&written, &limits).expect("what was written can be read");
        assert_eq!(again.tensors, delta.tensors);
        assert_eq!(again.metadata, delta.metadata);
        assert_eq!(again.content_hash, delta.content_hash);
    }
}

fn read(data: &[u8]) -> Option<Delta> {
    let error = match decode(data, &LIMITS) {
        Ok(delta) => return Some(delta),
        Err(error) => error,
    };
    let DeltaDecodeError::Checksum { actual, .. } = error else {
        let split = data.len() / 2;
        let stream = data[..split].chain(&data[split..]);
        let streamed = decode_from(stream, &LIMITS).expect_err("a stream is read as memory is");
        assert_eq!(streamed.to_string(), error.to_string());
        return None;
    };
    let mut mended = data.to_vec();
    for (i, byte) in mended[8..24].iter_mut().enumerate() {
        *byte =
            u8::from_str_radix(&actual[2 * i..2 * i + 2], 16).expect("a checksum is shown in hexadecimal");
    }
    decode(&mended, &LIMITS).ok()
}
