//! `hanzod peers`.

use super::Context;
use super::output::{list, table, text};
use crate::api::Client;
use serde_json::Value;

pub(super) fn main(context: &Context) -> anyhow::Result<()> {
    let peers = Client::connect(&context.home)?.get("/v1/peers")?;
    context.output.show(&peers, plain);
    Ok(())
}

fn plain(peers: &Value) -> String {
    let rows: Vec<Vec<String>> = peers.as_array().into_iter().flatten().map(row).collect();
    table(&["PEER", "STANDING", "ROLES", "RTT", "AGENT", "ADDRESS"], &rows)
}

fn row(peer: &Value) -> Vec<String> {
    let rtt = peer
        .get("rtt_ms")
        .and_then(Value::as_f64)
        .map_or("-".to_owned(), |ms| format!("{ms:.1} ms"));
    let address = peer
        .pointer("/addresses/0")
        .and_then(Value::as_str)
        .unwrap_or("-")
        .to_owned();
    vec![
        text(peer, "peer"),
        text(peer, "standing"),
        list(peer, "roles"),
        rtt,
        text(peer, "agent"),
        address,
    ]
}
