mod scoped;

use super::*;
use crate::content::block::{DAG_CBOR, RAW, cid_of};
use crate::content::store::{Config, Store};
use crate::content::unixfs::{self, Layout, Scope};
use cid::Cid;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn store() -> (tempfile::TempDir, Store) {
    let directory = tempfile::tempdir().unwrap();
    let config = Config {
        root: directory.path().join("store"),
        limit: 64 << 20,
    };
    (directory, Store::open(config).unwrap())
}

/// A directory with a file of several chunks, one of them twice, and a small file.
fn fill(store: &Store) -> Cid {
    let files = BTreeMap::from([
        (
            "large".to_owned(),
            [vec![1; 600 << 10], vec![1; 256 << 10]].concat(),
        ),
        ("inner/small".to_owned(), b"hello".to_vec()),
    ]);
    unixfs::add_map(&mut &*store, Layout::default(), &files)
        .unwrap()
        .cid
}

fn car(store: &Store, root: Cid) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(store, root, &mut bytes).unwrap();
    bytes
}

fn import(bytes: &[u8]) -> Result<Imported, CarError> {
    let (_directory, store) = store();
    read(&store, bytes, |_| ())
}

#[test]
fn content_goes_through_a_file_whole() {
    let ((_a, from), (directory, to)) = (store(), store());
    let root = fill(&from);
    let file = directory.path().join("content.car");
    let written = write_file(&from, root, &file).unwrap();
    let mut told = Vec::new();
    let taken = read_file(&to, &file, |done, size| told.push((done, size))).unwrap();
    assert_eq!(taken.roots, [root]);
    assert_eq!((taken.blocks, taken.bytes), (written.blocks, written.bytes));
    let size = std::fs::metadata(&file).unwrap().len();
    assert_eq!(told.last(), Some(&(size, size)));
    // Each block once: equal chunks are one block.
    assert_eq!(to.stat().unwrap().blocks, written.blocks);
    assert_eq!(car(&to, root), std::fs::read(&file).unwrap());
    assert!(matches!(
        write_file(&from, root, &file),
        Err(CarError::Exists { .. })
    ));
}

/// The example of the CAR specification: a header with no padding, the root first.
#[test]
fn the_first_bytes_are_the_specifications() {
    let (_directory, store) = store();
    let root = store.put_new(RAW, b"x").unwrap();
    let bytes = car(&store, root);
    let mut expected = vec![58, 0xa2, 0x65];
    expected.extend(b"roots");
    expected.extend([0x81, 0xd8, 0x2a, 0x58, 0x25, 0x00]);
    expected.extend(root.to_bytes());
    expected.push(0x67);
    expected.extend(b"version");
    expected.extend([0x01, 37]);
    expected.extend(root.to_bytes());
    expected.push(b'x');
    assert_eq!(bytes, expected);
}

#[test]
fn version_2_is_read() {
    let (_directory, store) = store();
    let root = fill(&store);
    let inner = car(&store, root);
    let mut bytes = vec![0x0a, 0xa1, 0x67];
    bytes.extend(b"version");
    bytes.push(2);
    bytes.extend([0; 16]);
    let begin = 11 + 40 + 5_u64;
    for number in [begin, inner.len() as u64, 0] {
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend([0; 5]);
    bytes.extend(&inner);
    bytes.extend(b"an index that is not looked at");
    assert_eq!(import(&bytes).unwrap().roots, [root]);
    // The same inside itself is refused, not followed.
    let mut nested = bytes[..51].to_vec();
    nested.extend([0; 5]);
    nested.extend(&bytes);
    assert!(matches!(import(&nested), Err(CarError::Header { .. })));
}

#[test]
fn what_is_wrong_is_named_with_its_place() {
    let (_directory, store) = store();
    let root = store.put_new(RAW, b"x").unwrap();
    let good = car(&store, root);
    let mut flipped = good.clone();
    *flipped.last_mut().unwrap() ^= 1;
    let error = import(&flipped).unwrap_err().to_string();
    assert!(
        error.contains("offset 59") && error.contains("hash to"),
        "{error}"
    );
    let error = import(&good[..good.len() - 1]).unwrap_err();
    assert!(matches!(error, CarError::Truncated { .. }), "{error}");
    let mut huge = good[..59].to_vec();
    huge.extend([0xff, 0xff, 0xff, 0xff, 0x7f]);
    let error = import(&huge).unwrap_err().to_string();
    assert!(error.contains("over the limit"), "{error}");
    // A root that is nowhere.
    let error = import(&good[..59]).unwrap_err();
    assert!(
        matches!(error, CarError::NoRoot { cid } if cid == root),
        "{error}"
    );
    for nonsense in [
        &b""[..],
        b"\x00",
        b"hello, this is no such file",
        b"\x02\xa0\xa0",
        &[0xff; 40],
    ] {
        let error = import(nonsense).unwrap_err();
        assert!(
            matches!(
                error,
                CarError::Header { .. } | CarError::Truncated { .. } | CarError::Frame { .. }
            ),
            "{nonsense:?}: {error}"
        );
    }
}

#[test]
fn other_codecs_travel_too_and_a_missing_block_is_named() {
    let (_directory, store) = store();
    let root = store.put_new(DAG_CBOR, &[0xa0]).unwrap();
    assert_eq!(import(&car(&store, root)).unwrap().roots, [root]);
    let absent = cid_of(RAW, b"absent");
    let mut out = Vec::new();
    assert!(matches!(write(&store, absent, &mut out), Err(CarError::Missing { cid }) if cid == absent));
}

proptest! {
    /// Whatever the bytes, reading ends with what it found or says what is wrong, and the store holds no bad block.
    #[test]
    fn damage_never_gets_in(cut in 0usize..2000, at in 0usize..2000, bit in 0u8..8) {
        let ((_a, from), (_b, to)) = (store(), store());
        let files = BTreeMap::from([("a".to_owned(), vec![7; 900]), ("b".to_owned(), vec![8; 300])]);
        let root = unixfs::add_map(&mut &from, Layout::default(), &files).unwrap().cid;
        let mut bytes = car(&from, root);
        bytes.truncate(bytes.len().saturating_sub(cut));
        if let Some(byte) = bytes.get_mut(at) {
            *byte ^= 1 << bit;
        }
        let _ = read(&to, bytes.as_slice(), |_| ());
        prop_assert_eq!(to.verify().unwrap().removed, vec![]);
    }
}

#[test]
fn a_block_of_an_unknown_hash_is_not_called_damaged() {
    use crate::content::wire::put_varint;
    use multihash_codetable::{Code, MultihashDigest};
    let cid = Cid::new_v1(RAW, Code::Sha2_512.digest(b"x"));
    let mut bytes = Vec::new();
    for part in [
        header::encode(&[cid]).unwrap(),
        [&cid.to_bytes()[..], b"x"].concat(),
    ] {
        put_varint(&mut bytes, part.len() as u64);
        bytes.extend_from_slice(&part);
    }
    let error = import(&bytes).unwrap_err();
    assert!(matches!(error, CarError::Unsupported { .. }), "{error}");
    assert!(!error.to_string().contains("damaged"), "{error}");
}

/// Blocks on the way come first and once, without what else they link to.
#[test]
fn the_way_to_a_root_comes_before_it() {
    let (_directory, from) = store();
    let root = fill(&from);
    let walked = unixfs::walk(
        &from,
        &unixfs::ContentPath::from(root).join("inner").join("small"),
    )
    .unwrap();
    let (mut frames, mut bytes) = (
        Frames::new(walked.end, &walked.blocks, Scope::All, Duplicates::Once).unwrap(),
        Vec::new(),
    );
    while frames.append_to(&from, &mut bytes).unwrap() == More::Yes {}
    let (_directory, to) = store();
    let taken = read(&to, bytes.as_slice(), |_| ()).unwrap();
    assert_eq!((taken.roots, taken.blocks), (vec![walked.end], 3));
    assert!(walked.blocks.iter().all(|cid| to.has(cid)));
}
