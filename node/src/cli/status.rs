//! `hanzod status`.

use super::Context;
use super::output::{list, text};
use crate::api::Client;
use serde_json::Value;

pub(super) fn main(context: &Context) -> anyhow::Result<()> {
    let status = Client::connect(&context.home)?.get("/v1/status")?;
    context.output.show(&status, plain);
    Ok(())
}

fn plain(status: &Value) -> String {
    let mut lines = vec![
        format!("peer     {}", text(status, "peer")),
        format!("roles    {}", list(status, "roles")),
        format!("record   {}", text(status, "record")),
        format!("genesis  {}", text(status, "genesis")),
        format!(
            "peers    {} connected, {} of this network",
            text(status, "peers"),
            text(status, "members")
        ),
        format!(
            "uptime   {} s, process {}, version {}",
            text(status, "uptime_s"),
            text(status, "pid"),
            text(status, "version")
        ),
    ];
    let listen = status
        .get("listen")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str);
    lines.extend(listen.map(|address| format!("listens  {address}")));
    lines.extend(bootstrap(status));
    lines.extend(reach(status));
    let metrics = status
        .get("metrics")
        .and_then(Value::as_object)
        .into_iter()
        .flatten();
    lines.extend(metrics.map(|(name, value)| format!("{name} {value}")));
    lines.join("\n")
}

/// Whether the node has joined through the addresses it was given.
fn bootstrap(status: &Value) -> Vec<String> {
    let entries = status.get("bootstrap").and_then(Value::as_array);
    let line = |entry: &Value| {
        let standing = match entry.get("failure").and_then(Value::as_str) {
            _ if entry.get("connected").and_then(Value::as_bool) == Some(true) => "connected".to_owned(),
            Some(failure) => format!("cannot be reached: {failure}"),
            None => "being called".to_owned(),
        };
        format!("bootstrap {}: {standing}", text(entry, "address"))
    };
    entries.into_iter().flatten().map(line).collect()
}

/// Whether others reach the node, and what to do where they do not.
fn reach(status: &Value) -> Vec<String> {
    let Some(reach) = status.get("reach") else {
        return Vec::new();
    };
    let standing = match reach.get("standing").and_then(Value::as_str) {
        Some("local") => "taken for granted: a network of private addresses",
        Some("public") => "by others directly",
        Some("relayed") => "through a relay",
        Some("private") => "by nobody",
        _ => "being tested",
    };
    let mut lines = vec![format!(
        "reached  {standing}; {} of the DHT, {}",
        text(reach, "dht"),
        if reach.get("provides").and_then(Value::as_bool) == Some(true) {
            "announces its content".to_owned()
        } else {
            format!("{} announcements wait", text(reach, "waiting"))
        }
    )];
    if let Some(advice) = reach.get("advice").and_then(Value::as_str) {
        lines.push(format!("         {advice}"));
    }
    lines
}
