//! What fuzzing found of records, handshakes and sealed messages (`fuzz/corpus/link`), run as a test.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test")]

#[path = "../../fuzz/src/link.rs"]
#[allow(unreachable_pub, reason = "public for the fuzz target")]
mod link;

#[test]
fn the_corpus_runs() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus/link");
    let mut files = 0;
    for file in std::fs::read_dir(corpus).unwrap() {
        link::run(&std::fs::read(file.unwrap().path()).unwrap());
        files += 1;
    }
    assert!(files > 0, "no files in {corpus}");
}
