//! What a directory holds.

use super::ReferenceError;
use super::tensors::json;
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

impl Kind {
    /// The kind of a directory; `None` when it is no set.
    #[must_use]
    pub fn of(dir: &Path) -> Option<Self> {
        let has = |files: &[&str]| files.iter().all(|f| dir.join(f).is_file());
        let (kind, _) = FILES.iter().find(|(_, files)| has(files))?;
        if *kind == Self::Tokenizer {
            // Cases alone say little: they must be strings and chats.
            let cases = json(&dir.join("cases.json")).ok()?;
            return (cases.get("cases").is_some() && cases.get("chat").is_some()).then_some(*kind);
        }
        Some(*kind)
    }
}

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

/// The set that `dir` is, or those in the folders below it, by name.
pub(super) fn sets(dir: &Path) -> Result<Vec<(PathBuf, Kind)>, ReferenceError> {
    if let Some(kind) = Kind::of(dir) {
        return Ok(vec![(dir.to_owned(), kind)]);
    }
    let read = |e: std::io::Error| ReferenceError::Read {
        path: dir.to_owned(),
        reason: e.to_string(),
    };
    let mut folders = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(read)? {
        let path = entry.map_err(read)?.path();
        if path.is_dir() {
            folders.push(path);
        }
    }
    folders.sort();
    let mut all = Vec::new();
    for folder in folders {
        all.extend(sets(&folder)?);
    }
    Ok(all)
}
