//! What a directory holds.

use super::ReferenceError;
use super::tensors::json;
use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

/// The kinds of sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A Hugging Face model with inputs, logits, greedy continuation, and an adapter with its gradients.
    Model,
    /// Sequence-level losses through TRL, and the paper's GSPO-token.
    Gspo,
    /// Token and sequence level under every loss type.
    GspoVariants,
    /// A batch cut into micro-batches.
    Accumulation,
    /// Updates of an adapter.
    Step,
    /// Four-bit weights.
    Nf4,
    /// An adapter over four-bit weights.
    Qlora,
    /// Adapters on routed experts in their layouts.
    MoeAdapter,
    /// What bf16 costs transformers.
    Bf16,
    /// Philox, noise and drawn tokens.
    Sampling,
    /// Strings and chats with their ids.
    Tokenizer,
}

/// Kinds by the files that tell them, the most telling first.
const FILES: [(Kind, &[&str]); 11] = [
    (Kind::Model, &["config.json", "expected.safetensors"]),
    (Kind::Gspo, &["gspo.safetensors", "cases.json"]),
    (Kind::GspoVariants, &["gspo_variants.safetensors", "cases.json"]),
    (Kind::Accumulation, &["accumulation.safetensors", "cases.json"]),
    (Kind::Step, &["step.safetensors", "step.json"]),
    (Kind::Nf4, &["nf4.safetensors"]),
    (
        Kind::Qlora,
        &["quantised.safetensors", "expected.safetensors", "meta.json"],
    ),
    (Kind::MoeAdapter, &["expected.safetensors", "meta.json"]),
    (Kind::Bf16, &["bf16.json"]),
    (Kind::Sampling, &["sampling.json"]),
    (Kind::Tokenizer, &["cases.json"]),
];

/// Files that a kind may have besides.
const FURTHER: [(Kind, &[&str]); 2] = [
    (Kind::Model, &["config.hub_style.json"]),
    (Kind::Gspo, &["gspo_token.safetensors", "gspo_token.json"]),
];

/// Files of sets whose names other directories have, too.
const COMMON: [&str; 3] = ["config.json", "cases.json", "meta.json"];

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Model => "model",
            Self::Gspo => "gspo",
            Self::GspoVariants => "gspo_variants",
            Self::Accumulation => "accumulation",
            Self::Step => "gspo_step",
            Self::Nf4 => "nf4",
            Self::Qlora => "qlora",
            Self::MoeAdapter => "moe_adapter",
            Self::Bf16 => "bf16",
            Self::Sampling => "sampling",
            Self::Tokenizer => "tokenizer",
        })
    }
}

/// The kinds with their files, for people.
pub(super) fn known() -> String {
    let all: Vec<String> = FILES
        .iter()
        .map(|(kind, files)| format!("{kind} ({})", files.join(" and ")))
        .collect();
    all.join(", ")
}

/// A set, or files of one that do not make one.
#[derive(Debug)]
pub(super) enum Found {
    Set(Kind),
    /// The file of a set that nothing compares, since others are missing.
    Incomplete(&'static str),
}

/// The sets in `dir` and in the folders below it, by name; a folder that links lead to again is looked at once.
pub(super) fn sets(dir: &Path) -> Result<Vec<(PathBuf, Found)>, ReferenceError> {
    let mut all = Vec::new();
    look_into(dir, &mut BTreeSet::new(), &mut all)?;
    Ok(all)
}

fn look_into(
    dir: &Path,
    seen: &mut BTreeSet<PathBuf>,
    all: &mut Vec<(PathBuf, Found)>,
) -> Result<(), ReferenceError> {
    let read = |e: std::io::Error| ReferenceError::Read {
        path: dir.to_owned(),
        reason: e.to_string(),
    };
    if !seen.insert(dir.canonicalize().map_err(read)?) {
        return Ok(());
    }
    all.extend(found(dir).into_iter().map(|found| (dir.to_owned(), found)));
    let mut folders = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(read)? {
        let path = entry.map_err(read)?.path();
        if path.is_dir() {
            folders.push(path);
        }
    }
    folders.sort();
    folders.iter().try_for_each(|folder| look_into(folder, seen, all))
}

/// What the files of one directory are: each telling file belongs to one set, or to none that is whole.
fn found(dir: &Path) -> Vec<Found> {
    let has = |file: &&str| dir.join(file).is_file();
    let (mut kinds, mut taken) = (Vec::new(), BTreeSet::<&str>::new());
    for (kind, files) in FILES {
        if taken.contains(files[0]) || !files.iter().all(has) || !is_meant(dir, kind) {
            continue;
        }
        let further = FURTHER.iter().filter(|(of, _)| *of == kind);
        taken.extend(further.flat_map(|(_, files)| *files));
        taken.extend(files);
        kinds.push(Found::Set(kind));
    }
    let all = FILES.iter().chain(&FURTHER).flat_map(|(_, files)| *files);
    let left = all.filter(|f| has(f) && !taken.contains(**f) && !COMMON.contains(*f));
    let left: BTreeSet<&'static str> = left.copied().collect();
    kinds.extend(left.into_iter().map(Found::Incomplete));
    kinds
}

/// Cases alone say little: a tokenizer's are strings and chats. A file that cannot be read is meant to be one.
fn is_meant(dir: &Path, kind: Kind) -> bool {
    kind != Kind::Tokenizer
        || json(&dir.join("cases.json")).map_or(true, |c| c.get("cases").is_some() && c.get("chat").is_some())
}
