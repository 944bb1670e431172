//! Ctrl-C and its like: everything that waits looks here.

use anyhow::{Context, bail};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::signal::unix::{SignalKind, signal};

/// The exit code of a program that Ctrl-C ended.
const INTERRUPTED: i32 = 130;

/// Whether the user wants an end; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Listens to SIGINT, SIGTERM and SIGHUP. The first asks for an orderly end; a second ends this process at once, and
    /// its children with it.
    ///
    /// # Errors
    /// When signals cannot be caught.
    pub fn listen() -> anyhow::Result<Self> {
        let this = Self::default();
        let flag = Arc::clone(&this.0);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("catching signals")?;
        let mut signals = {
            let _inside = runtime.enter();
            [
                SignalKind::interrupt(),
                SignalKind::terminate(),
                SignalKind::hangup(),
            ]
            .into_iter()
            .map(signal)
            .collect::<Result<Vec<_>, _>>()
            .context("catching signals")?
        };
        let wait = move || {
            runtime.block_on(async move {
                loop {
                    let each = signals.iter_mut().map(|s| Box::pin(s.recv()));
                    any(each.collect()).await;
                    if flag.swap(true, Ordering::Relaxed) {
                        std::process::exit(INTERRUPTED);
                    }
                }
            });
        };
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(wait)
            .context("catching signals")?;
        Ok(this)
    }

    /// Whether it was asked for.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Fails once it was asked for.
    ///
    /// # Errors
    /// "interrupted".
    pub fn check(&self) -> anyhow::Result<()> {
        if self.is_set() {
            bail!("interrupted");
        }
        Ok(())
    }
}

/// Ends with the first of `futures`.
async fn any<F: Future + Unpin>(mut futures: Vec<F>) {
    std::future::poll_fn(|context| {
        let ready = futures
            .iter_mut()
            .any(|f| std::pin::Pin::new(f).poll(context).is_ready());
        if ready {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
}
