//! One LZ4 frame a tensor: its writing, its extent in a file, its reading within a limit.

use lz4_flex::frame::{BlockMode, BlockSize, FrameDecoder, FrameEncoder, FrameInfo};
use std::io::{BufRead, Write};

/// Compresses to one frame: independent blocks, content size present, no dictionary, no checksums (the content hash
/// covers the data). Blocks of 64 KiB up to 64 KiB of data, else of 1 MiB, so that equal data give equal bytes.
pub(super) fn compress(data: &[u8]) -> std::io::Result<Vec<u8>> {
    let block_size = if data.len() <= 64 << 10 {
        BlockSize::Max64KB
    } else {
        BlockSize::Max1MB
    };
    let info = FrameInfo::new()
        .block_mode(BlockMode::Independent)
        .block_size(block_size)
        .content_size(Some(data.len() as u64));
    let mut encoder = FrameEncoder::with_frame_info(info, Vec::new());
    encoder.write_all(data)?;
    Ok(encoder.finish()?)
}

/// What is wrong with a frame, and how many bytes into it.
#[derive(Debug)]
pub(super) struct FrameError {
    pub(super) at: usize,
    pub(super) reason: String,
}

fn error(at: usize, reason: impl ToString) -> FrameError {
    FrameError {
        at,
        reason: reason.to_string(),
    }
}

const MAGIC: u32 = 0x184D_2204;
const UNCOMPRESSED: u32 = 1 << 31;

/// The length of the frame that `bytes` begin with, which must state `content` bytes of content and use no dictionary.
/// Allocates nothing.
pub(super) fn extent(bytes: &[u8], content: usize) -> Result<usize, FrameError> {
    let mut at = 0;
    if u32::from_le_bytes(take(bytes, &mut at)?) != MAGIC {
        return Err(error(0, "it does not begin with the LZ4 frame magic"));
    }
    let [flags, _block_size] = take(bytes, &mut at)?;
    let bit = |n: u8| flags >> n & 1 == 1;
    if flags >> 6 != 1 || bit(1) {
        return Err(error(4, "unknown frame version or reserved bit"));
    }
    if bit(0) || !bit(3) {
        return Err(error(4, "a frame states its content size and uses no dictionary"));
    }
    let stated = u64::from_le_bytes(take(bytes, &mut at)?);
    if stated != content as u64 {
        return Err(error(
            6,
            format!("content size {stated} where the tensor has {content} bytes"),
        ));
    }
    let [_header_checksum] = take(bytes, &mut at)?;
    skip_blocks(bytes, &mut at, if bit(4) { 4 } else { 0 })?;
    if bit(2) {
        take::<4>(bytes, &mut at)?;
    }
    Ok(at)
}

fn skip_blocks(bytes: &[u8], at: &mut usize, checksum: usize) -> Result<(), FrameError> {
    loop {
        let block_at = *at;
        let size = u32::from_le_bytes(take(bytes, at)?);
        if size == 0 {
            return Ok(());
        }
        let length = (size & !UNCOMPRESSED) as usize;
        if length == 0 {
            return Err(error(block_at, "an empty block"));
        }
        if bytes.len() - *at < length + checksum {
            return Err(error(block_at, "the file ends within this block"));
        }
        *at += length + checksum;
    }
}

fn take<const N: usize>(bytes: &[u8], at: &mut usize) -> Result<[u8; N], FrameError> {
    let rest = bytes.get(*at..).and_then(|rest| rest.first_chunk::<N>());
    let taken = *rest.ok_or_else(|| error(*at, "the file ends within this frame"))?;
    *at += N;
    Ok(taken)
}

/// The `content` bytes that `frame`, whose [`extent`] was taken, decodes to. Memory grows with what has been decoded,
/// not with what is claimed.
pub(super) fn decompress(frame: &[u8], content: usize) -> Result<Vec<u8>, FrameError> {
    let mut out = Vec::new();
    let mut decoder = FrameDecoder::new(frame);
    loop {
        let decoded = decoder.fill_buf().map_err(|e| error(0, e))?;
        let length = decoded.len();
        if length == 0 {
            break;
        }
        if out.len() + length > content {
            return Err(error(
                0,
                format!("it decodes to more than the {content} bytes it states"),
            ));
        }
        out.extend_from_slice(decoded);
        decoder.consume(length);
    }
    if out.len() != content || !decoder.get_ref().is_empty() {
        return Err(error(
            0,
            format!("it decodes to {} bytes instead of {content}", out.len()),
        ));
    }
    Ok(out)
}
