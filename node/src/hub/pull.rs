//! Models in: each file goes to a partial one, resumes where it stopped, and takes its name once its hash is right.

use super::list::{Listed, Listing, list};
use super::{Hub, HubError, Repo, TRIES};
use crate::content::command::Moved;
use crate::content::unixfs::escape_url;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use ureq::http::header;

/// What was pulled.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Pulled {
    /// The commit that the files are of.
    pub commit: String,
    /// Where they are.
    pub path: PathBuf,
    /// How many there are.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of them that came over the network now.
    pub fetched: u64,
}

/// Brings a model's files at `revision` into `dir`. What is there and right is not fetched again; `progress` is told.
///
/// # Errors
/// [`HubError`]; what arrived stays for the next try.
pub fn pull(
    hub: &Hub,
    repo: &Repo,
    revision: &str,
    dir: &Path,
    mut progress: impl FnMut(Moved),
) -> Result<Pulled, HubError> {
    let Listing { commit, files } = list(hub, repo, revision)?;
    fs::create_dir_all(dir).map_err(HubError::io("create", dir))?;
    let total: u64 = files.iter().map(|file| file.size).sum();
    check_room(dir, &files)?;
    let (mut bytes, mut fetched) = (0, 0);
    for file in &files {
        let url = hub.url(&format!("/{repo}/resolve/{commit}/{}", escape_url(&file.name)));
        let mut transfer = Transfer::new(hub, file, url, dir);
        fetched += transfer.run(|done, now| {
            let bytes = bytes + done;
            progress(Moved {
                bytes,
                total: Some(total),
                held: bytes.saturating_sub(fetched + now),
            });
        })?;
        bytes += file.size;
    }
    Ok(Pulled {
        commit,
        path: dir.to_owned(),
        files: files.len(),
        bytes,
        fetched,
    })
}

fn check_room(dir: &Path, files: &[Listed]) -> Result<(), HubError> {
    let size = |path: PathBuf| fs::metadata(path).map_or(0, |found| found.len());
    let held = |file: &Listed| size(dir.join(&file.name)).max(size(partial(dir, &file.name)));
    let needed: u64 = files
        .iter()
        .map(|file| file.size.saturating_sub(held(file)))
        .sum();
    let found = rustix::fs::statvfs(dir).map_err(|e| HubError::io("look at", dir)(e.into()))?;
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    if needed <= free {
        return Ok(());
    }
    Err(HubError::NoRoom {
        path: dir.to_owned(),
        needed,
        free,
    })
}

fn partial(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!(".{name}.partial"))
}

/// One file on its way.
struct Transfer<'a> {
    hub: &'a Hub,
    file: &'a Listed,
    url: String,
    target: PathBuf,
    partial: PathBuf,
    fetched: u64,
    /// The most bytes of the file that were ever here: only more than that is progress.
    furthest: u64,
}

/// How a try ended.
enum Ended {
    /// All bytes are there.
    Whole,
    /// The connection broke; the next try goes on from there.
    Cut(HubError),
}

impl<'a> Transfer<'a> {
    fn new(hub: &'a Hub, file: &'a Listed, url: String, dir: &Path) -> Self {
        Self {
            hub,
            file,
            url,
            target: dir.join(&file.name),
            partial: partial(dir, &file.name),
            fetched: 0,
            furthest: 0,
        }
    }

    /// Returns the bytes that came over the network; `progress` is told those that are here, and of them those that came.
    fn run(&mut self, mut progress: impl FnMut(u64, u64)) -> Result<u64, HubError> {
        let held = fs::metadata(&self.target).is_ok_and(|found| found.len() == self.file.size);
        if held && self.file.hash.of(&self.target)? == self.file.hash.text() {
            progress(self.file.size, 0);
            return Ok(0);
        }
        let (mut fails, mut pause) = (0, self.hub.times.pause);
        loop {
            let before = self.furthest;
            let cut = match self.attempt(&mut progress) {
                Ok(Ended::Whole) => break,
                Ok(Ended::Cut(error)) => error,
                Err(error) if error.is_transient() => error,
                Err(error) => return Err(error),
            };
            if self.furthest > before {
                (fails, pause) = (0, self.hub.times.pause);
            }
            fails += 1;
            if fails == TRIES {
                return Err(cut);
            }
            tracing::info!(error = %cut, ?pause, "a file from the Hub is resumed");
            std::thread::sleep(pause);
            pause *= 2;
        }
        self.finish()?;
        Ok(self.fetched)
    }

    fn attempt(&mut self, progress: &mut impl FnMut(u64, u64)) -> Result<Ended, HubError> {
        let mut out = OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(false)
            .open(&self.partial)
            .map_err(HubError::io("write", &self.partial))?;
        let mut done = out.metadata().map_err(HubError::io("read", &self.partial))?.len();
        if done > self.file.size {
            done = 0;
        }
        if done == self.file.size {
            return Ok(Ended::Whole);
        }
        let mut request = self.hub.signed(self.hub.agent.get(&self.url));
        if done > 0 {
            request = request.header(header::RANGE, format!("bytes={done}-"));
        }
        // A connection that went silent is given up and the file resumed over a new one. One that brings bytes is not: where
        // the server begins anew each time, one answer has to bring all of them.
        let request = request
            .config()
            .timeout_per_read(Some(self.hub.times.silence))
            .build();
        let mut response = self.hub.answer(&self.url, request.call())?;
        self.furthest = self.furthest.max(done);
        if response.status().as_u16() != 206 {
            done = 0;
        }
        out.set_len(done)
            .and_then(|()| out.seek(SeekFrom::Start(done)))
            .map_err(HubError::io("write", &self.partial))?;
        let left = self.file.size - done;
        let mut body = response
            .body_mut()
            .with_config()
            .limit(left.saturating_add(1))
            .reader();
        self.copy(&mut body, &mut out, done, progress)
    }

    fn copy(
        &mut self,
        body: &mut impl Read,
        out: &mut File,
        mut done: u64,
        progress: &mut impl FnMut(u64, u64),
    ) -> Result<Ended, HubError> {
        let mut buffer = vec![0; 256 << 10];
        while done < self.file.size {
            let count = match body.read(&mut buffer) {
                Ok(count) if count > 0 => count.min((self.file.size - done) as usize),
                Ok(_) => return Ok(Ended::Cut(self.cut("the answer ended early".to_owned()))),
                Err(error) => return Ok(Ended::Cut(self.cut(error.to_string()))),
            };
            out.write_all(&buffer[..count])
                .map_err(HubError::io("write", &self.partial))?;
            done += count as u64;
            self.fetched += count as u64;
            self.furthest = self.furthest.max(done);
            progress(done, self.fetched);
        }
        Ok(Ended::Whole)
    }

    fn cut(&self, reason: String) -> HubError {
        HubError::Connection {
            url: self.url.clone(),
            reason,
        }
    }

    fn finish(&self) -> Result<(), HubError> {
        let found = self.file.hash.of(&self.partial)?;
        if found != self.file.hash.text() {
            fs::remove_file(&self.partial).map_err(HubError::io("remove", &self.partial))?;
            return Err(HubError::Hash {
                file: self.file.name.clone(),
                expected: self.file.hash.text().to_owned(),
                found,
            });
        }
        File::open(&self.partial)
            .and_then(|file| file.sync_all())
            .and_then(|()| fs::rename(&self.partial, &self.target))
            .map_err(HubError::io("write", &self.target))
    }
}
