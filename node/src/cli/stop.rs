//! `hanzod stop`.

use super::Context;
use crate::api::Client;
use anyhow::bail;
use serde_json::json;
use std::time::{Duration, Instant};

/// How long the node may take to stop.
const DEADLINE: Duration = Duration::from_secs(30);

pub(super) fn main(context: &Context) -> anyhow::Result<()> {
    let client = Client::connect(&context.home)?;
    client.post("/v1/shutdown", &json!({}))?;
    let deadline = Instant::now() + DEADLINE;
    // The lock is free once the process has ended.
    while context.home.lock().is_err() {
        if Instant::now() > deadline {
            bail!(
                "the node has not stopped within {DEADLINE:?}; see its log, {}",
                context.home.log().display()
            );
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    context
        .output
        .show(&json!({ "stopped": true }), |_| "stopped".to_owned());
    Ok(())
}
