//! Publishing in a whole job, against servers of the test's that keep what they are sent and check it; and which checkpoints
//! stay.

use crate::hub;
use crate::support::{Node, genesis, init, json, run};
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

const ROUNDS: u64 = 6;
const JOB: &str = "name = \"published\"
model = \"MODEL\"
train = \"train.jsonl\"
heldout = \"heldout.jsonl\"
use_4bit = false
rewards = [{ name = \"format\", pattern = \"[02468] *$\" }]
[gspo]
group_size = 4
prompts_per_step = 1
learning_rate = 1e-3
warmup_steps = 0
[rollout]
max_prompt_length = 64
max_completion_length = 8
[schedule]
rounds = ROUNDS
aggregate_interval = 1
eval_questions = 2
min_workers = 1
max_workers = 1
";

/// An IPFS node's RPC: takes CAR files into a store of its own, which checks every block, and tells the roots it pinned.
#[derive(Clone)]
struct Kubo {
    home: PathBuf,
    is_away: Arc<AtomicBool>,
    pinned: Arc<Mutex<Vec<String>>>,
}

impl Kubo {
    /// Away at first; its address comes with it.
    fn start(home: PathBuf) -> (Self, String) {
        let kubo = Self {
            home,
            is_away: Arc::new(AtomicBool::new(true)),
            pinned: Arc::default(),
        };
        let (sender, receiver) = std::sync::mpsc::channel();
        let served = kubo.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async move {
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
                sender
                    .send(format!("http://{}", listener.local_addr().unwrap()))
                    .unwrap();
                let app = Router::new()
                    .route("/api/v0/dag/import", post(import))
                    .layer(DefaultBodyLimit::max(1 << 28))
                    .with_state(served);
                axum::serve(listener, app).await.unwrap();
            });
        });
        (kubo, receiver.recv().unwrap())
    }

    fn pinned(&self) -> Vec<String> {
        self.pinned.lock().unwrap().clone()
    }
}

async fn import(State(kubo): State<Kubo>, body: Bytes) -> Response {
    if kubo.is_away.load(Ordering::Relaxed) {
        return (StatusCode::SERVICE_UNAVAILABLE, "the blockstore is locked").into_response();
    }
    let taken = tokio::task::spawn_blocking(move || {
        let mut pinned = kubo.pinned.lock().unwrap();
        let file = kubo.home.with_extension("car");
        fs::write(&file, part(&body)).unwrap();
        let taken = json(&kubo.home, &["content", "import", file.to_str().unwrap()]);
        let root = taken["roots"][0].as_str().unwrap().to_owned();
        pinned.push(root.clone());
        root
    });
    let root = taken.await.unwrap();
    format!("{{\"Root\":{{\"Cid\":{{\"/\":\"{root}\"}},\"PinErrorMsg\":\"\"}}}}\n").into_response()
}

/// The file in a multipart body.
fn part(body: &[u8]) -> &[u8] {
    let find =
        |from: usize, what: &[u8]| from + body[from..].windows(what.len()).position(|w| w == what).unwrap();
    let begin = find(0, b"\r\n\r\n") + 4;
    let boundary = &body[..find(0, b"\r\n")];
    &body[begin..find(begin, boundary) - 2]
}

fn job_file(dir: &Path) -> PathBuf {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testnet/assets/gym-tiny");
    let text = JOB
        .replace("MODEL", model.to_str().unwrap())
        .replace("ROUNDS", &ROUNDS.to_string());
    let lines = |range: std::ops::Range<u32>| {
        range
            .map(|i| format!("{{\"question\": \"{i} + 1 =\", \"answer\": \"1\"}}\n"))
            .collect::<String>()
    };
    fs::write(dir.join("train.jsonl"), lines(0..20)).unwrap();
    fs::write(dir.join("heldout.jsonl"), lines(20..24)).unwrap();
    let file = dir.join("job.toml");
    fs::write(&file, text).unwrap();
    file
}

/// Every file under a directory, by its path in it.
fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        found.insert(
            path.file_name().unwrap().to_str().unwrap().to_owned(),
            fs::read(&path).unwrap(),
        );
    }
    found
}

fn start(home: &Path) -> Node {
    let roles = ["--role", "orchestrator", "--role", "worker", "--device", "cpu"];
    Node::start_with(home, &roles, &[("HF_TOKEN", hub::TOKEN)])
}

#[test]
fn a_jobs_checkpoints_are_published_across_a_stop_and_old_ones_let_go() {
    let dir = tempfile::tempdir().unwrap();
    let hub = hub::start(hub::Repository::default());
    let (kubo, ipfs_url) = Kubo::start(dir.path().join("kubo"));
    let home = init(dir.path(), "node", &genesis(dir.path(), "lab"));
    let config = format!(
        "[content]\nkeep_checkpoints = 2\ncheckpoint_grace_seconds = 1\n[publish]\nipfs_url = \"{ipfs_url}\"\nhub_repo = \"me/model\"\n\
         hub_endpoint = \"{}\"\n",
        hub.address
    );
    fs::write(home.join("config.toml"), config).unwrap();
    let node = start(&home);
    let job = json(&home, &["job", "submit", job_file(dir.path()).to_str().unwrap()]);
    let job = job["job"].as_str().unwrap().to_owned();
    node.wait(|n| n.log().contains("job done"), "the job's end");
    let shown = json(&home, &["job", "show", &job]);
    let last = shown["checkpoint"].as_str().unwrap().to_owned();
    assert_eq!(shown["closed"], ROUNDS);

    // One server is away and holds neither training nor the other up: the Hub has the last checkpoint, whole.
    let got = dir.path().join("checkpoint");
    json(&home, &["content", "get", &last, "-o", got.to_str().unwrap()]);
    let expected = files(&got);
    assert!(expected.contains_key("adapter_model.safetensors") && expected.contains_key("gym.json"));
    node.wait(
        |_| hub.state().commits.last() == Some(&expected),
        "the Hub to have it",
    );
    let told = "checkpoint published: ";
    node.wait(|n| n.log().contains(told), "it to be told");
    assert!(node.log().contains("the blockstore is locked"), "{}", node.log());
    assert_eq!(kubo.pinned(), [""; 0]);
    let commits = hub.state().commits.len();

    // What a commit's CID is, and what is in it.
    let commit = shown["commits"][0]["cid"].as_str().unwrap();
    assert_eq!(shown["commits"][0]["member"], node.peer());
    let entries = json(&home, &["content", "ls", commit]);
    let names: Vec<_> = entries
        .as_array()
        .unwrap()
        .iter()
        .map(|e| e["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["delta.bin", "rollouts"]);

    // Of seven states the newest two stay, and what publication may have held on to on the way.
    let pins = |home: &Path| {
        let pins = json(home, &["content", "ls"]);
        let names = pins.as_array().unwrap().iter();
        let mut rounds: Vec<u64> = names
            .filter_map(|pin| {
                let name = pin["name"].as_str().unwrap();
                let round = name.strip_prefix(&format!("checkpoint of {job} after round "))?;
                Some(round.parse().unwrap())
            })
            .collect();
        rounds.sort_unstable();
        rounds
    };
    node.wait(|n| pins(&n.home).len() <= 4, "old checkpoints to be let go");
    let kept = pins(&home);
    assert!(
        kept.ends_with(&[ROUNDS - 1, ROUNDS]) && !kept.contains(&0),
        "{kept:?}"
    );
    let directories = files_in(&home.join("jobs").join(&job).join("checkpoints"));
    assert_eq!(directories, ["000005", "000006"]);
    assert!(json(&home, &["content", "gc"])["removed"].as_u64().unwrap() > 0);

    // It is stopped, and the server comes back before it does.
    assert!(node.terminate().success());
    kubo.is_away.store(false, Ordering::Relaxed);
    let node = start(&home);
    node.wait(|_| kubo.pinned() == [last.clone()], "the IPFS node to have it");
    let taken = run(&kubo.home, &["content", "cat", &format!("{last}/gym.json")]);
    assert_eq!(taken.stdout, expected["gym.json"]);
    // The Hub had it already.
    assert_eq!(hub.state().commits.len(), commits);
    let file = home.join("jobs/publishing.json");
    node.wait(|_| !file.exists(), "nothing to wait");
    drop(node);
    let node = start(&home);
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert_eq!(kubo.pinned(), [last]);
    drop(node);
}

fn files_in(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn commits_are_shown_as_they_are_made() {
    let dir = tempfile::tempdir().unwrap();
    let home = init(dir.path(), "node", &genesis(dir.path(), "lab"));
    let node = start(&home);
    let job = json(&home, &["job", "submit", job_file(dir.path()).to_str().unwrap()]);
    let job = job["job"].as_str().unwrap();
    node.wait(
        |n| n.log().contains("round 2") || n.log().contains("job done"),
        "rounds",
    );
    node.wait(|n| n.log().contains("job done"), "the job's end");
    let events = json(&home, &["job", "show", job]);
    let cid = events["commits"][0]["cid"].as_str().unwrap().to_owned();
    let mut watch = crate::support::hanzod();
    let mut watch = watch
        .arg("--home")
        .arg(&home)
        .args(["job", "watch", job])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(watch.stdout.take().unwrap()));
    let (mut committed, mut closed) = (0, 0);
    for line in lines.map(Result::unwrap) {
        committed += u64::from(line.contains(": committed bafy"));
        closed += u64::from(line.starts_with("  commit bafy"));
        if line.contains(&format!("commit {cid} of")) {
            break;
        }
    }
    let _ = watch.kill();
    let _ = watch.wait();
    assert_eq!((committed, closed), (ROUNDS, ROUNDS));
}
