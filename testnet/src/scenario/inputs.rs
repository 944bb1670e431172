//! Jobs that cannot be: a typo, a model with a missing tensor, a question file with a broken line.

use super::{Stage, assets};
use crate::network::Network;
use crate::node::NodeSpec;
use anyhow::{Context, bail, ensure};
use hanzod::role::Role;
use serde_json::Value;
use std::fs;
use std::path::Path;

/// The tensor that is taken away.
const TENSOR: &str = "model.norm.weight";

/// Each is refused with place and remedy; nothing is lost, and the good job is taken afterwards.
pub(super) fn bad_job(stage: &Stage) -> anyhow::Result<()> {
    let root = stage.folder.root().to_path_buf();
    assets::write(&root)?;
    let mut network = Network::found(
        stage.program.clone(),
        stage.folder.clone(),
        stage.interrupt.clone(),
    )?;
    network.start(vec![NodeSpec::new("orchestrator", Role::Orchestrator)])?;
    let home = network.node("orchestrator")?.home().root().to_path_buf();
    let submit = |text: &str| -> anyhow::Result<String> {
        let file = root.join("job.toml");
        fs::write(&file, text)?;
        stage
            .program
            .run(&home, &["job".as_ref(), "submit".as_ref(), file.as_os_str()])
    };
    let good = assets::job_text(2);

    let typo = good.replace("group_size", "group_sise");
    let before = typo
        .lines()
        .take_while(|line| !line.contains("group_sise"))
        .count();
    let line = format!("line {}", before + 1);
    refused(submit(&typo), &["job.toml", "group_sise", &line])?;

    let broken = root.join("broken-model");
    copy_dir(&root.join(assets::MODEL), &broken)?;
    remove_tensor(&broken.join("model.safetensors"))?;
    refused(
        submit(&good.replace("model = \"model\"", "model = \"broken-model\"")),
        &[TENSOR],
    )?;

    let questions = fs::read_to_string(root.join(assets::TRAIN))?;
    let third = questions.lines().nth(2).context("three questions")?;
    let torn = questions.replacen(third, &third[..third.len() / 2], 1);
    fs::write(root.join("torn.jsonl"), torn)?;
    refused(
        submit(&good.replace(assets::TRAIN, "torn.jsonl")),
        &["torn.jsonl", "3"],
    )?;

    let taken = submit(&good).context("the good job after the bad ones")?;
    ensure!(taken.contains("job "), "the good job was not taken: {taken}");
    network.check_alive()?;
    network.stop();
    Ok(())
}

/// The error names all of `words`.
fn refused(answer: anyhow::Result<String>, words: &[&str]) -> anyhow::Result<()> {
    let Err(error) = answer else {
        bail!("it was not refused, though it should say {words:?}")
    };
    let said = format!("{error:#}");
    for word in words {
        ensure!(said.contains(word), "the refusal does not say {word:?}: {said}");
    }
    Ok(())
}

fn copy_dir(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

/// Takes [`TENSOR`] out of a safetensors file: u64 header length, JSON header, data. What follows it moves up.
fn remove_tensor(path: &Path) -> anyhow::Result<()> {
    let bytes = fs::read(path)?;
    let length = bytes
        .first_chunk::<8>()
        .map(|b| u64::from_le_bytes(*b))
        .context("no header")?;
    let end = 8 + usize::try_from(length)?;
    let mut header: serde_json::Map<String, Value> = serde_json::from_slice(&bytes[8..end])?;
    let gone = header
        .remove(TENSOR)
        .with_context(|| format!("the model has no {TENSOR}"))?;
    let (from, to) = offsets(&gone)?;
    for (name, entry) in header.iter_mut().filter(|(name, _)| *name != "__metadata__") {
        let (start, stop) = offsets(entry).with_context(|| name.clone())?;
        if start >= to {
            entry["data_offsets"] = serde_json::json!([start - (to - from), stop - (to - from)]);
        }
    }
    let header = serde_json::to_vec(&header)?;
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header);
    out.extend(&bytes[end..end + from]);
    out.extend(&bytes[end + to..]);
    fs::write(path, out)?;
    Ok(())
}

fn offsets(entry: &Value) -> anyhow::Result<(usize, usize)> {
    let at = |i: usize| {
        entry["data_offsets"][i]
            .as_u64()
            .and_then(|n| usize::try_from(n).ok())
    };
    Ok((at(0).context("no offsets")?, at(1).context("no offsets")?))
}
