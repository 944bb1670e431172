//! Reads a delta file and writes it again with another compression, trailers and signatures as they are:
//! `delta_rewrite IN OUT 0|1|2`. `scripts/delta-check` exchanges files with the Python reader and writer through it.

#![allow(clippy::print_stdout, reason = "a program that prints the content hash")]

use gym_protocol::delta::{Compression, DeltaSignatures, DeltaSigner, Limits, Trailers, decode, encode_file};
use std::error::Error;

/// Bytes of a file, and of its tensors, read at most.
const MAX_BYTES: usize = 1 << 30;

/// Gives back the signatures that were there.
struct Kept(DeltaSignatures);

impl DeltaSigner for Kept {
    fn sign(&self, _: &'static str, _: &[u8]) -> DeltaSignatures {
        self.0.clone()
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [from, to, compression] = arguments.as_slice() else {
        return Err("usage: delta_rewrite IN OUT 0|1|2".into());
    };
    let compression = Compression::from_number(compression.parse()?).ok_or("the compression is 0, 1 or 2")?;
    let limits = Limits {
        file_bytes: MAX_BYTES,
        tensor_bytes: MAX_BYTES,
        tensors: 65_536,
    };
    let delta = decode(&std::fs::read(from)?, &limits)?;
    let auth = delta.auth.map(|auth| (auth.body, Kept(auth.signatures)));
    let trailers = Trailers {
        metadata: delta.metadata.as_ref(),
        auth: auth.as_ref().map(|(body, kept)| (body, kept as &dyn DeltaSigner)),
    };
    std::fs::write(to, encode_file(&delta.tensors, trailers, compression)?)?;
    println!("{}", delta.content_hash.to_hex());
    Ok(())
}
