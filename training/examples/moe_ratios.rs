//! `moe_ratios MODEL QUESTIONS.jsonl [ADAPTER]`: how far bf16 rollouts and f32 training of a mixture of experts lie apart.
//!
//! Completions are sampled in bf16 with recorded experts; f32 passes then give their log-probabilities, once with the
//! router's own choice and once with the recorded experts (routing replay). Printed: the spread over tokens of
//! log π_f32 − log π_bf16, the spread over sequences of its mean, and the first divided by √length, which is what the
//! second would be if tokens erred independently (GSPO, Zheng et al. 2025, sections 4 and 5.3).
#![allow(clippy::print_stdout, reason = "a command's result")]

use burn::tensor::{Device, Tensor, activation};
use gym_protocol::job::spec::ColumnsSpec;
use gym_training::adapter::Adapter;
use gym_training::data::read_questions;
use gym_training::generate::{Draw, GenerateConfig, Request, generate};
use gym_training::lora::Lora;
use gym_training::model::{Decoder, Packed, Precision, Routes, Routing};
use gym_training::sampling::{Filters, RolloutKey};
use gym_training::tokenizer::TextTokenizer;
use std::path::Path;

type Failure = Box<dyn std::error::Error>;

const QUESTIONS: usize = 64;
const GROUP: u32 = 8;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, questions, rest @ ..] = arguments.as_slice() else {
        return Err("usage: moe_ratios MODEL QUESTIONS.jsonl [ADAPTER]".into());
    };
    let device = Device::flex();
    let f32 = Decoder::load_as(Path::new(model), &device, Precision::F32)?;
    let bf16 = Decoder::load_as(Path::new(model), &device, Precision::Bf16)?;
    let lora = match rest.first() {
        Some(dir) => {
            let adapter = Adapter::load(Path::new(dir))?;
            Some(Lora::from_tensors(&f32, &adapter.lora, &adapter.tensors)?)
        }
        None => None,
    };
    let sequences = sample(&bf16, lora.as_ref(), Path::new(model), Path::new(questions))?;
    let experts = f32.config().experts();
    let per_token = experts.ok_or("the model has no experts")?.per_token;
    let (mut plain, mut replayed) = (Spread::default(), Spread::default());
    let mut differing = Vec::new();
    for chunk in sequences.chunks(32) {
        let packed = Packed::rows(&chunk.iter().map(|s| s.tokens.as_slice()).collect::<Vec<_>>());
        let (mut sampled, mut own) = (Routes::default(), Routes::default());
        let low = log_probs(
            &bf16,
            bf16.hidden_routed(&packed, lora.as_ref(), Routing::Record(&mut sampled))?,
            &packed,
        );
        let high = log_probs(
            &f32,
            f32.hidden_routed(&packed, lora.as_ref(), Routing::Record(&mut own))?,
            &packed,
        );
        let forced = log_probs(
            &f32,
            f32.hidden_routed(&packed, lora.as_ref(), Routing::Replay(&sampled))?,
            &packed,
        );
        differing.extend(own.differing(&sampled, per_token));
        for ((sequence, segment), start) in chunk.iter().zip(packed.segments()).zip(starts(&packed)) {
            let completion = start + sequence.prompt - 1..start + segment.places.len() - 1;
            plain.add(&difference(&high, &low, completion.clone()));
            replayed.add(&difference(&forced, &low, completion));
        }
    }
    println!("sequences {}, tokens {}", plain.means.len(), plain.tokens.len());
    let share = differing.iter().sum::<f64>() / differing.len().max(1) as f64;
    println!(
        "places whose experts differ between bf16 and f32: {:.2} %",
        100.0 * share
    );
    println!(
        "{:16} {:>12} {:>14} {:>16} {:>9}",
        "", "token spread", "spread/√length", "sequence spread", "ratio"
    );
    plain.print("router");
    replayed.print("routing replay");
    Ok(())
}

struct Sequence {
    tokens: Vec<u32>,
    prompt: usize,
}

fn sample(
    decoder: &Decoder,
    lora: Option<&Lora>,
    model: &Path,
    questions: &Path,
) -> Result<Vec<Sequence>, Failure> {
    let tokenizer = TextTokenizer::load(model)?;
    let questions = read_questions(questions, &ColumnsSpec::default())?;
    let prompts: Vec<Vec<u32>> = questions
        .iter()
        .take(QUESTIONS)
        .map(|q| tokenizer.encode_prompt(&q.prompt))
        .collect::<Result<_, _>>()?;
    let key = RolloutKey::offline(1);
    let requests: Vec<Request<'_>> = (0u64..)
        .zip(&prompts)
        .map(|(row, prompt)| Request {
            prompt,
            draws: (0..GROUP)
                .map(|sample| Draw::Noise(key.noise(0, row, sample)))
                .collect(),
        })
        .collect();
    let config = GenerateConfig {
        filters: Filters::default(),
        max_new_tokens: 64,
        eos: tokenizer.eos_ids().to_vec(),
        pad: tokenizer.pad_id(),
        max_rows: 128,
        stop: None,
    };
    let all = generate(decoder, lora, &requests, &config)?;
    let sequence = |prompt: &Vec<u32>, completion: &[u32]| Sequence {
        tokens: [prompt.as_slice(), completion].concat(),
        prompt: prompt.len(),
    };
    Ok(prompts
        .iter()
        .zip(&all)
        .flat_map(|(prompt, group)| group.iter().map(|c| sequence(prompt, &c.tokens)))
        .collect())
}

/// log π of every place's next token, packed order; the last place of a segment is of no use.
fn log_probs(decoder: &Decoder, hidden: Tensor<2>, packed: &Packed) -> Vec<f64> {
    let logits = decoder.logits(hidden);
    let vocabulary = logits.dims()[1];
    let log_p = activation::log_softmax(logits.cast(burn::tensor::FloatDType::F32), 1);
    let flat: Vec<f32> = log_p.to_data().iter::<f32>().collect();
    let next = packed.ids().iter().skip(1).chain([&0]);
    next.enumerate()
        .map(|(place, id)| f64::from(flat[place * vocabulary + *id as usize]))
        .collect()
}

fn starts(packed: &Packed) -> impl Iterator<Item = usize> + '_ {
    packed.segments().iter().map(|s| s.places.start)
}

fn difference(a: &[f64], b: &[f64], places: std::ops::Range<usize>) -> Vec<f64> {
    places.map(|p| a[p] - b[p]).collect()
}

/// Log-ratios of tokens, and their means over sequences.
#[derive(Default)]
struct Spread {
    tokens: Vec<f64>,
    means: Vec<f64>,
}

impl Spread {
    fn add(&mut self, log_ratios: &[f64]) {
        if !log_ratios.is_empty() {
            self.means
                .push(log_ratios.iter().sum::<f64>() / log_ratios.len() as f64);
            self.tokens.extend_from_slice(log_ratios);
        }
    }

    fn print(&self, name: &str) {
        let length = self.tokens.len() as f64 / self.means.len().max(1) as f64;
        let (token, sequence) = (deviation(&self.tokens), deviation(&self.means));
        let independent = token / length.sqrt();
        println!(
            "{name:16} {token:>12.3e} {independent:>14.3e} {sequence:>16.3e} {:>9.2}",
            sequence / independent
        );
    }
}

fn deviation(values: &[f64]) -> f64 {
    let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
    (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / values.len().max(1) as f64).sqrt()
}
