//! `hanzod job submit | list | show | watch | cancel`.

use super::Context;
use super::output::{self, Output, table, text};
use crate::api::Client;
use crate::files;
use anyhow::Context as _;
use clap::Subcommand;
use gym_protocol::job::spec::JobFile;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// How long one request for events waits.
const WAIT_MS: u32 = 15_000;
/// The longest job file, in bytes.
const MAX_FILE: u64 = 256 * 1024;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Submit a job file (TOML) to the running node, an orchestrator; its model and questions are added to the content
    /// store
    Submit {
        /// The job file; relative paths in it start at its directory
        file: PathBuf,
    },
    /// List the jobs that the node knows
    List,
    /// Show one job
    Show {
        /// The job's id, a CID
        job: String,
    },
    /// Follow a job until it ends
    Watch {
        /// The job's id, a CID
        job: String,
    },
    /// Cancel a job that this node submitted
    Cancel {
        /// The job's id, a CID
        job: String,
    },
}

pub(super) fn main(context: &Context, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Submit { file } => submit(context, &file),
        Command::List => list(context),
        Command::Show { job } => show(context, &job),
        Command::Watch { job } => watch(context, &job),
        Command::Cancel { job } => cancel(context, &job),
    }
}

fn submit(context: &Context, file: &Path) -> anyhow::Result<()> {
    let text = files::read_text(file, MAX_FILE)?;
    // Checked here too, so that a typo is told without a node.
    JobFile::parse(&text).with_context(|| file.display().to_string())?;
    let absolute = std::path::absolute(file)?;
    let base = absolute.parent().unwrap_or(Path::new("/"));
    let answer = Client::connect(&context.home)?.post("/v1/jobs", &json!({ "file": text, "base": base }))?;
    context.output.show(&answer, |answer| {
        let job = output::text(answer, "job");
        format!("job {job}\nnext: hanzod job watch {job}")
    });
    Ok(())
}

fn list(context: &Context) -> anyhow::Result<()> {
    let jobs = Client::connect(&context.home)?.get("/v1/jobs")?;
    context.output.show(&jobs, |jobs| {
        let row = |job: &Value| {
            vec![
                text(job, "job"),
                text(job, "name"),
                text(job, "doing"),
                text(job, "round"),
            ]
        };
        let rows: Vec<_> = jobs.as_array().into_iter().flatten().map(row).collect();
        table(&["JOB", "NAME", "STATE", "ROUND"], &rows)
    });
    Ok(())
}

fn show(context: &Context, job: &str) -> anyhow::Result<()> {
    let shown = Client::connect(&context.home)?.get(&format!("/v1/jobs/{}", segment(job)?))?;
    context.output.show(&shown, |shown| {
        serde_json::to_string_pretty(shown).unwrap_or_default()
    });
    Ok(())
}

fn cancel(context: &Context, job: &str) -> anyhow::Result<()> {
    let answer =
        Client::connect(&context.home)?.post(&format!("/v1/jobs/{}/cancel", segment(job)?), &json!({}))?;
    context.output.show(&answer, |_| format!("cancelled {job}"));
    Ok(())
}

/// Prints events as they come: plain lines, or one JSON object a line.
fn watch(context: &Context, job: &str) -> anyhow::Result<()> {
    let client = Client::connect(&context.home)?;
    let job = segment(job)?;
    let mut after = 0;
    loop {
        let path = format!("/v1/jobs/{job}/events?after={after}&wait_ms={WAIT_MS}");
        let answer = client.get(&path)?;
        for event in answer
            .get("events")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
        {
            match context.output {
                Output::Json => output::line(&event.to_string()),
                Output::Plain => output::line(&plain_event(event)),
            }
        }
        if answer.get("ended").and_then(Value::as_bool) == Some(true) {
            return Ok(());
        }
        after = answer.get("next").and_then(Value::as_u64).unwrap_or(after);
    }
}

/// One line for people.
fn plain_event(event: &Value) -> String {
    let get = |key: &str| match event.get(key) {
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
        None => "-".to_owned(),
    };
    let count = |key: &str| event.get(key).and_then(Value::as_array).map_or(0, Vec::len);
    match get("kind").as_str() {
        "notice" => get("text"),
        "doing" => match (get("role").as_str(), get("doing").as_str()) {
            ("orchestrator", "recruiting") => format!(
                "orchestrator: recruiting, {} workers needed (round {})",
                get("needs"),
                get("round")
            ),
            (role, "sittingout") => format!("{role}: sitting out (round {})", get("round")),
            (role, doing) => format!("{role}: {doing} (round {})", get("round")),
        },
        "round" => format!("round {} starts with {} members", get("round"), count("members")),
        "step" => {
            let metric = |key: &str| {
                event
                    .pointer(&format!("/metrics/{key}"))
                    .and_then(Value::as_f64)
                    .unwrap_or(f64::NAN)
            };
            let step = event.get("step").and_then(Value::as_u64).map_or(0, |n| n + 1);
            let (round, steps) = (get("round"), get("steps"));
            format!(
                "round {round} step {step} of {steps}: reward {:.3}, {:.0} tokens",
                metric("reward"),
                metric("tokens")
            )
        }
        "commit" => format!("round {}: committed {}", get("round"), get("cid")),
        "closed" => {
            let (round, signers, members) = (get("round"), count("signers"), count("members"));
            let mut words = format!(
                "round {round} closed: state {}, {signers} of {members} signed, checkpoint {}",
                get("state_hash"),
                get("checkpoint")
            );
            for commit in event
                .get("commits")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
            {
                words += &format!("\n  commit {} of {}", text(commit, "cid"), text(commit, "member"));
            }
            words
        }
        "report" => {
            let (before, after, asked) = (get("correct_before"), get("correct_after"), get("questions"));
            format!(
                "report on a {}: {before} of {asked} right before, {after} after (round {})",
                get("subject"),
                get("round")
            )
        }
        "published" => {
            let (round, place) = (get("round"), get("place"));
            match event.get("address").and_then(Value::as_str) {
                Some(address) => format!("checkpoint of round {round} published: {address}"),
                None => format!(
                    "checkpoint of round {round} not published to {place} yet: {}",
                    get("failed")
                ),
            }
        }
        "offence" => format!("peer {} {}", get("peer"), get("detail")),
        // Its node ends the events with a validator's report on the last checkpoint, or after that time.
        "finished" if get("standing") == "done" => {
            format!(
                "job done: {}\nwaiting up to 60 s for a validator's report",
                get("why")
            )
        }
        "finished" => format!("job {}: {}", get("standing"), get("why")),
        _ => event.to_string(),
    }
}

/// A CID as part of a path.
pub(super) fn segment(id: &str) -> anyhow::Result<&str> {
    anyhow::ensure!(
        !id.is_empty() && id.bytes().all(|b| b.is_ascii_alphanumeric()),
        "{id:?} is no CID: one is letters and digits, such as bafyrei..."
    );
    Ok(id)
}
