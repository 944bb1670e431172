//! Short writes held back, to go out with what follows them.
//!
//! yamux writes a frame as its twelve bytes of header and then its body. Under TLS each write is a record, a system call
//! and a packet of its own, so that every other packet of a stream would carry twelve bytes.

use futures::{AsyncRead, AsyncWrite, ready};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

/// Writes of at most these many bytes are held back, until as many wait.
const SHORT: usize = 64;

/// Holds short writes back until a longer one or a flush takes them along. What is read passes through.
#[derive(Debug)]
pub(super) struct Coalesce<C> {
    io: C,
    held: [u8; SHORT],
    /// Of them, those that wait.
    len: usize,
}

impl<C: AsyncWrite + Unpin> Coalesce<C> {
    pub(super) fn new(io: C) -> Self {
        Self {
            io,
            held: [0; SHORT],
            len: 0,
        }
    }

    fn poll_held(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.len > 0 {
            let written = ready!(Pin::new(&mut self.io).poll_write(cx, &self.held[..self.len]))?;
            self.written(written)?;
        }
        Poll::Ready(Ok(()))
    }

    /// Forgets held bytes that were written.
    fn written(&mut self, count: usize) -> io::Result<()> {
        if count == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        let count = count.min(self.len);
        self.held.copy_within(count..self.len, 0);
        self.len -= count;
        Ok(())
    }
}

impl<C: AsyncWrite + Unpin> AsyncWrite for Coalesce<C> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if this.len + buf.len() <= SHORT {
            this.held[this.len..][..buf.len()].copy_from_slice(buf);
            this.len += buf.len();
            return Poll::Ready(Ok(buf.len()));
        }
        loop {
            let held = this.len;
            if held == 0 {
                return Pin::new(&mut this.io).poll_write(cx, buf);
            }
            let both = [IoSlice::new(&this.held[..held]), IoSlice::new(buf)];
            let written = ready!(Pin::new(&mut this.io).poll_write_vectored(cx, &both))?;
            this.written(written)?;
            if written > held {
                return Poll::Ready(Ok(written - held));
            }
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_held(cx))?;
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_held(cx))?;
        Pin::new(&mut self.io).poll_close(cx)
    }
}

impl<C: AsyncRead + Unpin> AsyncRead for Coalesce<C> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::executor::block_on;
    use futures::{AsyncWriteExt as _, future::poll_fn};

    /// Remembers each write; takes at most `most` bytes at a time.
    #[derive(Default)]
    struct Writes {
        all: Vec<Vec<u8>>,
        most: usize,
    }

    impl AsyncWrite for Writes {
        fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
            self.as_mut().poll_write_vectored(cx, &[IoSlice::new(buf)])
        }

        fn poll_write_vectored(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bufs: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            let mut bytes: Vec<u8> = bufs.iter().flat_map(|buf| buf.iter().copied()).collect();
            bytes.truncate(self.most);
            let len = bytes.len();
            self.all.push(bytes);
            Poll::Ready(Ok(len))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    fn taking(most: usize) -> Coalesce<Writes> {
        let all = Vec::new();
        Coalesce::new(Writes { all, most })
    }

    #[test]
    fn a_header_goes_out_with_its_body() {
        let mut io = taking(usize::MAX);
        block_on(io.write_all(&[1; 12])).unwrap();
        assert!(io.io.all.is_empty());
        block_on(io.write_all(&[2; 100])).unwrap();
        assert_eq!(io.io.all, [[vec![1; 12], vec![2; 100]].concat()]);
    }

    #[test]
    fn a_flush_or_the_end_takes_what_waits_along() {
        let mut io = taking(5);
        block_on(io.write_all(&[1; 12])).unwrap();
        block_on(io.flush()).unwrap();
        assert_eq!(io.io.all.concat(), [1; 12]);
        block_on(io.write_all(&[2; 3])).unwrap();
        block_on(io.close()).unwrap();
        assert_eq!(io.io.all.concat(), [vec![1; 12], vec![2; 3]].concat());
    }

    #[test]
    fn no_byte_is_lost_or_moved_whatever_is_taken() {
        for most in 1..80 {
            let mut io = taking(most);
            let mut expected = Vec::new();
            for i in 0..60u8 {
                let piece = vec![i; usize::from(i) * 3];
                block_on(io.write_all(&piece)).unwrap();
                expected.extend(piece);
            }
            block_on(io.flush()).unwrap();
            assert_eq!(io.io.all.concat(), expected, "at most {most}");
        }
    }

    #[test]
    fn nothing_written_is_an_error() {
        let mut io = taking(0);
        block_on(io.write_all(&[1; 12])).unwrap();
        let error = block_on(poll_fn(|cx| Pin::new(&mut io).poll_write(cx, &[2; 100]))).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WriteZero);
    }
}
