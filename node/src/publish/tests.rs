use super::*;
use crate::content::{self, Pin};
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// An IPFS node's RPC that fails the first time, and keeps what it is sent.
#[derive(Clone, Default)]
struct Rpc {
    /// What it pins.
    root: Arc<Mutex<String>>,
    bodies: Arc<Mutex<Vec<Bytes>>>,
}

async fn take(State(rpc): State<Rpc>, body: Bytes) -> Response {
    let mut bodies = rpc.bodies.lock().unwrap();
    bodies.push(body);
    if bodies.len() == 1 {
        return (StatusCode::INTERNAL_SERVER_ERROR, "blockstore is busy").into_response();
    }
    let root = rpc.root.lock().unwrap();
    format!("{{\"Root\":{{\"Cid\":{{\"/\":\"{root}\"}},\"PinErrorMsg\":\"\"}}}}\n").into_response()
}

async fn serve(rpc: Rpc) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = Router::new()
        .route("/api/v0/dag/import", post(take))
        .with_state(rpc);
    tokio::spawn(async move { axum::serve(listener, app).await });
    format!("http://{address}")
}

/// The file in a multipart body.
fn part(body: &[u8]) -> &[u8] {
    let find = |what: &[u8]| body.windows(what.len()).position(|w| w == what).unwrap();
    let begin = find(b"\r\n\r\n") + 4;
    let boundary = &body[..find(b"\r\n")];
    let end = body[begin..]
        .windows(boundary.len())
        .position(|w| w == boundary)
        .unwrap();
    &body[begin..begin + end - 2]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_goes_out_at_the_second_try_whole() {
    let dir = tempfile::tempdir().unwrap();
    let content = content::alone(dir.path().join("store"));
    let files = BTreeMap::from([("adapter_model.safetensors".to_owned(), vec![3; 600_000])]);
    let added = content.add_map(files, Pin::No).await.unwrap();
    let rpc = Rpc::default();
    *rpc.root.lock().unwrap() = added.cid.to_string();
    let config = Config {
        ipfs_url: Some(serve(rpc.clone()).await),
        ..Config::default()
    };
    let (outcomes, mut told) = mpsc::channel(4);
    let (publication, publishing) = new(config, content, dir.path().join("scratch"), outcomes);
    let stop = CancellationToken::new();
    let task = tokio::spawn(publishing.run(stop.clone()));
    let checkpoint = Checkpoint {
        job: CidBytes::from_cid(&added.cid),
        round: 4,
        root: added.cid,
    };
    publication.offer(checkpoint.clone()).await;
    let first = told.recv().await.unwrap();
    assert!(
        first.result.as_ref().unwrap_err().contains("blockstore is busy"),
        "{first:?}"
    );
    let second = told.recv().await.unwrap();
    assert_eq!(second.result, Ok(format!("ipfs://{}", added.cid)));
    assert_eq!(second.checkpoint, checkpoint);

    // What it was sent is the checkpoint, whole.
    let other = content::alone(dir.path().join("other"));
    let body = rpc.bodies.lock().unwrap()[1].clone();
    let taken = car::read(other.store(), part(&body), |_| ()).unwrap();
    assert_eq!(taken.roots, [added.cid]);
    let file = content::ContentPath::from(added.cid).join("adapter_model.safetensors");
    assert_eq!(other.cat(file, 1 << 20).await.unwrap(), vec![3; 600_000]);
    // The same again is not sent again, and nothing is left on the way.
    publication.offer(checkpoint).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(rpc.bodies.lock().unwrap().len(), 2);
    assert_eq!(std::fs::read_dir(dir.path().join("scratch")).unwrap().count(), 0);
    stop.cancel();
    task.await.unwrap();
}

/// A node that stops while its server is away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_at_a_stop_is_taken_up_again() {
    let dir = tempfile::tempdir().unwrap();
    let content = content::alone(dir.path().join("store"));
    let added = content.add_bytes(vec![4; 300_000], Pin::No).await.unwrap();
    let checkpoint = Checkpoint {
        job: CidBytes::from_cid(&added.cid),
        round: 7,
        root: added.cid,
    };
    let rpc = Rpc::default();
    *rpc.root.lock().unwrap() = added.cid.to_string();
    let url = serve(rpc.clone()).await;
    let run = |url: &str| {
        let config = Config {
            ipfs_url: Some(url.to_owned()),
            ..Config::default()
        };
        let (outcomes, told) = mpsc::channel(4);
        let (publication, publishing) = new(config, content.clone(), dir.path().join("scratch"), outcomes);
        let stop = CancellationToken::new();
        let task = tokio::spawn(publishing.run(stop.clone()));
        (publication, told, stop, task)
    };
    // Nobody is there.
    let (publication, mut told, stop, task) = run("http://127.0.0.1:9");
    publication.offer(checkpoint.clone()).await;
    assert!(told.recv().await.unwrap().result.is_err());
    stop.cancel();
    task.await.unwrap();
    // The next start needs no word of a job.
    let (publication, mut told, stop, task) = run(&url);
    assert_eq!(publication.used(), [added.cid]);
    assert!(
        told.recv().await.unwrap().result.is_err(),
        "this server fails the first time"
    );
    let second = told.recv().await.unwrap();
    assert_eq!(
        (second.result, second.checkpoint),
        (Ok(format!("ipfs://{}", added.cid)), checkpoint)
    );
    // The outcome is told before it is written down.
    let cleared = async {
        while dir.path().join("scratch.json").exists() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), cleared)
        .await
        .unwrap();
    stop.cancel();
    task.await.unwrap();
    // And the one after that has nothing to do.
    let (publication, mut told, stop, task) = run(&url);
    assert!(publication.used().is_empty());
    let nothing = tokio::time::timeout(Duration::from_millis(500), told.recv()).await;
    assert!(nothing.is_err(), "{nothing:?}");
    assert_eq!(rpc.bodies.lock().unwrap().len(), 2);
    stop.cancel();
    task.await.unwrap();
}

/// A server that takes connections and says nothing until it is let go; then it knows nothing.
fn silent() -> (String, std::sync::mpsc::Sender<()>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (let_go, held) = std::sync::mpsc::channel::<()>();
    std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let _ = held.recv();
        let _ = std::io::Write::write_all(
            &mut socket,
            b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
        );
    });
    (address, let_go)
}

fn checkpoint(content: &Content, round: u64, root: Cid) -> Checkpoint {
    assert!(content.store().has(&root));
    Checkpoint {
        job: CidBytes::from_cid(&root),
        round,
        root,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_that_does_not_answer_holds_no_other_up() {
    let dir = tempfile::tempdir().unwrap();
    let content = content::alone(dir.path().join("store"));
    let rpc = Rpc::default();
    // It fails the first time only.
    rpc.bodies.lock().unwrap().push(Bytes::new());
    let (hub_endpoint, let_go) = silent();
    let config = Config {
        ipfs_url: Some(serve(rpc.clone()).await),
        hub_repo: Some("me/model".parse().unwrap()),
        hub_endpoint,
        ..Config::default()
    };
    let (outcomes, mut told) = mpsc::channel(4);
    let (publication, publishing) = new(config, content.clone(), dir.path().join("scratch"), outcomes);
    let stop = CancellationToken::new();
    let task = tokio::spawn(publishing.run(stop.clone()));
    for round in 1..=3 {
        let files = BTreeMap::from([("adapter".to_owned(), vec![round as u8; 1000])]);
        let root = content.add_map(files, Pin::No).await.unwrap().cid;
        *rpc.root.lock().unwrap() = root.to_string();
        publication.offer(checkpoint(&content, round, root)).await;
        let outcome = tokio::time::timeout(Duration::from_secs(40), told.recv()).await;
        let outcome = outcome.expect("the other place is waited for").unwrap();
        assert_eq!(
            (outcome.place, outcome.checkpoint.round, outcome.result),
            ("ipfs", round, Ok(format!("ipfs://{root}")))
        );
    }
    stop.cancel();
    task.await.unwrap();
    let_go.send(()).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_checkpoint_ends_the_pause_after_a_failure() {
    let dir = tempfile::tempdir().unwrap();
    let content = content::alone(dir.path().join("store"));
    let rpc = Rpc::default();
    let config = Config {
        ipfs_url: Some(serve(rpc.clone()).await),
        ..Config::default()
    };
    let (outcomes, mut told) = mpsc::channel(4);
    let (publication, mut publishing) = new(config, content.clone(), dir.path().join("scratch"), outcomes);
    publishing.first_pause = Duration::from_secs(24 * 3600);
    let stop = CancellationToken::new();
    let task = tokio::spawn(publishing.run(stop.clone()));
    for round in 1..=2 {
        let files = BTreeMap::from([("adapter".to_owned(), vec![round as u8; 1000])]);
        let root = content.add_map(files, Pin::No).await.unwrap().cid;
        *rpc.root.lock().unwrap() = root.to_string();
        publication.offer(checkpoint(&content, round, root)).await;
        let outcome = tokio::time::timeout(Duration::from_secs(40), told.recv()).await;
        let outcome = outcome.expect("the pause goes on").unwrap();
        assert_eq!(
            (outcome.checkpoint.round, outcome.result.is_ok()),
            (round, round == 2)
        );
    }
    stop.cancel();
    task.await.unwrap();
}

#[test]
fn addresses_without_a_scheme_are_refused() {
    let config = Config {
        ipfs_url: Some("127.0.0.1:5001".into()),
        ..Config::default()
    };
    assert!(
        config
            .check()
            .unwrap_err()
            .to_string()
            .contains("publish.ipfs_url")
    );
}
