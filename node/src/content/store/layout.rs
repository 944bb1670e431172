//! Names and files on disk: `blocks/<shard>/<multihash in base32>`, `pins/<cid>`, `tmp/`.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use cid::Cid;
use cid::multibase::Base;
use cid::multihash::Multihash;

use super::StoreError;
use super::error::{DISK_FAULT, is_disk_fault};
use crate::content::block::{MAX_BLOCK, RAW};

/// A block's name on disk: its multihash, because blocks of different codecs may share bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Key(Vec<u8>);

impl Key {
    pub(super) fn of(cid: &Cid) -> Self {
        Self(cid.hash().to_bytes())
    }

    pub(super) fn to_cid(&self) -> Cid {
        // Keys come from CIDs or pass `parse`, so the multihash is valid; a default one names nothing we hold.
        Cid::new_v1(RAW, Multihash::from_bytes(&self.0).unwrap_or_default())
    }

    pub(super) fn stripe(&self, stripes: usize) -> usize {
        self.0.last().map_or(0, |byte| usize::from(*byte) % stripes)
    }

    fn file_name(&self) -> String {
        Base::Base32Lower.encode(&self.0)
    }

    fn parse(name: &str) -> Option<Self> {
        let bytes = Base::Base32Lower.decode(name).ok()?;
        Multihash::<64>::from_bytes(&bytes).ok()?;
        Some(Self(bytes))
    }
}

#[derive(Debug)]
pub(super) struct Layout {
    root: PathBuf,
    blocks: PathBuf,
    pins: PathBuf,
    temporary: PathBuf,
    counter: AtomicU64,
}

impl Layout {
    pub(super) fn open(root: PathBuf) -> Result<Self, StoreError> {
        let layout = Self {
            blocks: root.join("blocks"),
            pins: root.join("pins"),
            temporary: root.join("tmp"),
            counter: AtomicU64::new(0),
            root,
        };
        for directory in [&layout.blocks, &layout.pins, &layout.temporary] {
            fs::create_dir_all(directory).map_err(StoreError::io("create", directory))?;
        }
        layout.remove_leftovers()?;
        layout.join_small_shards()?;
        Ok(layout)
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn pins(&self) -> &Path {
        &self.pins
    }

    pub(super) fn size(&self, key: &Key) -> Option<u64> {
        fs::metadata(self.path(key))
            .ok()
            .filter(fs::Metadata::is_file)
            .map(|data| data.len())
    }

    /// When a block's file was written, as far as the file system knows.
    pub(super) fn written(&self, key: &Key) -> Option<SystemTime> {
        fs::metadata(self.path(key)).and_then(|data| data.modified()).ok()
    }

    /// Opens a block's file; nothing when there is none.
    pub(super) fn open_block(&self, key: &Key) -> Result<Option<BlockFile>, StoreError> {
        let path = self.path(key);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(StoreError::io("open", &path)(error)),
        };
        let size = file.metadata().map_err(StoreError::io("look at", &path))?.len();
        Ok(Some(BlockFile { file, path, size }))
    }

    /// Whether a block's file holds these very bytes; not when it cannot be read.
    pub(super) fn holds(&self, key: &Key, data: &[u8]) -> bool {
        let same = |file: &mut File| -> io::Result<bool> {
            let (mut buffer, mut rest) = ([0; 16 << 10], data);
            loop {
                let count = file.read(&mut buffer)?;
                match rest.split_at_checked(count) {
                    Some((read, left)) if read == &buffer[..count] => rest = left,
                    _ => return Ok(false),
                }
                if count == 0 {
                    return Ok(rest.is_empty());
                }
            }
        };
        File::open(self.path(key)).is_ok_and(|mut file| same(&mut file).unwrap_or(false))
    }

    pub(super) fn write(&self, key: &Key, data: &[u8]) -> Result<PathBuf, StoreError> {
        let path = self.path(key);
        self.replace(&path, data, Sync::Later)?;
        Ok(path)
    }

    pub(super) fn delete(&self, key: &Key) -> Result<(), StoreError> {
        let path = self.path(key);
        fs::remove_file(&path).map_err(StoreError::io("remove", &path))
    }

    /// Puts `data` at `path` in one step: whoever reads sees the old file or the new one.
    pub(super) fn replace(&self, path: &Path, data: &[u8], sync: Sync) -> Result<(), StoreError> {
        let temporary = self
            .temporary
            .join(self.counter.fetch_add(1, Ordering::Relaxed).to_string());
        let written = write_file(&temporary, data, sync).and_then(|()| move_to(&temporary, path));
        written.map_err(|error| {
            // A failure to clean up only leaves a file that the next start removes.
            let _ = fs::remove_file(&temporary);
            StoreError::io("write", path)(error)
        })?;
        if sync == Sync::Now {
            sync_parent(path)
        } else {
            Ok(())
        }
    }

    pub(super) fn for_each(
        &self,
        mut visit: impl FnMut(Key, u64) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        for shard in read_dir(&self.blocks)? {
            for file in read_dir(&shard)? {
                let Some(key) = file.file_name().and_then(|name| Key::parse(name.to_str()?)) else {
                    continue;
                };
                // A file that went away in the meantime was collected.
                let Some(size) = self.size(&key) else { continue };
                visit(key, size)?;
            }
        }
        Ok(())
    }

    /// Flushes each file and the directories that name them. Files collected in the meantime are none of ours.
    pub(super) fn sync(&self, files: &[PathBuf]) -> Result<(), StoreError> {
        for path in files {
            match File::open(path) {
                Ok(file) => file.sync_data().map_err(StoreError::io("flush", path))?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(StoreError::io("open", path)(error)),
            }
            sync_parent(path)?;
        }
        if files.is_empty() {
            Ok(())
        } else {
            sync_directory(&self.blocks)
        }
    }

    #[cfg(target_os = "linux")]
    pub(super) fn sync_all(&self, _: &[PathBuf]) -> Result<(), StoreError> {
        let directory = File::open(&self.root).map_err(StoreError::io("open", &self.root))?;
        rustix::fs::syncfs(directory).map_err(|error| StoreError::io("flush", &self.root)(error.into()))
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn sync_all(&self, files: &[PathBuf]) -> Result<(), StoreError> {
        self.sync(files)
    }

    /// Bytes free to this user on the file system.
    pub(super) fn free(&self) -> Result<u64, StoreError> {
        let found = rustix::fs::statvfs(&self.root)
            .map_err(|error| StoreError::io("look at", &self.root)(error.into()))?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    }

    /// The shard is the last character but one: hashes end evenly spread except for the last, which holds few bits.
    pub(super) fn path(&self, key: &Key) -> PathBuf {
        let name = key.file_name();
        let end = name.len().saturating_sub(1);
        self.blocks.join(&name[end.saturating_sub(1)..end]).join(name)
    }

    /// Stores were once split a thousand ways, by two characters, and most blocks of a fetch waited for a directory to be
    /// made. Moves their blocks into the shards of today; if it is interrupted, the next start goes on.
    fn join_small_shards(&self) -> Result<(), StoreError> {
        for shard in read_dir(&self.blocks)? {
            if shard.file_name().is_none_or(|name| name.len() != 2) {
                continue;
            }
            for file in read_dir(&shard)? {
                if let Some(key) = file.file_name().and_then(|name| Key::parse(name.to_str()?)) {
                    move_to(&file, &self.path(&key)).map_err(StoreError::io("move", &file))?;
                }
            }
            // A directory that holds something else stays.
            let _ = fs::remove_dir(&shard);
        }
        Ok(())
    }

    fn remove_leftovers(&self) -> Result<(), StoreError> {
        for file in read_dir(&self.temporary)? {
            fs::remove_file(&file).map_err(StoreError::io("remove", &file))?;
        }
        Ok(())
    }
}

/// A block's file, opened.
#[derive(Debug)]
pub(super) struct BlockFile {
    file: File,
    path: PathBuf,
    /// Its length in bytes when it was opened.
    pub(super) size: u64,
}

impl BlockFile {
    /// Appends the file's bytes, at most one more than a block may have.
    pub(super) fn append_to(self, out: &mut Vec<u8>) -> Result<Whole, StoreError> {
        out.reserve((self.size as usize).min(MAX_BLOCK) + 1);
        match self.file.take(MAX_BLOCK as u64 + 1).read_to_end(out) {
            Ok(_) => Ok(Whole::Yes),
            Err(error) if is_disk_fault(&error) => {
                tracing::warn!(path = %self.path.display(), %error, "a block cannot be read; {DISK_FAULT}");
                Ok(Whole::No)
            }
            Err(error) => Err(StoreError::io("read", &self.path)(error)),
        }
    }
}

/// Whether a file could be read to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whole {
    Yes,
    /// The disk has lost a part of it.
    No,
}

/// When a file must be on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sync {
    /// Before the call returns.
    Now,
    /// At the next flush.
    Later,
}

/// Renames a file into a directory that may have to be made first.
fn move_to(from: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(from, to) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            to.parent().map_or(Ok(()), fs::create_dir_all)?;
            fs::rename(from, to)
        }
        moved => moved,
    }
}

fn write_file(path: &Path, data: &[u8], sync: Sync) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(data)?;
    if sync == Sync::Now {
        file.sync_data()
    } else {
        Ok(())
    }
}

fn sync_parent(path: &Path) -> Result<(), StoreError> {
    path.parent().map_or(Ok(()), sync_directory)
}

fn sync_directory(path: &Path) -> Result<(), StoreError> {
    File::open(path)
        .and_then(|directory| directory.sync_all())
        .map_err(StoreError::io("flush", path))
}

fn read_dir(path: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let entries = fs::read_dir(path).map_err(StoreError::io("list", path))?;
    entries
        .map(|entry| entry.map(|found| found.path()))
        .collect::<Result<_, _>>()
        .map_err(StoreError::io("list", path))
}
