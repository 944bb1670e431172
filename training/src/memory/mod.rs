//! Memory foreseen: what a step needs by part, and the limits under which it fits.
//!
//! Figures come from `config.json` and the job alone. Activations are counted from what the operations keep for their
//! backward pass. `tests/step_memory.rs` holds the sums against the allocator's count, docs/results.md against processes.

mod count;
mod host;
mod limit;

pub use host::{available, peak};
pub use limit::{Budget, MemoryLimit, Work};

use crate::model::ModelConfig;
use crate::trainer::{Limits, Plan, Quantisation};
use count::{Count, Kept};
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
    /// Completions of a step, of a prompt, and of an optimizer update.
    rows: u64,
    group: u64,
    update_rows: u64,
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
    /// Bytes of the second copy of linear layers and head that rollouts draw from, the adapter in it.
    pub merged: u64,
    /// Bytes of the adapter, on the host and on the device, with the copy that a failed step falls back to.
    pub adapter: u64,
    /// Bytes of the adapter's gradients.
    pub gradients: u64,
    /// Bytes of the optimizer's moments, with their copy.
    pub optimizer: u64,
    /// Bytes of keys and values of the completions that are generated together.
    pub kv_cache: u64,
    /// Bytes that the blocks keep for the backward pass of a micro-batch, and of gradients on their way.
    pub activations: u64,
    /// Bytes of logits, of rollout or update, whichever is more.
    pub logits: u64,
    /// Bytes of program, tokenizer and questions, roughly.
    pub program: u64,
    /// Bytes at the worst moment: rollouts and updates take turns.
    pub peak: u64,
}

/// Bytes while completions are drawn.
struct Rollout {
    merged: u64,
    kv_cache: u64,
    working: u64,
    logits: u64,
}

/// Bytes while the adapter is changed.
struct Update {
    activations: u64,
    logits: u64,
    /// At the worst moment.
    most: u64,
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
/// Copies of logits that stand at once: as they are and as log-probabilities or their gradient.
const LOGIT_COPIES: u64 = 2;
/// The same in rollouts: the device's, and the host's by row.
const DRAWN_COPIES: u64 = 3;
/// Program, allocator and tokenizer.
const PROGRAM: u64 = 16 << 20;

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
            group: u64::from(plan.gspo.group_size).max(1),
            update_rows: plan
                .gspo
                .rollout_rows()
                .div_ceil(u64::from(plan.gspo.minibatches).max(1)),
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
        let trainable = self.count.trainable;
        let rollout = self.rollout(limits);
        let update = self.update(limits, checkpointing);
        let weights = self.weights();
        // As drawn from, and while it is changed: with what a failed step falls back to, and the graph's own.
        let (held, adapter) = (12 * trainable, 20 * trainable);
        let (moments, optimizer) = (8 * trainable, 16 * trainable);
        let gradients = 8 * trainable;
        let drawing = held + moments + rollout.merged + rollout.kv_cache + rollout.working + rollout.logits;
        let learning = adapter + optimizer + gradients + update.most;
        let worst = match self.work {
            Work::Training { .. } => drawing.max(learning),
            Work::Evaluation { .. } => drawing,
        };
        Estimate {
            parameters: self.count.parameters,
            trainable,
            tokens_per_step: self.rows * (self.prompt + self.completion),
            weights,
            merged: rollout.merged,
            adapter,
            gradients,
            optimizer,
            kv_cache: rollout.kv_cache,
            activations: update.activations,
            logits: rollout.logits.max(update.logits),
            program: PROGRAM,
            peak: PROGRAM + weights + worst,
        }
    }

    fn rollout(&self, limits: Limits) -> Rollout {
        let count = &self.count;
        let rows = self.drawn_together().min(limits.rollout_rows as u64);
        // A group shares its prompt; held-out questions have one each.
        let prompts = match self.work {
            Work::Training { heldout } => rows.min(self.rows.div_ceil(self.group).max(heldout)),
            Work::Evaluation { .. } => rows,
        };
        let cached = rows * ((self.prompt + self.completion) * count.cache_floats + count.state_floats);
        let merged = match (self.place, self.quantisation) {
            (Place::Gpu, _) => 0,
            (Place::Cpu, Quantisation::None) => count.merged + count.merged_head,
            (Place::Cpu, Quantisation::Nf4) => count.merged_head,
        };
        Rollout {
            merged: merged * self.float(),
            // A layer is copied when rows join or leave.
            kv_cache: (cached + cached / count.layers.max(1)) * self.float(),
            working: (prompts * self.prompt).max(rows) * count.forward_floats * self.computed(),
            logits: rows * count.vocabulary * DRAWN_COPIES * 4,
        }
    }

    fn update(&self, limits: Limits, checkpointing: bool) -> Update {
        let count = &self.count;
        let limit = (limits.micro_batch_tokens as u64).max(self.prompt + self.completion);
        let prompts = self.rows.div_ceil(self.group);
        let packed = |rows: u64| (prompts.min(rows) * self.prompt + rows * self.completion).min(limit);
        let float = self.computed();
        let logits = |tokens: u64| LOGIT_CHUNK.min(tokens) * count.vocabulary * LOGIT_COPIES * 4;
        let kept = |kept: Kept| kept.token + kept.place * self.padding() / 100;
        let tokens = packed(self.update_rows);
        // Final norm and what is read of it; with blocks run again, every block's input.
        let (inputs, blocks, again) = if checkpointing {
            (count.layers + 3, 0, kept(count.block))
        } else {
            (3, kept(count.blocks), 0)
        };
        let held = tokens * (inputs * count.hidden + blocks) * float;
        let backward = tokens * (again + count.backward_floats) * float;
        // Log-probabilities that stay fixed are taken of all rows first, with nothing kept.
        let all = packed(self.rows);
        let fixed = (all * count.forward_floats * float).max(logits(all));
        let activations = held + backward;
        Update {
            activations,
            logits: logits(tokens),
            most: activations.max(held + logits(tokens)).max(fixed),
        }
    }

    /// Places of a delta-net's chunks for a hundred tokens: prompts and completions are padded to whole chunks.
    fn padding(&self) -> u64 {
        const CHUNK: u64 = 32;
        let tokens = self.prompt + self.group * self.completion;
        let places =
            self.prompt.next_multiple_of(CHUNK) + self.group * self.completion.next_multiple_of(CHUNK);
        (100 * places).div_ceil(tokens.max(1))
    }

    /// Bytes of a value that is held: a weight, a key.
    fn float(&self) -> u64 {
        match self.place {
            Place::Cpu => 4,
            Place::Gpu => 2,
        }
    }

    /// Bytes of a value that is computed with.
    fn computed(&self) -> u64 {
        match self.place {
            Place::Cpu => self.count.cpu_float,
            Place::Gpu => 2,
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
        let width = self.float();
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
