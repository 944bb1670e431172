//! Reading a frame.

use crate::delta::error::DeltaDecodeError as Error;
use crate::delta::source::Source;
use lz4_flex::block::{decompress_into, decompress_into_with_dict};
use std::io::Read;
use twox_hash::XxHash32;

const MAGIC: u32 = 0x184D_2204;
/// The bit of a block's length that says its bytes are as they are.
const UNCOMPRESSED: u32 = 1 << 31;
/// How far back a linked block may point.
const WINDOW: usize = 64 << 10;

/// A frame whose header has been read. It decodes to exactly the bytes its tensor has, or is refused.
pub(in crate::delta) struct Frame<'a> {
    tensor: &'a str,
    /// Blocks point into the blocks before them.
    linked: bool,
    block_checksums: bool,
    /// xxHash32 of the content, where the frame ends with it.
    content_checksum: Option<XxHash32>,
    /// Most bytes of a block, decoded.
    block_size: usize,
    /// Bytes still to be decoded.
    left: usize,
    /// A block as stored.
    stored: Vec<u8>,
    /// The window of a linked block, then the block, decoded.
    decoded: Vec<u8>,
    /// Bytes of the window in `decoded`.
    window: usize,
}

impl<'a> Frame<'a> {
    /// Reads the header of a frame that must state `content` bytes (or may leave them out when there are none, as the
    /// LZ4 library does) and use no dictionary.
    pub(in crate::delta) fn open<R: Read>(
        source: &mut Source<R>,
        tensor: &'a str,
        content: usize,
    ) -> Result<Self, Error> {
        let start = source.offset();
        let wrong = |at: usize, reason: String| error(start + at, tensor, reason);
        if source.u32("LZ4 frame")? != MAGIC {
            return Err(wrong(0, "it does not begin with the LZ4 frame magic".to_owned()));
        }
        let mut descriptor = source.array::<2>("LZ4 frame")?.to_vec();
        let [flags, sizes] = [descriptor[0], descriptor[1]];
        let bit = |n: u8| flags >> n & 1 == 1;
        if flags >> 6 != 1 || bit(1) {
            return Err(wrong(4, "unknown frame version or reserved bit".to_owned()));
        }
        if bit(0) || !(bit(3) || content == 0) {
            let reason = "a frame states its content size and uses no dictionary".to_owned();
            return Err(wrong(4, reason));
        }
        let block_size = block_size(sizes).ok_or_else(|| wrong(5, "unknown block size".to_owned()))?;
        if bit(3) {
            let stated = source.array::<8>("LZ4 frame")?;
            descriptor.extend(stated);
            let stated = u64::from_le_bytes(stated);
            if stated != content as u64 {
                let reason = format!("content size {stated} where the tensor has {content} bytes");
                return Err(wrong(6, reason));
            }
        }
        let checksum = (XxHash32::oneshot(0, &descriptor) >> 8) as u8;
        if source.byte("LZ4 frame")? != checksum {
            let at = 4 + descriptor.len();
            return Err(wrong(at, "the header's checksum does not fit".to_owned()));
        }
        Ok(Self {
            tensor,
            linked: !bit(5),
            block_checksums: bit(4),
            content_checksum: bit(2).then(|| XxHash32::with_seed(0)),
            block_size,
            left: content,
            stored: Vec::new(),
            decoded: Vec::new(),
            window: 0,
        })
    }

    /// The next block's bytes, not empty; `None` after the last, when all content has been given out.
    pub(in crate::delta) fn next<R: Read>(&mut self, source: &mut Source<R>) -> Result<Option<&[u8]>, Error> {
        self.slide();
        let start = source.offset();
        let word = source.u32("LZ4 frame")?;
        if word == 0 {
            return self.end(source, start).map(|()| None);
        }
        let length = (word & !UNCOMPRESSED) as usize;
        if length == 0 || length > self.block_size {
            let reason = format!("a block of {length} bytes; 1 to {} are allowed", self.block_size);
            return Err(error(start, self.tensor, reason));
        }
        self.stored.clear();
        source.append(&mut self.stored, length, "LZ4 block")?;
        if self.block_checksums && source.u32("LZ4 block checksum")? != XxHash32::oneshot(0, &self.stored) {
            return Err(error(start, self.tensor, "the block's checksum does not fit"));
        }
        let decoded = self
            .decode(word & UNCOMPRESSED != 0)
            .map_err(|reason| error(start, self.tensor, reason))?;
        self.left -= decoded;
        let block = &self.decoded[self.window..];
        if let Some(hasher) = &mut self.content_checksum {
            std::hash::Hasher::write(hasher, block);
        }
        Ok(Some(block))
    }

    /// Keeps of the last block what the next may point to.
    fn slide(&mut self) {
        self.window = if self.linked {
            self.decoded.len().min(WINDOW)
        } else {
            0
        };
        self.decoded.drain(..self.decoded.len() - self.window);
    }

    /// Decodes the stored block behind the window; how many bytes it has.
    fn decode(&mut self, uncompressed: bool) -> Result<usize, String> {
        let room = self.block_size.min(self.left);
        if uncompressed {
            let length = self.stored.len();
            if length > room {
                return Err(format!("{length} bytes where {room} are left of the content"));
            }
            self.decoded.extend_from_slice(&self.stored);
            return Ok(length);
        }
        self.decoded.resize(self.window + room, 0);
        let (window, block) = self.decoded.split_at_mut(self.window);
        let length = if window.is_empty() {
            decompress_into(&self.stored, block)
        } else {
            decompress_into_with_dict(&self.stored, block, window)
        };
        let length = length.map_err(|e| e.to_string())?;
        if length == 0 {
            return Err("an empty block".to_owned());
        }
        self.decoded.truncate(self.window + length);
        Ok(length)
    }

    fn end<R: Read>(&mut self, source: &mut Source<R>, start: usize) -> Result<(), Error> {
        if self.left != 0 {
            let reason = format!("it ends {} bytes before its content does", self.left);
            return Err(error(start, self.tensor, reason));
        }
        let Some(hasher) = &self.content_checksum else {
            return Ok(());
        };
        if source.u32("LZ4 content checksum")? != hasher.finish_32() {
            return Err(error(start, self.tensor, "the content's checksum does not fit"));
        }
        Ok(())
    }
}

/// The block size of the header's second byte: 64 KiB, 256 KiB, 1 MiB or 4 MiB.
fn block_size(sizes: u8) -> Option<usize> {
    match sizes {
        0x40 => Some(64 << 10),
        0x50 => Some(256 << 10),
        0x60 => Some(1 << 20),
        0x70 => Some(4 << 20),
        _ => None,
    }
}

fn error(offset: usize, tensor: &str, reason: impl Into<String>) -> Error {
    Error::Lz4 {
        offset,
        tensor: tensor.to_owned(),
        reason: reason.into(),
    }
}
