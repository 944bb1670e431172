//! The metrics file: one JSON object a line, as the nodes told it, with the node's name.

use crate::event::Kind;
use crate::watch::Told;
use anyhow::Context;
use serde_json::json;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// Writes `metrics.jsonl`.
#[derive(Debug)]
pub(crate) struct Record {
    path: PathBuf,
    out: BufWriter<File>,
    /// Everybody tells of closed rounds and reports; the first to tell is written.
    told: BTreeSet<String>,
}

impl Record {
    pub(crate) fn create(path: &Path) -> anyhow::Result<Self> {
        let out = File::create_new(path).with_context(|| format!("writing {}", path.display()))?;
        Ok(Self {
            path: path.to_path_buf(),
            out: BufWriter::new(out),
            told: BTreeSet::new(),
        })
    }

    /// Writes an event that is worth keeping.
    pub(crate) fn take(&mut self, told: &Told) -> anyhow::Result<()> {
        let key = match &told.event.kind {
            Kind::Closed(c) => Some(format!("closed {}", c.round)),
            Kind::Report {
                round,
                subject,
                member,
                ..
            } => Some(format!("report {round} {subject} {member:?}")),
            Kind::Step { .. } | Kind::Offence { .. } => None,
            Kind::Notice { .. }
            | Kind::Doing { .. }
            | Kind::Round { .. }
            | Kind::Finished { .. }
            | Kind::Other => {
                return Ok(());
            }
        };
        if key.is_some_and(|key| !self.told.insert(key)) {
            return Ok(());
        }
        let mut line = told.raw.clone();
        line["node"] = json!(told.node);
        writeln!(self.out, "{line}").with_context(|| format!("writing {}", self.path.display()))
    }

    pub(crate) fn finish(mut self) -> anyhow::Result<()> {
        self.out
            .flush()
            .with_context(|| format!("writing {}", self.path.display()))
    }
}
