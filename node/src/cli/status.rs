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
    let metrics = status
        .get("metrics")
        .and_then(Value::as_object)
        .into_iter()
        .flatten();
    lines.extend(metrics.map(|(name, value)| format!("{name} {value}")));
    lines.join("\n")
}
