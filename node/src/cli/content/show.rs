//! Answers as people read them.

use crate::cli::output::{table, text};
use anyhow::bail;
use indicatif::HumanBytes;
use serde_json::Value;

pub(super) fn cid(added: &Value) -> String {
    text(added, "cid")
}

pub(super) fn written(got: &Value) -> String {
    format!("wrote {} ({})", text(got, "path"), bytes(got, "bytes"))
}

pub(super) fn pins(pins: &Value) -> String {
    let row = |pin: &Value| vec![text(pin, "cid"), text(pin, "name")];
    table(&["CID", "NAME"], &rows(pins, row))
}

pub(super) fn entries(entries: &Value) -> String {
    let row = |entry: &Value| vec![text(entry, "cid"), bytes(entry, "size"), text(entry, "name")];
    table(&["CID", "SIZE", "NAME"], &rows(entries, row))
}

pub(super) fn pinned(pin: &Value) -> String {
    format!("pinned {} as {}", text(pin, "cid"), text(pin, "name"))
}

pub(super) fn unpinned(pin: &Value) -> String {
    format!(
        "unpinned {}; `hanzod content gc` removes what nothing else keeps",
        text(pin, "cid")
    )
}

pub(super) fn collected(report: &Value) -> String {
    let mut words = format!(
        "removed {} blocks ({}), kept {}",
        text(report, "removed"),
        bytes(report, "freed"),
        text(report, "kept")
    );
    if number(report, "missing") > 0 {
        words += &format!(
            "\n{} blocks are missing under pins: `hanzod content verify --repair` fetches them",
            text(report, "missing")
        );
    }
    words
}

pub(super) fn stat(stat: &Value) -> String {
    format!(
        "path    {}\nblocks  {}\nbytes   {} of {}\npins    {}\ndisk    {} free",
        text(stat, "path"),
        text(stat, "blocks"),
        bytes(stat, "bytes"),
        bytes(stat, "limit"),
        text(stat, "pins"),
        bytes(stat, "disk_free")
    )
}

pub(super) fn verified(report: &Value) -> String {
    let mut words = format!("{} blocks are good", text(report, "good"));
    for cid in texts(report, "removed") {
        words += &format!("\nremoved a damaged block: {cid}");
    }
    for why in texts(report, "unreadable") {
        words += &format!("\ncould not look at a block: {why}");
    }
    let (repaired, failed) = (texts(report, "repaired"), failures(report));
    for cid in texts(report, "incomplete") {
        let failure = failed.iter().find(|(root, _)| *root == cid);
        words += &match failure {
            _ if repaired.contains(&cid) => format!("\nrepaired the pin {cid}"),
            Some((_, why)) => format!("\ncould not repair the pin {cid}: {why}"),
            None => format!("\nblocks are missing under the pin {cid}: add --repair to fetch them"),
        };
    }
    words
}

/// Pins that could not be repaired, and why.
fn failures(report: &Value) -> Vec<(&str, &str)> {
    let failed = report
        .get("failed")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    failed
        .filter_map(|one| Some((one.get("cid")?.as_str()?, one.get("error")?.as_str()?)))
        .collect()
}

/// Whether everything is whole now.
pub(super) fn judge(report: &Value) -> anyhow::Result<()> {
    let left = texts(report, "incomplete").len() - texts(report, "repaired").len();
    if left > 0 {
        bail!("pins that are not whole: {left}");
    }
    let unread = texts(report, "unreadable").len();
    if unread > 0 {
        bail!("{unread} blocks can be neither read nor removed");
    }
    Ok(())
}

/// What a person must know of content that is kept and that others will not find.
pub(super) fn not_announced(kept: &Value) -> Option<String> {
    let reason = kept.get("reason").and_then(Value::as_str)?;
    Some(format!("not announced: {reason}"))
}

pub(super) fn provided(provided: &Value) -> String {
    let cid = text(provided, "cid");
    match provided.get("reason").and_then(Value::as_str) {
        Some(reason) => format!("{cid} is not announced: {reason}"),
        None => format!("announced {cid}"),
    }
}

pub(super) fn providers(found: &Value) -> String {
    match texts(found, "providers") {
        none if none.is_empty() => "nobody else has announced it".to_owned(),
        some => some.join("\n"),
    }
}

pub(super) fn exported(written: &Value) -> String {
    format!(
        "wrote {} ({} blocks, {})",
        text(written, "path"),
        text(written, "blocks"),
        bytes(written, "bytes")
    )
}

pub(super) fn imported(read: &Value) -> String {
    let roots = texts(read, "roots");
    let lines: Vec<String> = roots.iter().map(|root| format!("pinned {root}")).collect();
    format!(
        "{}\n{} blocks ({})",
        lines.join("\n"),
        text(read, "blocks"),
        bytes(read, "bytes")
    )
}

fn rows(array: &Value, row: impl Fn(&Value) -> Vec<String>) -> Vec<Vec<String>> {
    array.as_array().into_iter().flatten().map(row).collect()
}

fn number(value: &Value, key: &str) -> u64 {
    value.get(key).and_then(Value::as_u64).unwrap_or(0)
}

fn bytes(value: &Value, key: &str) -> String {
    HumanBytes(number(value, key)).to_string()
}

fn texts<'a>(value: &'a Value, key: &str) -> Vec<&'a str> {
    value
        .get(key)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}
