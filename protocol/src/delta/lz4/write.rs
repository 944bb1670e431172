//! Writing a frame.

use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};
use std::io::{self, Write};

/// Writes one frame: independent blocks, content size present, no dictionary, no checksums (the content hash covers the
/// data). Blocks of 64 KiB up to 64 KiB of data, else of 1 MiB, so that equal data give equal bytes.
pub(in crate::delta) struct FrameWriter<W: Write>(FrameEncoder<W>);

impl<W: Write> FrameWriter<W> {
    /// A frame of `len` bytes of content.
    pub(in crate::delta) fn new(len: usize, out: W) -> Self {
        let block_size = if len <= 64 << 10 {
            BlockSize::Max64KB
        } else {
            BlockSize::Max1MB
        };
        let info = FrameInfo::new()
            .block_mode(BlockMode::Independent)
            .block_size(block_size)
            .content_size(Some(len as u64));
        Self(FrameEncoder::with_frame_info(info, out))
    }

    /// The next bytes of the content.
    pub(in crate::delta) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }

    /// Ends the frame; the content must be whole.
    pub(in crate::delta) fn finish(self) -> io::Result<()> {
        self.0.finish()?;
        Ok(())
    }
}
