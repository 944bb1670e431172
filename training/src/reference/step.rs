//! AdamW updates of an adapter, clipping active, against TRL's loss under PyTorch.

use super::accumulation::{apart, some_groups_advantages};
use super::model::known_tokens;
use super::report::{Quantity, Tally};
use super::tensors::{Object, Tensors, json, numbers};
use super::{ReferenceError, Set};
use crate::adapter::Adapter;
use crate::gspo::log_probs::{Keep, Sequence, log_probs};
use crate::lora::Lora;
use crate::model::Decoder;
use crate::trainer::Plan;
use crate::trainer::replay::{Batch, Replayed, replay};
use gym_protocol::job::spec::JobFile;
use gym_protocol::tensor::TensorSet;
use std::path::PathBuf;

/// Values after the updates, and what is computed on their way.
const VALUES: f64 = 5e-5;
/// Gradients, relative to the largest of their tensor.
const GRADIENTS: f64 = 2e-4;

pub(super) fn compare(set: &Set<'_>, tally: &mut Tally) -> Result<(), ReferenceError> {
    let file = Tensors::open(&set.path("step.safetensors"))?;
    let all = json(&set.path("step.json"))?;
    let runs = all.as_object().into_iter().flatten();
    let runs: Vec<Run<'_>> = runs
        .map(|(name, value)| Run::read(name, Object { what: name, value }, &file))
        .collect::<Result<_, _>>()?;
    let first = runs
        .first()
        .ok_or_else(|| ReferenceError::Ours("step.json has no run".into()))?;
    let base = Base::find(set, first)?;
    for run in &runs {
        run.has_tokens_of(base.decoder.config().vocab_size)?;
        run.compare(&base, tally)?;
    }
    file.finish(tally);
    Ok(())
}

/// One run of the set.
struct Run<'a> {
    name: &'a str,
    settings: Object<'a>,
    file: &'a Tensors,
    batch: Batch,
    rewards: Vec<f64>,
    old: Vec<Vec<f64>>,
}

/// The model that is trained, with its adapter as it starts.
struct Base {
    decoder: Decoder,
    adapter: Adapter,
}

impl Base {
    /// The set does not name its model: it is the one whose adapter has the trained tensors' names and shapes, and
    /// under which the completions have their old log-probabilities.
    fn find(set: &Set<'_>, run: &Run<'_>) -> Result<Self, ReferenceError> {
        let folders = set.model_folders();
        let mut best: Option<(f64, Self)> = None;
        for dir in folders.iter().flat_map(|folder| model_dirs(folder)) {
            let Ok(adapter) = Adapter::load(&dir.join("adapter")) else {
                continue;
            };
            if !run.trains(&adapter.tensors) {
                continue;
            }
            let decoder = Decoder::load(&dir, &set.device()).map_err(ReferenceError::ours)?;
            run.has_tokens_of(decoder.config().vocab_size)?;
            let base = Self { decoder, adapter };
            let old = base.log_probs(run, &base.adapter.tensors, Model::Adapted)?;
            let distance = apart(&old.concat(), &run.old.concat());
            if best.as_ref().is_none_or(|(least, _)| distance < *least) {
                best = Some((distance, base));
            }
        }
        best.map(|(_, base)| base)
            .ok_or(ReferenceError::NoAdapter { folders })
    }

    fn log_probs(
        &self,
        run: &Run<'_>,
        adapter: &TensorSet,
        model: Model,
    ) -> Result<Vec<Vec<f64>>, ReferenceError> {
        let adapter = Adapter {
            tensors: adapter.clone(),
            ..self.adapter.clone()
        };
        let lora = Lora::from_adapter(&self.decoder, &adapter).map_err(ReferenceError::ours)?;
        let sequences: Vec<Sequence<'_>> = run
            .batch
            .prompts
            .iter()
            .zip(&run.batch.completions)
            .map(|(prompt, completion)| Sequence { prompt, completion })
            .collect();
        let lora = (model == Model::Adapted).then_some(&lora);
        Ok(log_probs(
            &self.decoder,
            lora,
            &sequences,
            run.settings.number("temperature")?,
            Keep::All,
        )
        .rows)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Model {
    Bare,
    Adapted,
}

fn model_dirs(folder: &std::path::Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut dirs: Vec<PathBuf> = entries
        .map(|e| e.path())
        .filter(|d| d.join("config.json").is_file() && d.join("adapter").is_dir())
        .collect();
    dirs.sort();
    dirs
}

impl<'a> Run<'a> {
    fn read(name: &'a str, settings: Object<'a>, file: &'a Tensors) -> Result<Self, ReferenceError> {
        let tensor = |part: &str| format!("{name}.{part}");
        let rows = |part: &str| {
            file.unmasked(
                &file.ids(&tensor(&format!("{part}_ids")))?,
                &tensor(&format!("{part}_mask")),
            )
        };
        let mask = tensor("completion_mask");
        Ok(Self {
            batch: Batch {
                prompts: rows("prompt")?,
                completions: rows("completion")?,
                advantages: file.numbers(&tensor("advantages"))?,
            },
            rewards: file.numbers(&tensor("rewards"))?,
            old: file.unmasked(&file.numbers(&tensor("old_logps"))?, &mask)?,
            name,
            settings,
            file,
        })
    }

    fn tensor(&self, part: &str) -> String {
        format!("{}.{part}", self.name)
    }

    /// Whether these are the tensors that the run ends with.
    fn trains(&self, adapter: &TensorSet) -> bool {
        let prefix = self.tensor("final.");
        let count = self.file.names().filter(|n| n.starts_with(&prefix)).count();
        count == adapter.0.len()
            && adapter.0.iter().all(|(name, tensor)| {
                let shape: Vec<usize> = tensor.shape.iter().map(|n| *n as usize).collect();
                self.file
                    .shape(&format!("{prefix}{}", bare(name)))
                    .is_ok_and(|s| s == shape)
            })
    }

    /// Refuses what no model can be run on: an empty prompt or completion, an id beyond the vocabulary, a row without
    /// its advantage.
    fn has_tokens_of(&self, vocab: usize) -> Result<(), ReferenceError> {
        let Batch {
            prompts,
            completions,
            advantages,
        } = &self.batch;
        let whole = prompts.len() == completions.len() && advantages.len() == completions.len();
        if !whole || prompts.iter().chain(completions).any(Vec::is_empty) {
            let name = self.name;
            return Err(ReferenceError::Ours(format!(
                "{name} has a row without a prompt, a completion or an advantage"
            )));
        }
        let ids = prompts.iter().chain(completions).flatten();
        known_tokens(ids, vocab, self.name)
    }

    fn compare(&self, base: &Base, tally: &mut Tally) -> Result<(), ReferenceError> {
        some_groups_advantages(&self.rewards, &self.batch.advantages, self.name, tally);
        let reference = self.file.numbers(&self.tensor("ref_logps"))?;
        let reference = self.file.unmasked(&reference, &self.tensor("completion_mask"))?;
        let start = &base.adapter.tensors;
        let old = base.log_probs(self, start, Model::Adapted)?;
        let what = Quantity::absolute("old_logps", VALUES);
        tally.numbers(what, self.name, &old.concat(), &self.old.concat());
        let bare = base.log_probs(self, start, Model::Bare)?;
        let what = Quantity::absolute("ref_logps", VALUES);
        tally.numbers(what, self.name, &bare.concat(), &reference.concat());

        let steps = self.settings.items("losses")?.len();
        let after: Vec<Replayed> = (1..=steps)
            .map(|updates| {
                replay(
                    &base.decoder,
                    &self.plan(updates, base)?,
                    &base.adapter,
                    &self.batch,
                )
                .map_err(ReferenceError::ours)
            })
            .collect::<Result<_, _>>()?;
        self.compare_numbers(&after, tally)?;
        self.compare_ratios(base, &after, &old, tally)?;
        self.compare_gradients(&after, tally)?;
        self.compare_final(&after, tally)
    }

    fn plan(&self, updates: usize, base: &Base) -> Result<Plan, ReferenceError> {
        let settings = self.settings;
        let adam = settings
            .get("adam")
            .ok_or_else(|| settings.no("adam", "object"))?;
        let adam = Object {
            what: "adam",
            value: adam,
        };
        let betas = adam.numbers("betas")?;
        let [beta1, beta2] = betas[..] else {
            return Err(adam.no("betas", "pair of numbers"));
        };
        let flag = settings
            .get("use_bias_correction_kl")
            .and_then(serde_json::Value::as_bool);
        let job = JobFile::parse(BLANK_JOB).map_err(ReferenceError::ours)?;
        let mut plan = Plan::from(&job);
        let gspo = &mut plan.gspo;
        gspo.beta = settings.number("beta")?;
        gspo.kl_bias_correction = flag.unwrap_or(false);
        gspo.epsilon_low = Some(settings.number("eps_low")?);
        gspo.epsilon_high = Some(settings.number("eps_high")?);
        gspo.learning_rate = settings.number("lr")?;
        gspo.adam_beta1 = beta1;
        gspo.adam_beta2 = beta2;
        gspo.adam_epsilon = adam.number("eps")?;
        gspo.weight_decay = adam.number("weight_decay")?;
        gspo.max_grad_norm = settings.number("max_grad_norm")?;
        gspo.num_iterations = updates as u32;
        plan.rollout.temperature = settings.number("temperature")?;
        plan.rollout.max_completion_length = self.file.width(&self.tensor("completion_mask"))? as u32;
        plan.lora = base.adapter.lora.clone();
        Ok(plan)
    }

    /// Losses, norms, clip fractions and KL, update by update.
    fn compare_numbers(&self, after: &[Replayed], tally: &mut Tally) -> Result<(), ReferenceError> {
        let Some(last) = after.last() else {
            return Ok(());
        };
        for key in ["losses", "losses_f64"] {
            let what = Quantity::absolute(key, VALUES);
            tally.numbers(what, self.name, &last.losses, &self.settings.numbers(key)?);
        }
        let key = "grad_norms_before_clip";
        let norms = self.settings.numbers(key)?;
        tally.exact("updates", self.name, &[norms.len()], &[last.grad_norms.len()]);
        for (got, want) in last.grad_norms.iter().zip(&norms) {
            tally.number(Quantity::relative(key, GRADIENTS), self.name, *got, *want);
        }
        let (mut clipped, mut kl) = (Vec::new(), Vec::new());
        for (i, replayed) in after.iter().enumerate() {
            // Metrics are summed over updates: the last one's are the difference.
            let mut one = replayed.metrics;
            if let Some(before) = i.checked_sub(1).map(|i| after[i].metrics) {
                one.kl_sum -= before.kl_sum;
                one.tokens -= before.tokens;
                one.clipped_low -= before.clipped_low;
                one.clipped_high -= before.clipped_high;
                one.ratios -= before.ratios;
            }
            clipped.push(one.clip_region());
            kl.push(one.kl());
        }
        tally.numbers(
            Quantity::absolute("clip_ratio", 1e-6),
            self.name,
            &clipped,
            &self.settings.numbers("clip_ratio")?,
        );
        tally.numbers(
            Quantity::relative("kl", VALUES),
            self.name,
            &kl,
            &self.settings.numbers("kl")?,
        );
        Ok(())
    }

    /// s_i of each row before each update.
    fn compare_ratios(
        &self,
        base: &Base,
        after: &[Replayed],
        old: &[Vec<f64>],
        tally: &mut Tally,
    ) -> Result<(), ReferenceError> {
        let ratios = self.settings.items("ratios_before_each_step")?;
        tally.exact("updates", self.name, &[ratios.len()], &[after.len()]);
        for (step, want) in ratios.iter().enumerate() {
            let want = want.as_array().and_then(|l| numbers(l));
            let want = want.ok_or_else(|| self.settings.no("ratios_before_each_step", "lists of numbers"))?;
            let adapter = match step.checked_sub(1) {
                None => &base.adapter.tensors,
                Some(before) => {
                    &after
                        .get(before)
                        .ok_or_else(|| self.settings.no("losses", "loss for each step"))?
                        .adapter
                }
            };
            let new = base.log_probs(self, adapter, Model::Adapted)?;
            let ratio = |(new, old): (&Vec<f64>, &Vec<f64>)| {
                let sum: f64 = new.iter().zip(old).map(|(n, o)| n - o).sum();
                (sum / new.len().max(1) as f64).exp()
            };
            let got: Vec<f64> = new.iter().zip(old).map(ratio).collect();
            let what = Quantity::absolute("ratios_before_each_step", VALUES);
            tally.numbers(what, &format!("{}, step {step}", self.name), &got, &want);
        }
        Ok(())
    }

    /// The gradients that the set holds (`grad0`, …), read back from AdamW: m₁ = (1 − β₁)·c₁·g₁, m₂ = β₁·m₁ + (1 − β₁)·c₂·g₂ with the clipping
    /// factors c.
    fn compare_gradients(&self, after: &[Replayed], tally: &mut Tally) -> Result<(), ReferenceError> {
        let max = self.settings.number("max_grad_norm")?;
        let adam = self
            .settings
            .get("adam")
            .and_then(|a| a["betas"][0].as_f64())
            .unwrap_or(0.9);
        for (step, replayed) in after.iter().enumerate() {
            let name = format!("grad{step}");
            let prefix = self.tensor(&format!("{name}."));
            if step > 0 && !self.file.names().any(|n| n.starts_with(&prefix)) {
                continue;
            }
            let clip = (max / (replayed.grad_norms[step] + 1e-6)).min(1.0);
            for (tensor, moments) in &replayed.first_moments.0 {
                let before = step
                    .checked_sub(1)
                    .and_then(|s| after[s].first_moments.0.get(tensor));
                let gradient: Vec<f64> = moments
                    .data
                    .iter()
                    .enumerate()
                    .map(|(i, m)| {
                        let kept = before.map_or(0.0, |b| adam * f64::from(b.data[i]));
                        (f64::from(*m) - kept) / ((1.0 - adam) * clip)
                    })
                    .collect();
                let want = self
                    .file
                    .numbers(&self.tensor(&format!("{name}.{}", bare(tensor))))?;
                let place = format!("{} {}", self.name, bare(tensor));
                tally.numbers(Quantity::relative(&name, GRADIENTS), &place, &gradient, &want);
            }
        }
        Ok(())
    }

    fn compare_final(&self, after: &[Replayed], tally: &mut Tally) -> Result<(), ReferenceError> {
        let Some(last) = after.last() else {
            return Ok(());
        };
        for (tensor, values) in &last.adapter.0 {
            let got: Vec<f64> = values.data.iter().map(|v| f64::from(*v)).collect();
            let want = self
                .file
                .numbers(&self.tensor(&format!("final.{}", bare(tensor))))?;
            let place = format!("{} {}", self.name, bare(tensor));
            tally.numbers(Quantity::absolute("final", VALUES), &place, &got, &want);
        }
        Ok(())
    }
}

fn bare(name: &str) -> &str {
    name.strip_prefix("base_model.model.").unwrap_or(name)
}

/// A job of defaults; everything that matters is set from the set.
const BLANK_JOB: &str = "name = \"reference\"\nmodel = \"-\"\ntrain = \"-\"\nheldout = \"-\"\nuse_4bit = false\n\
                         rewards = [{ name = \"exact\" }]\n[schedule]\nrounds = 1\n";
