//! Sends a large file to the disk while it is still being written, so that little is left for the flush at its end.

use std::fs::File;
use std::io;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Bytes written between two flushes.
const PIECE: usize = 16 << 20;

/// Flushes a file from a thread of its own, which a small file never starts.
#[derive(Debug, Default)]
pub(super) struct Flusher {
    unflushed: usize,
    thread: Option<(SyncSender<()>, JoinHandle<io::Result<()>>)>,
}

impl Flusher {
    /// Takes note of bytes that were written to `file`, the same in each call.
    pub(super) fn wrote(&mut self, file: &File, count: usize) -> io::Result<()> {
        self.unflushed += count;
        if self.unflushed < PIECE {
            return Ok(());
        }
        self.unflushed = 0;
        let (pieces, _) = match &mut self.thread {
            Some(thread) => thread,
            none => none.insert(start(file.try_clone()?)?),
        };
        // A flush that is under way leaves this piece to the next; one that failed is heard of at the end.
        let _ = pieces.try_send(());
        Ok(())
    }

    /// Waits for flushes under way; the error of any of them. What was written since is not flushed.
    pub(super) fn finish(self) -> io::Result<()> {
        let Some((pieces, thread)) = self.thread else {
            return Ok(());
        };
        drop(pieces);
        match thread.join() {
            Ok(flushed) => flushed,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

fn start(file: File) -> io::Result<(SyncSender<()>, JoinHandle<io::Result<()>>)> {
    let (pieces, written) = sync_channel(1);
    let thread = std::thread::Builder::new()
        .name("export flush".to_owned())
        .spawn(move || written.into_iter().try_for_each(|()| file.sync_data()))?;
    Ok((pieces, thread))
}
