//! What a run says as it goes: metrics as JSON lines and for TensorBoard. A continued run says each step once.

use crate::files::{self, Access};
use gym_training::metrics::{MetricsWriter, read_metrics};
use gym_training::tensorboard::EventWriter;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// The open files.
pub(super) struct Log {
    path: PathBuf,
    metrics: MetricsWriter,
    events: EventWriter,
    /// The last step whose evaluation is in the log.
    evaluated: Option<u64>,
}

impl Log {
    /// Opens the log of the run in `out` and takes away what it says after step `kept`: those steps come again.
    pub(super) fn open(out: &Path, kept: Option<u64>) -> anyhow::Result<Self> {
        let path = out.join("metrics.jsonl");
        forget_after(&path, kept)?;
        let records: Vec<Value> = read_metrics(&path)?;
        let evaluations = records.iter().filter(|r| r.get(ACCURACY).is_some());
        Ok(Self {
            evaluated: evaluations.filter_map(step_of).next_back(),
            metrics: MetricsWriter::open(&path)?,
            events: EventWriter::create(&out.join("tensorboard"), kept.map_or(0, |step| step + 1))?,
            path,
        })
    }

    /// Adds a record of `step` steps done.
    pub(super) fn add<'a>(
        &mut self,
        step: u64,
        numbers: impl IntoIterator<Item = (&'a str, f64)>,
    ) -> anyhow::Result<()> {
        let mut record = Map::new();
        record.insert("step".into(), json!(step));
        let numbers: Vec<(&str, f64)> = numbers.into_iter().collect();
        for (name, value) in &numbers {
            if *name == ACCURACY {
                self.evaluated = Some(step);
            }
            record.insert((*name).to_owned(), json!(value));
        }
        self.metrics.append(&record)?;
        self.events.scalars(step, numbers)?;
        Ok(())
    }

    /// Whether the evaluation after `step` steps is there.
    pub(super) fn has_evaluation(&self, step: u64) -> bool {
        self.evaluated == Some(step)
    }

    /// Waits until the disk has everything.
    pub(super) fn sync(&self) -> anyhow::Result<()> {
        Ok(self.metrics.sync()?)
    }

    /// Everything said so far.
    pub(super) fn records(&self) -> anyhow::Result<Vec<Value>> {
        Ok(read_metrics(&self.path)?)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// The greedy accuracy's name.
pub(super) const ACCURACY: &str = "eval_accuracy";

fn step_of(record: &Value) -> Option<u64> {
    record.get("step").and_then(Value::as_u64)
}

/// Cuts a file of JSON lines after the last record of a step up to `kept`.
pub(super) fn forget_after(path: &Path, kept: Option<u64>) -> anyhow::Result<()> {
    drop(MetricsWriter::open(path)?); // cuts off a torn last line
    let records: Vec<Value> = read_metrics(path)?;
    let all = records.len();
    let records = records
        .into_iter()
        .filter(|r| step_of(r) <= kept && kept.is_some());
    let text: Vec<String> = records.map(|record| format!("{record}\n")).collect();
    if text.len() < all {
        files::write_atomic(path, text.concat().as_bytes(), Access::Everyone)?;
    }
    Ok(())
}
