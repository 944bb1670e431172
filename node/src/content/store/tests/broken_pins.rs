//! Collection where a block with links is missing under a pin: what lies below cannot be told from what nobody keeps.

use std::time::{Duration, SystemTime};

use super::*;

const LIMIT: u64 = 8 << 20;

/// A pinned directory with a file of three chunks, whose node is not there any more.
struct Broken {
    _directory: tempfile::TempDir,
    store: Store,
    root: Cid,
    node: Cid,
    bytes: Vec<u8>,
    leaves: Vec<Cid>,
}

impl Broken {
    fn new() -> Self {
        let (directory, store) = store(LIMIT);
        let leaves: Vec<Vec<u8>> = (1..=3_u8).map(|byte| vec![byte; 256 << 10]).collect();
        let files = [
            ("dir/a".to_owned(), leaves.concat()),
            ("b".to_owned(), vec![9; 10]),
        ];
        let root = add_map(&mut &store, UnixfsLayout::default(), &files.into())
            .unwrap()
            .cid;
        store.pin(&root, "kept").unwrap();
        let path = crate::content::ContentPath::from(root).join("dir").join("a");
        let node = crate::content::unixfs::resolve(&store, &path).unwrap().cid;
        let bytes = store.get(&node).unwrap().unwrap().to_vec();
        store.delete(&node).unwrap();
        let leaves = leaves.iter().map(|leaf| cid_of(RAW, leaf)).collect();
        Self {
            _directory: directory,
            store,
            root,
            node,
            bytes,
            leaves,
        }
    }

    fn leaves_held(&self) -> usize {
        self.leaves.iter().filter(|leaf| self.store.has(leaf)).count()
    }

    /// Blocks that nobody keeps, written `ago` before now.
    fn loose(&self, count: u8, ago: Duration) -> Vec<Cid> {
        let put = |number| {
            let mut data = vec![number; 128 << 10];
            data[..8].copy_from_slice(&ago.as_secs().to_le_bytes());
            let cid = self.store.put_new(RAW, &data).unwrap();
            self.date(&cid, ago);
            cid
        };
        (0..count).map(put).collect()
    }

    fn date(&self, cid: &Cid, ago: Duration) {
        let file = std::fs::File::options()
            .append(true)
            .open(file_of(&self.store, cid));
        file.unwrap().set_modified(SystemTime::now() - ago).unwrap();
    }
}

#[test]
fn who_asks_for_collection_is_told_and_nothing_goes() {
    let broken = Broken::new();
    let (store, loose) = (&broken.store, broken.loose(3, Duration::ZERO));
    let before = store.stat().unwrap();
    let error = store.gc().unwrap_err();
    assert!(
        matches!(error, StoreError::BrokenPin { root, cid } if (root, cid) == (broken.root, broken.node)),
        "{error}"
    );
    let words = error.to_string();
    for advice in [
        "hanzod content verify --repair",
        "hanzod content unpin",
        &broken.root.to_string(),
    ] {
        assert!(words.contains(advice), "{words}");
    }
    assert_eq!(store.stat().unwrap(), before);

    // Whole again it loses nothing; a leaf leads nowhere, so that its absence holds nothing up.
    store.put(&broken.node, &broken.bytes).unwrap();
    store.delete(&broken.leaves[0]).unwrap();
    let report = store.gc().unwrap();
    assert_eq!((report.removed, report.missing), (loose.len() as u64, 1));
    assert_eq!(broken.leaves_held(), 2);

    // Damage that collection itself comes upon is no other.
    std::fs::write(file_of(store, &broken.node), b"damaged").unwrap();
    assert!(matches!(store.gc(), Err(StoreError::BrokenPin { .. })));
    assert_eq!(broken.leaves_held(), 2);
    store.unpin(&broken.root).unwrap();
    store.gc().unwrap();
    assert_eq!(store.stat().unwrap().blocks, 0);
}

#[test]
fn what_is_on_its_way_here_does_not_hold_collection_up() {
    let broken = Broken::new();
    broken.store.unpin(&broken.root).unwrap();
    let _fetched = broken.store.protect(broken.root);
    let report = broken.store.gc().unwrap();
    assert_eq!(report.missing, 0);
    assert!(broken.store.has(&broken.root));
}

/// Whoever needs room gets it, from what came last: what is under the pin was there when it was made.
#[test]
fn the_newest_makes_room_where_a_pin_is_broken() {
    let broken = Broken::new();
    let store = &broken.store;
    for leaf in &broken.leaves {
        broken.date(leaf, Duration::from_secs(1000));
    }
    let older = broken.loose(20, Duration::from_secs(500));
    let newer = broken.loose(20, Duration::from_secs(100));
    let held = |cids: &[Cid]| cids.iter().filter(|cid| store.has(cid)).count();
    let free = store.room().unwrap().limit;
    let room = store.make_room(free + (1 << 20)).unwrap();
    assert!(room.limit > free + (1 << 20), "{room:?}");
    // A mebibyte, and a sixteenth of the limit ahead.
    assert_eq!((held(&newer), held(&older), broken.leaves_held()), (8, 20, 3));

    // With nothing else left the node is not stuck.
    let room = store.make_room(LIMIT - (256 << 10)).unwrap();
    assert!(room.limit >= LIMIT - (256 << 10), "{room:?}");
    assert_eq!((held(&newer), held(&older), broken.leaves_held()), (0, 0, 0));
    assert!(store.has(&broken.root));
}

/// Those who cannot say beforehand how much they need come through as well.
#[test]
fn adds_of_any_size_find_room_where_a_pin_is_broken() {
    for megabytes in [1, 3, 7] {
        let broken = Broken::new();
        let store = &broken.store;
        for leaf in &broken.leaves {
            broken.date(leaf, Duration::from_secs(1000));
        }
        let free = store.room().unwrap().limit;
        broken.loose(u8::try_from(free >> 17).unwrap(), Duration::from_secs(1));
        let add = || {
            let _no_collection = store.adding();
            for number in 0..megabytes {
                let data: Vec<u8> = (0..1 << 20).map(|at: u32| (at % 251) as u8 ^ number).collect();
                store.put_new(RAW, &data)?;
            }
            Ok::<_, StoreError>(())
        };
        store.with_room(add, StoreError::is_full).unwrap();
        assert_eq!(broken.leaves_held() == 3, megabytes < 7, "{megabytes} MiB");
    }
}
