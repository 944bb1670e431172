//! Pins: small files that name the roots that collection keeps.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use cid::Cid;

use super::layout::Sync;
use super::{Presence, Store, StoreError};

/// A pin's file is read before it is written.
static CHANGING: Mutex<()> = Mutex::new(());

/// A pinned root. Everything it links to is kept with it, for as long as it has a name.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(from = "Stored")]
pub struct PinRecord {
    /// The root.
    pub cid: String,
    /// What it is kept for, each name once, the earliest first.
    pub names: Vec<PinName>,
}

/// One of the things that a root is kept for.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PinName {
    /// For people.
    pub name: String,
    /// When it was given, seconds since 1970.
    pub since: u64,
}

/// A pin's file: version 0.1 wrote one name.
#[derive(serde::Deserialize)]
struct Stored {
    cid: String,
    #[serde(default)]
    names: Vec<PinName>,
    name: Option<String>,
    since: Option<u64>,
}

impl From<Stored> for PinRecord {
    fn from(stored: Stored) -> Self {
        let mut names = stored.names;
        if let Some(name) = stored.name {
            let since = stored.since.unwrap_or_default();
            names.push(PinName { name, since });
        }
        Self {
            cid: stored.cid,
            names,
        }
    }
}

impl Store {
    /// Keeps `cid` and everything under it. Pinned again under another name it has both, and stays until the last is gone.
    ///
    /// # Errors
    /// [`StoreError::Missing`] when the root is not held, [`StoreError::Io`], [`StoreError::DiskFull`].
    pub fn pin(&self, cid: &Cid, name: &str) -> Result<(), StoreError> {
        if !self.has(cid) {
            return Err(StoreError::Missing { cid: *cid });
        }
        self.flush()?;
        let _alone = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
        let mut record = self.pin_of(cid)?.unwrap_or_else(|| PinRecord {
            cid: cid.to_string(),
            names: Vec::new(),
        });
        if record.names.iter().all(|known| known.name != name) {
            let since = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |elapsed| elapsed.as_secs());
            let name = name.to_owned();
            record.names.push(PinName { name, since });
        }
        self.write_pin(cid, &record)
    }

    /// Lets collection take `cid` again, whatever its names. Says whether it was pinned.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn unpin(&self, cid: &Cid) -> Result<Presence, StoreError> {
        let _alone = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
        self.remove_pin(cid)
    }

    /// Takes one name from the pin of `cid`, which collection may take when it was the last. Says whether it is pinned
    /// still.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::BadPin`].
    pub fn unpin_name(&self, cid: &Cid, name: &str) -> Result<Presence, StoreError> {
        let _alone = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut record) = self.pin_of(cid)? else {
            return Ok(Presence::Absent);
        };
        record.names.retain(|known| known.name != name);
        if record.names.is_empty() {
            self.remove_pin(cid)?;
            return Ok(Presence::Absent);
        }
        self.write_pin(cid, &record)?;
        Ok(Presence::Present)
    }

    fn pin_of(&self, cid: &Cid) -> Result<Option<PinRecord>, StoreError> {
        let path = self.pin_path(cid);
        if !path.exists() {
            return Ok(None);
        }
        read_pin(path).map(|(_, record)| Some(record))
    }

    fn write_pin(&self, cid: &Cid, record: &PinRecord) -> Result<(), StoreError> {
        let path = self.pin_path(cid);
        let json = serde_json::to_vec(record).map_err(|error| StoreError::BadPin {
            path: path.clone(),
            reason: error.to_string(),
        })?;
        self.layout.replace(&path, &json, Sync::Now)
    }

    fn remove_pin(&self, cid: &Cid) -> Result<Presence, StoreError> {
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

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;
    use crate::content::block::RAW;

    fn store() -> (tempfile::TempDir, Store, Cid) {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(Config {
            root: directory.path().to_owned(),
            limit: 1 << 20,
        });
        let store = store.unwrap();
        let cid = store.put_new(RAW, b"kept").unwrap();
        (directory, store, cid)
    }

    #[test]
    fn a_pin_stays_until_its_last_name_is_gone() {
        let (_directory, store, cid) = store();
        let names = || {
            let pins = store.pins().unwrap();
            let names = pins.into_iter().flat_map(|(_, pin)| pin.names);
            names.map(|n| n.name).collect::<Vec<_>>()
        };
        let round = "checkpoint of a job after round 3";
        for name in ["best", round, "best"] {
            store.pin(&cid, name).unwrap();
        }
        assert_eq!(names(), ["best", round]);
        for _ in 0..2 {
            assert_eq!(store.unpin_name(&cid, round).unwrap(), Presence::Present);
        }
        assert_eq!(names(), ["best"]);
        assert_eq!(store.gc().unwrap().removed, 0);
        for _ in 0..2 {
            assert_eq!(store.unpin_name(&cid, "best").unwrap(), Presence::Absent);
        }
        // Whoever unpins means all of it.
        store.pin(&cid, "a").unwrap();
        store.pin(&cid, "b").unwrap();
        assert_eq!(store.unpin(&cid).unwrap(), Presence::Present);
        assert!(names().is_empty());
    }

    #[test]
    fn pins_of_one_name_are_read() {
        let (_directory, store, cid) = store();
        let file = format!("{{\"cid\":\"{cid}\",\"name\":\"old\",\"since\":7}}");
        std::fs::write(store.pin_path(&cid), file).unwrap();
        store.pin(&cid, "new").unwrap();
        let pin = store.pins().unwrap().remove(0).1;
        assert_eq!((pin.names[0].name.as_str(), pin.names[0].since), ("old", 7));
        assert_eq!(pin.names[1].name, "new");
    }

    #[test]
    fn what_is_held_outlives_collection() {
        let (_directory, store, cid) = store();
        let store = std::sync::Arc::new(store);
        let (one, two) = (store.hold(cid), store.hold(cid));
        drop(one);
        assert_eq!(store.gc().unwrap().removed, 0);
        drop(two);
        assert_eq!(store.gc().unwrap().removed, 1);
    }
}
