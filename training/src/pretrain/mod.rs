//! Trains a small model from nothing, for `hanzod pretrain`: corpus, tokenizer, decoder and optimizer from one
//! configuration and one seed.
//!
//! Every batch is a function of (seed, step), so a run that was killed goes on from its last checkpoint as if it
//! never stopped.

mod card;
mod checkpoint;
mod config;
mod corpus;
mod progress;
mod vocabulary;

pub use config::{OptimizerConfig, PretrainConfig, PretrainConfigError, Shape, Stage};
pub use corpus::{Corpus, Example, QuestionConfig, Style};
pub use progress::{Progress, observer};
pub use vocabulary::{INSTRUCTION, write_tokenizer};

use crate::data::{DataError, read_questions};
use crate::model::{Decoder, LoadError, Packed, SaveError, WeightsError};
use crate::tokenizer::{EncodeError, TextTokenizer, TokenizerError};
use burn::tensor::{Device, Int, Tensor, TensorData, activation};
use checkpoint::Checkpoint;
use gym_protocol::job::spec::ColumnsSpec;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Why pretraining stopped.
#[derive(Debug, thiserror::Error)]
pub enum PretrainError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] PretrainConfigError),
    /// The held-out questions that the corpus must not hold.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The tokenizer just written does not load.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A text of the corpus cannot be encoded.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// The model cannot be assembled.
    #[error(transparent)]
    Model(#[from] LoadError),
    /// A file cannot be written.
    #[error(transparent)]
    Save(#[from] SaveError),
    /// A checkpoint cannot be read.
    #[error("the checkpoint cannot be read: {0}; delete the checkpoint folder to start again")]
    Checkpoint(#[from] WeightsError),
    /// A checkpoint of another configuration.
    #[error(
        "{dir}: {reason}; delete the folder to start again, or restore the configuration it was made with"
    )]
    OtherRun {
        /// The checkpoint folder.
        dir: PathBuf,
        /// What differs.
        reason: String,
    },
    /// The loss or a gradient is not a number.
    #[error(
        "step {step}: the loss is {loss} and it or its gradient is not finite; lower optimizer.learning_rate"
    )]
    NotFinite {
        /// The step.
        step: u64,
        /// Its loss.
        loss: f64,
    },
}

/// What a finished run did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Optimizer steps, those before a restart included.
    pub steps: u64,
    /// Tokens of the corpus seen, padding left out.
    pub tokens: u64,
    /// Mean loss over the last hundredth of the steps, nats a completion token.
    pub loss: f64,
    /// Parameters of the model.
    pub parameters: u64,
}

/// Trains and writes a Hugging Face directory to `out`. Checkpoints lie in `out/checkpoint` until the end; a run
/// that finds one goes on from it.
///
/// # Errors
/// An unusable configuration or question file, a full disk, a loss that is not finite.
pub fn run(
    config: &PretrainConfig,
    out: &Path,
    observe: &mut dyn FnMut(&Progress),
) -> Result<Summary, PretrainError> {
    config.check()?;
    let mut run = Run::start(config, out)?;
    while run.checkpoint.step < config.steps() {
        let progress = run.step()?;
        observe(&progress);
        if run.checkpoint.step.is_multiple_of(config.checkpoint_every) {
            run.checkpoint.save(&run.checkpoint_dir)?;
        }
    }
    run.finish(out)
}

/// A run between two steps.
struct Run<'a> {
    config: &'a PretrainConfig,
    corpus: Corpus,
    tokenizer: TextTokenizer,
    skeleton: Decoder,
    checkpoint: Checkpoint,
    checkpoint_dir: PathBuf,
    started: Instant,
    tokens_at_start: u64,
}

impl<'a> Run<'a> {
    fn start(config: &'a PretrainConfig, out: &Path) -> Result<Self, PretrainError> {
        write_tokenizer(out)?;
        let tokenizer = TextTokenizer::load(out)?;
        let heldout = match &config.heldout {
            Some(path) => read_questions(path, &ColumnsSpec::default())?,
            None => Vec::new(),
        };
        let skeleton = Decoder::init(config.model_config(&tokenizer), config.seed, &Device::flex())?;
        let checkpoint_dir = out.join("checkpoint");
        let checkpoint = match Checkpoint::load(&checkpoint_dir, &config.fingerprint(), config.adamw())? {
            Some(checkpoint) => checkpoint,
            None => Checkpoint::fresh(config.fingerprint(), skeleton.weights().to_host(), config.adamw()),
        };
        Ok(Self {
            corpus: Corpus::new(config.seed, config.questions.clone(), &heldout),
            tokens_at_start: checkpoint.tokens,
            started: Instant::now(),
            config,
            tokenizer,
            skeleton,
            checkpoint,
            checkpoint_dir,
        })
    }

    fn step(&mut self) -> Result<Progress, PretrainError> {
        let step = self.checkpoint.step;
        let rows = self.batch(step)?;
        let model = self.skeleton.with_host(&self.checkpoint.weights)?.tracked()?;
        let targets: usize = rows.iter().map(Row::targets).sum();
        let (mut loss, mut gradients) = (0.0, vec![0.0; self.checkpoint.weights.elements()]);
        for part in rows.chunks(rows.len().div_ceil(self.config.micro_batches)) {
            let (part_loss, part_gradients) = part_gradients(&model, part, targets);
            loss += part_loss;
            gradients
                .iter_mut()
                .zip(part_gradients)
                .for_each(|(sum, g)| *sum += g);
        }
        let learning_rate = self.config.learning_rate(step);
        let norm = self.checkpoint.update(&gradients, learning_rate);
        let norm = norm
            .ok()
            .filter(|_| loss.is_finite())
            .ok_or(PretrainError::NotFinite { step, loss })?;
        self.checkpoint.count(
            rows.iter().map(|row| row.ids.len() as u64).sum(),
            loss,
            self.config.steps(),
        );
        Ok(self.progress(loss, norm, learning_rate))
    }

    /// The step's examples as ids, shortest first, so that a part of the batch is little padded.
    fn batch(&self, step: u64) -> Result<Vec<Row>, PretrainError> {
        let stage = self.config.stage(step);
        let mut rows = (0..stage.batch)
            .map(|place| {
                Row::new(
                    &self.corpus.example(step, place, stage.running_share),
                    &self.tokenizer,
                )
            })
            .collect::<Result<Vec<_>, _>>()?;
        rows.sort_by_key(|row| row.ids.len());
        Ok(rows)
    }

    fn progress(&self, loss: f64, gradient_norm: f64, learning_rate: f64) -> Progress {
        let seconds = self.started.elapsed().as_secs_f64();
        Progress {
            step: self.checkpoint.step,
            steps: self.config.steps(),
            loss,
            gradient_norm,
            learning_rate,
            tokens: self.checkpoint.tokens,
            tokens_per_second: (self.checkpoint.tokens - self.tokens_at_start) as f64 / seconds,
        }
    }

    fn finish(self, out: &Path) -> Result<Summary, PretrainError> {
        self.skeleton.with_host(&self.checkpoint.weights)?.save(out)?;
        let summary = Summary {
            steps: self.checkpoint.step,
            tokens: self.checkpoint.tokens,
            loss: self.checkpoint.final_loss(),
            parameters: self
                .checkpoint
                .weights
                .0
                .values()
                .map(|t| t.data.len() as u64)
                .sum(),
        };
        card::write(out, self.config, &summary)?;
        Checkpoint::remove(&self.checkpoint_dir)?;
        Ok(summary)
    }
}

/// One example as ids; what stands from `prompt` on is learnt.
struct Row {
    ids: Vec<u32>,
    prompt: usize,
}

impl Row {
    fn new(example: &Example, tokenizer: &TextTokenizer) -> Result<Self, EncodeError> {
        let mut ids = tokenizer.encode(&example.question)?;
        let prompt = ids.len();
        ids.extend(tokenizer.encode(&example.completion)?);
        ids.push(tokenizer.eos_ids()[0]);
        Ok(Self { ids, prompt })
    }

    fn targets(&self) -> usize {
        self.ids.len() - self.prompt
    }
}

/// −Σ log p(completion token) / `targets` over these rows, and its gradients.
fn part_gradients(model: &Decoder, rows: &[Row], targets: usize) -> (f64, Vec<f32>) {
    let ids: Vec<&[u32]> = rows.iter().map(|row| row.ids.as_slice()).collect();
    let batch = Packed::rows(&ids);
    let (places, wanted) = predictions(rows, &batch);
    let count = places.len();
    let device = model.device().clone();
    let wanted = Tensor::<2, Int>::from_data(TensorData::new(wanted, [count, 1]), &device);
    let hidden = model.hidden_at(&batch, None, &places);
    let log_probs = activation::log_softmax(model.logits(hidden), 1).gather(1, wanted);
    let loss = log_probs.sum().div_scalar(-(targets as f64));
    let value = loss.to_data().iter::<f64>().next().unwrap_or(f64::NAN);
    let mut gradients = loss.backward();
    (value, model.take_gradients(&mut gradients).flatten())
}

/// Packed places whose next token is learnt, and that token.
fn predictions(rows: &[Row], packed: &Packed) -> (Vec<usize>, Vec<i64>) {
    let all = rows.iter().zip(packed.segments()).flat_map(|(row, segment)| {
        let start = segment.places.start;
        (row.prompt..row.ids.len()).map(move |at| (start + at - 1, i64::from(row.ids[at])))
    });
    all.unzip()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiny() -> PretrainConfig {
        PretrainConfig {
            checkpoint_every: 2,
            ..toml::from_str(
                "seed = 3\n[shape]\nlayers = 1\nhidden = 16\nheads = 2\nkv_heads = 1\nhead_dim = 8\nmlp = 32\n\
                 [[stages]]\nsteps = 6\nbatch = 8\nrunning_share = 0.5\n\
                 [optimizer]\nwarmup_steps = 4\n",
            )
            .unwrap()
        }
    }

    #[test]
    fn the_loss_falls_and_the_directory_loads() {
        let out = tempfile::tempdir().unwrap();
        let mut config = tiny();
        config.stages[0].steps = 30;
        let mut losses = Vec::new();
        let summary = run(&config, out.path(), &mut |p| losses.push(p.loss)).unwrap();
        assert_eq!((summary.steps, losses.len()), (30, 30));
        assert!(losses[29] < 0.8 * losses[0], "{losses:?}");
        let model = Decoder::load(out.path(), &Device::flex()).unwrap();
        let tokenizer = TextTokenizer::load(out.path()).unwrap();
        assert_eq!(model.config().vocab_size, tokenizer.vocab_size());
        assert!(!out.path().join("checkpoint").exists());
        assert!(
            std::fs::read_to_string(out.path().join("README.md"))
                .unwrap()
                .contains("seed 3")
        );
    }

    #[test]
    fn a_resumed_run_is_the_uninterrupted_one() {
        let (whole, cut) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        run(&tiny(), whole.path(), &mut |_| ()).unwrap();
        {
            let config = tiny();
            let mut half = Run::start(&config, cut.path()).unwrap();
            for _ in 0..2 {
                half.step().unwrap();
            }
            half.checkpoint.save(&half.checkpoint_dir).unwrap();
            half.step().unwrap();
        }
        run(&tiny(), cut.path(), &mut |_| ()).unwrap();
        let bytes = |dir: &tempfile::TempDir| std::fs::read(dir.path().join("model.safetensors")).unwrap();
        assert_eq!(bytes(&whole), bytes(&cut));
    }

    #[test]
    fn another_configurations_checkpoint_is_refused() {
        let out = tempfile::tempdir().unwrap();
        let config = tiny();
        Run::start(&config, out.path())
            .unwrap()
            .checkpoint
            .save(&out.path().join("checkpoint"))
            .unwrap();
        let mut other = tiny();
        other.seed = 4;
        assert!(matches!(
            run(&other, out.path(), &mut |_| ()),
            Err(PretrainError::OtherRun { .. })
        ));
    }
}
