//! Pins: small files that name the roots that collection keeps.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use cid::Cid;

use super::layout::Sync;
use super::{Presence, Store, StoreError};

/// A pinned root. Everything it links to is kept with it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PinRecord {
    /// The root.
    pub cid: String,
    /// What the pin is for, for people.
    pub name: String,
    /// When it was made, seconds since 1970.
    pub since: u64,
}

impl Store {
    /// Keeps `cid` and everything under it. Pinning again renames the pin.
    ///
    /// # Errors
    /// [`StoreError::Missing`] when the root is not held, [`StoreError::Io`], [`StoreError::DiskFull`].
    pub fn pin(&self, cid: &Cid, name: &str) -> Result<(), StoreError> {
        if !self.has(cid) {
            return Err(StoreError::Missing { cid: *cid });
        }
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |elapsed| elapsed.as_secs());
        let record = PinRecord {
            cid: cid.to_string(),
            name: name.to_owned(),
            since,
        };
        let path = self.pin_path(cid);
        let json = serde_json::to_vec(&record).map_err(|error| StoreError::BadPin {
            path: path.clone(),
            reason: error.to_string(),
        })?;
        self.flush()?;
        self.layout.replace(&path, &json, Sync::Now)
    }

    /// Lets collection take `cid` again. Says whether it was pinned.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn unpin(&self, cid: &Cid) -> Result<Presence, StoreError> {
        let path = self.pin_path(cid);
        match fs::remove_file(&path) {
            Ok(()) => Ok(Presence::Present),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Presence::Absent),
            Err(error) => Err(StoreError::io("remove", &path)(error)),
        }
    }

    /// Every pinned root, ordered by CID.
    ///
    /// # Errors
    /// [`StoreError::BadPin`], [`StoreError::Io`].
    pub fn pins(&self) -> Result<Vec<(Cid, PinRecord)>, StoreError> {
        let directory = self.layout.pins();
        let mut all = Vec::new();
        for entry in fs::read_dir(directory).map_err(StoreError::io("list", directory))? {
            all.push(read_pin(
                entry.map_err(StoreError::io("list", directory))?.path(),
            )?);
        }
        all.sort_by_key(|(cid, _)| *cid);
        Ok(all)
    }

    fn pin_path(&self, cid: &Cid) -> PathBuf {
        self.layout.pins().join(cid.to_string())
    }
}

fn read_pin(path: PathBuf) -> Result<(Cid, PinRecord), StoreError> {
    let json = fs::read(&path).map_err(StoreError::io("read", &path))?;
    let bad = |reason: String| StoreError::BadPin {
        path: path.clone(),
        reason,
    };
    let record: PinRecord = serde_json::from_slice(&json).map_err(|error| bad(error.to_string()))?;
    let cid = record
        .cid
        .parse::<Cid>()
        .map_err(|error| bad(error.to_string()))?;
    Ok((cid, record))
}
