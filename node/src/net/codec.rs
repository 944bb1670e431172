//! Request-response with opaque bytes: one u32-length frame each way, limits checked before anything is allocated.

use futures::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use libp2p::StreamProtocol;
use libp2p::request_response::Codec;
use std::io;

/// Frames of at most these many bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BytesCodec {
    /// Longest request.
    pub(crate) max_request: usize,
    /// Longest response.
    pub(crate) max_response: usize,
}

impl Codec for BytesCodec {
    type Protocol = StreamProtocol;
    type Request = Vec<u8>;
    type Response = Vec<u8>;

    async fn read_request<T>(&mut self, _: &StreamProtocol, io: &mut T) -> io::Result<Vec<u8>>
    where
        T: AsyncRead + Unpin + Send,
    {
        read_frame(io, self.max_request).await
    }

    async fn read_response<T>(&mut self, _: &StreamProtocol, io: &mut T) -> io::Result<Vec<u8>>
    where
        T: AsyncRead + Unpin + Send,
    {
        read_frame(io, self.max_response).await
    }

    async fn write_request<T>(&mut self, _: &StreamProtocol, io: &mut T, bytes: Vec<u8>) -> io::Result<()>
    where
        T: AsyncWrite + Unpin + Send,
    {
        write_frame(io, &[&bytes]).await?;
        io.close().await
    }

    async fn write_response<T>(&mut self, _: &StreamProtocol, io: &mut T, bytes: Vec<u8>) -> io::Result<()>
    where
        T: AsyncWrite + Unpin + Send,
    {
        write_frame(io, &[&bytes]).await?;
        io.close().await
    }
}

/// Parts that are copied so that they are written with what is before them.
const SHORT: usize = 8 * 1024;
const NOTHING: &[u8] = &[];

/// Reads one frame of at most `limit` bytes. Memory grows with what arrives, not with what is announced.
pub(crate) async fn read_frame<T: AsyncRead + Unpin>(io: &mut T, limit: usize) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    io.read_exact(&mut length).await?;
    let length = u32::from_le_bytes(length) as usize;
    if length > limit {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a frame of {length} bytes where at most {limit} are accepted"),
        ));
    }
    let mut bytes = Vec::with_capacity(length.min(64 * 1024));
    io.take(length as u64).read_to_end(&mut bytes).await?;
    if bytes.len() < length {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            format!("a frame of {length} bytes ended after {}", bytes.len()),
        ));
    }
    Ok(bytes)
}

/// Writes one frame made of `parts`.
pub(crate) async fn write_frame<T: AsyncWrite + Unpin>(io: &mut T, parts: &[&[u8]]) -> io::Result<()> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let length = u32::try_from(length)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "a frame of 4 GiB or more"))?;
    // The length goes with the first part: every write is a frame of the multiplexer.
    let (first, rest) = parts.split_first().unwrap_or((&NOTHING, &[]));
    if first.len() <= SHORT {
        io.write_all(&[&length.to_le_bytes(), *first].concat()).await?;
    } else {
        io.write_all(&length.to_le_bytes()).await?;
        io.write_all(first).await?;
    }
    for part in rest {
        io.write_all(part).await?;
    }
    io.flush().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::executor::block_on;
    use futures::io::Cursor;

    #[test]
    fn frames_round_trip() {
        let mut bytes = Vec::new();
        block_on(write_frame(&mut bytes, &[b"ab", b"c"])).unwrap();
        assert_eq!(bytes, b"\x03\0\0\0abc");
        assert_eq!(block_on(read_frame(&mut Cursor::new(bytes), 3)).unwrap(), b"abc");
    }

    #[test]
    fn long_and_short_frames_are_refused() {
        let long = block_on(read_frame(&mut Cursor::new(b"\xff\xff\xff\xff"), 3)).unwrap_err();
        assert!(
            long.to_string().contains("4294967295 bytes where at most 3"),
            "{long}"
        );
        let short = block_on(read_frame(&mut Cursor::new(b"\x03\0\0\0ab"), 3)).unwrap_err();
        assert!(short.to_string().contains("3 bytes ended after 2"), "{short}");
    }
}
