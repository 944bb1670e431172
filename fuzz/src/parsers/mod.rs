//! What the program itself reads from members, by its own files: frames of sealed links, questions and answers of
//! synchronisation, replicas and their parts, hellos. The node runs this over the corpus as a test (`node/tests/corpus.rs`).

#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    reason = "the program's files, apart from the program"
)]
#![allow(clippy::expect_used, reason = "what fails here is found")]

#[path = "../../../node/src/net/hello.rs"]
mod hello;
mod job;
mod link;

/// Reads the bytes as one of them; what is accepted has one encoding, these bytes.
pub fn run(data: &[u8]) {
    let Some((what, bytes)) = data.split_first() else {
        return;
    };
    match what % 6 {
        0 => link::frames(bytes),
        1 => job::question(bytes),
        2 => job::answer(bytes),
        3 => job::replica(bytes),
        4 => job::parts(bytes),
        _ => greeting(bytes),
    }
}

fn greeting(bytes: &[u8]) {
    if let Ok(hello) = hello::Hello::decode(bytes) {
        assert_eq!(hello.encode().expect("what was decoded encodes"), bytes);
        assert_eq!(hello.misfit(&hello), None);
    }
    if let Ok(reply) = hello::Reply::decode(bytes) {
        assert_eq!(reply.encode().expect("what was decoded encodes"), bytes);
    }
}
