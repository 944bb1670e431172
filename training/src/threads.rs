//! How many threads tensor operations may use.

/// Why a thread limit cannot be set.
#[derive(Debug, thiserror::Error)]
#[error("cannot limit tensor operations to {threads} threads: {reason}; set RAYON_NUM_THREADS instead")]
pub struct ThreadsError {
    threads: usize,
    reason: String,
}

/// Limits the CPU backend's pool to `threads` for the whole process. Call it once, before the first tensor
/// operation; the first call decides.
///
/// With one thread, operations run in the calling thread's turn on the pool's single worker, and results do not
/// depend on the machine's core count.
///
/// # Errors
/// When the pool has already been started.
pub fn limit_threads(threads: usize) -> Result<(), ThreadsError> {
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .thread_name(|i| format!("tensor-{i}"))
        .build_global()
        .map_err(|e| ThreadsError {
            threads,
            reason: e.to_string(),
        })
}

/// Runs `f` on a pool of its own with `threads` threads: every tensor operation inside stays on it, whatever the
/// process's pool is.
///
/// # Errors
/// When the threads cannot be started.
pub fn with_threads<R: Send>(threads: usize, f: impl FnOnce() -> R + Send) -> Result<R, ThreadsError> {
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .thread_name(|i| format!("tensor-{i}"))
        .build()
        .map_err(|e| ThreadsError {
            threads,
            reason: e.to_string(),
        })?;
    Ok(pool.install(f))
}
