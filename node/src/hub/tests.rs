use super::*;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

#[test]
fn repositories_are_owner_and_name() {
    for good in ["Qwen/Qwen3-0.6B", "a/b", "o-1/m_2.x"] {
        assert_eq!(good.parse::<Repo>().unwrap().to_string(), good);
    }
    for bad in [
        "Qwen",
        "a/b/c",
        "../x",
        "a/..",
        "a/b?c",
        "a/",
        "/b",
        "a b/c",
        "https://x/y",
        "a/-b",
    ] {
        let error = bad.parse::<Repo>().unwrap_err().to_string();
        assert!(error.contains("owner/name"), "{bad}: {error}");
    }
}

#[test]
fn a_token_is_not_shown() {
    let hub = Hub::with_token("http://127.0.0.1:1", Some(Zeroizing::new("hf_secret".into()))).unwrap();
    assert!(!format!("{hub:?}").contains("secret"));
    assert!(matches!(
        Hub::with_token("huggingface.co", None),
        Err(HubError::Endpoint { .. })
    ));
}

#[test]
fn the_token_goes_to_the_endpoint_alone() {
    let hub = Hub::with_token(
        "https://Hub.example/prefix/",
        Some(Zeroizing::new("hf_secret".into())),
    )
    .unwrap();
    for own in [
        "https://hub.example/prefix/api",
        "https://hub.example/elsewhere",
        "https://HUB.example:443/x?y",
    ] {
        assert!(hub.is_endpoint(&own.parse().unwrap()), "{own}");
    }
    for other in [
        "http://hub.example/api",
        "https://hub.example:8443/api",
        "https://evil.example/hub.example",
        "https://hub.example.evil.example/",
        "https://hub.example@evil.example/",
        "/relative",
    ] {
        assert!(!hub.is_endpoint(&other.parse().unwrap()), "{other}");
    }
    let signed = |url: &str| {
        hub.signed(hub.agent.post(url))
            .headers_ref()
            .is_some_and(|h| h.contains_key("authorization"))
    };
    assert!(signed("https://hub.example/complete") && !signed("https://storage.example/complete"));
}

/// A server of one small answer and one large file, which is told what to do with each request for that.
struct Server {
    address: String,
    requests: Arc<AtomicUsize>,
}

/// Serves a model whose weights are `size` bytes: each answer brings `step` bytes more than the one before, whatever range is
/// asked for, and then nothing.
fn without_ranges(size: usize, first: usize, step: usize) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let requests = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&requests);
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let (socket, counter) = (socket.unwrap(), Arc::clone(&counter));
            std::thread::spawn(move || answer(socket, &counter, size, first, step));
        }
    });
    Server { address, requests }
}

fn answer(mut socket: TcpStream, counter: &AtomicUsize, size: usize, first: usize, step: usize) {
    let mut asked = String::new();
    let mut reader = BufReader::new(socket.try_clone().unwrap());
    reader.read_line(&mut asked).unwrap();
    let mut line = String::new();
    while reader.read_line(&mut line).unwrap() > 2 {
        line.clear();
    }
    let weights: Vec<u8> = (0..size).map(|i| (i % 251) as u8).collect();
    let (length, body) = if asked.contains("revision") {
        let sha = |bytes: &[u8]| hex::encode(<sha2::Sha256 as sha2::Digest>::digest(bytes));
        let json = serde_json::json!({ "sha": "c0ffee", "siblings": [
            { "rfilename": "config.json", "size": 2, "blobId": "00", "lfs": { "sha256": sha(b"{}"), "size": 2 } },
            { "rfilename": "model.safetensors", "size": size, "blobId": "00", "lfs": { "sha256": sha(&weights), "size": size } },
        ]});
        let text = json.to_string().into_bytes();
        (text.len(), text)
    } else if asked.contains("config.json") {
        (2, b"{}".to_vec())
    } else {
        let turn = counter.fetch_add(1, Ordering::Relaxed);
        (size, weights[..size.min(first + turn * step)].to_vec())
    };
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    socket.write_all(head.as_bytes()).unwrap();
    // Whoever asked may be gone.
    if socket.write_all(&body).is_ok() && body.len() < length {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

fn impatient(server: &Server) -> Hub {
    let mut hub = Hub::with_token(&server.address, None).unwrap();
    hub.times = Times {
        silence: Duration::from_millis(200),
        pause: Duration::from_millis(1),
    };
    hub
}

/// What came before comes again each time, and is no progress.
#[test]
fn a_server_that_begins_anew_and_falls_silent_is_given_up() {
    let server = without_ranges(1 << 20, 300_000, 0);
    let dir = tempfile::tempdir().unwrap();
    let error = pull(
        &impatient(&server),
        &"a/b".parse().unwrap(),
        "main",
        dir.path(),
        |_| (),
    )
    .unwrap_err();
    assert!(matches!(error, HubError::Connection { .. }), "{error}");
    assert_eq!(server.requests.load(Ordering::Relaxed) as u32, TRIES);
}

#[test]
fn a_server_that_begins_anew_and_gets_further_each_time_is_waited_for() {
    let server = without_ranges(1 << 20, 300_000, 100_000);
    let dir = tempfile::tempdir().unwrap();
    let pulled = pull(
        &impatient(&server),
        &"a/b".parse().unwrap(),
        "main",
        dir.path(),
        |_| (),
    )
    .unwrap();
    assert_eq!(pulled.bytes, (1 << 20) + 2);
    assert_eq!(server.requests.load(Ordering::Relaxed), 9);
}

/// As `content add` does: what a link leads to is not what the directory holds.
#[cfg(unix)]
#[test]
fn links_are_not_pushed() {
    let dir = tempfile::tempdir().unwrap();
    let pushed = dir.path().join("pushed");
    std::fs::create_dir_all(pushed.join("inner")).unwrap();
    std::fs::write(dir.path().join("secret"), "s").unwrap();
    std::fs::write(pushed.join("a"), "a").unwrap();
    std::fs::write(pushed.join("inner/b"), "b").unwrap();
    std::os::unix::fs::symlink("nowhere", pushed.join(".dangling")).unwrap();
    let names = |dir: &Path| {
        push::files(dir).map(|files| files.into_iter().map(|file| file.name).collect::<Vec<_>>())
    };
    assert_eq!(names(&pushed).unwrap(), ["a", "inner/b"]);
    for (target, link) in [("../secret", "out"), ("a", "in"), ("..", "up")] {
        let link = pushed.join(link);
        std::os::unix::fs::symlink(target, &link).unwrap();
        let error = names(&pushed).unwrap_err();
        assert!(
            matches!(&error, HubError::Link { path } if *path == link),
            "{error}"
        );
        std::fs::remove_file(link).unwrap();
    }
}
