//! What the program itself decodes, by its own files: bitswap messages, UnixFS blocks, hellos.

use crate::{content, hello};

/// Decodes the bytes as one of them; what is accepted must survive being encoded again.
pub fn run(data: &[u8]) {
    let Some((what, bytes)) = data.split_first() else { return };
    match what % 4 {
        0 => content::bitswap(bytes),
        1 => content::unixfs(bytes, content::block::DAG_PB),
        2 => content::unixfs(bytes, content::block::RAW),
        _ => greeting(bytes),
    }
}

fn greeting(bytes: &[u8]) {
    if let Ok(hello) = hello::Hello::decode(bytes) {
        assert_eq!(hello.encode().expect("what was decoded encodes"), bytes);
    }
    if let Ok(reply) = hello::Reply::decode(bytes) {
        assert_eq!(reply.encode().expect("what was decoded encodes"), bytes);
    }
}
