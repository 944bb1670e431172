//! Checkpoints out: one commit with everything in a directory. Small files go inside it, large ones over git-lfs first
//! (<https://github.com/git-lfs/git-lfs/blob/main/docs/api/batch.md>, with the Hub's transfer in parts).

use super::hash::sha256;
use super::{Hub, HubError, Repo, parse, retried};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use ureq::SendBody;
use ureq::http::header;

/// Bytes that the Hub looks at to tell text from data.
const SAMPLE: u64 = 512;
/// Files inside a commit are small; the Hub is asked which are, and held to this.
const MAX_INLINE: u64 = 10 << 20;
const LFS: &str = "application/vnd.git-lfs+json";

/// Who may see a repository that is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Visibility {
    /// Its owner.
    #[default]
    Private,
    /// Everybody.
    Public,
}

/// What was pushed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pushed {
    /// The commit.
    pub commit: String,
    /// Where people see it.
    pub url: String,
}

/// Makes a commit on `main` with every file of `dir`, creating the repository when there is none.
///
/// # Errors
/// [`HubError`]; until the last request nothing of it is visible.
pub fn push(
    hub: &Hub,
    repo: &Repo,
    dir: &Path,
    summary: &str,
    visibility: Visibility,
) -> Result<Pushed, HubError> {
    let files = files(dir)?;
    create(hub, repo, visibility)?;
    let modes = ask_modes(hub, repo, &files)?;
    let mut lines = vec![json!({ "key": "header", "value": { "summary": summary, "description": "" } })];
    let mut large = Vec::new();
    for file in &files {
        match modes.get(file.name.as_str()).map(String::as_str) {
            Some("regular") if file.size <= MAX_INLINE => lines.push(inline(file)?),
            _ => {
                let oid = sha256(&file.path)?;
                lines.push(json!({ "key": "lfsFile", "value": {
                    "path": file.name, "algo": "sha256", "oid": oid, "size": file.size,
                } }));
                large.push((file, oid));
            }
        }
    }
    upload(hub, repo, &large)?;
    let body: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let url = hub.url(&format!("/api/models/{repo}/commit/main"));
    let answer: Committed = parse(&url, hub.post(&url, "application/x-ndjson", body.as_bytes())?)?;
    Ok(Pushed {
        commit: answer.commit,
        url: answer.url,
    })
}

#[derive(Deserialize)]
struct Committed {
    #[serde(rename = "commitOid")]
    commit: String,
    #[serde(rename = "commitUrl")]
    url: String,
}

/// A file to be pushed.
pub(super) struct Local {
    pub(super) name: String,
    path: PathBuf,
    size: u64,
}

/// The files under a directory, names that begin with a dot aside. What a link leads to may lie anywhere: it is refused.
pub(super) fn files(dir: &Path) -> Result<Vec<Local>, HubError> {
    let (mut found, mut todo) = (Vec::new(), vec![(dir.to_owned(), String::new())]);
    while let Some((dir, prefix)) = todo.pop() {
        for entry in fs::read_dir(&dir).map_err(HubError::io("list", &dir))? {
            let entry = entry.map_err(HubError::io("list", &dir))?;
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            if name.starts_with('.') {
                continue;
            }
            let kind = fs::symlink_metadata(&path).map_err(HubError::io("read", &path))?;
            if kind.is_symlink() {
                return Err(HubError::Link { path });
            }
            let name = format!("{prefix}{name}");
            if kind.is_dir() {
                todo.push((path, format!("{name}/")));
            } else {
                let size = kind.len();
                found.push(Local { name, path, size });
            }
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

fn create(hub: &Hub, repo: &Repo, visibility: Visibility) -> Result<(), HubError> {
    let text = repo.to_string();
    let (owner, name) = text.split_once('/').unwrap_or(("", &text));
    let body = json!({
        "type": "model", "organization": owner, "name": name, "private": visibility == Visibility::Private,
    });
    let url = hub.url("/api/repos/create");
    match hub.post(&url, "application/json", body.to_string().as_bytes()) {
        Ok(_) => Ok(()),
        // It is there already.
        Err(error) if error.status() == Some(409) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Which files go inside the commit (`regular`) and which over git-lfs (`lfs`).
fn ask_modes(hub: &Hub, repo: &Repo, files: &[Local]) -> Result<BTreeMap<String, String>, HubError> {
    #[derive(Deserialize)]
    struct Answer {
        files: Vec<Mode>,
    }
    #[derive(Deserialize)]
    struct Mode {
        path: String,
        #[serde(rename = "uploadMode")]
        mode: String,
    }
    let mut asked = Vec::new();
    for file in files {
        let mut sample = Vec::new();
        File::open(&file.path)
            .and_then(|open| open.take(SAMPLE).read_to_end(&mut sample))
            .map_err(HubError::io("read", &file.path))?;
        asked.push(json!({ "path": file.name, "size": file.size, "sample": STANDARD.encode(sample) }));
    }
    let url = hub.url(&format!("/api/models/{repo}/preupload/main"));
    let answer: Answer = hub.post_json(&url, &json!({ "files": asked }))?;
    Ok(answer
        .files
        .into_iter()
        .map(|file| (file.path, file.mode))
        .collect())
}

fn inline(file: &Local) -> Result<Value, HubError> {
    let bytes = fs::read(&file.path).map_err(HubError::io("read", &file.path))?;
    Ok(json!({ "key": "file", "value": {
        "path": file.name, "encoding": "base64", "content": STANDARD.encode(bytes),
    } }))
}

#[derive(Deserialize)]
struct Batch {
    objects: Vec<Object>,
}

#[derive(Deserialize)]
struct Object {
    oid: String,
    /// Nothing when the Hub has it already.
    actions: Option<Actions>,
    error: Option<ObjectError>,
}

#[derive(Deserialize)]
struct ObjectError {
    message: String,
}

#[derive(Deserialize)]
struct Actions {
    upload: Action,
    verify: Option<Action>,
}

#[derive(Deserialize)]
struct Action {
    href: String,
    #[serde(default)]
    header: BTreeMap<String, String>,
}

/// Sends the large files that the Hub does not have yet.
fn upload(hub: &Hub, repo: &Repo, files: &[(&Local, String)]) -> Result<(), HubError> {
    if files.is_empty() {
        return Ok(());
    }
    let objects: Vec<Value> = files
        .iter()
        .map(|(file, oid)| json!({ "oid": oid, "size": file.size }))
        .collect();
    let body = json!({
        "operation": "upload", "transfers": ["basic", "multipart"], "hash_algo": "sha256", "objects": objects,
    });
    let url = hub.url(&format!("/{repo}.git/info/lfs/objects/batch"));
    let batch: Batch = retried(|| {
        let request = hub
            .signed(hub.agent.post(&url))
            .header(header::CONTENT_TYPE, LFS)
            .header(header::ACCEPT, LFS);
        parse(&url, hub.answer(&url, request.send(body.to_string().as_bytes()))?)
    })?;
    for object in batch.objects {
        if let Some(error) = object.error {
            return Err(HubError::Answer {
                url,
                reason: error.message,
            });
        }
        let file = files
            .iter()
            .find(|(_, oid)| *oid == object.oid)
            .map(|(file, _)| *file);
        if let (Some(file), Some(actions)) = (file, object.actions) {
            send(hub, file, &object.oid, &actions)?;
        }
    }
    Ok(())
}

fn send(hub: &Hub, file: &Local, oid: &str, actions: &Actions) -> Result<(), HubError> {
    match part_size(&actions.upload) {
        Some(size) => send_parts(hub, file, oid, &actions.upload, size)?,
        None => {
            _ = send_range(
                hub,
                file,
                &actions.upload.href,
                &actions.upload.header,
                0,
                file.size,
            )?
        }
    }
    let Some(verify) = &actions.verify else {
        return Ok(());
    };
    let body = json!({ "oid": oid, "size": file.size }).to_string();
    // The token stands for what the Hub itself would have sent there; another server may want what the Hub names.
    let is_ours = verify.href.parse().is_ok_and(|uri| hub.is_endpoint(&uri));
    let is_sent = |name: &str| !(is_ours && name.eq_ignore_ascii_case("authorization"));
    retried(|| {
        let mut request = hub
            .signed(hub.agent.post(&verify.href))
            .header(header::CONTENT_TYPE, LFS);
        for (name, value) in verify.header.iter().filter(|(name, _)| is_sent(name)) {
            request = request.header(name, value);
        }
        hub.answer(&verify.href, request.send(body.as_bytes()))
            .map(|_| ())
    })
}

fn part_size(upload: &Action) -> Option<u64> {
    let size = upload.header.get("chunk_size")?.parse().ok()?;
    (size > 0).then_some(size)
}

/// The Hub's transfer in parts: a URL each, then one request that lists what storage said of them.
fn send_parts(hub: &Hub, file: &Local, oid: &str, upload: &Action, size: u64) -> Result<(), HubError> {
    let mut parts = Vec::new();
    for (index, start) in (0..file.size)
        .step_by(usize::try_from(size).unwrap_or(usize::MAX))
        .enumerate()
    {
        let number = index + 1;
        let url = [format!("{number}"), format!("{number:05}")]
            .iter()
            .find_map(|key| upload.header.get(key))
            .ok_or_else(|| HubError::Answer {
                url: upload.href.clone(),
                reason: format!("there is no address for part {number}"),
            })?;
        let tag = send_range(
            hub,
            file,
            url,
            &BTreeMap::new(),
            start,
            size.min(file.size - start),
        )?;
        parts.push(json!({ "partNumber": number, "etag": tag }));
    }
    let body = json!({ "oid": oid, "parts": parts });
    hub.post(&upload.href, LFS, body.to_string().as_bytes())
        .map(|_| ())
}

/// Puts a range of a file to storage, without the token; returns the tag that storage gives it.
fn send_range(
    hub: &Hub,
    file: &Local,
    url: &str,
    headers: &BTreeMap<String, String>,
    start: u64,
    length: u64,
) -> Result<String, HubError> {
    retried(|| {
        let mut open = File::open(&file.path).map_err(HubError::io("read", &file.path))?;
        open.seek(SeekFrom::Start(start))
            .map_err(HubError::io("read", &file.path))?;
        let mut request = hub
            .agent
            .put(url)
            .header(header::CONTENT_LENGTH, length.to_string());
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let mut part = open.take(length);
        let response = hub.answer(url, request.send(SendBody::from_reader(&mut part)))?;
        let tag = response
            .headers()
            .get(header::ETAG)
            .and_then(|tag| tag.to_str().ok());
        Ok(tag.unwrap_or_default().to_owned())
    })
}
