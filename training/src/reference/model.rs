//! A model with its adapter against transformers and PEFT.

use super::report::{Quantity, Tally};
use super::tensors::Tensors;
use super::{ReferenceError, Set};
use crate::adapter::Adapter;
use crate::generate::{Draw, GenerateConfig, Request, generate};
use crate::lora::Lora;
use crate::model::{Architecture, Decoder, KvCache, ModelConfig, Packed};
use crate::sampling::{Filters, LogSoftmax};
use burn::tensor::{Tensor, TensorData, activation};

/// What separates transformers' own f32 from its f64, with room; the delta-net's recurrence loses more.
pub(super) fn tolerance(config: &ModelConfig) -> f64 {
    if config.architecture == Architecture::Qwen3Next {
        1e-4
    } else {
        5e-5
    }
}

const GRADIENTS: f64 = 2e-4;

/// Refuses ids that a model of `vocab` tokens does not have.
pub(super) fn known_tokens<'a>(
    ids: impl IntoIterator<Item = &'a u32>,
    vocab: usize,
    name: &str,
) -> Result<(), ReferenceError> {
    match ids.into_iter().find(|id| **id as usize >= vocab) {
        Some(id) => Err(ReferenceError::Ours(format!(
            "{name} has the id {id}, and the model {vocab} tokens"
        ))),
        None => Ok(()),
    }
}

/// Inputs padded to one width.
pub(super) struct Padded {
    pub(super) ids: Vec<u32>,
    pub(super) mask: Vec<bool>,
    pub(super) width: usize,
}

pub(super) fn compare(set: &Set<'_>, tally: &mut Tally) -> Result<(), ReferenceError> {
    let expected = Tensors::open(&set.path("expected.safetensors"))?;
    let decoder = Decoder::load(set.dir, &set.device()).map_err(ReferenceError::ours)?;
    compare_configs(set, tally)?;
    let vocab = decoder.config().vocab_size;
    for side in ["left", "right"] {
        let inputs = Padded::read(&expected, side, vocab)?;
        let name = format!("logits_{side}");
        inputs.compare(&decoder, None, &expected.numbers(&name)?, &name, tally)?;
    }
    let left = Padded::read(&expected, "left", vocab)?;
    compare_row_alone(&decoder, &left, &expected, tally)?;
    compare_log_probs(&decoder, &left, &expected, tally)?;
    compare_layers(&decoder, &left, &expected, tally)?;
    compare_greedy(&decoder, &left, &expected, tally)?;
    compare_adapter(set, &decoder, &left, &expected, tally)?;
    expected.finish(tally);
    Ok(())
}

impl Padded {
    /// The tensors `input_ids_{side}` and `attention_mask_{side}`, for a model of `vocab` tokens.
    pub(super) fn read(file: &Tensors, side: &str, vocab: usize) -> Result<Self, ReferenceError> {
        let (name, mask) = (format!("input_ids_{side}"), format!("attention_mask_{side}"));
        let inputs = Self {
            ids: file.ids(&name)?,
            mask: file.mask(&mask)?,
            width: file.width(&name)?,
        };
        if file.shape(&name)? != file.shape(&mask)? {
            return Err(ReferenceError::Ours(format!(
                "{name} and {mask} have different shapes"
            )));
        }
        known_tokens(&inputs.ids, vocab, &name)?;
        match inputs.rows().iter().any(Vec::is_empty) {
            true => Err(ReferenceError::Ours(format!("{mask} leaves a row nothing"))),
            false => Ok(inputs),
        }
    }

    pub(super) fn packed(&self) -> Packed {
        let mask: Vec<u8> = self.mask.iter().map(|m| u8::from(*m)).collect();
        Packed::masked(&self.ids, &mask, self.width)
    }

    /// Each row's tokens.
    pub(super) fn rows(&self) -> Vec<Vec<u32>> {
        let pairs = self.ids.chunks(self.width).zip(self.mask.chunks(self.width));
        pairs
            .map(|(ids, mask)| {
                ids.iter()
                    .zip(mask)
                    .filter(|(_, m)| **m)
                    .map(|(i, _)| *i)
                    .collect()
            })
            .collect()
    }

    /// Of values [rows, width, each], those at unmasked places.
    pub(super) fn kept(&self, values: &[f64]) -> Vec<f64> {
        let each = values.len() / self.mask.len().max(1);
        let places = (0..self.mask.len()).filter(|p| self.mask[*p]);
        places
            .flat_map(|p| values[p * each..][..each].iter().copied())
            .collect()
    }

    /// Logits at unmasked places.
    pub(super) fn compare(
        &self,
        decoder: &Decoder,
        lora: Option<&Lora>,
        want: &[f64],
        name: &str,
        tally: &mut Tally,
    ) -> Result<(), ReferenceError> {
        if want.len() != self.mask.len() * decoder.config().vocab_size {
            return Err(ReferenceError::Ours(format!(
                "{name} has another shape than its inputs and the vocabulary"
            )));
        }
        let got = logits(decoder, &self.packed(), lora);
        let what = Quantity::absolute(name, tolerance(decoder.config()));
        tally.numbers(what, "", &got, &self.kept(want));
        Ok(())
    }

    /// −log p of every token whose predecessor is its neighbour and unmasked, and where: (row · width + column of the
    /// predecessor).
    fn losses(&self, decoder: &Decoder, lora: Option<&Lora>) -> Vec<(usize, f64)> {
        let all = logits(decoder, &self.packed(), lora);
        let vocab = decoder.config().vocab_size;
        let places: Vec<usize> = (0..self.mask.len()).filter(|p| self.mask[*p]).collect();
        let mut losses = Vec::new();
        for (i, pair) in places.windows(2).enumerate() {
            if pair[1] == pair[0] + 1 && pair[0] / self.width == pair[1] / self.width {
                let row: Vec<f32> = all[i * vocab..][..vocab].iter().map(|v| *v as f32).collect();
                losses.push((pair[0], -LogSoftmax::of(&row, 1.0).at(self.ids[pair[1]])));
            }
        }
        losses
    }
}

/// Logits [N, vocab] of packed tokens.
pub(super) fn logits(decoder: &Decoder, packed: &Packed, lora: Option<&Lora>) -> Vec<f64> {
    let logits = decoder.logits(decoder.hidden(packed, lora));
    values(&logits)
}

fn values(tensor: &Tensor<2>) -> Vec<f64> {
    tensor.to_data().iter::<f32>().map(f64::from).collect()
}

/// The older style of `config.json` says the same model.
fn compare_configs(set: &Set<'_>, tally: &mut Tally) -> Result<(), ReferenceError> {
    let old = set.path("config.hub_style.json");
    if !old.is_file() {
        tally.problem("config.hub_style.json is missing".into());
        return Ok(());
    }
    let folder = super::scratch::Folder::new()?;
    folder.copy(&old, "config.json")?;
    let newest = ModelConfig::load(set.dir).map_err(ReferenceError::ours)?;
    let oldest = ModelConfig::load(folder.path()).map_err(ReferenceError::ours)?;
    tally.exact("config.hub_style.json", "", &[oldest], &[newest]);
    Ok(())
}

fn compare_row_alone(
    decoder: &Decoder,
    left: &Padded,
    expected: &Tensors,
    tally: &mut Tally,
) -> Result<(), ReferenceError> {
    const NAME: &str = "logits_row1_unpadded";
    let want = expected.numbers(NAME)?;
    let rows = left.rows();
    let row = rows
        .get(1)
        .ok_or_else(|| ReferenceError::Ours(format!("{NAME} needs a second input row")))?;
    let got = logits(decoder, &Packed::rows(&[row]), None);
    tally.numbers(
        Quantity::absolute(NAME, tolerance(decoder.config())),
        "",
        &got,
        &want,
    );
    Ok(())
}

fn compare_log_probs(
    decoder: &Decoder,
    left: &Padded,
    expected: &Tensors,
    tally: &mut Tally,
) -> Result<(), ReferenceError> {
    let losses = left.losses(decoder, None);
    let want = expected.numbers("logprobs_left")?;
    let places = left.rows().len() * (left.width - 1);
    tally.exact("places of logprobs_left", "", &[want.len()], &[places]);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for (place, loss) in &losses {
        let (row, column) = (place / left.width, place % left.width);
        let at = row * (left.width - 1) + column;
        ours.push(-loss);
        theirs.push(want.get(at).copied().unwrap_or(f64::NAN));
    }
    let tolerance = tolerance(decoder.config());
    tally.numbers(Quantity::absolute("logprobs_left", tolerance), "", &ours, &theirs);
    let nll = expected.numbers("base_nll")?;
    tally.numbers(
        Quantity::absolute("base_nll", tolerance),
        "",
        &[mean(&losses)],
        &nll,
    );
    Ok(())
}

fn mean(losses: &[(usize, f64)]) -> f64 {
    losses.iter().map(|(_, loss)| loss).sum::<f64>() / losses.len().max(1) as f64
}

/// Hidden states of the first row after the embedding and after each block, the last one normed.
fn compare_layers(
    decoder: &Decoder,
    left: &Padded,
    expected: &Tensors,
    tally: &mut Tally,
) -> Result<(), ReferenceError> {
    const NAME: &str = "hidden_after_layers_row0";
    let want = expected.numbers(NAME)?;
    let first = Padded {
        ids: left.ids[..left.width].to_vec(),
        mask: left.mask[..left.width].to_vec(),
        width: left.width,
    };
    let states = decoder.hidden_states(&first.packed(), None);
    let each = want.len() / states.len().max(1);
    for (layer, state) in states.iter().enumerate() {
        let want = first.kept(want.get(layer * each..(layer + 1) * each).unwrap_or_default());
        // States grow over the layers, so the difference is taken relative to the largest.
        let what = Quantity::relative(NAME, tolerance(decoder.config()));
        tally.numbers(what, &format!("layer {layer}"), &values(state), &want);
    }
    Ok(())
}

/// The greedy continuation token for token, and logits with and without the cache on its way.
fn compare_greedy(
    decoder: &Decoder,
    left: &Padded,
    expected: &Tensors,
    tally: &mut Tally,
) -> Result<(), ReferenceError> {
    let want = expected.ids("greedy_ids")?;
    let steps = expected.width("greedy_ids")?;
    known_tokens(&want, decoder.config().vocab_size, "greedy_ids")?;
    let rows = left.rows();
    let got = greedy(decoder, &rows, steps)?.concat();
    tally.exact("greedy_ids", "", &got, &want);
    compare_cache(decoder, &rows, &want, steps, tally);
    Ok(())
}

/// `steps` likeliest tokens after each row, no end being one.
pub(super) fn greedy(
    decoder: &Decoder,
    rows: &[Vec<u32>],
    steps: usize,
) -> Result<Vec<Vec<u32>>, ReferenceError> {
    let requests: Vec<Request<'_>> = rows
        .iter()
        .map(|row| Request {
            prompt: row,
            draws: vec![Draw::Greedy],
        })
        .collect();
    let config = GenerateConfig {
        filters: Filters::default(),
        max_new_tokens: steps,
        eos: Vec::new(),
        stop: None,
        pad: 0,
        max_rows: rows.len().max(1),
    };
    let completions = generate(decoder, None, &requests, &config).map_err(ReferenceError::ours)?;
    Ok(completions.into_iter().flatten().map(|c| c.tokens).collect())
}

/// The continuation fed through the cache token by token against whole passes over it.
fn compare_cache(
    decoder: &Decoder,
    rows: &[Vec<u32>],
    continuation: &[u32],
    steps: usize,
    tally: &mut Tally,
) {
    let what = Quantity::absolute("cache against none", tolerance(decoder.config()));
    let vocab = decoder.config().vocab_size;
    let longest = rows.iter().map(Vec::len).max().unwrap_or(0);
    let mut cache = KvCache::new(decoder.config().num_hidden_layers, longest + steps);
    let mut whole = rows.to_vec();
    for step in 0..steps {
        let packed = Packed::rows(&whole);
        let ends: Vec<usize> = packed.segments().iter().map(|s| s.places.end - 1).collect();
        let plain = logits(decoder, &packed, None);
        let (cached, places) = if step == 0 {
            let prompts = Packed::rows(rows);
            (decoder.prefill(&prompts, None, &mut cache), ends.clone())
        } else {
            let next: Vec<u32> = whole.iter().filter_map(|r| r.last().copied()).collect();
            (decoder.decode(&next, None, &mut cache), (0..rows.len()).collect())
        };
        let cached = values(&decoder.logits(cached));
        for (row, tokens) in whole.iter_mut().enumerate() {
            let a = &cached[places[row] * vocab..][..vocab];
            let b = &plain[ends[row] * vocab..][..vocab];
            tally.numbers(what, &format!("row {row}, token {step}"), a, b);
            tokens.push(continuation.get(row * steps + step).copied().unwrap_or(0));
        }
    }
}

fn compare_adapter(
    set: &Set<'_>,
    decoder: &Decoder,
    left: &Padded,
    expected: &Tensors,
    tally: &mut Tally,
) -> Result<(), ReferenceError> {
    let adapter = Adapter::load(&set.path("adapter")).map_err(ReferenceError::ours)?;
    let lora = Lora::from_adapter(decoder, &adapter).map_err(ReferenceError::ours)?;
    let want = expected.numbers("adapter_logits_left")?;
    left.compare(decoder, Some(&lora), &want, "adapter_logits_left", tally)?;
    let gradients = Gradients {
        prefix: "",
        quantity: Quantity::relative("grad", GRADIENTS),
    };
    compare_gradients(decoder, &lora, left, expected, &gradients, tally)?;
    let nll = [mean(&left.losses(decoder, Some(&lora)))];
    let what = Quantity::absolute("adapter_nll", tolerance(decoder.config()));
    tally.numbers(what, "", &nll, &expected.numbers("adapter_nll")?);
    Ok(())
}

/// Which tensors hold the reference's gradients, and how they are compared.
pub(super) struct Gradients<'a> {
    /// Their names are `{prefix}grad.{module}`.
    pub(super) prefix: &'a str,
    pub(super) quantity: Quantity<'a>,
}

/// ∂ nll / ∂ adapter, tensor by tensor.
pub(super) fn compare_gradients(
    decoder: &Decoder,
    lora: &Lora,
    inputs: &Padded,
    expected: &Tensors,
    wanted: &Gradients<'_>,
    tally: &mut Tally,
) -> Result<(), ReferenceError> {
    let lora = lora.tracked();
    let packed = inputs.packed();
    let logits = decoder.logits(decoder.hidden(&packed, Some(&lora)));
    let loss = nll(&packed, logits);
    let gradients = lora.take_gradients(&mut loss.backward());
    for (name, gradient) in &gradients.0 {
        let name = name.strip_prefix("base_model.model.").unwrap_or(name);
        let tensor = format!("{}grad.{name}", wanted.prefix);
        if !expected.has(&tensor) {
            tally.problem(format!("the reference has no gradient of {name}"));
            continue;
        }
        let got: Vec<f64> = gradient.data.iter().map(|v| f64::from(*v)).collect();
        tally.numbers(wanted.quantity, name, &got, &expected.numbers(&tensor)?);
    }
    Ok(())
}

/// Mean −log p over tokens whose predecessor is in the same sequence, with gradients.
fn nll(packed: &Packed, logits: Tensor<2>) -> Tensor<1> {
    let (mut places, mut targets) = (Vec::new(), Vec::new());
    for segment in packed.segments() {
        for place in segment.places.clone().skip(1) {
            places.push(place as i64 - 1);
            targets.push(i64::from(packed.ids()[place]));
        }
    }
    let (count, device) = (places.len(), logits.device());
    let logits = logits.select(0, Tensor::from_data(TensorData::new(places, [count]), &device));
    let targets = Tensor::from_data(TensorData::new(targets, [count, 1]), &device);
    activation::log_softmax(logits, 1).gather(1, targets).mean().neg()
}
