//! Writes the corpus's first files: true messages and delta files. `cargo run --bin seeds -- CORPUS`

#[path = "../../protocol/tests/messages/mod.rs"]
mod messages;

use gym_protocol::cbor::to_wire;
use gym_protocol::ids::{CidBytes, Hash32};
use gym_protocol::message::Verified;
use serde_bytes::ByteBuf;
use std::fs;
use std::path::Path;

fn main() -> std::io::Result<()> {
    let corpus = std::env::args().nth(1).expect("the corpus directory is named");
    let corpus = Path::new(&corpus);
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("../protocol/tests/vectors/delta");
    for file in fs::read_dir(vectors)? {
        let path = file?.path();
        if path.extension().is_some_and(|e| e == "bin") {
            save(corpus, "delta", &path.file_stem().unwrap_or_default().to_string_lossy(), &fs::read(&path)?)?;
        }
    }
    for body in messages::bodies() {
        let kind = body.kind();
        let encoded = body.encode().expect("it encodes");
        let mldsa = if kind.signed_by_both() { vec![5; 16] } else { Vec::new() };
        let message = Verified::own(messages::peer(1), body, encoded, vec![4; 64], mldsa, Vec::new());
        let envelope = message.expect("it encodes").envelope;
        save(corpus, "message", &format!("{kind:?}"), &[&[0], &envelope[..]].concat())?;
    }
    let header = to_wire(&messages::header()).expect("it encodes");
    save(corpus, "message", "header", &[&[1], &header[..]].concat())?;
    for shape in 0..7u8 {
        for wire in 0..8 {
            save(corpus, "ring", &format!("honest-{shape}-{wire}"), &[&[shape, wire], &[0; 64][..]].concat())?;
        }
    }
    save(corpus, "link", "init", &[2, 0, 5, 1])?;
    save(corpus, "link", "response", &[3, 0, 5, 1])?;
    save(corpus, "link", "sealed", &[4, 0, 9, 0, 2, 0, 0, 2, 0, 0, 3, 0, 1])?;
    let associated = (header.len() as u32).to_le_bytes();
    let frame = [&associated[..], &header, b"sealed"].concat();
    let length = (frame.len() as u32).to_le_bytes();
    save(corpus, "parsers", "frames", &[&[0], &length[..], &frame, &length, &frame].concat())?;
    save(corpus, "parsers", "question", &[&[1], &to_wire(&question(0, &[])).expect("it encodes")[..]].concat())?;
    save(corpus, "parsers", "question-round", &[&[1], &to_wire(&question(1, &[7; 16])).expect("it encodes")[..]].concat())?;
    let answer = to_wire(&(vec![ByteBuf::from(vec![9; 40])], ByteBuf::from(vec![7; 16]))).expect("it encodes");
    save(corpus, "parsers", "answer", &[&[2], &answer[..]].concat())?;
    let files = vec![("delta.bin".to_owned(), ByteBuf::from(vec![7; 40])), ("rollouts".to_owned(), ByteBuf::new())];
    let cid = CidBytes::new(vec![3; 36]).expect("a short CID");
    let replica = to_wire(&(Hash32([1; 32]), Hash32([2; 32]), cid, files)).expect("it encodes");
    save(corpus, "parsers", "replica", &[&[3], &replica[..]].concat())?;
    save(corpus, "parsers", "parts", &[4, 1, 0, 2, 9, 1, 1, 2, 9, 2, 0, 1, 3])?;
    save(corpus, "node", "bitswap", &hex("000a2c0a2a0a2401551220e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b85510012801"))?;
    save(corpus, "node", "unixfs", &hex("010a0a08021204616263641804"))
}

type Question = (u8, CidBytes, ByteBuf, Vec<ByteBuf>);

fn question(kind: u8, ids: &[u8]) -> Question {
    (kind, CidBytes::default(), ByteBuf::from(ids.to_vec()), Vec::new())
}

fn save(corpus: &Path, target: &str, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    fs::create_dir_all(corpus.join(target))?;
    fs::write(corpus.join(target).join(name), bytes)
}

fn hex(text: &str) -> Vec<u8> {
    let digit = |at| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal digits");
    (0..text.len()).step_by(2).map(digit).collect()
}
