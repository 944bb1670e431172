use super::*;

const CREATED: &str = "2026-01-31T12:00:00Z";
const ALICE: &str = "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN";

fn error(toml: &str) -> String {
    Genesis::parse(toml).unwrap_err().to_string()
}

fn with(addition: &str) -> String {
    format!("{}\n{addition}", template("test", CREATED))
}

fn validator(stake: u64) -> String {
    let record = "ab".repeat(32);
    with(&format!(
        "[[validators]]\npeer = \"{ALICE}\"\nrecord = \"{record}\"\nstake = {stake}\n"
    ))
}

#[test]
fn the_template_is_the_default_genesis() {
    let full = Genesis::parse(&template("test", CREATED)).unwrap();
    assert_eq!(full.constants, Constants::default());
    let short = format!("network = \"test\"\ncreated = \"{CREATED}\"\n");
    assert_eq!(Genesis::parse(&short).unwrap(), full);
}

#[test]
fn every_constant_is_in_the_template() {
    let body = serde_json::to_value(Constants::default()).unwrap();
    let text = template("test", CREATED);
    let keys = |v: &serde_json::Value| v.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let inner = [keys(&body), keys(&body["shares"]), keys(&body["stakes"])].concat();
    for key in inner
        .iter()
        .filter(|k| !["shares", "stakes"].contains(&k.as_str()))
    {
        assert!(text.contains(&format!("\n{key} = ")), "{key}");
    }
}

#[test]
fn the_hash_names_the_network() {
    let hash = |toml: &str| Genesis::parse(toml).unwrap().hash().unwrap();
    let base = hash(&template("test", CREATED));
    assert_eq!(
        base.to_hex(),
        "362ce74b22936af2e61e4298c41a688e0e9cfabb3ebc33a97c0d8c9f6a0bb8bf",
        "a change of the body's encoding"
    );
    assert_ne!(base, hash(&template("other", CREATED)));
    assert_ne!(base, hash(&template("test", "2026-01-31T12:00:01Z")));
    assert_ne!(
        base,
        hash(&template("test", CREATED).replace("redundancy = 1", "redundancy = 2"))
    );
    assert_eq!(
        base,
        hash(&template("test", CREATED).replace("redundancy = 1", "# none"))
    );
}

#[test]
fn a_body_survives_dag_cbor() {
    let genesis = Genesis::parse(&validator(25_000 * GYM)).unwrap();
    let bytes = cbor::to_dag(&genesis).unwrap();
    assert_eq!(cbor::from_dag::<Genesis>(&bytes, MAX_FILE).unwrap(), genesis);
    assert_eq!(genesis.validators[0].peer.to_string(), ALICE);
}

#[test]
fn an_unknown_key_is_named_with_its_line() {
    let text = template("test", CREATED).replace("redundancy = 1", "redundency = 1");
    let message = error(&text);
    assert!(
        message.contains("redundency") && message.contains("line "),
        "{message}"
    );
}

#[test]
fn each_bad_value_is_named() {
    let replaced = |from: &str, to: &str| error(&template("test", CREATED).replace(from, to));
    let cases = [
        (error(&template("Test Net", CREATED)), "network is \"Test Net\""),
        (error(&template("test", "yesterday")), "created is \"yesterday\""),
        (replaced("version = 1", "version = 2"), "version is 2"),
        (
            replaced("flat_ring_max = 28", "flat_ring_max = 1"),
            "constants.flat_ring_max is 1; it must be 2 to 4096",
        ),
        (
            replaced("replay_window = 1024", "replay_window = 512"),
            "constants.replay_window is 512; it must be 1024",
        ),
        (
            replaced("mining = 4", "mining = 5"),
            "the sum of constants.shares is 1100000000",
        ),
        (
            replaced("bootstrap = []", "bootstrap = [\"10.0.0.1:4001\"]"),
            "bootstrap[0] is \"10.0.0.1:4001\"",
        ),
        (
            error(&validator(1)),
            "validators[0].stake is 1; it must be at least 25000000000000",
        ),
        (
            error(&validator(2_000_000_000 * GYM)),
            "the sum of all stakes and balances is",
        ),
        (
            error(&with("[[balances]]\npeer = \"bob\"\namount = 1\n")),
            "balances[0].peer is \"bob\"",
        ),
    ];
    for (message, expected) in cases {
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn a_peer_is_named_once() {
    let balance = format!("[[balances]]\npeer = \"{ALICE}\"\namount = 1\n");
    let message = error(&with(&format!("{balance}{balance}")));
    assert!(message.contains("twice"), "{message}");
}
