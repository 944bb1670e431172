//! What fuzzing found of frames, synchronisation, replicas and hellos (`fuzz/corpus/parsers`), run as a test.

#[path = "../../fuzz/src/parsers/mod.rs"]
mod parsers;

#[test]
fn the_corpus_runs() -> std::io::Result<()> {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus/parsers");
    let mut files = 0;
    for file in std::fs::read_dir(corpus)? {
        parsers::run(&std::fs::read(file?.path())?);
        files += 1;
    }
    assert!(files > 0, "no files in {corpus}");
    Ok(())
}
