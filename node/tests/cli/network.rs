//! The command line and the network, with real processes.

use crate::support::{Node, failure, genesis, init, json, run};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;

#[test]
fn a_genesis_file_is_written_checked_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = genesis(dir.path(), "lab");
    let path = file.to_str().unwrap();
    let checked = json(dir.path(), &["genesis", "check", path]);
    assert_eq!(checked["network"], "lab");
    assert_eq!(checked["genesis"].as_str().unwrap().len(), 64);

    let words = failure(
        dir.path(),
        &["genesis", "new", "--network", "lab", "--out", path],
        1,
    );
    assert!(
        words.contains("lab.toml") && words.contains("choose another name"),
        "{words}"
    );

    let text = std::fs::read_to_string(&file)
        .unwrap()
        .replacen("network = ", "netwrk = ", 1);
    std::fs::write(&file, text).unwrap();
    let words = failure(dir.path(), &["genesis", "check", path], 1);
    assert!(words.contains("netwrk") && words.contains("line"), "{words}");
}

#[test]
fn init_makes_keys_that_only_their_owner_reads() {
    let dir = tempfile::tempdir().unwrap();
    let genesis = genesis(dir.path(), "lab");
    let home = init(dir.path(), "a", &genesis);
    for name in ["identity/secret.key", "identity/record.cbor"] {
        let mode = std::fs::metadata(home.join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{name}");
    }
    assert_eq!(
        std::fs::metadata(&home).unwrap().permissions().mode() & 0o777,
        0o700
    );

    let before = std::fs::read(home.join("identity/secret.key")).unwrap();
    let words = failure(&home, &["init", "--genesis", genesis.to_str().unwrap()], 1);
    assert!(
        words.contains("already holds a node; its keys are kept"),
        "{words}"
    );
    assert_eq!(std::fs::read(home.join("identity/secret.key")).unwrap(), before);
}

#[test]
fn commands_without_a_node_say_how_to_start_one() {
    let dir = tempfile::tempdir().unwrap();
    let words = failure(dir.path(), &["status"], 3);
    assert!(
        words.contains("no node is running") && words.contains("hanzod run"),
        "{words}"
    );
    let words = failure(dir.path(), &["run"], 1);
    assert!(words.contains("hanzod init --genesis FILE"), "{words}");
    let words = failure(dir.path(), &["status"], 3);
    assert!(words.contains("hanzod init --genesis FILE"), "{words}");
    let home = init(dir.path(), "a", &genesis(dir.path(), "lab"));
    let words = failure(&home, &["status"], 3);
    assert!(!words.contains("hanzod init"), "{words}");
    failure(dir.path(), &["frobnicate"], 2);
}

#[test]
fn a_typo_in_the_configuration_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let home = init(dir.path(), "a", &genesis(dir.path(), "lab"));
    std::fs::write(home.join("config.toml"), "[network]\nlistne = []\n").unwrap();
    let words = failure(&home, &["run"], 1);
    assert!(
        words.contains("config.toml") && words.contains("listne") && words.contains("line 2"),
        "{words}"
    );
}

#[test]
fn a_level_that_is_none_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let home = init(dir.path(), "a", &genesis(dir.path(), "lab"));
    for level in ["chatty", "info,hanzod=chatty", "info,lots"] {
        let words = failure(&home, &["run", "--log", level], 1);
        assert!(
            words.contains(level) && words.contains("give error, warn"),
            "{words}"
        );
    }
}

#[test]
fn a_home_or_port_in_use_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let genesis = genesis(dir.path(), "lab");
    let node = Node::start(&init(dir.path(), "a", &genesis), &[]);
    let words = failure(
        &node.home,
        &["run", "--mdns", "off", "--listen", "/ip4/127.0.0.1/tcp/0"],
        1,
    );
    assert!(
        words.contains("in use by another node") && words.contains(&node.pid().to_string()),
        "{words}"
    );
    assert!(node.try_status().is_some(), "the first node goes on");

    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("/ip4/127.0.0.1/tcp/{}", taken.local_addr().unwrap().port());
    let other = init(dir.path(), "b", &genesis);
    let words = failure(&other, &["run", "--mdns", "off", "--listen", &address], 1);
    assert!(
        words.contains(&address) && words.contains("port is in use") && words.contains("--listen"),
        "{words}"
    );
    assert_eq!(words.matches("port is in use").count(), 1, "{words}");

    // A node's own port is not shared either.
    let address = node.address().split("/p2p/").next().unwrap().to_owned();
    let words = failure(&other, &["run", "--mdns", "off", "--listen", &address], 1);
    assert!(words.contains("port is in use"), "{words}");
}

#[test]
fn a_bootstrap_node_that_cannot_be_reached_is_told_once_and_why() {
    let dir = tempfile::tempdir().unwrap();
    let genesis = genesis(dir.path(), "lab");
    let hub = Node::start(&init(dir.path(), "hub", &genesis), &["--role", "bootstrap"]);
    let (right, other) = (hub.address(), init(dir.path(), "other", &genesis));
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let nobody = format!("/ip4/127.0.0.1/tcp/{}/p2p/{}", closed.port(), hub.peer());
    let stranger = Node::start(&other, &[]).peer();
    let wrong = format!("{}/p2p/{stranger}", right.split("/p2p/").next().unwrap());
    let another = format!("it is another peer, {}", hub.peer());
    for (name, address, reason) in [
        ("nobody", &nobody, "Connection refused"),
        ("wrong", &wrong, another.as_str()),
    ] {
        let home = init(dir.path(), name, &genesis);
        let node = Node::start(&home, &["--role", "worker", "--bootstrap", address]);
        let words = format!("cannot reach the bootstrap node {address}: {reason}");
        node.wait(|node| node.log().contains(&words), &words);
        let entry = node.status()["bootstrap"][0].clone();
        assert!(
            entry["connected"] == false && entry["failure"].as_str().unwrap().starts_with(reason),
            "{entry}"
        );
        let plain = String::from_utf8(run(&home, &["status"]).stdout).unwrap();
        let line = format!("bootstrap {address}: cannot be reached: {reason}");
        assert!(plain.contains(&line), "{plain}");
        // Called again by now, and said no more.
        let ticks = |node: &Node| node.status()["uptime_s"].as_u64().unwrap();
        let until = ticks(&node) + 6;
        node.wait(|node| ticks(node) > until, "another call");
        assert_eq!(node.log().matches(&words).count(), 1, "{}", node.log());
    }
    let home = init(dir.path(), "joined", &genesis);
    let node = Node::start(&home, &["--bootstrap", &right]);
    node.wait(
        |node| node.status()["bootstrap"][0]["connected"] == true,
        "the right address to be joined through",
    );
    assert!(!node.log().contains("cannot reach"), "{}", node.log());
}

#[test]
fn a_bootstrap_address_that_is_none_shows_a_right_one() {
    let dir = tempfile::tempdir().unwrap();
    for address in [
        "/ip4/192.0.2.1/tcp/4011/p2p/12D3KooW...",
        "127.0.0.1:4011",
        "/ip4/127.0.0.1/tcp/4011",
    ] {
        let words = failure(dir.path(), &["run", "--bootstrap", address], 2);
        assert!(words.contains("/ip4/ADDRESS/tcp/PORT/p2p/PEER"), "{words}");
    }
}

#[test]
fn init_ends_with_the_command_that_starts_that_node() {
    let dir = tempfile::tempdir().unwrap();
    let (genesis, home) = (genesis(dir.path(), "lab"), dir.path().join("a"));
    let said = run(&home, &["init", "--genesis", genesis.to_str().unwrap()]).stdout;
    let next = format!(
        "hanzod run --home {} --role ROLE --bootstrap ADDRESS",
        home.display()
    );
    let said = String::from_utf8(said).unwrap();
    assert!(said.contains(&next), "{said}");
}

#[test]
fn nodes_meet_through_the_bootstrap_node_alone() {
    let dir = tempfile::tempdir().unwrap();
    let genesis = genesis(dir.path(), "lab");
    let hub = Node::start(&init(dir.path(), "hub", &genesis), &["--role", "bootstrap"]);
    let join = hub.address();
    let a = Node::start(
        &init(dir.path(), "a", &genesis),
        &["--role", "worker", "--bootstrap", &join],
    );
    let b = Node::start(
        &init(dir.path(), "b", &genesis),
        &[
            "--role",
            "worker",
            "--role",
            "validator",
            "--bootstrap",
            &join,
            "--listen",
            "/ip4/127.0.0.1/udp/0/quic-v1",
        ],
    );
    let (peer_a, peer_b) = (a.peer(), b.peer());
    a.wait(
        |a| a.standing(&peer_b).as_deref() == Some("member"),
        "a to know b",
    );
    b.wait(
        |b| b.standing(&peer_a).as_deref() == Some("member"),
        "b to know a",
    );
    hub.wait(|hub| hub.peers().len() == 2, "the hub to know both");

    let seen = a.peers();
    let seen = seen.iter().find(|peer| peer["peer"] == peer_b.as_str()).unwrap();
    assert_eq!(seen["roles"], serde_json::json!(["worker", "validator"]));
    assert_eq!(seen["record"], b.status()["record"]);
    assert!(seen["agent"].as_str().unwrap().starts_with("hanzod/"));

    // Private addresses all around: nothing is tested, everybody serves.
    let (reach, hubs) = (&a.status()["reach"], &hub.status()["reach"]);
    assert_eq!(
        (&reach["standing"], &reach["dht"]),
        (&"local".into(), &"server".into())
    );
    assert_eq!(hubs["standing"], "public");

    let home = a.home.clone();
    assert!(a.terminate().success());
    assert!(!home.join("api.json").exists());
    b.wait(|b| b.standing(&peer_a).is_none(), "b to see a leave");
    assert_eq!(json(&b.home, &["stop"])["stopped"], true);
}

#[test]
fn a_node_behind_a_router_says_so_and_is_relayed_to() {
    let dir = tempfile::tempdir().unwrap();
    let genesis = genesis(dir.path(), "lab");
    let hidden = Node::start(
        &init(dir.path(), "hidden", &genesis),
        &["--reachability", "private"],
    );
    let reach = &hidden.status()["reach"];
    assert_eq!(
        (&reach["standing"], &reach["dht"], &reach["provides"]),
        (&"private".into(), &"client".into(), &false.into())
    );
    let file = dir.path().join("file");
    std::fs::write(&file, "content").unwrap();
    json(&hidden.home, &["content", "add", file.to_str().unwrap()]);
    let plain = String::from_utf8(run(&hidden.home, &["status"]).stdout).unwrap();
    assert!(
        plain.contains("reached  by nobody; client of the DHT, 1 announcements wait")
            && plain.contains("start it with --external ADDRESS"),
        "{plain}"
    );
    let advice = "others cannot reach this node";
    assert_eq!(hidden.log().matches(advice).count(), 1, "{}", hidden.log());

    let hub = Node::start(&init(dir.path(), "hub", &genesis), &["--role", "bootstrap"]);
    let relayed = Node::start(
        &init(dir.path(), "relayed", &genesis),
        &["--reachability", "private", "--bootstrap", &hub.address()],
    );
    relayed.wait(
        |node| node.status()["reach"]["standing"] == "relayed",
        "a place at the relay",
    );
    let listens = relayed.status()["listen"].to_string();
    assert!(listens.contains("/p2p-circuit/p2p/"), "{listens}");
    let plain = String::from_utf8(run(&relayed.home, &["status"]).stdout).unwrap();
    assert!(plain.contains("reached  through a relay"), "{plain}");
}

#[test]
fn a_killed_node_comes_back_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let genesis = genesis(dir.path(), "lab");
    let hub = Node::start(&init(dir.path(), "hub", &genesis), &["--role", "bootstrap"]);
    let join = hub.address();
    let a = Node::start(&init(dir.path(), "a", &genesis), &["--bootstrap", &join]);
    let home = init(dir.path(), "b", &genesis);
    let b = Node::start(&home, &["--bootstrap", &join]);
    let (peer, before) = (b.peer(), b.address());
    a.wait(|a| a.standing(&peer).as_deref() == Some("member"), "a to know b");
    drop(b); // SIGKILL: the lock is free, api.json stays
    let words = failure(&home, &["status"], 3);
    assert!(words.contains("no node is running"), "{words}");
    a.wait(|a| a.standing(&peer).is_none(), "a to miss b");
    let b = Node::start(&home, &["--bootstrap", &join]);
    assert_eq!(b.peer(), peer);
    assert_ne!(b.address(), before);
    a.wait(
        |a| a.standing(&peer).as_deref() == Some("member"),
        "a to know b again",
    );
}

#[test]
fn another_network_is_refused_on_both_sides() {
    let dir = tempfile::tempdir().unwrap();
    let hub = Node::start(
        &init(dir.path(), "hub", &genesis(dir.path(), "lab")),
        &["--role", "bootstrap"],
    );
    let stranger = init(dir.path(), "stranger", &genesis(dir.path(), "other"));
    let stranger = Node::start(&stranger, &["--bootstrap", &hub.address()]);
    for node in [&hub, &stranger] {
        node.wait(
            |node| node.log().contains("these are different networks"),
            "a clear refusal",
        );
    }
    hub.wait(|hub| hub.peers().is_empty(), "the stranger to be sent away");
    let refused = &hub.status()["metrics"]["gym_offences_total{kind=\"refused_hello\"}"];
    assert!(refused.as_u64().unwrap() >= 1);
    assert_eq!(hub.status()["members"], 0);
}

#[test]
fn the_api_wants_its_token() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(&init(dir.path(), "a", &genesis(dir.path(), "lab")), &[]);
    let file = node.home.join("api.json");
    assert_eq!(
        std::fs::metadata(&file).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let api: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let address = api["address"].as_str().unwrap();
    let get = |path: &str| {
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .build()
            .new_agent();
        let mut response = agent.get(format!("http://{address}{path}")).call().unwrap();
        (
            response.status().as_u16(),
            response.body_mut().read_to_string().unwrap(),
        )
    };
    let (status, words) = get("/v1/status");
    assert_eq!(status, 401, "{words}");
    assert!(words.contains("api.json"), "{words}");
    let (status, metrics) = get("/metrics");
    assert_eq!(status, 200);
    assert!(metrics.contains("# TYPE gym_peers gauge"), "{metrics}");
    assert!(
        !node.log().contains(api["token"].as_str().unwrap()),
        "the token is not logged"
    );
}

#[test]
fn help_teaches() {
    let dir = tempfile::tempdir().unwrap();
    let help = String::from_utf8(run(dir.path(), &["--help"]).stdout).unwrap();
    for part in ["hanzod init --genesis", "--bootstrap", "Exit codes:"] {
        assert!(help.contains(part), "{help}");
    }
}
