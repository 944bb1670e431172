//! One LZ4 frame a tensor (github.com/lz4/lz4, doc/lz4_Frame_format.md): its writing, and its reading from a stream
//! within a limit. Blocks are lz4_flex's; the frame around them is read here, block by block, so that memory is bounded
//! by a block and an error names its offset.

mod read;
mod write;

pub(super) use read::Frame;
pub(super) use write::FrameWriter;
