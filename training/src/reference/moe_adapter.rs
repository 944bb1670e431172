//! Adapters on routed experts, in every layout that PEFT reads and writes.

use super::model::{Gradients, Padded, compare_gradients, logits};
use super::report::{Quantity, Tally};
use super::tensors::{Object, Tensors, json};
use super::{ReferenceError, Set};
use crate::adapter::Adapter;
use crate::lora::Lora;
use crate::model::Decoder;
use crate::sampling::LogSoftmax;
use std::path::{Path, PathBuf};

const TOLERANCE: f64 = 1e-4;
/// The layout whose logits the others share when they have none of their own.
const SHARED: &str = "fused";

pub(super) fn compare(set: &Set<'_>, tally: &mut Tally) -> Result<(), ReferenceError> {
    let expected = Tensors::open(&set.path("expected.safetensors"))?;
    let base = base_of(set)?;
    let decoder = Decoder::load(&base, &set.device()).map_err(ReferenceError::ours)?;
    let inputs = Tensors::open(&base.join("expected.safetensors"))?;
    let left = Padded::read(&inputs, "left", decoder.config().vocab_size)?;
    let layouts = layouts(set.dir)?;
    if layouts.is_empty() {
        tally.problem("there is no folder with an adapter_config.json".into());
    }
    for name in &layouts {
        let adapter = Adapter::load(&set.path(name)).map_err(ReferenceError::ours)?;
        let lora = Lora::from_adapter(&decoder, &adapter).map_err(ReferenceError::ours)?;
        let own = expected.has(&format!("{name}.logits_left"));
        let source = if own { name } else { SHARED };
        let want = left.kept(&expected.numbers(&format!("{source}.logits_left"))?);
        let got = logits(&decoder, &left.packed(), Some(&lora));
        let quantity = format!("{name}.logits_left");
        tally.numbers(Quantity::absolute(&quantity, TOLERANCE), "", &got, &want);
        let nll = nll(&got, &left, decoder.config().vocab_size);
        let quantity = format!("{name}.nll");
        let want = expected.numbers(&format!("{source}.nll"))?;
        tally.numbers(Quantity::absolute(&quantity, TOLERANCE), "", &[nll], &want);
        let prefix = format!("{name}.");
        if expected.names().any(|n| n.starts_with(&format!("{prefix}grad."))) {
            let quantity = format!("{prefix}grad");
            let gradients = Gradients {
                prefix: &prefix,
                quantity: Quantity::absolute(&quantity, TOLERANCE),
            };
            compare_gradients(&decoder, &lora, &left, &expected, &gradients, tally)?;
        }
    }
    expected.finish(tally);
    Ok(())
}

/// The directory of the base model that `meta.json` names by a file in it.
pub(super) fn base_of(set: &Set<'_>) -> Result<PathBuf, ReferenceError> {
    let meta = json(&set.path("meta.json"))?;
    let meta = Object {
        what: "meta.json",
        value: &meta,
    };
    let file = Path::new(meta.text("base")?);
    let name = file
        .parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(file);
    set.base(&name.to_string_lossy())
}

fn layouts(dir: &Path) -> Result<Vec<String>, ReferenceError> {
    let read = |e: std::io::Error| ReferenceError::Read {
        path: dir.to_owned(),
        reason: e.to_string(),
    };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(read)? {
        let entry = entry.map_err(read)?;
        if entry.path().join("adapter_config.json").is_file() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Mean −log p of logits [N, vocab] in packed order.
pub(super) fn nll(logits: &[f64], inputs: &Padded, vocab: usize) -> f64 {
    let packed = inputs.packed();
    let mut losses = Vec::new();
    for segment in packed.segments() {
        for place in segment.places.clone().skip(1) {
            let row: Vec<f32> = logits[(place - 1) * vocab..place * vocab]
                .iter()
                .map(|v| *v as f32)
                .collect();
            losses.push(-LogSoftmax::of(&row, 1.0).at(packed.ids()[place]));
        }
    }
    losses.iter().sum::<f64>() / losses.len().max(1) as f64
}
