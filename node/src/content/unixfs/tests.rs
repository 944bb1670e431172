use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use bytes::Bytes;
use cid::Cid;
use proptest::prelude::*;

use super::dagpb::{Link, PbNode};
use super::node::{directory_header, file_header};
use super::*;
use crate::content::block::{DAG_PB, RAW, cid_of};
use crate::content::store::{Config, Store};
use crate::content::wire::{put_bytes, put_number};

mod sharded;

const EMPTY_DIRECTORY: &str = "bafybeiczsscdsbs7ffqz55asqdf3smv6klcw3gofszvwlyarci47bgf354";

fn store() -> (tempfile::TempDir, Store) {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(Config {
        root: directory.path().join("store"),
        limit: 1 << 30,
    })
    .unwrap();
    (directory, store)
}

/// First `size` bytes of SHA256('anchor3-vector-v1' ‖ u64_be(i)) for i = 0, 1, …
fn vector_bytes(size: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(size + 32);
    for index in 0_u64.. {
        if bytes.len() >= size {
            break;
        }
        let seed = [&b"anchor3-vector-v1"[..], &index.to_be_bytes()].concat();
        bytes.extend_from_slice(cid_of(RAW, &seed).hash().digest());
    }
    bytes.truncate(size);
    bytes
}

fn add(store: &Store, bytes: &[u8]) -> Cid {
    add_reader(&mut &*store, Layout::default(), Path::new("test"), bytes)
        .unwrap()
        .cid
}

fn put(store: &Store, links: Vec<Link>, data: Bytes) -> Cid {
    store.put_new(DAG_PB, &PbNode { links, data }.encode()).unwrap()
}

fn link(name: &str, cid: Cid) -> Link {
    Link {
        cid,
        name: name.to_owned(),
        total_size: 1,
    }
}

fn read_all(store: &Store, cid: Cid) -> Result<Vec<u8>, ReadError> {
    let mut reader = FileReader::open(store, &cid.into())?;
    let mut all = Vec::new();
    while let Some(bytes) = reader.next_bytes()? {
        all.extend_from_slice(&bytes);
    }
    Ok(all)
}

#[test]
fn files_have_the_cids_that_other_implementations_give_them() {
    let vectors: serde_json::Value =
        serde_json::from_str(include_str!("../../../tests/fixtures/ipfs/vectors.json")).unwrap();
    for vector in vectors["vectors"].as_array().unwrap() {
        let bytes = vector_bytes(vector["size"].as_u64().unwrap() as usize);
        for (layout, key) in [
            (Layout::Cidv1Raw256k174, "cidv1-raw-256k-174"),
            (Layout::UnixfsV1Of2025, "unixfs-v1-2025"),
        ] {
            let added = add_reader(&mut Discard, layout, Path::new("vector"), bytes.as_slice()).unwrap();
            assert_eq!(
                added.cid.to_string(),
                vector[key].as_str().unwrap(),
                "{key} of {} bytes",
                bytes.len()
            );
            assert_eq!(added.bytes, bytes.len() as u64);
        }
    }
}

#[test]
fn an_empty_directory_has_its_well_known_cid() {
    let added = add_map(&mut Discard, Layout::default(), &BTreeMap::new()).unwrap();
    assert_eq!(added.cid.to_string(), EMPTY_DIRECTORY);
}

#[test]
fn a_file_comes_back_whole_and_in_part() {
    let (_directory, store) = store();
    let bytes = vector_bytes(3 * (256 << 10) + 17);
    let cid = add(&store, &bytes);
    assert_eq!(read_all(&store, cid).unwrap(), bytes);
    for skip in [
        0,
        1,
        256 << 10,
        (256 << 10) + 1,
        bytes.len() - 1,
        bytes.len(),
        bytes.len() + 5,
    ] {
        let mut reader = FileReader::open(&store, &cid.into())
            .unwrap()
            .skip_bytes(skip as u64);
        let mut rest = Vec::new();
        reader.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, bytes.get(skip..).unwrap_or_default(), "after {skip}");
    }
}

#[test]
fn a_tree_of_several_levels_comes_back() {
    let (_directory, store) = store();
    // 400 chunks: two levels above the leaves.
    let bytes = vec![3; 400 * (256 << 10) - 1];
    let cid = add(&store, &bytes);
    assert_eq!(read_all(&store, cid).unwrap().len(), bytes.len());
}

#[test]
fn directories_export_as_they_were_added() {
    let (directory, store) = store();
    let source = directory.path().join("source");
    std::fs::create_dir_all(source.join("inner/deep")).unwrap();
    std::fs::write(source.join("a.txt"), b"a").unwrap();
    std::fs::write(source.join(".hidden"), b"no").unwrap();
    std::fs::write(source.join("inner/deep/b.bin"), vector_bytes(700_000)).unwrap();
    let added = add_path(&mut &store, Layout::default(), &source).unwrap();
    let map = BTreeMap::from([
        ("a.txt".to_owned(), b"a".to_vec()),
        ("inner/deep/b.bin".to_owned(), vector_bytes(700_000)),
    ]);
    assert_eq!(add_map(&mut Discard, Layout::default(), &map).unwrap(), added);

    let names: Vec<String> = list(&store, &added.cid)
        .unwrap()
        .into_iter()
        .map(|entry| entry.name)
        .collect();
    assert_eq!(names, ["a.txt", "inner"]);
    let path: ContentPath = format!("/ipfs/{}/inner/deep/b.bin", added.cid).parse().unwrap();
    assert_eq!(resolve(&store, &path).unwrap().kind, EntryKind::File);

    let target = directory.path().join("target");
    assert_eq!(
        export(&store, &added.cid.into(), &target, Limits::default()).unwrap(),
        700_001
    );
    assert_eq!(
        std::fs::read(target.join("inner/deep/b.bin")).unwrap(),
        vector_bytes(700_000)
    );
    assert!(matches!(
        export(&store, &added.cid.into(), &target, Limits::default()),
        Err(ReadError::Exists { .. })
    ));
}

#[test]
fn a_failed_export_leaves_nothing() {
    let (directory, store) = store();
    let present = add(&store, b"present");
    let absent = cid_of(RAW, b"absent");
    let root = put(
        &store,
        vec![link("a", present), link("b", absent)],
        directory_header(),
    );
    let out = directory.path().join("out");
    std::fs::create_dir(&out).unwrap();
    let error = export(&store, &root.into(), &out.join("x"), Limits::default()).unwrap_err();
    assert_eq!(error.missing_block(), Some(absent));
    assert_eq!(std::fs::read_dir(&out).unwrap().count(), 0);
}

#[test]
fn names_that_leave_the_directory_are_refused() {
    let (directory, store) = store();
    let file = add(&store, b"x");
    for name in ["..", ".", "", "/etc/passwd", "a/b", "a\\b", "nul\0"] {
        let root = put(&store, vec![link(name, file)], directory_header());
        let target = directory.path().join("out");
        let error = export(&store, &root.into(), &target, Limits::default()).unwrap_err();
        assert!(matches!(error, ReadError::UnsafeName { .. }), "{name:?}: {error}");
        assert!(!target.exists());
        let map = BTreeMap::from([(name.to_owned(), Vec::new())]);
        if name != "a/b" {
            assert!(
                matches!(
                    add_map(&mut Discard, Layout::default(), &map),
                    Err(AddError::Name { .. })
                ),
                "{name:?}"
            );
        }
    }
    let twice = put(&store, vec![link("a", file), link("a", file)], directory_header());
    assert!(matches!(list(&store, &twice), Err(ReadError::UnsafeName { .. })));
    assert!(format!("{file}/../x").parse::<ContentPath>().is_err());
}

#[test]
fn a_file_and_a_directory_cannot_share_a_name() {
    let map = BTreeMap::from([("a".to_owned(), Vec::new()), ("a/b".to_owned(), Vec::new())]);
    assert!(matches!(
        add_map(&mut Discard, Layout::default(), &map),
        Err(AddError::Clash { .. })
    ));
}

#[test]
fn a_bomb_of_files_is_refused_by_what_it_declares() {
    let (directory, store) = store();
    let mut cid = add(&store, &[0; 1 << 18]);
    let mut size = 1_u64 << 18;
    for _ in 0..4 {
        cid = put(&store, vec![link("", cid); 174], file_header(&[size; 174]));
        size *= 174;
    }
    let target = directory.path().join("bomb");
    let error = export(&store, &cid.into(), &target, Limits::default()).unwrap_err();
    assert!(
        matches!(error, ReadError::OverLimit { what: "bytes", .. }),
        "{error}"
    );
    assert!(!target.exists());
}

#[test]
fn a_bomb_of_directories_is_refused_by_its_entries_and_its_depth() {
    let (directory, store) = store();
    let mut wide = put(&store, Vec::new(), directory_header());
    let mut deep = wide;
    for _ in 0..5 {
        wide = put(
            &store,
            (0..100).map(|n| link(&n.to_string(), wide)).collect(),
            directory_header(),
        );
    }
    for _ in 0..100 {
        deep = put(&store, vec![link("d", deep)], directory_header());
    }
    let limits = Limits {
        entries: 500,
        ..Limits::default()
    };
    let target = directory.path().join("bomb");
    let error = export(&store, &wide.into(), &target, limits).unwrap_err();
    assert!(
        matches!(
            error,
            ReadError::OverLimit {
                what: "entries",
                limit: 500,
                ..
            }
        ),
        "{error}"
    );
    let error = export(&store, &deep.into(), &target, limits).unwrap_err();
    assert!(
        matches!(
            error,
            ReadError::OverLimit {
                what: "nested directories",
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn sizes_that_lie_are_refused() {
    let (_directory, store) = store();
    let leaf = add(&store, b"four");
    let lying = put(&store, vec![link("", leaf)], file_header(&[5]));
    assert!(matches!(
        read_all(&store, lying),
        Err(ReadError::PartSize {
            found: 4,
            declared: 5,
            ..
        })
    ));
    for (links, sizes) in [(vec![link("", leaf)], vec![]), (vec![link("", leaf)], vec![0])] {
        let bad = put(&store, links, file_header(&sizes));
        assert!(matches!(
            read_all(&store, bad),
            Err(ReadError::Node {
                reason: NodeError::Sizes,
                ..
            })
        ));
    }
}

#[test]
fn files_whose_leaves_are_dag_pb_are_read() {
    let (_directory, store) = store();
    let mut header = Vec::new();
    put_number(&mut header, 1, 2);
    put_bytes(&mut header, 2, b"old leaf");
    put_number(&mut header, 3, 8);
    let block = PbNode {
        links: Vec::new(),
        data: header.into(),
    }
    .encode();
    let leaf = Cid::new_v0(*cid_of(DAG_PB, &block).hash()).unwrap();
    store.put(&leaf, &block).unwrap();
    let root = put(&store, vec![link("", leaf), link("", leaf)], file_header(&[8, 8]));
    assert_eq!(read_all(&store, leaf).unwrap(), b"old leaf");
    assert_eq!(read_all(&store, root).unwrap(), b"old leafold leaf");
}

#[test]
fn sharded_directories_are_read() {
    let (_directory, store) = store();
    let file = add(&store, b"x");
    let mut header = Vec::new();
    put_number(&mut header, 1, 5);
    put_number(&mut header, 5, 0x22);
    put_number(&mut header, 6, 256);
    let header = Bytes::from(header);
    let inner = put(
        &store,
        vec![link("03one", file), link("A0two", file)],
        header.clone(),
    );
    let root = put(&store, vec![link("00three", file), link("7F", inner)], header);
    let names: Vec<String> = list(&store, &root)
        .unwrap()
        .into_iter()
        .map(|entry| entry.name)
        .collect();
    assert_eq!(names, ["one", "three", "two"]);
}

#[test]
fn all_missing_parts_of_a_sharded_directory_are_told_at_once() {
    let (_directory, store) = store();
    let mut header = Vec::new();
    put_number(&mut header, 1, 5);
    put_number(&mut header, 6, 256);
    let header = Bytes::from(header);
    let absent: Vec<Cid> = (0..50_u8).map(|n| cid_of(DAG_PB, &[n])).collect();
    let names: Vec<String> = (0..50).map(|n| format!("{n:02X}")).collect();
    let links = names.iter().zip(&absent).map(|(name, cid)| link(name, *cid));
    let root = put(&store, links.collect(), header);
    let mut told = list(&store, &root).unwrap_err().missing_blocks();
    told.sort();
    let mut absent = absent;
    absent.sort();
    assert_eq!(told, absent);
}

proptest! {
    #[test]
    fn foreign_nodes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let block = Bytes::from(bytes);
        let cid = cid_of(DAG_PB, &block);
        let _ = super::node::Node::decode(&cid, &block);
        let _ = links(&cid, &block);
    }
}

/// What fuzzing found (`fuzz/src/node.rs`: files whose first byte is 1 or 2 modulo 4).
#[test]
fn the_fuzz_corpus_runs() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus/node");
    let mut files = 0;
    for file in std::fs::read_dir(corpus).unwrap() {
        let bytes = Bytes::from(std::fs::read(file.unwrap().path()).unwrap());
        let codec = match bytes.first().map(|what| what % 4) {
            Some(1) => DAG_PB,
            Some(2) => RAW,
            _ => continue,
        };
        files += 1;
        let block = bytes.slice(1..);
        let cid = cid_of(codec, &block);
        let (node, links) = (node::Node::decode(&cid, &block), links(&cid, &block));
        assert!(node.is_err() || links.is_ok());
    }
    assert!(files > 0, "no files in {corpus}");
}
