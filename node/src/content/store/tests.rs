mod broken_pins;

use super::*;
use crate::content::block::{DAG_PB, RAW, cid_of};
use crate::content::unixfs::{Layout as UnixfsLayout, add_map};

fn store(limit: u64) -> (tempfile::TempDir, Store) {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(Config {
        root: directory.path().to_owned(),
        limit,
    })
    .unwrap();
    (directory, store)
}

fn file_of(store: &Store, cid: &Cid) -> PathBuf {
    let mut found = None;
    for shard in std::fs::read_dir(store.root().join("blocks")).unwrap() {
        for file in std::fs::read_dir(shard.unwrap().path()).unwrap() {
            let path = file.unwrap().path();
            // Some tests make files that cannot be read.
            if std::fs::read(&path).is_ok_and(|data| block::verify(cid, &data).is_ok()) {
                found = Some(path);
            }
        }
    }
    found.unwrap()
}

#[test]
fn a_store_of_a_thousand_shards_is_taken_over() {
    let (directory, store) = store(1 << 20);
    let cids: Vec<Cid> = (0..40u8)
        .map(|byte| store.put_new(RAW, &[byte; 10]).unwrap())
        .collect();
    for cid in &cids {
        let path = file_of(&store, cid);
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let shard = store
            .root()
            .join("blocks")
            .join(&name[name.len() - 3..name.len() - 1]);
        std::fs::create_dir_all(&shard).unwrap();
        std::fs::rename(&path, shard.join(name)).unwrap();
    }
    let strange = store.root().join("blocks/zz");
    std::fs::create_dir_all(&strange).unwrap();
    std::fs::write(strange.join("not a block"), b"somebody's").unwrap();
    assert!(!store.has(&cids[0]));
    drop(store);
    let store = Store::open(Config {
        root: directory.path().to_owned(),
        limit: 1 << 20,
    })
    .unwrap();
    assert!(cids.iter().all(|cid| store.get(cid).unwrap().is_some()));
    assert_eq!(store.stat().unwrap().blocks, 40);
    assert!(strange.join("not a block").exists());
    let shards = std::fs::read_dir(store.root().join("blocks")).unwrap();
    let long = shards
        .map(|shard| shard.unwrap().file_name())
        .filter(|name| name.len() > 1);
    assert_eq!(long.collect::<Vec<_>>(), ["zz"]);
}

#[test]
fn blocks_come_back_and_survive_reopening() {
    let (directory, store) = store(1 << 20);
    let cid = store.put_new(RAW, b"a block").unwrap();
    assert_eq!(store.put(&cid, b"a block").unwrap(), Put::Known);
    store.flush().unwrap();
    drop(store);
    let store = Store::open(Config {
        root: directory.path().to_owned(),
        limit: 1 << 20,
    })
    .unwrap();
    assert_eq!(store.get(&cid).unwrap().unwrap(), &b"a block"[..]);
    assert_eq!(store.list().unwrap(), [(cid, 7)]);
    let stat = store.stat().unwrap();
    assert_eq!((stat.blocks, stat.bytes), (1, 7));
    assert_eq!(store.delete(&cid).unwrap(), Presence::Present);
    assert_eq!(store.get(&cid).unwrap(), None);
    assert_eq!(store.stat().unwrap().bytes, 0);
}

#[test]
fn wrong_bytes_are_not_stored() {
    let (_directory, store) = store(1 << 20);
    let cid = cid_of(RAW, b"right");
    assert!(matches!(store.put(&cid, b"wrong"), Err(StoreError::Block(_))));
    assert!(!store.has(&cid));
    assert!(matches!(
        store.put_new(RAW, &vec![0; MAX_BLOCK + 1]),
        Err(StoreError::Block(_))
    ));
}

#[test]
fn a_torn_block_is_never_served_and_can_be_put_again() {
    let (_directory, store) = store(1 << 20);
    let cid = store.put_new(RAW, &[7; 1000]).unwrap();
    let path = file_of(&store, &cid);
    std::fs::write(&path, [7; 500]).unwrap();
    assert!(matches!(store.get(&cid), Err(StoreError::Corrupt { .. })));
    assert!(!store.has(&cid));
    assert_eq!(store.put(&cid, &[7; 1000]).unwrap(), Put::New);
    let mut same_length = vec![7; 1000];
    same_length[999] = 8;
    std::fs::write(&path, same_length).unwrap();
    assert_eq!(
        store.verify().unwrap(),
        VerifyReport {
            removed: vec![cid],
            ..VerifyReport::default()
        }
    );
}

/// Bit rot keeps the length.
#[test]
fn adding_again_mends_a_damaged_block() {
    let (_directory, store) = store(1 << 20);
    let data = vec![7; 100_000];
    let cid = store.put_new(RAW, &data).unwrap();
    let path = file_of(&store, &cid);
    let mut rotten = data.clone();
    rotten[70_000] ^= 1;
    let damages: [&[u8]; 4] = [&rotten, &data[..5], b"", &[&data[..], b"more"].concat()];
    for damage in damages {
        std::fs::write(&path, damage).unwrap();
        assert_eq!(store.put(&cid, &data).unwrap(), Put::New);
        assert_eq!(store.get(&cid).unwrap().unwrap(), data);
        assert_eq!(store.put(&cid, &data).unwrap(), Put::Known);
    }
    let report = store.verify().unwrap();
    assert_eq!((report.good, report.removed), (1, vec![]));
}

/// A file that opens and cannot be read, as on a bad sector: address 0 of this process.
#[cfg(target_os = "linux")]
fn make_unreadable(path: &Path) {
    std::fs::remove_file(path).unwrap();
    std::os::unix::fs::symlink("/proc/self/mem", path).unwrap();
    let error = std::fs::read(path).unwrap_err();
    assert!(error::is_disk_fault(&error), "{error}");
}

#[cfg(target_os = "linux")]
#[test]
fn unreadable_blocks_are_damaged_blocks() {
    let (_directory, store) = store(64 << 20);
    let files = [("a".to_owned(), vec![1; 600_000]), ("b".to_owned(), vec![2; 10])];
    let root = add_map(&mut &store, UnixfsLayout::default(), &files.into())
        .unwrap()
        .cid;
    store.pin(&root, "kept").unwrap();
    let leaf = store.put_new(RAW, &[2; 10]).unwrap();
    let inner = store
        .list()
        .unwrap()
        .into_iter()
        .map(|(cid, _)| Cid::new_v1(DAG_PB, *cid.hash()))
        .find(|cid| *cid != root && unixfs_links(&store, cid) > 1)
        .unwrap();
    let held = store.stat().unwrap().blocks;

    make_unreadable(&file_of(&store, &leaf));
    make_unreadable(&file_of(&store, &inner));
    let report = store.verify().unwrap();
    assert_eq!(
        (report.good, report.removed.len(), report.failed.len()),
        (held - 2, 2, 0)
    );
    assert_eq!(store.incomplete().unwrap(), [root]);

    // Collection meets one, too, and a put replaces one.
    store.put(&leaf, &[2; 10]).unwrap();
    make_unreadable(&file_of(&store, &root));
    assert!(matches!(store.gc(), Err(StoreError::BrokenPin { cid, .. }) if cid == root));
    store.put(&leaf, &[2; 10]).unwrap();
    make_unreadable(&file_of(&store, &leaf));
    assert_eq!(store.put(&leaf, &[2; 10]).unwrap(), Put::New);
    assert_eq!(store.get(&leaf).unwrap().unwrap(), &[2; 10][..]);
}

#[cfg(target_os = "linux")]
fn unixfs_links(store: &Store, cid: &Cid) -> usize {
    let block = store.get(cid).unwrap().unwrap();
    crate::content::unixfs::links(cid, &block).map_or(0, |links| links.len())
}

/// A flush that fails leaves nothing to be taken for durable.
#[cfg(target_os = "linux")]
#[test]
fn after_a_failed_flush_the_next_one_tries_again() {
    let (_directory, store) = store(1 << 20);
    let cids: Vec<Cid> = (0..3u8)
        .map(|byte| store.put_new(RAW, &[byte; 10]).unwrap())
        .collect();
    let path = file_of(&store, &cids[1]);
    std::fs::remove_file(&path).unwrap();
    // It opens, and cannot be flushed.
    std::os::unix::fs::symlink("/proc/self/mem", &path).unwrap();
    assert!(matches!(store.flush(), Err(StoreError::Io { .. })));
    assert!(matches!(store.flush(), Err(StoreError::Io { .. })));
    assert!(matches!(store.pin(&cids[0], "x"), Err(StoreError::Io { .. })));
    assert!(store.pins().unwrap().is_empty());
    store.put(&cids[1], &[1; 10]).unwrap();
    store.flush().unwrap();
    assert!(lock(&store.dirty).is_empty());
}

/// Whoever wrote them may have been killed before it flushed.
#[test]
fn blocks_that_are_found_are_flushed_too() {
    let (directory, store) = store(1 << 20);
    let cid = store.put_new(RAW, b"a block").unwrap();
    drop(store);
    let store = Store::open(Config {
        root: directory.path().to_owned(),
        limit: 1 << 20,
    })
    .unwrap();
    assert_eq!(store.put(&cid, b"a block").unwrap(), Put::Known);
    assert_eq!(*lock(&store.dirty), [file_of(&store, &cid)]);
    store.flush().unwrap();
    store.flush_found(&cid);
    assert_eq!(*lock(&store.dirty), [file_of(&store, &cid)]);
}

#[test]
fn a_full_store_says_what_to_do_and_loses_nothing() {
    let (_directory, store) = store(1500);
    let kept = store.put_new(RAW, &[1; 1000]).unwrap();
    let error = store.put_new(RAW, &[2; 1000]).unwrap_err();
    assert!(error.to_string().contains("hanzod content gc"), "{error}");
    assert!(store.has(&kept));
    assert_eq!(store.stat().unwrap().bytes, 1000);
    store.gc().unwrap();
    store.put_new(RAW, &[2; 1000]).unwrap();
}

#[test]
fn leftovers_of_an_interrupted_write_are_removed() {
    let (directory, store) = store(1 << 20);
    drop(store);
    std::fs::write(directory.path().join("tmp/17"), b"half").unwrap();
    let store = Store::open(Config {
        root: directory.path().to_owned(),
        limit: 1 << 20,
    })
    .unwrap();
    assert_eq!(
        std::fs::read_dir(directory.path().join("tmp")).unwrap().count(),
        0
    );
    assert_eq!(store.stat().unwrap().blocks, 0);
}

#[test]
fn collection_keeps_what_pins_and_guards_reach() {
    let (_directory, store) = store(64 << 20);
    let tree = |seed: u8| -> Cid {
        let files = [
            ("dir/a".to_owned(), vec![seed; 600_000]),
            ("b".to_owned(), vec![seed; 10]),
        ];
        add_map(&mut &store, UnixfsLayout::default(), &files.into())
            .unwrap()
            .cid
    };
    let (pinned, guarded, loose) = (tree(1), tree(2), tree(3));
    store.pin(&pinned, "kept").unwrap();
    let guard = store.protect(guarded);
    let report = store.gc().unwrap();
    assert!(store.has(&pinned) && store.has(&guarded) && !store.has(&loose));
    assert_eq!(report.missing, 0);
    assert!(report.removed >= 3, "{report:?}");
    drop(guard);
    store.gc().unwrap();
    assert!(!store.has(&guarded) && store.has(&pinned));
    assert_eq!(store.pins().unwrap()[0].1.names[0].name, "kept");
    assert_eq!(store.unpin(&pinned).unwrap(), Presence::Present);
    store.gc().unwrap();
    assert_eq!(
        store.stat().unwrap(),
        Stat {
            blocks: 0,
            bytes: 0,
            limit: 64 << 20,
            pins: 0
        }
    );
}

#[test]
fn what_is_not_held_cannot_be_pinned() {
    let (_directory, store) = store(1 << 20);
    assert!(matches!(
        store.pin(&cid_of(DAG_PB, b""), "x"),
        Err(StoreError::Missing { .. })
    ));
}

#[test]
fn a_full_disk_is_named_and_says_what_to_do() {
    let full = StoreError::io("write", Path::new("/data/blocks"));
    let error = full(std::io::ErrorKind::StorageFull.into());
    assert!(matches!(error, StoreError::DiskFull { .. }));
    assert!(error.to_string().contains("/data/blocks") && error.to_string().contains("nothing was lost"));
}
