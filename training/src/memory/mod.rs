//! Memory foreseen: what a step needs by part, and the limits under which it fits.
//!
//! Figures come from `config.json` and the job alone. Activations are counted from what the operations keep for their
//! backward pass; docs/results.md says how far measured peaks are from the sums.

mod count;
mod host;
mod limit;

pub use host::{available, peak};
pub use limit::{Budget, MemoryLimit, Work};

use crate::model::ModelConfig;
use crate::trainer::{Limits, Plan, Quantisation};
use count::Count;
use serde::Serialize;

/// Where weights lie, which decides their width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// f32.
    Cpu,
    /// bf16, f32 for what is trained.
    Gpu,
}

/// What a job needs on one machine.
#[derive(Clone, Debug)]
pub struct Requirements {
    count: Count,
    place: Place,
    work: Work,
    quantisation: Quantisation,
    /// Completions of a step.
    rows: u64,
    /// Tokens of the longest prompt and of the longest completion.
    prompt: u64,
    completion: u64,
    /// Whether blocks are run again in the backward pass.
    checkpointing: bool,
}

/// Bytes by part at the worst moment of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Estimate {
    /// Values in the model.
    pub parameters: u64,
    /// Values in the adapter.
    pub trainable: u64,
    /// Tokens of a step at most, prompts and completions.
    pub tokens_per_step: u64,
    /// Bytes of the frozen weights.
    pub weights: u64,
    /// Bytes of the adapter, on the host and on the device, with the copy that a failed step falls back to.
    pub adapter: u64,
    /// Bytes of the adapter's gradients.
    pub gradients: u64,
    /// Bytes of the optimizer's moments, with their copy.
    pub optimizer: u64,
    /// Bytes of keys and values of the completions that are generated together.
    pub kv_cache: u64,
    /// Bytes that the blocks keep for the backward pass of a micro-batch.
    pub activations: u64,
    /// Bytes of logits, of rollout or update, whichever is more.
    pub logits: u64,
    /// Bytes of program, tokenizer and questions, roughly.
    pub program: u64,
    /// Bytes at the worst moment: rollouts and updates take turns.
    pub peak: u64,
}

/// Limits under which a step fits, and what they lead to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit {
    /// The limits.
    pub limits: Limits,
    /// Whether blocks have to be run again in the backward pass.
    pub checkpointing: bool,
    /// Whether limits or checkpointing are not what was asked for.
    pub narrower: bool,
    /// What the step then needs.
    pub estimate: Estimate,
}

/// A step that does not fit however it is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the job needs about {} with one sequence at a time (the longest has {tokens} tokens), and {} may be used: take a smaller model or use_4bit, shorter prompts, a shorter rollout.max_completion_length, a lower lora.rank, or more memory",
    size(*needed), size(*available)
)]
pub struct DoesNotFit {
    /// Bytes needed at the least.
    pub needed: u64,
    /// Tokens of the longest sequence, prompt and completion.
    pub tokens: u64,
    /// Bytes there are.
    pub available: u64,
}

/// Places whose logits an update holds at once (`gspo::log_probs`).
const LOGIT_CHUNK: u64 = 1024;
/// Copies of logits that stand at once: logits, softmax, gradient; and, in rollouts, the host's.
const LOGIT_COPIES: u64 = 3;
/// Program, allocator and tokenizer.
const PROGRAM: u64 = 40 << 20;

impl Requirements {
    /// Of `plan` with the model of this configuration, for `work` at `place`. `longest_prompt` is in tokens.
    #[must_use]
    pub fn new(config: &ModelConfig, plan: &Plan, place: Place, work: Work, longest_prompt: u64) -> Self {
        Self {
            count: Count::of(config, &plan.lora),
            place,
            work,
            quantisation: plan.quantisation,
            rows: plan.gspo.rollout_rows(),
            prompt: longest_prompt,
            completion: u64::from(plan.rollout.max_completion_length),
            checkpointing: plan.gspo.gradient_checkpointing,
        }
    }

    /// What a step needs under `limits`.
    #[must_use]
    pub fn under(&self, limits: Limits) -> Estimate {
        self.estimate(limits, self.checkpointing)
    }

    /// The widest limits, not above `wanted`, under which a step stays within `available` bytes. Blocks are run again
    /// where nothing else helps.
    ///
    /// # Errors
    /// When not even one sequence at a time fits.
    pub fn fit(&self, wanted: Limits, available: u64) -> Result<Fit, DoesNotFit> {
        let longest = usize::try_from(self.prompt + self.completion)
            .unwrap_or(usize::MAX)
            .max(1);
        let least = Limits {
            rollout_rows: 1,
            micro_batch_tokens: longest,
        };
        let mut needed = u64::MAX;
        for checkpointing in [self.checkpointing, true] {
            let estimate = |limits| self.estimate(limits, checkpointing);
            needed = needed.min(estimate(least).peak);
            if needed > available {
                continue;
            }
            let fits = |limits| estimate(limits).peak <= available;
            let limits = Limits {
                rollout_rows: widest(1, wanted.rollout_rows, |rollout_rows| {
                    fits(Limits {
                        rollout_rows,
                        ..least
                    })
                }),
                micro_batch_tokens: widest(longest, wanted.micro_batch_tokens, |micro_batch_tokens| {
                    fits(Limits {
                        micro_batch_tokens,
                        ..least
                    })
                }),
            };
            return Ok(Fit {
                limits,
                checkpointing,
                narrower: limits != wanted || checkpointing != self.checkpointing,
                estimate: estimate(limits),
            });
        }
        Err(DoesNotFit {
            needed,
            tokens: self.prompt + self.completion,
            available,
        })
    }

    fn estimate(&self, limits: Limits, checkpointing: bool) -> Estimate {
        let count = &self.count;
        let sequence = self.prompt + self.completion;
        let rows = self.drawn_together().min(limits.rollout_rows as u64);
        let step_tokens = self.rows * sequence;
        let micro = step_tokens.min((limits.micro_batch_tokens as u64).max(sequence));
        let trainable = count.trainable;
        let kept = if checkpointing {
            (count.layers + 2) * count.hidden + count.block_floats
        } else {
            count.layers * count.block_floats
        };
        let float = match self.place {
            Place::Cpu => 4,
            Place::Gpu => 2,
        };
        let kv_cache = rows * (sequence * count.cache_floats + count.state_floats) * float;
        let activations = micro * (kept + count.working_floats) * float;
        let (drawn, learnt) = (rows, LOGIT_CHUNK.min(micro));
        let logits = |places: u64| places * count.vocabulary * LOGIT_COPIES * 4;
        let weights = self.weights();
        let (adapter, gradients, optimizer) = (12 * trainable, 8 * trainable, 16 * trainable);
        let always = weights + adapter + optimizer + PROGRAM;
        Estimate {
            parameters: count.parameters,
            trainable,
            tokens_per_step: step_tokens,
            weights,
            adapter,
            gradients,
            optimizer,
            kv_cache,
            activations,
            logits: logits(drawn).max(logits(learnt)),
            program: PROGRAM,
            peak: always
                + match self.work {
                    Work::Training { .. } => {
                        (kv_cache + logits(drawn)).max(activations + logits(learnt) + gradients)
                    }
                    Work::Evaluation { .. } => kv_cache + logits(drawn),
                },
        }
    }

    /// Completions that would be generated together if nothing limited them.
    fn drawn_together(&self) -> u64 {
        match self.work {
            Work::Training { heldout } => self.rows.max(heldout),
            Work::Evaluation { heldout } => heldout,
        }
    }

    fn weights(&self) -> u64 {
        let width = match self.place {
            Place::Cpu => 4,
            Place::Gpu => 2,
        };
        match self.quantisation {
            Quantisation::None => self.count.parameters * width,
            // Half a byte, and 8 bits and a little for each block of 64.
            Quantisation::Nf4 => {
                let quantised = self.count.quantisable;
                quantised * 53 / 100 + (self.count.parameters - quantised) * width
            }
        }
    }
}

/// The largest number from `least` to `most` for which `fits` holds, which it does for `least`.
fn widest(least: usize, most: usize, fits: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (least, most.max(least));
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if fits(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

/// Bytes for people: `1.5 GiB`.
#[must_use]
pub fn size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{bytes} B")
    } else {
        format!("{value:.1} {}", units[unit])
    }
}

/// Bytes from `1.5GiB`, `800 MB` or a plain number.
///
/// # Errors
/// A text that is no size.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let unit: f64 = match text[digits..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "kib" | "k" => 1024.0,
        "mib" | "m" => 1024.0 * 1024.0,
        "gib" | "g" => 1024.0 * 1024.0 * 1024.0,
        "kb" => 1e3,
        "mb" => 1e6,
        "gb" => 1e9,
        _ => {
            return Err(format!(
                "{text:?} is no size: write 8GiB, 800MB or a number of bytes"
            ));
        }
    };
    match text[..digits].parse::<f64>() {
        Ok(number) if number > 0.0 => Ok((number * unit) as u64),
        Ok(_) | Err(_) => Err(format!(
            "{text:?} is no size: write 8GiB, 800MB or a number of bytes"
        )),
    }
}

#[cfg(test)]
mod tests;
