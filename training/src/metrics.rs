//! Metrics as JSON lines, one object a step, with TRL's names where TRL has one (TRAINING "What is logged").

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// What one GSPO step is logged as.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepMetrics {
    /// Optimizer steps done, this one included, over all rounds.
    pub step: u64,
    /// The round the step belongs to.
    pub round: u64,
    /// Mean reward.
    pub reward: f64,
    /// Sample standard deviation of the rewards of a group, averaged over groups.
    pub reward_std: f64,
    /// Mean of each reward function, as `rewards/<name>/mean`.
    #[serde(flatten)]
    pub rewards: BTreeMap<String, f64>,
    /// Groups whose rewards are all equal, as a share.
    pub frac_reward_zero_std: f64,
    /// Σ mask·kl / Σ mask.
    pub kl: f64,
    /// Mean entropy of the sampled positions, nats.
    pub entropy: f64,
    /// Share of samples (tokens at token level) clipped below.
    #[serde(rename = "clip_ratio/low_mean")]
    pub clip_low: f64,
    /// Share clipped above.
    #[serde(rename = "clip_ratio/high_mean")]
    pub clip_high: f64,
    /// Share clipped at all.
    #[serde(rename = "clip_ratio/region_mean")]
    pub clip_region: f64,
    /// Tokens a completion, EOS included.
    #[serde(rename = "completions/mean_length")]
    pub mean_length: f64,
    /// Share of completions that hit the length limit.
    #[serde(rename = "completions/clipped_ratio")]
    pub truncated: f64,
    /// Samples without a reward.
    #[serde(rename = "completions/unscored")]
    pub unscored: u64,
    /// Global norm before clipping.
    pub grad_norm: f64,
    /// Rate of the step.
    pub learning_rate: f64,
    /// The loss.
    pub loss: f64,
    /// Mean ratio of the training forward's probabilities to the sampler's own.
    #[serde(rename = "sampling/importance_sampling_ratio/mean")]
    pub sampling_ratio: f64,
    /// Prompt and completion tokens of the step.
    pub num_tokens: u64,
    /// Seconds spent drawing completions.
    #[serde(rename = "step_time/rollout")]
    pub rollout_seconds: f64,
    /// Seconds spent judging them.
    #[serde(rename = "step_time/reward")]
    pub reward_seconds: f64,
    /// Seconds spent in loss, gradient and update.
    #[serde(rename = "step_time/train")]
    pub train_seconds: f64,
}

/// Why metrics cannot be kept or read.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// The file cannot be opened, read or written.
    #[error("metrics file {path}: {source}; check the path and the free space")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A record cannot be written as JSON.
    #[error("metrics file {path}: a record cannot be written: {source}")]
    Encode {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: serde_json::Error,
    },
    /// A line that cannot be read.
    #[error("metrics file {path}, line {line}: {source}; delete the line")]
    Line {
        /// The file.
        path: PathBuf,
        /// Line number from 1.
        line: usize,
        /// The parser's reason.
        source: serde_json::Error,
    },
}

/// Appends records to a file. Each is one `write`, so that a kill tears at most the last line.
#[derive(Debug)]
pub struct MetricsWriter {
    path: PathBuf,
    file: File,
}

impl MetricsWriter {
    /// Opens for appending; a last line torn by a kill is cut off.
    ///
    /// # Errors
    /// When the file cannot be opened, read or cut.
    pub fn open(path: &Path) -> Result<Self, MetricsError> {
        let open = || -> std::io::Result<File> {
            let mut file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(path)?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            let whole = bytes.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
            file.set_len(whole as u64)?;
            file.seek(SeekFrom::End(0))?;
            Ok(file)
        };
        let path = path.to_owned();
        match open() {
            Ok(file) => Ok(Self { path, file }),
            Err(source) => Err(MetricsError::Io { path, source }),
        }
    }

    /// Appends one record as a line. A number that is not finite is written as null.
    ///
    /// # Errors
    /// A full disk, or a record that is no JSON.
    pub fn append(&mut self, record: &impl Serialize) -> Result<(), MetricsError> {
        let encoded = serde_json::to_string(record).map_err(|source| MetricsError::Encode {
            path: self.path.clone(),
            source,
        })?;
        let written = self.file.write_all((encoded + "\n").as_bytes());
        written.map_err(|source| MetricsError::Io {
            path: self.path.clone(),
            source,
        })
    }

    /// Waits until the disk has everything.
    ///
    /// # Errors
    /// When it does not.
    pub fn sync(&self) -> Result<(), MetricsError> {
        self.file.sync_data().map_err(|source| MetricsError::Io {
            path: self.path.clone(),
            source,
        })
    }
}

/// Reads all records of a file.
///
/// # Errors
/// An unreadable file or line, named.
pub fn read_metrics<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<Vec<T>, MetricsError> {
    let text = std::fs::read_to_string(path).map_err(|source| MetricsError::Io {
        path: path.to_owned(),
        source,
    })?;
    let lines = text.lines().enumerate().map(|(index, line)| {
        serde_json::from_str(line).map_err(|source| MetricsError::Line {
            path: path.to_owned(),
            line: index + 1,
            source,
        })
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(step: u64) -> StepMetrics {
        StepMetrics {
            step,
            reward: 0.25,
            rewards: BTreeMap::from([("rewards/numeric/mean".into(), 0.25)]),
            ..StepMetrics::default()
        }
    }

    #[test]
    fn names_are_trls() {
        let json = serde_json::to_value(step(1)).unwrap();
        for name in [
            "reward",
            "reward_std",
            "rewards/numeric/mean",
            "clip_ratio/low_mean",
            "completions/clipped_ratio",
            "sampling/importance_sampling_ratio/mean",
        ] {
            assert!(json[name].is_number(), "{name}");
        }
    }

    #[test]
    fn a_restart_appends_and_cuts_a_torn_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        MetricsWriter::open(&path).unwrap().append(&step(1)).unwrap();
        let mut torn = std::fs::read(&path).unwrap();
        torn.extend_from_slice(b"{\"step\": 2, \"rew");
        std::fs::write(&path, torn).unwrap();
        let mut writer = MetricsWriter::open(&path).unwrap();
        writer.append(&step(2)).unwrap();
        writer.sync().unwrap();
        assert_eq!(read_metrics::<StepMetrics>(&path).unwrap(), [step(1), step(2)]);
    }

    #[test]
    fn a_number_that_is_none_is_null_and_errors_name_the_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let mut writer = MetricsWriter::open(&path).unwrap();
        writer.append(&BTreeMap::from([("loss", f64::NAN)])).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "{\"loss\":null}\n");
        let error = read_metrics::<StepMetrics>(&path).unwrap_err().to_string();
        assert!(error.contains("line 1"), "{error}");
    }
}
