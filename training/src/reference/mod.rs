//! Reference numbers: directories of what the peers' own code computed (transformers, PEFT, TRL, bitsandbytes), and how
//! far this crate is from them.
//!
//! A directory's kind is told by the files in it ([`Kind`]), never by its name; one with the files of two sets is two.
//! Nothing about shapes, values or seeds is built in. Every quantity in it is compared: one that is missing, and one that nothing here knows, is a failure.

mod accumulation;
mod bf16;
mod error;
mod gspo;
mod kind;
mod model;
mod moe_adapter;
mod nf4;
mod qlora;
mod report;
mod sampling;
mod scratch;
mod step;
mod tensors;
mod tokenizer;

pub use error::ReferenceError;
pub use kind::Kind;
pub use report::{Check, Measure, Report};

use burn::tensor::Device;
use kind::Found;
use report::Tally;
use std::path::{Path, PathBuf};

/// Where a set finds what it refers to.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The folder of base models; by default the one beside a set that holds the model, or `../models`.
    pub models: Option<PathBuf>,
    /// `tokenizer.json` of the tokenizer sets.
    pub tokenizer: Option<PathBuf>,
    /// Where models run; the CPU unless said otherwise. On a GPU the bf16 sets alone are made to agree.
    pub device: Option<Device>,
}

/// Compares everything in `dir` and in the folders below it.
///
/// # Errors
/// When `dir` cannot be read or neither is nor holds a set. A set that cannot be compared is a report that fails.
pub fn compare(dir: &Path, options: &Options) -> Result<Vec<Report>, ReferenceError> {
    let sets = kind::sets(dir)?;
    if sets.is_empty() {
        return Err(ReferenceError::NoSet { dir: dir.to_owned() });
    }
    Ok(sets
        .iter()
        .map(|(dir, found)| match found {
            Found::Set(kind) => compare_set(dir, *kind, options),
            Found::Incomplete(file) => incomplete(dir, file),
        })
        .collect())
}

/// A file of a set whose other files are not there: nothing is compared with it, which is no agreement.
fn incomplete(dir: &Path, file: &str) -> Report {
    Report {
        dir: dir.to_owned(),
        kind: "incomplete".into(),
        checks: Vec::new(),
        problems: vec![format!(
            "{file} is compared with nothing: other files of its set are missing; known are {}",
            kind::known()
        )],
    }
}

fn compare_set(dir: &Path, kind: Kind, options: &Options) -> Report {
    let mut tally = Tally::default();
    let set = Set { dir, options };
    let result = match kind {
        Kind::Model => model::compare(&set, &mut tally),
        Kind::Gspo => gspo::compare(&set, &mut tally),
        Kind::GspoVariants => gspo::compare_variants(&set, &mut tally),
        Kind::Accumulation => accumulation::compare(&set, &mut tally),
        Kind::Step => step::compare(&set, &mut tally),
        Kind::Nf4 => nf4::compare(&set, &mut tally),
        Kind::Qlora => qlora::compare(&set, &mut tally),
        Kind::MoeAdapter => moe_adapter::compare(&set, &mut tally),
        Kind::Sampling => sampling::compare(&set, &mut tally),
        Kind::Tokenizer => tokenizer::compare(&set, &mut tally),
        Kind::Bf16 => bf16::compare(&set, &mut tally),
    };
    if let Err(error) = result {
        tally.problem(error.to_string());
    }
    tally.report(dir, kind)
}

/// One directory under comparison.
struct Set<'a> {
    dir: &'a Path,
    options: &'a Options,
}

impl Set<'_> {
    fn device(&self) -> Device {
        self.options.device.clone().unwrap_or_else(Device::flex)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Folders that may hold base models.
    fn model_folders(&self) -> Vec<PathBuf> {
        match &self.options.models {
            Some(folder) => vec![folder.clone()],
            None => {
                let parent = self.dir.join("..");
                vec![parent.join("models"), parent]
            }
        }
    }

    /// The directory of the base model of this name.
    fn base(&self, name: &str) -> Result<PathBuf, ReferenceError> {
        let folders = self.model_folders();
        let found = folders
            .iter()
            .map(|f| f.join(name))
            .find(|d| d.join("config.json").is_file());
        found.ok_or_else(|| ReferenceError::NoModel {
            name: name.to_owned(),
            folders,
        })
    }
}
