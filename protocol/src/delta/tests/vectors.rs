//! Frozen bytes. A change here is a change of the format, and needs a new version.

use super::*;

/// Two LoRA tensors, metadata, no auth: the vector that other implementations read.
fn vector(compression: Compression) -> Vec<u8> {
    let metadata = metadata();
    let trailers = Trailers {
        metadata: Some(&metadata),
        auth: None,
    };
    encode_file(&tensor::from_set(&set()), trailers, compression).unwrap()
}

const CONTENT_HASH: &str = "68af20da9a6b52a30d49d49986e60729f6a260a0e422d83a12317b94e64ac45a";

#[test]
fn lora_vector() {
    for compression in Compression::ALL {
        let delta = decode(&vector(compression), &limits()).unwrap();
        assert_eq!(delta.content_hash.to_hex(), CONTENT_HASH, "{compression:?}");
    }
    let file_hash = |c| sha3_256(&[&vector(c)]).to_hex();
    assert_eq!(
        file_hash(Compression::None),
        "0cec53393471f95096d57c43580607b949d8003d1ebb54c78faad31e2b2d1587"
    );
    assert_eq!(
        file_hash(Compression::Lz4),
        "5810cfb9d43fbd2a86cceb5a3999d282522d43833b46f450b49969f541e48db5"
    );
    assert_eq!(
        file_hash(Compression::ShuffleLz4),
        "d47ec8060a440f1b12a629ddf668de39a103a79bcd8dc1034895932f44f9423d"
    );
}

#[test]
fn signed_vector() {
    assert_eq!(
        sha3_256(&[&signed(Compression::None)]).to_hex(),
        "d9fa775cbf00f5ff01067bcb69d0c51cb3f177c82d129edac812df1dbff14392"
    );
}

/// The uncompressed vector, byte by byte from the specification.
#[test]
fn the_layout_is_the_specifications() {
    let mut content = Vec::new();
    for (name, shape, values) in [
        ("lora.k_proj.weight", &[4u64][..], &[1.0f32, 1.25, 1.5, 1.75][..]),
        (
            "lora.q_proj.weight",
            &[2, 3],
            &[-0.5, -0.25, 0.0, 0.25, 0.5, 0.75],
        ),
    ] {
        content.extend((name.len() as u32).to_le_bytes());
        content.extend(name.as_bytes());
        content.extend([0, shape.len() as u8]);
        shape.iter().for_each(|d| content.extend(d.to_le_bytes()));
        values.iter().for_each(|v| content.extend(v.to_le_bytes()));
    }
    // {"loss": 2.34, "epoch": 1, "timestamp": "2024-01-01T00:00:00Z", "worker_id": "worker-a"}
    let metadata = [
        &[0xa4, 0x64][..],
        b"loss",
        &[0xfb],
        &2.34f64.to_be_bytes(),
        &[0x65],
        b"epoch",
        &[1, 0x69],
        b"timestamp",
        &[0x74],
        b"2024-01-01T00:00:00Z",
        &[0x69],
        b"worker_id",
        &[0x68],
        b"worker-a",
    ]
    .concat();
    let block = [&(metadata.len() as u32).to_le_bytes()[..], &metadata].concat();
    let hash = sha3_256(&[&content, &block]);
    assert_eq!(hash.to_hex(), CONTENT_HASH);
    let file = [
        &b"DELTA\x01\x00\x01"[..],
        &hash.0[..16],
        &content,
        &[0; 4],
        &block,
    ]
    .concat();
    assert_eq!(file, vector(Compression::None));
}

/// The vector as Python's `lz4.frame.compress(store_size=True, content_checksum=True)` writes it.
const PYTHON: &str = "\
    44454c544101010168af20da9a6b52a30d49d49986e60729120000006c6f72612e6b5f70726f6a2e77656967\
    68740001040000000000000004224d186c40100000000000000083100000800000803f0000a03f0000c03f00\
    00e03f00000000b4c15ff2120000006c6f72612e715f70726f6a2e7765696768740002020000000000000003\
    0000000000000004224d186c401800000000000000351700000091000000bf000080be000100a0803e000000\
    3f0000403f00000000eccc3ec60000000048000000a4646c6f7373fb4002b851eb851eb86565706f63680169\
    74696d657374616d7074323032342d30312d30315430303a30303a30305a69776f726b65725f696468776f72\
    6b65722d61";

#[test]
fn another_writers_file_is_read() {
    let ours = decode(&vector(Compression::Lz4), &limits()).unwrap();
    let theirs = decode(&hex::decode(PYTHON).unwrap(), &limits()).unwrap();
    assert_eq!(
        (theirs.tensors, theirs.metadata, theirs.content_hash),
        (ours.tensors, ours.metadata, ours.content_hash)
    );
}
