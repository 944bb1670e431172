//! The node's home directory: keys, configuration, counters, content, logs, and the lock that keeps a second node out.

use crate::files::{self, Access, FileError};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

/// Paths inside one home directory. Making a `Home` touches nothing on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home {
    root: PathBuf,
}

/// Why a home directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HomeError {
    /// Neither `--home`, nor `HANZOD_HOME`, nor `HOME` says where.
    #[error("no home directory: give --home DIR, or set HANZOD_HOME")]
    Unknown,
    /// Nothing was set up there.
    #[error("{root} holds no node: run `hanzod init --genesis FILE --home {root}` first", root = .0.display())]
    NotInitialised(PathBuf),
    /// A node was set up there before.
    #[error(
        "{root} already holds a node; its keys are kept. Choose another --home, or move that directory away",
        root = .0.display()
    )]
    AlreadyInitialised(PathBuf),
    /// Another process holds the lock.
    #[error(
        "the home {} is in use by another node (process {pid}): stop that one, or give this one another --home",
        home.display()
    )]
    InUse {
        /// The home directory.
        home: PathBuf,
        /// The process that holds it, as far as is known.
        pid: String,
    },
    /// The system refused.
    #[error(transparent)]
    File(#[from] FileError),
}

impl Home {
    /// The home that `given` names (`--home`, or `HANZOD_HOME` through the command line's parser), else `~/.hanzod`.
    ///
    /// # Errors
    /// When there is no home to be found.
    pub fn locate(given: Option<&Path>) -> Result<Self, HomeError> {
        let root = match given {
            Some(path) => path.to_path_buf(),
            None => std::env::home_dir().ok_or(HomeError::Unknown)?.join(".hanzod"),
        };
        Ok(Self {
            root: std::path::absolute(&root).map_err(|e| FileError::new("resolve", &root, e))?,
        })
    }

    /// The directory itself.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// `config.toml`.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.root.join("config.toml")
    }

    /// The genesis file this node was set up with.
    #[must_use]
    pub fn genesis(&self) -> PathBuf {
        self.root.join("genesis.toml")
    }

    /// The secret keys, the owner's alone.
    #[must_use]
    pub fn identity(&self) -> PathBuf {
        self.root.join("identity")
    }

    /// This node's signed identity record. It is written last when a node is set up.
    #[must_use]
    pub fn record(&self) -> PathBuf {
        self.identity().join("record.cbor")
    }

    /// Counters that must never repeat.
    #[must_use]
    pub fn counter(&self, name: &str) -> PathBuf {
        self.root.join("counters").join(name)
    }

    /// The content store.
    #[must_use]
    pub fn content(&self) -> PathBuf {
        self.root.join("content")
    }

    /// What jobs keep between restarts: rounds, checkpoints, metrics.
    #[must_use]
    pub fn jobs(&self) -> PathBuf {
        self.root.join("jobs")
    }

    /// The log file.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.root.join("logs").join("hanzod.log")
    }

    /// Address and token of the running node's API.
    #[must_use]
    pub fn api(&self) -> PathBuf {
        self.root.join("api.json")
    }

    fn lock_file(&self) -> PathBuf {
        self.root.join("lock")
    }

    /// Whether a node was set up here.
    #[must_use]
    pub fn is_initialised(&self) -> bool {
        self.genesis().exists() && self.record().exists()
    }

    /// Fails with what to do when no node was set up here.
    ///
    /// # Errors
    /// [`HomeError::NotInitialised`].
    pub fn require_initialised(&self) -> Result<(), HomeError> {
        if self.is_initialised() {
            Ok(())
        } else {
            Err(HomeError::NotInitialised(self.root.clone()))
        }
    }

    /// Creates the directories, the home being the owner's alone.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn create(&self) -> Result<(), HomeError> {
        files::create_dir(&self.root, Access::Owner)?;
        for name in ["counters", "content", "jobs", "logs"] {
            files::create_dir(&self.root.join(name), Access::Everyone)?;
        }
        Ok(())
    }

    /// Takes the home for this process until the lock is dropped (or the process ends, however it ends).
    ///
    /// # Errors
    /// [`HomeError::InUse`] when another process has it.
    pub fn lock(&self) -> Result<HomeLock, HomeError> {
        let path = self.lock_file();
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(|e| FileError::new("open", &path, e))?;
        match file.try_lock() {
            Ok(()) => write_pid(&mut file).map_err(|e| FileError::new("write", &path, e))?,
            Err(TryLockError::WouldBlock) => {
                return Err(HomeError::InUse {
                    home: self.root.clone(),
                    pid: read_pid(&mut file),
                });
            }
            Err(TryLockError::Error(e)) => return Err(FileError::new("lock", &path, e).into()),
        }
        Ok(HomeLock { _file: file })
    }
}

/// Keeps a home directory for this process.
#[derive(Debug)]
pub struct HomeLock {
    _file: File,
}

fn write_pid(file: &mut File) -> std::io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}

fn read_pid(file: &mut File) -> String {
    let mut text = String::new();
    match file.take(32).read_to_string(&mut text) {
        Ok(_) if !text.trim().is_empty() => text.trim().to_owned(),
        Ok(_) | Err(_) => "unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_home_in_use_names_its_process() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::locate(Some(dir.path())).unwrap();
        home.create().unwrap();
        let held = home.lock().unwrap();
        let message = home.lock().unwrap_err().to_string();
        assert!(
            message.contains(&format!("process {}", std::process::id())),
            "{message}"
        );
        drop(held);
        home.lock().unwrap();
    }

    #[test]
    fn an_empty_home_says_how_to_start() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::locate(Some(dir.path())).unwrap();
        let message = home.require_initialised().unwrap_err().to_string();
        assert!(message.contains("hanzod init --genesis FILE --home"), "{message}");
    }
}
