//! A stream that counts its bytes and stops at the caller's limit.

use super::error::DeltaDecodeError as Error;
use std::io::{BufReader, ErrorKind, Read};

/// Bytes fetched at a time where fewer are asked for.
const BUFFER: usize = 64 << 10;
/// Bytes read at a time where more are wanted.
const STEP: usize = 1 << 20;
/// Bytes set aside on a claim alone.
const CLAIM: usize = 8 << 20;
/// By how much memory grows once what was set aside is full of bytes that came.
const GROWTH: usize = 32;

/// Where a decoder's bytes come from.
pub(super) struct Source<R: Read> {
    inner: BufReader<R>,
    at: usize,
    limit: usize,
}

impl<R: Read> Source<R> {
    /// At most `limit` bytes of `inner`.
    pub(super) fn new(inner: R, limit: usize) -> Self {
        Self {
            inner: BufReader::with_capacity(BUFFER.min(limit.max(1)), inner),
            at: 0,
            limit,
        }
    }

    /// Bytes read so far.
    pub(super) fn offset(&self) -> usize {
        self.at
    }

    pub(super) fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], Error> {
        let mut bytes = [0; N];
        self.fill(&mut bytes, what)?;
        Ok(bytes)
    }

    pub(super) fn byte(&mut self, what: &'static str) -> Result<u8, Error> {
        self.array(what).map(|[byte]| byte)
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, Error> {
        self.array(what).map(u32::from_le_bytes)
    }

    /// A byte string of `length` bytes, a small number.
    pub(super) fn bytes(&mut self, length: usize, what: &'static str) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        self.append(&mut bytes, length, what)?;
        Ok(bytes)
    }

    /// Appends `length` bytes to `to`; its memory grows with what has come.
    pub(super) fn append(
        &mut self,
        to: &mut Vec<u8>,
        length: usize,
        what: &'static str,
    ) -> Result<(), Error> {
        let end = to.len() + length;
        while to.len() < end {
            self.append_step(to, end, what)?;
        }
        Ok(())
    }

    /// Appends the next bytes to `to`, which is to become `end` bytes long; how many.
    pub(super) fn append_step(
        &mut self,
        to: &mut Vec<u8>,
        end: usize,
        what: &'static str,
    ) -> Result<usize, Error> {
        let from = to.len();
        let step = STEP.min(end - from);
        grow(to, from + step, end);
        self.fill(&mut to[from..], what)?;
        Ok(step)
    }

    fn fill(&mut self, to: &mut [u8], what: &'static str) -> Result<(), Error> {
        let offset = self.at;
        let allowed = to.len().min(self.limit - self.at);
        let got = self.read_up_to(&mut to[..allowed])?;
        if got == to.len() {
            return Ok(());
        }
        if got == allowed && self.read_up_to(&mut [0])? == 1 {
            return Err(Error::FileTooLong { limit: self.limit });
        }
        Err(Error::Truncated {
            offset,
            need: to.len() - got,
            what,
        })
    }

    /// Fills `to` as far as the stream goes.
    fn read_up_to(&mut self, to: &mut [u8]) -> Result<usize, Error> {
        let mut got = 0;
        while got < to.len() {
            match self.inner.read(&mut to[got..]) {
                Ok(0) => break,
                Ok(n) => got += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(source) => {
                    let offset = self.at + got;
                    return Err(Error::Read { offset, source });
                }
            }
        }
        self.at += got;
        Ok(got)
    }

    /// Whether nothing is left.
    pub(super) fn is_at_end(&mut self) -> Result<bool, Error> {
        use std::io::BufRead;
        let offset = self.at;
        let rest = self.inner.fill_buf();
        rest.map(<[u8]>::is_empty)
            .map_err(|source| Error::Read { offset, source })
    }

    /// Counts what is left, as far as the limit goes; it should be nothing.
    pub(super) fn end(mut self) -> Result<(), Error> {
        let offset = self.at;
        let mut count = 0;
        let mut bytes = [0; 4096];
        while self.at < self.limit {
            let room = bytes.len().min(self.limit - self.at);
            match self.read_up_to(&mut bytes[..room])? {
                0 => break,
                n => count += n,
            }
        }
        if self.at == self.limit && !self.is_at_end()? {
            return Err(Error::FileTooLong { limit: self.limit });
        }
        match count {
            0 => Ok(()),
            count => Err(Error::Trailing { offset, count }),
        }
    }
}

/// Makes `data` `len` bytes long, of `end` at last. Its memory is never more than `end`, and beyond the first mebibytes
/// no more than 32 times what has come; it grows so seldom that growing by copying needs little on top.
pub(super) fn grow(data: &mut Vec<u8>, len: usize, end: usize) {
    if data.capacity() < len {
        let grown = data.capacity().saturating_mul(GROWTH).max(CLAIM);
        data.reserve_exact(grown.min(end).max(len) - data.len());
    }
    data.resize(len, 0);
}
