//! Small helpers for files outside the store.

use std::ffi::OsString;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// A hidden name beside `target` to write to before it is renamed; nothing when `target` ends in no name.
pub(super) fn beside(target: &Path) -> Option<PathBuf> {
    let mut hidden = OsString::from(".");
    hidden.push(target.file_name()?);
    hidden.push(format!(
        ".partial-{}-{:08x}",
        std::process::id(),
        rand::random::<u32>()
    ));
    Some(target.with_file_name(hidden))
}

/// Reads until the buffer is full or the input ends; returns the bytes read.
pub(super) fn fill(reader: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match reader.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
