//! The job file: found, changed by the command line, checked, submitted.

use crate::node::Api;
use anyhow::{Context, bail};
use gym_protocol::job::spec::JobFile;
use serde_json::json;
use std::path::{Path, PathBuf};

/// A checked job file.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    /// Its text, as submitted.
    pub(crate) text: String,
    /// Where relative paths in it start.
    pub(crate) base: PathBuf,
    /// What it says.
    pub(crate) file: JobFile,
}

/// What the command line changes in it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changes {
    pub(crate) seed: Option<u64>,
    pub(crate) rounds: Option<u64>,
    pub(crate) wire: Option<String>,
}

impl Job {
    /// Reads the file at `path`, or the sample job.
    pub(crate) fn load(path: Option<&Path>, changes: &Changes) -> anyhow::Result<Self> {
        let path = match path {
            Some(path) => std::path::absolute(path)?,
            None => sample()?,
        };
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let base = path.parent().unwrap_or(Path::new("/")).to_path_buf();
        Self::parse(&changes.apply(&text)?, base).with_context(|| path.display().to_string())
    }

    /// Checks a job file's text.
    pub(crate) fn parse(text: &str, base: PathBuf) -> anyhow::Result<Self> {
        Ok(Self {
            file: JobFile::parse(text)?,
            text: text.to_owned(),
            base,
        })
    }

    /// Submits it to an orchestrator, which adds model and questions to its content store. Gives the job's id.
    pub(crate) fn submit(&self, orchestrator: &Api) -> anyhow::Result<String> {
        let answer = orchestrator.post("/v1/jobs", &json!({ "file": self.text, "base": self.base }))?;
        Ok(answer["job"]
            .as_str()
            .context("the orchestrator names no job")?
            .to_owned())
    }
}

impl Changes {
    fn apply(&self, text: &str) -> anyhow::Result<String> {
        if self.seed.is_none() && self.rounds.is_none() && self.wire.is_none() {
            return Ok(text.to_owned());
        }
        let mut table: toml::Table = text.parse().context("the job file does not parse")?;
        if let Some(seed) = self.seed {
            table.insert(
                "seed".into(),
                i64::try_from(seed).context("--seed is too large")?.into(),
            );
        }
        if let Some(wire) = &self.wire {
            table.insert("wire".into(), wire.clone().into());
        }
        if let Some(rounds) = self.rounds {
            let schedule = table
                .entry("schedule")
                .or_insert_with(|| toml::Table::new().into());
            let Some(schedule) = schedule.as_table_mut() else {
                bail!("schedule is no table")
            };
            schedule.remove("epochs");
            schedule.insert(
                "rounds".into(),
                i64::try_from(rounds).context("--rounds is too large")?.into(),
            );
        }
        Ok(toml::to_string(&table)?)
    }
}

/// The sample job of the source tree this program was built from, or of the current folder's.
fn sample() -> anyhow::Result<PathBuf> {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/sample-job.toml");
    let here = std::path::absolute("testnet/assets/sample-job.toml")?;
    let found = [built, here].into_iter().find(|path| path.exists());
    found.context("the sample job is not there: run this in the source tree, or give --job FILE")
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: &str = "name = \"t\"\nmodel = \"m\"\ntrain = \"a\"\nheldout = \"b\"\nrewards = [{ name = \"numeric\" }]\n\
                       [schedule]\nepochs = 1.0\n";

    #[test]
    fn the_command_line_wins() {
        let changes = Changes {
            seed: Some(9),
            rounds: Some(3),
            wire: Some("q8".into()),
        };
        let job = Job::parse(&changes.apply(JOB).unwrap(), PathBuf::new()).unwrap();
        assert_eq!((job.file.seed, job.file.schedule.rounds), (9, Some(3)));
        assert_eq!(job.file.wire, gym_protocol::job::spec::Wire::Q8);
        assert_eq!(Changes::default().apply(JOB).unwrap(), JOB);
    }

    #[test]
    fn a_wrong_value_is_told() {
        let changes = Changes {
            wire: Some("q3".into()),
            ..Changes::default()
        };
        let error = Job::parse(&changes.apply(JOB).unwrap(), PathBuf::new())
            .unwrap_err()
            .to_string();
        assert!(error.contains("q3"), "{error}");
    }
}
