//! What the fuzz targets do with their bytes. The same functions run over the committed corpus as ordinary tests:
//! `protocol/tests/corpus.rs` and `crypto/tests/corpus.rs`; the node's decoders are run over theirs in its own tests.

mod content;
pub mod delta;
#[path = "../../node/src/net/hello.rs"]
#[allow(dead_code)]
mod hello;
pub mod link;
pub mod message;
pub mod node;
pub mod parsers;
pub mod ring;
