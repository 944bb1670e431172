//! Models from the Hub and checkpoints to it, against a server of the test's that keeps what it is sent and checks it.

use crate::support::hanzod;
use axum::body::{Body, Bytes};
use axum::extract::{Path as At, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Output;
use std::sync::{Arc, Mutex, MutexGuard};

pub(crate) const TOKEN: &str = "hf_test";
const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A Hub of one repository.
#[derive(Default)]
pub(crate) struct Repository {
    files: BTreeMap<String, Vec<u8>>,
    /// Listed in place of a file's own hash.
    wrong: Option<String>,
    /// Ranges that were asked of large files.
    ranges: Vec<Option<String>>,
    /// Answers of large files that are still to be cut short.
    cuts: u32,
    /// Uploads that are still to fail.
    fails: u32,
    /// Bytes after which an upload is taken in parts.
    parts_of: usize,
    storage: BTreeMap<String, Vec<u8>>,
    verified: Vec<String>,
    created: Option<Value>,
    pub(crate) commits: Vec<BTreeMap<String, Vec<u8>>>,
}

#[derive(Clone)]
pub(crate) struct Hub {
    state: Arc<Mutex<Repository>>,
    pub(crate) address: String,
}

impl Hub {
    pub(crate) fn state(&self) -> MutexGuard<'_, Repository> {
        self.state.lock().unwrap()
    }
}

/// Starts it in a thread of its own.
pub(crate) fn start(state: Repository) -> Hub {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let hub = Hub {
                state: Arc::new(Mutex::new(state)),
                address: format!("http://{}", listener.local_addr().unwrap()),
            };
            sender.send(hub.clone()).unwrap();
            axum::serve(listener, routes(hub)).await.unwrap();
        });
    });
    receiver.recv().unwrap()
}

fn routes(hub: Hub) -> Router {
    Router::new()
        .route("/api/models/me/model/revision/{revision}", get(list))
        .route("/me/model/resolve/{commit}/{file}", get(resolve))
        .route("/storage/{file}", get(storage))
        .route("/api/repos/create", post(create))
        .route("/api/models/me/model/preupload/main", post(preupload))
        .route("/me/model.git/info/lfs/objects/batch", post(batch))
        .route("/put/{oid}", put(store))
        .route("/part/{oid}/{number}", put(store_part))
        .route("/complete/{oid}", post(complete))
        .route("/verify", post(verify))
        .route("/api/models/me/model/commit/main", post(commit))
        .with_state(hub)
}

fn hex_sha256(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

fn is_large(name: &str) -> bool {
    name.ends_with(".safetensors")
}

fn is_signed(headers: &HeaderMap) -> bool {
    headers
        .get("authorization")
        .is_some_and(|value| value == &format!("Bearer {TOKEN}"))
}

async fn list(State(hub): State<Hub>, At(revision): At<String>) -> Response {
    if revision != "main" {
        return (
            StatusCode::NOT_FOUND,
            Json(json!({ "error": "Invalid rev id: nope" })),
        )
            .into_response();
    }
    let state = hub.state();
    let siblings = state.files.iter().map(|(name, bytes)| {
        let sha256 = state.wrong.clone().filter(|_| is_large(name)).unwrap_or_else(|| hex_sha256(bytes));
        if is_large(name) {
            let lfs = json!({ "sha256": sha256, "size": bytes.len(), "pointerSize": 135 });
            json!({ "rfilename": name, "size": bytes.len(), "blobId": "00", "lfs": lfs })
        } else {
            let blob = [format!("blob {}\0", bytes.len()).as_bytes(), bytes].concat();
            json!({ "rfilename": name, "size": bytes.len(), "blobId": hex::encode(sha1::Sha1::digest(&blob)) })
        }
    });
    Json(json!({ "sha": COMMIT, "siblings": siblings.collect::<Vec<_>>() })).into_response()
}

async fn resolve(State(hub): State<Hub>, At((commit, file)): At<(String, String)>) -> Response {
    assert_eq!(
        commit, COMMIT,
        "a file is asked for at the commit that was listed"
    );
    if is_large(&file) {
        return Redirect::temporary(&format!(
            "{}/storage/{file}",
            hub.address.replace("127.0.0.1", "localhost")
        ))
        .into_response();
    }
    let bytes = hub.state().files[&file].clone();
    bytes.into_response()
}

/// Where large files lie; it is none of the Hub's, and gets no token.
async fn storage(State(hub): State<Hub>, At(file): At<String>, headers: HeaderMap) -> Response {
    assert!(
        !headers.contains_key("authorization"),
        "the token went to storage"
    );
    let mut state = hub.state();
    let range = headers
        .get("range")
        .map(|range| range.to_str().unwrap().to_owned());
    state.ranges.push(range.clone());
    let bytes = state.files[&file].clone();
    let start = range.map_or(0, |range| {
        range
            .trim_start_matches("bytes=")
            .trim_end_matches('-')
            .parse::<usize>()
            .unwrap()
    });
    let status = if start > 0 {
        StatusCode::PARTIAL_CONTENT
    } else {
        StatusCode::OK
    };
    let mut rest = bytes[start..].to_vec();
    let full = rest.len();
    if state.cuts > 0 {
        state.cuts -= 1;
        rest.truncate(full / 2);
        let pieces = [Ok(Bytes::from(rest)), Err(std::io::Error::other("cut"))];
        let body = Body::from_stream(futures::stream::iter(pieces));
        return (status, [("content-length", full.to_string())], body).into_response();
    }
    (status, rest).into_response()
}

async fn create(State(hub): State<Hub>, headers: HeaderMap, Json(body): Json<Value>) -> Response {
    if !is_signed(&headers) {
        return (
            StatusCode::UNAUTHORIZED,
            Json(json!({ "error": "Invalid username or password." })),
        )
            .into_response();
    }
    let mut state = hub.state();
    if state.created.is_some() {
        return (
            StatusCode::CONFLICT,
            Json(json!({ "error": "You already created this model repo" })),
        )
            .into_response();
    }
    state.created = Some(body);
    Json(json!({ "url": hub.address })).into_response()
}

async fn preupload(Json(body): Json<Value>) -> Json<Value> {
    let files = body["files"].as_array().unwrap().iter().map(|file| {
        let path = file["path"].as_str().unwrap();
        let mode = if is_large(path) { "lfs" } else { "regular" };
        json!({ "path": path, "uploadMode": mode, "shouldIgnore": false })
    });
    Json(json!({ "files": files.collect::<Vec<_>>() }))
}

async fn batch(State(hub): State<Hub>, headers: HeaderMap, Json(body): Json<Value>) -> Json<Value> {
    assert!(is_signed(&headers) && body["operation"] == "upload", "{body}");
    let state = hub.state();
    let objects = body["objects"].as_array().unwrap().iter().map(|object| {
        let (oid, size) = (
            object["oid"].as_str().unwrap(),
            object["size"].as_u64().unwrap() as usize,
        );
        if state.storage.contains_key(oid) {
            return json!({ "oid": oid, "size": size });
        }
        let verify = json!({ "href": format!("{}/verify", hub.address) });
        let upload = if state.parts_of > 0 && size > state.parts_of {
            let mut header = json!({ "chunk_size": state.parts_of.to_string() });
            for number in 1..=size.div_ceil(state.parts_of) {
                header[format!("{number:05}")] = format!("{}/part/{oid}/{number}", hub.address).into();
            }
            // On another server than the Hub, which is to get no token.
            let elsewhere = hub.address.replace("127.0.0.1", "localhost");
            json!({ "href": format!("{elsewhere}/complete/{oid}"), "header": header })
        } else {
            json!({ "href": format!("{}/put/{oid}", hub.address), "header": { "x-storage": "yes" } })
        };
        json!({ "oid": oid, "size": size, "actions": { "upload": upload, "verify": verify } })
    });
    Json(json!({ "transfer": "basic", "objects": objects.collect::<Vec<_>>() }))
}

async fn store(State(hub): State<Hub>, At(oid): At<String>, headers: HeaderMap, body: Bytes) -> Response {
    assert!(!headers.contains_key("authorization") && headers["x-storage"] == "yes");
    let mut state = hub.state();
    if state.fails > 0 {
        state.fails -= 1;
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    assert_eq!(hex_sha256(&body), oid);
    state.storage.insert(oid, body.to_vec());
    StatusCode::OK.into_response()
}

async fn store_part(State(hub): State<Hub>, At((oid, number)): At<(String, usize)>, body: Bytes) -> Response {
    hub.state()
        .storage
        .insert(format!("{oid}.{number}"), body.to_vec());
    [("etag", format!("\"tag-{number}\""))].into_response()
}

async fn complete(
    State(hub): State<Hub>,
    At(oid): At<String>,
    headers: HeaderMap,
    Json(body): Json<Value>,
) -> Response {
    assert!(
        !headers.contains_key("authorization"),
        "the token went to another server"
    );
    let mut state = hub.state();
    let mut whole = Vec::new();
    for (index, part) in body["parts"].as_array().unwrap().iter().enumerate() {
        assert_eq!(
            (&part["partNumber"], &part["etag"]),
            (&json!(index + 1), &json!(format!("\"tag-{}\"", index + 1)))
        );
        whole.extend(state.storage.remove(&format!("{oid}.{}", index + 1)).unwrap());
    }
    assert_eq!(hex_sha256(&whole), oid);
    state.storage.insert(oid, whole);
    StatusCode::OK.into_response()
}

async fn verify(State(hub): State<Hub>, headers: HeaderMap, Json(body): Json<Value>) -> Response {
    assert!(is_signed(&headers));
    let mut state = hub.state();
    let oid = body["oid"].as_str().unwrap().to_owned();
    assert_eq!(state.storage[&oid].len() as u64, body["size"].as_u64().unwrap());
    state.verified.push(oid);
    StatusCode::OK.into_response()
}

async fn commit(State(hub): State<Hub>, headers: HeaderMap, body: String) -> Json<Value> {
    use base64::Engine as _;
    assert!(is_signed(&headers));
    let mut state = hub.state();
    let mut files = BTreeMap::new();
    for line in body
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
    {
        let value = &line["value"];
        match line["key"].as_str().unwrap() {
            "header" => assert!(!value["summary"].as_str().unwrap().is_empty()),
            "file" => {
                let bytes = base64::engine::general_purpose::STANDARD
                    .decode(value["content"].as_str().unwrap())
                    .unwrap();
                files.insert(value["path"].as_str().unwrap().to_owned(), bytes);
            }
            "lfsFile" => {
                let bytes = state.storage[value["oid"].as_str().unwrap()].clone();
                assert_eq!(bytes.len() as u64, value["size"].as_u64().unwrap());
                files.insert(value["path"].as_str().unwrap().to_owned(), bytes);
            }
            other => panic!("an unknown line {other}"),
        }
    }
    state.commits.push(files);
    Json(
        json!({ "commitOid": COMMIT, "commitUrl": format!("{}/me/model/commit/{COMMIT}", hub.address), "success": true }),
    )
}

fn model() -> BTreeMap<String, Vec<u8>> {
    let large: Vec<u8> = (0..400_000u32).flat_map(u32::to_le_bytes).collect();
    BTreeMap::from([
        ("config.json".to_owned(), b"{\"model_type\": \"qwen3\"}".to_vec()),
        ("model.safetensors".to_owned(), large),
        ("README.md".to_owned(), b"# A model\n".to_vec()),
        ("pytorch_model.bin".to_owned(), b"pickle".to_vec()),
        ("..evil.json".to_owned(), b"hidden".to_vec()),
    ])
}

fn run(hub: &Hub, dir: &Path, token: Option<&str>, args: &[&str]) -> Output {
    let mut command = hanzod();
    command
        .current_dir(dir)
        .env_remove("HF_TOKEN")
        .arg("--json")
        .args(args)
        .args(["--endpoint", &hub.address]);
    if let Some(token) = token {
        command.env("HF_TOKEN", token);
    }
    command.output().unwrap()
}

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_model_is_pulled_by_name_and_resumed() {
    let files = model();
    let hub = start(Repository {
        files: files.clone(),
        cuts: 2,
        ..Repository::default()
    });
    let dir = tempfile::tempdir().unwrap();
    let output = run(&hub, dir.path(), Some(TOKEN), &["model", "pull", "me/model"]);
    assert!(output.status.success(), "{}", words(&output));
    let pulled: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&pulled["commit"], &pulled["files"]), (&json!(COMMIT), &json!(3)));
    let mut names: Vec<_> = fs::read_dir(dir.path().join("model"))
        .unwrap()
        .map(|f| f.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["README.md", "config.json", "model.safetensors"]);
    for name in ["README.md", "config.json", "model.safetensors"] {
        assert_eq!(
            fs::read(dir.path().join("model").join(name)).unwrap(),
            files[name],
            "{name}"
        );
    }
    // It went on from where it was cut.
    let ranges = hub.state().ranges.clone();
    assert_eq!(ranges[0], None);
    assert!(
        ranges.len() == 3 && ranges[1..].iter().all(Option::is_some),
        "{ranges:?}"
    );
    let again = run(&hub, dir.path(), None, &["model", "pull", "me/model"]);
    let again: Value = serde_json::from_slice(&again.stdout).unwrap();
    assert_eq!((&again["fetched"], hub.state().ranges.len()), (&json!(0), 3));
}

#[test]
fn what_the_hub_gives_is_checked() {
    let hub = start(Repository {
        files: model(),
        wrong: Some("ab".repeat(32)),
        ..Repository::default()
    });
    let dir = tempfile::tempdir().unwrap();
    let output = run(&hub, dir.path(), None, &["model", "pull", "me/model"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        words(&output).contains("model.safetensors arrived with the hash"),
        "{}",
        words(&output)
    );
    assert!(!dir.path().join("model/model.safetensors").exists());
    let output = run(
        &hub,
        dir.path(),
        None,
        &["model", "pull", "me/model", "--revision", "nope"],
    );
    assert!(
        words(&output).contains("404") && words(&output).contains("Invalid rev id"),
        "{}",
        words(&output)
    );
    let output = run(&hub, dir.path(), None, &["model", "pull", "nonsense"]);
    assert!(
        output.status.code() == Some(2) && words(&output).contains("owner/name"),
        "{}",
        words(&output)
    );
}

#[test]
fn a_checkpoint_is_pushed_whole() {
    let hub = start(Repository {
        fails: 1,
        parts_of: 1_000_000,
        ..Repository::default()
    });
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("checkpoint");
    fs::create_dir(&source).unwrap();
    let small: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
    let large: Vec<u8> = (0..700_001u32).flat_map(u32::to_be_bytes).collect();
    let files = BTreeMap::from([
        ("README.md".to_owned(), b"# A checkpoint\n".to_vec()),
        ("adapter_config.json".to_owned(), b"{}".to_vec()),
        ("adapter_model.safetensors".to_owned(), small),
        ("large.safetensors".to_owned(), large),
    ]);
    for (name, bytes) in &files {
        fs::write(source.join(name), bytes).unwrap();
    }
    let args = ["model", "push", source.to_str().unwrap(), "me/model"];
    let refused = run(&hub, dir.path(), None, &args);
    assert_eq!(refused.status.code(), Some(1));
    assert!(words(&refused).contains("HF_TOKEN"), "{}", words(&refused));

    let output = run(&hub, dir.path(), Some(TOKEN), &args);
    assert!(output.status.success(), "{}", words(&output));
    let pushed: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(pushed["commit"], COMMIT);
    {
        let state = hub.state();
        assert_eq!(state.commits, std::slice::from_ref(&files));
        assert_eq!((state.verified.len(), state.fails), (2, 0));
        let created = state.created.clone().unwrap();
        assert_eq!(
            (&created["name"], &created["private"]),
            (&json!("model"), &json!(true))
        );
    }
    // What the Hub has already is not sent again.
    assert!(run(&hub, dir.path(), Some(TOKEN), &args).status.success());
    let state = hub.state();
    assert_eq!((state.commits.len(), state.verified.len()), (2, 2));
    assert!(!String::from_utf8_lossy(&output.stderr).contains(TOKEN));
}
