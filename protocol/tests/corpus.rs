//! What fuzzing found of delta files, messages and ring segments (`fuzz/corpus`), run as a test, with the memory that
//! decoding takes held against its limits.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

#[path = "../../fuzz/src/delta.rs"]
#[allow(unreachable_pub, reason = "public for the fuzz target")]
mod delta;
#[path = "../../fuzz/src/message.rs"]
#[allow(unreachable_pub, reason = "public for the fuzz target")]
mod message;
#[path = "../../fuzz/src/ring.rs"]
#[allow(unreachable_pub, reason = "public for the fuzz target")]
mod ring;

use peak_alloc::PeakAlloc;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// What a decoder may hold beside what the caller's limits and the message's own length grant.
const WORKING: usize = 6 << 20;

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let directory = format!("{}/../fuzz/corpus/{target}", env!("CARGO_MANIFEST_DIR"));
    let files = std::fs::read_dir(&directory).unwrap();
    let files: Vec<_> = files
        .map(|file| std::fs::read(file.unwrap().path()).unwrap())
        .collect();
    assert!(!files.is_empty(), "no files in {directory}");
    files
}

/// The most bytes that `work` held beyond what was there before.
fn held<T>(work: impl FnOnce() -> T) -> usize {
    let before = ALLOCATOR.current_usage();
    ALLOCATOR.reset_peak_usage();
    drop(work());
    ALLOCATOR.peak_usage().saturating_sub(before)
}

/// One test, so that no other's memory is counted.
#[test]
fn the_corpus_runs_within_its_limits() {
    for file in corpus("delta") {
        let held = held(|| gym_protocol::delta::decode(&file, &delta::LIMITS));
        let granted = delta::LIMITS.tensor_bytes + WORKING;
        assert!(held < granted, "a file of {} bytes took {held} bytes", file.len());
        delta::run(&file);
    }
    for file in corpus("message") {
        let held = held(|| message::run(&file));
        assert!(
            held < 32 * file.len() + WORKING,
            "{} bytes took {held}",
            file.len()
        );
    }
    for file in corpus("ring") {
        let held = held(|| ring::run(&file));
        assert!(
            held < 32 * file.len() + WORKING,
            "{} bytes took {held}",
            file.len()
        );
    }
}
