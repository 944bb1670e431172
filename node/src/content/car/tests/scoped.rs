//! Parts of graphs: `dag-scope` and `entity-bytes` of the trustless gateway's specification.

use super::*;
use crate::content::block;
use crate::content::unixfs::{ContentPath, FileReader};
use crate::content::wire::{put_bytes, put_number};

/// Puts a dag-pb node.
fn node(store: &Store, links: &[(&str, Cid)], data: &[u8]) -> Cid {
    let mut block = Vec::new();
    for (name, cid) in links {
        let mut link = Vec::new();
        put_bytes(&mut link, 1, &cid.to_bytes());
        put_bytes(&mut link, 2, name.as_bytes());
        put_number(&mut link, 3, 0);
        put_bytes(&mut block, 2, &link);
    }
    put_bytes(&mut block, 1, data);
    store.put_new(block::DAG_PB, &block).unwrap()
}

/// A file's node with bytes of its own before its parts.
fn file(store: &Store, own: &[u8], parts: &[(Cid, u64)]) -> (Cid, u64) {
    let size = own.len() as u64 + parts.iter().map(|(_, size)| size).sum::<u64>();
    let mut data = Vec::new();
    put_number(&mut data, 1, 2);
    put_bytes(&mut data, 2, own);
    put_number(&mut data, 3, size);
    parts.iter().for_each(|(_, size)| put_number(&mut data, 4, *size));
    let links: Vec<(&str, Cid)> = parts.iter().map(|(cid, _)| ("", *cid)).collect();
    (node(store, &links, &data), size)
}

fn leaf(store: &Store, bytes: &[u8]) -> (Cid, u64) {
    (store.put_new(RAW, bytes).unwrap(), bytes.len() as u64)
}

fn directory(store: &Store, links: &[(&str, Cid)]) -> Cid {
    node(store, links, &[8, 1])
}

fn bytes(store: &Store, root: Cid, scope: Scope, duplicates: Duplicates) -> Vec<u8> {
    let (mut frames, mut bytes) = (Frames::new(root, &[], scope, duplicates).unwrap(), Vec::new());
    while frames.append_to(store, &mut bytes).unwrap() == More::Yes {}
    bytes
}

/// The blocks of a CAR in order, its header left out.
fn blocks(mut car: &[u8]) -> Vec<Cid> {
    let mut cids = Vec::new();
    while let Some((length, rest)) = varint(car) {
        let (section, rest) = rest.split_at(length);
        cids.push(section);
        car = rest;
    }
    let frames = cids.into_iter().skip(1);
    frames
        .map(|mut section| Cid::read_bytes(&mut section).unwrap())
        .collect()
}

fn varint(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let end = bytes.iter().position(|byte| byte & 0x80 == 0)?;
    let fold = |value, byte: &u8| value << 7 | usize::from(byte & 0x7f);
    Some((bytes[..=end].iter().rev().fold(0, fold), &bytes[end + 1..]))
}

fn sent(store: &Store, root: Cid, scope: Scope) -> Vec<Cid> {
    blocks(&bytes(store, root, scope, Duplicates::Once))
}

/// A file of 27 bytes on three levels, with bytes in its inner nodes and a part that stands twice.
fn deep(store: &Store) -> (Cid, Vec<u8>) {
    let (one, two, three) = (leaf(store, b"1234"), leaf(store, b"56"), leaf(store, b"789"));
    let inner = file(store, b"<", &[one, two]);
    let middle = file(store, b"", &[inner, three, inner]);
    let (root, size) = file(store, b"[[", &[middle, one, two]);
    let all = b"[[<123456789<1234561234".to_vec();
    let all = [&all[..], b"56"].concat();
    assert_eq!(size, all.len() as u64);
    (root, all)
}

fn read(store: &Store, root: Cid, range: std::ops::Range<u64>) -> Option<Vec<u8>> {
    let mut reader = FileReader::open(store, &root.into())
        .ok()?
        .skip_bytes(range.start);
    let (mut out, length) = (Vec::new(), (range.end - range.start) as usize);
    while out.len() < length {
        out.extend_from_slice(&reader.next_bytes().ok()??);
    }
    out.truncate(length);
    Some(out)
}

/// "Only the minimal set of blocks necessary to verify the specified byte range of that entity."
#[test]
fn a_range_comes_with_the_blocks_that_it_needs_and_no_others() {
    let (_directory, all) = store();
    let (root, content) = deep(&all);
    let size = content.len() as u64;
    for start in 0..size {
        for end in start + 1..=size {
            let range = start..end;
            let expected = &content[start as usize..end as usize];
            let car = bytes(&all, root, Scope::Bytes(range.clone()), Duplicates::Once);
            let (_directory, few) = store();
            super::read(&few, car.as_slice(), |_| ()).unwrap();
            assert_eq!(
                read(&few, root, range.clone()).as_deref(),
                Some(expected),
                "{range:?}"
            );
            let sent = blocks(&car);
            assert_eq!(
                sent.len() as u64,
                few.stat().unwrap().blocks,
                "each once: {range:?}"
            );
            for cid in sent {
                let block = few.get(&cid).unwrap().unwrap();
                few.delete(&cid).unwrap();
                assert_eq!(
                    read(&few, root, range.clone()),
                    None,
                    "{cid} is not needed: {range:?}"
                );
                few.put(&cid, &block).unwrap();
            }
        }
    }
    // "`entity-bytes=0:*` is the entire file."
    let whole = sent(&all, root, Scope::Bytes(0..size));
    assert_eq!(whole, sent(&all, root, Scope::Entity));
    assert_eq!(whole, sent(&all, root, Scope::All));
    assert_eq!(sent(&all, root, Scope::Block), [root]);
}

/// "Duplicate blocks MUST be sent every time they occur during the DAG walk."
#[test]
fn duplicates_come_where_they_stand_or_once() {
    let (_directory, store) = store();
    let (one, two) = (leaf(&store, b"1234"), leaf(&store, b"56"));
    let inner = file(&store, b"", &[one, two, one]);
    let (root, _) = file(&store, b"", &[inner, one, inner]);
    let each = |scope| blocks(&bytes(&store, root, scope, Duplicates::EachTime));
    let (inner, one, two) = (inner.0, one.0, two.0);
    let walk = [root, inner, one, two, one, one, inner, one, two, one];
    for scope in [Scope::All, Scope::Entity, Scope::Bytes(0..24)] {
        assert_eq!(each(scope.clone()), walk);
        assert_eq!(sent(&store, root, scope), [root, inner, one, two]);
    }
    assert_eq!(each(Scope::Bytes(8..16)), [root, inner, one, one, inner, one]);
}

#[test]
fn an_entity_is_a_file_or_what_lists_a_directory() {
    let (_directory, store) = store();
    let (file, _) = deep(&store);
    let inner = directory(&store, &[("file", file)]);
    let root = directory(&store, &[("file", file), ("inner", inner)]);
    for scope in [Scope::Entity, Scope::Bytes(5..6), Scope::Block] {
        assert_eq!(sent(&store, root, scope), [root]);
    }
    let link = node(&store, &[], &[8, 4, 18, 1, b'x']);
    let cbor = store.put_new(DAG_CBOR, &[0xa0]).unwrap();
    for other in [link, cbor, leaf(&store, b"raw").0] {
        for scope in [Scope::All, Scope::Entity, Scope::Bytes(0..1), Scope::Block] {
            assert_eq!(sent(&store, other, scope), [other]);
        }
    }
}

/// "The minimal set of blocks required for enumeration of directory contents, and no blocks that belong to child entities."
#[test]
fn the_entity_of_a_sharded_directory_is_its_shards() {
    let (_directory, all) = store();
    let files: BTreeMap<String, Vec<u8>> = (0..5000)
        .map(|number| (format!("{number:060}"), vec![b'x']))
        .collect();
    let root = unixfs::add_map(&mut &all, Layout::default(), &files).unwrap().cid;
    let shards = all.stat().unwrap().blocks - 1;
    let car = bytes(&all, root, Scope::Entity, Duplicates::Once);
    assert_eq!(blocks(&car).len() as u64, shards);
    let (_directory, few) = store();
    super::read(&few, car.as_slice(), |_| ()).unwrap();
    assert_eq!(unixfs::list(&few, &root).unwrap().len(), files.len());
    assert!(!few.has(&cid_of(RAW, b"x")));
    assert_eq!(sent(&all, root, Scope::Block), [root]);
    // A name in it, and the file there.
    let walked = unixfs::walk(&all, &ContentPath::from(root).join(&format!("{:060}", 77))).unwrap();
    let (mut frames, mut car) = (
        Frames::new(walked.end, &walked.blocks, Scope::Entity, Duplicates::Once).unwrap(),
        Vec::new(),
    );
    while frames.append_to(&all, &mut car).unwrap() == More::Yes {}
    assert_eq!(blocks(&car), [&walked.blocks[..], &[walked.end]].concat());
}

/// "A Gateway MUST NOT include virtual blocks identified by identity CIDs."
#[test]
fn blocks_inside_their_cids_do_not_come() {
    let (_directory, store) = store();
    let inside = Cid::new_v1(RAW, cid::multihash::Multihash::wrap(0, b"abc").unwrap());
    let (root, _) = file(&store, b"", &[(inside, 3), leaf(&store, b"d")]);
    for scope in [Scope::All, Scope::Entity, Scope::Bytes(0..4)] {
        let sent = sent(&store, root, scope);
        assert_eq!(sent, [root, cid_of(RAW, b"d")]);
    }
    let empty: Cid = "bafkqaaa".parse().unwrap();
    let car = bytes(&store, empty, Scope::All, Duplicates::Once);
    assert_eq!(blocks(&car), []);
    assert_eq!(
        super::read(&store, car.as_slice(), |_| ()).unwrap().roots,
        [empty]
    );
}

#[test]
fn what_is_missing_can_be_fetched_on_the_way() {
    for scope in [Scope::All, Scope::Entity, Scope::Bytes(3..20)] {
        let (_directory, from) = store();
        let (root, _) = deep(&from);
        let whole = bytes(&from, root, scope.clone(), Duplicates::Once);
        let (_directory, to) = store();
        let mut frames = Frames::new(root, &[], scope, Duplicates::Once).unwrap();
        let (mut out, mut came) = (Vec::new(), Vec::new());
        loop {
            match frames.append_to(&to, &mut out) {
                Ok(More::Yes) => {}
                Ok(More::No) => break,
                Err(CarError::Missing { cid }) => {
                    to.put(&cid, &from.get(&cid).unwrap().unwrap()).unwrap();
                    came.push(cid);
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(out, whole);
        assert_eq!(came, blocks(&whole));
    }
}
