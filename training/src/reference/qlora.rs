//! An adapter over four-bit weights, against PEFT over bitsandbytes: with the weights quantised here, and as
//! bitsandbytes stored them.

use super::model::{Gradients, Padded, compare_gradients, logits};
use super::moe_adapter::{base_of, nll};
use super::report::{Measure, Quantity, Tally};
use super::scratch::Folder;
use super::tensors::{Object, Tensors, json};
use super::{ReferenceError, Set};
use crate::adapter::Adapter;
use crate::lora::Lora;
use crate::model::Decoder;
use crate::quant::{Nf4Matrix, Quantisation, Scales, read, state_name};
use safetensors::{SafeTensors, serialize_to_file};
use std::path::Path;

const TOLERANCE: f64 = 1e-4;

pub(super) fn compare(set: &Set<'_>, tally: &mut Tally) -> Result<(), ReferenceError> {
    let base = base_of(set)?;
    let expected = Tensors::open(&set.path("expected.safetensors"))?;
    let quantised = Tensors::open(&set.path("quantised.safetensors"))?;
    let inputs = Tensors::open(&base.join("expected.safetensors"))?;
    let adapter = Adapter::load(&adapter_dir(set, &base)?).map_err(ReferenceError::ours)?;
    compare_weights(&quantised, &base, tally)?;
    let ours = Decoder::load_as(&base, &set.device(), Quantisation::Nf4).map_err(ReferenceError::ours)?;
    let inputs = Padded::read(&inputs, "left", ours.config().vocab_size)?;
    compare_model("", &ours, &adapter, &inputs, &expected, tally)?;
    let folder = Folder::new()?;
    write_stored(set, &base, &folder)?;
    let stored = Decoder::load(folder.path(), &set.device()).map_err(ReferenceError::ours)?;
    compare_model("stored ", &stored, &adapter, &inputs, &expected, tally)?;
    expected.finish(tally);
    quantised.finish(tally);
    Ok(())
}

/// `adapter` of `meta.json` is `{model}/adapter`, the model being the base.
fn adapter_dir(set: &Set<'_>, base: &Path) -> Result<std::path::PathBuf, ReferenceError> {
    let meta = json(&set.path("meta.json"))?;
    let meta = Object {
        what: "meta.json",
        value: &meta,
    };
    let path = Path::new(meta.text("adapter")?);
    let name = path.file_name().ok_or_else(|| meta.no("adapter", "path"))?;
    Ok(base.join(name))
}

/// Codes and scales of each weight, bitsandbytes' against ours of the dense weight.
fn compare_weights(quantised: &Tensors, base: &Path, tally: &mut Tally) -> Result<(), ReferenceError> {
    let dense = Tensors::open(&base.join("model.safetensors"))?;
    let state = state_name("");
    let weights: Vec<&str> = quantised
        .names()
        .filter_map(|name| name.strip_suffix(&state))
        .collect();
    if weights.is_empty() {
        tally.problem("quantised.safetensors holds no quantised weight".into());
    }
    for name in weights {
        let theirs = read(|part| quantised.view(part), name).map_err(ReferenceError::ours)?;
        let ours = Nf4Matrix::quantise(theirs.shape(), &dense.f32(name)?).map_err(ReferenceError::ours)?;
        tally.exact("codes", name, ours.codes(), theirs.codes());
        let (
            Scales::Double {
                codes,
                nested,
                offset,
            },
            Scales::Double {
                codes: wanted,
                nested: wanted_nested,
                offset: wanted_offset,
            },
        ) = (ours.scales(), theirs.scales())
        else {
            tally.problem(format!("{name} is not doubly quantised"));
            continue;
        };
        tally.exact("absmax codes", name, codes, wanted);
        let scales = Quantity::absolute("nested_absmax and offset", 1e-6);
        tally.numbers(scales, name, &wide(nested), &wide(wanted_nested));
        tally.number(scales, name, f64::from(*offset), f64::from(*wanted_offset));
        let values = Quantity::absolute("dequantised", 1e-6);
        tally.numbers(
            values,
            name,
            &wide(&ours.dequantise()),
            &wide(&theirs.dequantise()),
        );
    }
    Ok(())
}

fn compare_model(
    what: &str,
    decoder: &Decoder,
    adapter: &Adapter,
    inputs: &Padded,
    expected: &Tensors,
    tally: &mut Tally,
) -> Result<(), ReferenceError> {
    let lora = Lora::from_adapter(decoder, adapter).map_err(ReferenceError::ours)?;
    for (part, lora) in [("base", None), ("adapter", Some(&lora))] {
        let got = logits(decoder, &inputs.packed(), lora);
        let want = inputs.kept(&expected.numbers(&format!("{part}_logits_left"))?);
        let quantity = format!("{what}{part}_logits_left");
        tally.numbers(Quantity::absolute(&quantity, TOLERANCE), "", &got, &want);
        let loss = nll(&got, inputs, decoder.config().vocab_size);
        let quantity = format!("{what}{part}_nll");
        let want = expected.numbers(&format!("{part}_nll"))?;
        tally.numbers(Quantity::absolute(&quantity, TOLERANCE), "", &[loss], &want);
    }
    let quantity = format!("{what}grad");
    let gradients = Gradients {
        prefix: "",
        quantity: Quantity {
            name: &quantity,
            measure: Measure::Absolute,
            tolerance: TOLERANCE,
        },
    };
    compare_gradients(decoder, &lora, inputs, expected, &gradients, tally)
}

/// A directory as `save_pretrained` leaves it: packed linear layers, everything else as in the base.
fn write_stored(set: &Set<'_>, base: &Path, folder: &Folder) -> Result<(), ReferenceError> {
    let bytes = |path: &Path| {
        std::fs::read(path).map_err(|e| ReferenceError::Read {
            path: path.to_owned(),
            reason: e.to_string(),
        })
    };
    folder.copy(&base.join("config.json"), "config.json")?;
    let (dense, packed) = (
        bytes(&base.join("model.safetensors"))?,
        bytes(&set.path("quantised.safetensors"))?,
    );
    let dense = SafeTensors::deserialize(&dense).map_err(ReferenceError::ours)?;
    let packed = SafeTensors::deserialize(&packed).map_err(ReferenceError::ours)?;
    let kept = dense.iter().filter(|(name, _)| packed.tensor(name).is_err());
    let all: Vec<_> = kept.chain(packed.iter()).collect();
    serialize_to_file(all, None, &folder.path().join("model.safetensors")).map_err(ReferenceError::ours)
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|v| f64::from(*v)).collect()
}
