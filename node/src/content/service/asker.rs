//! Work on a blocking thread, which cannot be stopped from outside: it looks now and then whether whoever asked for it has
//! gone away, and ends itself.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::content::store::StoreError;

thread_local! {
    /// Set when the asker of what this thread does has gone; nothing on threads that work for nobody in particular.
    static GONE: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// Runs `work` where blocking is allowed. When the future is dropped before its end, the work's next call of
/// [`check_asker`] fails; the store calls that for each block.
pub(in crate::content) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let asker = Asker::default();
    let gone = Arc::clone(&asker.0);
    let work = move || {
        let _until_done = WorksFor::asker(gone);
        work()
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // Cancelled: the runtime is shutting down and drops this task too.
        Err(_) => std::future::pending().await,
    }
}

/// Whether whoever asked for what this thread does still waits for it.
///
/// # Errors
/// [`StoreError::Abandoned`].
pub(in crate::content) fn check_asker() -> Result<(), StoreError> {
    let is_gone = |gone: &Arc<AtomicBool>| gone.load(Ordering::Relaxed);
    if GONE.with_borrow(|gone| gone.as_ref().is_some_and(is_gone)) {
        return Err(StoreError::Abandoned);
    }
    Ok(())
}

/// Waits for work; leaves word when it is dropped.
#[derive(Default)]
struct Asker(Arc<AtomicBool>);

impl Drop for Asker {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Threads are used again for others.
struct WorksFor;

impl WorksFor {
    fn asker(gone: Arc<AtomicBool>) -> Self {
        GONE.set(Some(gone));
        Self
    }
}

impl Drop for WorksFor {
    fn drop(&mut self) {
        GONE.set(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[tokio::test]
    async fn work_hears_that_its_asker_has_gone_and_the_next_on_its_thread_does_not() {
        let (begun, started) = mpsc::channel();
        let (go_on, going) = mpsc::channel::<()>();
        let (tell, told) = mpsc::channel();
        let work = blocking(move || {
            let before = check_asker().is_ok();
            begun.send(()).unwrap();
            going.recv().unwrap();
            tell.send((before, check_asker().is_ok())).unwrap();
        });
        let asking = tokio::spawn(work);
        tokio::task::spawn_blocking(move || started.recv().unwrap())
            .await
            .unwrap();
        asking.abort();
        assert!(asking.await.unwrap_err().is_cancelled());
        go_on.send(()).unwrap();
        let heard = tokio::task::spawn_blocking(move || told.recv().unwrap())
            .await
            .unwrap();
        assert_eq!(heard, (true, false));
        assert!(blocking(|| check_asker().is_ok()).await);
        assert!(
            tokio::task::spawn_blocking(|| check_asker().is_ok())
                .await
                .unwrap()
        );
    }
}
