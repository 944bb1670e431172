//! Directories that are too large for one block.

use super::*;

/// Directories of files that hold one letter each.
fn letters(count: usize) -> BTreeMap<String, Vec<u8>> {
    (0..count)
        .map(|i| (format!("entry-{i:022}"), b"x".to_vec()))
        .collect()
}

fn named(count: usize) -> BTreeMap<String, Vec<u8>> {
    let name = |i: usize| format!("ünïcode {i} {}.txt", "n".repeat(i % 40));
    (0..count)
        .map(|i| (name(i), i.to_string().into_bytes()))
        .collect()
}

/// The CIDs are those that Helia's importer gives (ipfs-unixfs-importer, `cidVersion: 1, rawLeaves: true`); Kubo's for the same
/// directories are in `hamt.rs`. 4,096 of these names and CIDs are just 256 KiB, which is not sharded.
#[test]
fn large_directories_have_the_cids_that_other_implementations_give_them() {
    let cases = [
        (
            letters(4095),
            "bafybeibm4pfowsrdvblnjugv6tr746no2yfmngtae4tjfrjymqrabuxtwi",
            298_939,
        ),
        (
            letters(4096),
            "bafybeidr3ko7tdizl2mw5jbnrxqnrkp56gxfza65sf4j7uzdkli6j7rhya",
            299_012,
        ),
        (
            letters(4097),
            "bafybeifjz2r7j6nfrgdoegt3tywoq7hksgrvvaem3c7onkjyvtvdacsbk4",
            339_806,
        ),
        (
            letters(10_000),
            "bafybeigycb7fpxgzgacwmpg4i5nho3pjdvxblyzqdpyumbucnqa3ez75je",
            827_113,
        ),
        (
            named(7000),
            "bafybeiat37lclg4weiioe4uw23fg6m3re52tsjrgqwypkic5ul5bnhgm7m",
            669_118,
        ),
    ];
    for (files, cid, total_size) in cases {
        let added = add_map(&mut Discard, Layout::Cidv1Raw256k174, &files).unwrap();
        assert_eq!(
            (added.cid.to_string().as_str(), added.total_size),
            (cid, total_size),
            "{} entries",
            files.len()
        );
    }
}

/// The newer profile measures the block: one that is over 256 KiB is not made.
#[test]
fn the_newer_profile_shards_by_the_blocks_size() {
    let kind = |layout, count| {
        let (_directory, store) = store();
        let root = add_map(&mut &store, layout, &letters(count)).unwrap().cid;
        let block = store.get(&root).unwrap().unwrap();
        let is_sharded = matches!(node::Node::decode(&root, &block).unwrap(), node::Node::Shard(_));
        (is_sharded, block.len())
    };
    // A link to a file of one byte takes 72 bytes, the node's own data 4.
    let most = ((256 << 10) - 4) / 72;
    assert_eq!(kind(Layout::UnixfsV1Of2025, most), (false, 72 * most + 4));
    assert!(kind(Layout::UnixfsV1Of2025, most + 1).0);
    assert_eq!(
        kind(Layout::Cidv1Raw256k174, most + 1),
        (false, 72 * (most + 1) + 4)
    );
}

/// The fixtures of IPIP-499, "`unixfs-v1-2025` profile", which Kubo and js-ipfs-unixfs are tested with: directories whose
/// blocks have 262,144 bytes and one more.
#[test]
fn directories_at_the_newer_profiles_threshold_have_the_specifications_cids() {
    let at = "bafybeic3h7rwruealwxkacabdy45jivq2crwz6bufb5ljwupn36gicplx4";
    let over = "bafybeiegvuterwurhdtkikfhbxcldohmxp566vpjdofhzmnhv6o4freidu";
    for (last, cid) in [(21, at), (22, over)] {
        let files = fixture(4766, 11, last, "hamt-unixfs-v1-2025");
        let added = add_map(&mut Discard, Layout::UnixfsV1Of2025, &files).unwrap();
        assert_eq!(added.cid.to_string(), cid);
    }
    let none = BTreeMap::new();
    let empty = add_map(&mut Discard, Layout::UnixfsV1Of2025, &none).unwrap();
    assert_eq!(
        empty.cid.to_string(),
        "bafybeiczsscdsbs7ffqz55asqdf3smv6klcw3gofszvwlyarci47bgf354"
    );
}

/// Files of one `x` named as the specification's fixtures are: out of the ChaCha20 stream whose key is the seed's SHA-256.
fn fixture(count: usize, length: usize, last: usize, seed: &str) -> BTreeMap<String, Vec<u8>> {
    let alphabet = b"abcdefghijklmnopqrstuvwxyz01234567890-_";
    let seed = crate::content::block::cid_of(crate::content::block::RAW, seed.as_bytes());
    let mut letters = (0..)
        .flat_map(|number| chacha20(seed.hash().digest(), number))
        .map(|byte| char::from(alphabet[usize::from(byte) % alphabet.len()]));
    let lengths = (1..count).map(|_| length).chain([last]);
    lengths
        .map(|length| (letters.by_ref().take(length).collect(), vec![b'x']))
        .collect()
}

/// A block of the stream (RFC 8439, section 2.3), with a nonce of zeros.
fn chacha20(key: &[u8], number: u32) -> [u8; 64] {
    let mut start = [0_u32; 16];
    start[..4].copy_from_slice(&[0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574]);
    for (word, bytes) in start[4..12].iter_mut().zip(key.chunks(4)) {
        *word = u32::from_le_bytes(bytes.try_into().unwrap());
    }
    start[12] = number;
    let mut state = start;
    let mut mix = |[a, b, c, d]: [usize; 4]| {
        for (into, from, turned, by) in [(a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)] {
            state[into] = state[into].wrapping_add(state[from]);
            state[turned] = (state[turned] ^ state[into]).rotate_left(by);
        }
    };
    for _ in 0..10 {
        (0..4).for_each(|n| mix([n, n + 4, n + 8, n + 12]));
        (0..4).for_each(|n| mix([n, (n + 1) % 4 + 4, (n + 2) % 4 + 8, (n + 3) % 4 + 12]));
    }
    let mut out = [0; 64];
    for (bytes, (word, first)) in out.chunks_mut(4).zip(state.iter().zip(start)) {
        bytes.copy_from_slice(&word.wrapping_add(first).to_le_bytes());
    }
    out
}

#[test]
fn a_name_in_a_large_directory_is_found_by_the_blocks_on_its_way() {
    let (_directory, all) = store();
    let files = named(10_000);
    let root = add_map(&mut &all, Layout::default(), &files).unwrap().cid;
    let entries = list(&all, &root).unwrap();
    assert_eq!(entries.len(), files.len());
    for (name, bytes) in files.iter().step_by(97) {
        let walked = walk(&all, &ContentPath::from(root).join(name)).unwrap();
        assert!(
            (1..=3).contains(&walked.blocks.len()),
            "{} blocks",
            walked.blocks.len()
        );
        assert_eq!(walked.parts, [root, walked.end]);
        // They are enough, and what is at the end of the path.
        let (_directory, few) = store();
        for cid in walked.blocks.iter().chain([&walked.end]) {
            few.put(cid, &all.get(cid).unwrap().unwrap()).unwrap();
        }
        let path = ContentPath::from(root).join(name);
        let mut reader = FileReader::open(&few, &path).unwrap();
        assert_eq!(reader.next_bytes().unwrap().unwrap(), *bytes);
    }
    let absent = walk(&all, &ContentPath::from(root).join("nobody"));
    assert!(matches!(absent, Err(ReadError::NoEntry { .. })));
}

#[test]
fn a_shard_with_two_links_for_one_place_is_refused() {
    let (_directory, store) = store();
    let file = add(&store, b"x");
    let header = node::shard_header(&[1], 0x22, 256);
    // "hello" goes to slot CB of the first level.
    let twice = vec![link("CBhello", file), link("CB", file)];
    let root = put(&store, twice, header.clone());
    let path = ContentPath::from(root).join("hello");
    let error = walk(&store, &path).unwrap_err();
    assert!(error.is_refusal(), "{error}");
    let root = put(&store, vec![link("CBhello", file)], header);
    let found = walk(&store, &ContentPath::from(root).join("hello")).unwrap();
    assert_eq!(found.end, file);
}
