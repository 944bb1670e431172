//! Bitswap messages and UnixFS blocks, by the program's own files: they need nothing of the rest of it.

#![allow(dead_code, unused_imports)]

#[path = "../../node/src/content/block.rs"]
pub mod block;
#[path = "../../node/src/content/unixfs/dagpb.rs"]
mod dagpb;
#[path = "../../node/src/content/unixfs/error.rs"]
mod error;
#[path = "../../node/src/content/bitswap/message.rs"]
mod message;
#[path = "../../node/src/content/unixfs/node.rs"]
mod node;
#[path = "../../node/src/content/wire.rs"]
pub(crate) mod wire;

/// What `unixfs/error.rs` names of the store, which is not here.
pub mod store {
    /// No store, no error.
    #[derive(Debug, thiserror::Error)]
    #[error("never")]
    pub enum StoreError {}
}

use error::NodeError;

/// As in `node/src/content/bitswap/mod.rs`.
const MAX_MESSAGE: usize = 4 << 20;

/// Decodes a bitswap message.
pub(crate) fn bitswap(bytes: &[u8]) {
    let _ = message::frame_length(bytes);
    let body = bytes::Bytes::copy_from_slice(bytes);
    let Ok(decoded) = message::Message::decode(&body) else { return };
    let frame = decoded.encode_frame();
    let (length, used) = message::frame_length(&frame).expect("a length").expect("a whole one");
    assert_eq!(length, frame.len() - used);
    let again = message::Message::decode(&frame.slice(used..)).expect("what was decoded is encoded well");
    assert_eq!(again, decoded);
}

/// Decodes a block of a codec.
pub(crate) fn unixfs(bytes: &[u8], codec: u64) {
    let block = bytes::Bytes::copy_from_slice(bytes);
    let cid = block::cid_of(codec, bytes);
    let links = node::links(&cid, &block);
    if let Ok(pb) = dagpb::PbNode::decode(&block) {
        let again = dagpb::PbNode::decode(&pb.encode().into()).expect("what was decoded is encoded well");
        assert_eq!(again, pb);
    }
    if node::Node::decode(&cid, &block).is_ok() {
        links.expect("a node's links can be read alone");
    }
}
