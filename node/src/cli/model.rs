//! What `generate` and `eval` share: a model with its tokenizer and, perhaps, an adapter.

use crate::config::DeviceChoice;
use gym_training::adapter::Adapter;
use gym_training::device;
use gym_training::lora::Lora;
use gym_training::model::{Decoder, Loading, Precision};
use gym_training::quant::Quantisation;
use gym_training::tokenizer::TextTokenizer;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(super) struct ModelArgs {
    /// The model: a Hugging Face directory
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    /// An adapter for it: a PEFT directory, such as a job's checkpoint
    #[arg(long, value_name = "DIR")]
    adapter: Option<PathBuf>,
    /// Hold the model's linear layers in four bits a value, as jobs with use_4bit do
    #[arg(long)]
    use_4bit: bool,
    /// Where tensors live: auto, cpu or cuda:N
    #[arg(long, env = "HANZOD_DEVICE", default_value = "auto", value_name = "DEVICE")]
    device: DeviceChoice,
}

/// A model ready to answer.
pub(super) struct Model {
    pub(super) decoder: Decoder,
    pub(super) lora: Option<Lora>,
    pub(super) tokenizer: TextTokenizer,
}

impl ModelArgs {
    pub(super) fn load(&self) -> anyhow::Result<Model> {
        let device = device::resolve(self.device)?.device;
        let quantisation = match self.use_4bit {
            true => Quantisation::Nf4,
            false => Quantisation::None,
        };
        let loading = Loading {
            quantisation,
            precision: Precision::for_device(&device),
        };
        let tokenizer = TextTokenizer::load(&self.model)?;
        let decoder = Decoder::load_as(&self.model, &device, loading)?;
        let decoder = decoder.drawing_below(tokenizer.id_limit());
        let lora = match &self.adapter {
            Some(dir) => {
                let adapter = Adapter::load(dir)?;
                Some(Lora::from_adapter(&decoder, &adapter)?)
            }
            None => None,
        };
        Ok(Model {
            decoder,
            lora,
            tokenizer,
        })
    }
}

/// How completions are drawn.
#[derive(Debug, clap::Args)]
pub(super) struct DrawArgs {
    /// Softmax temperature; 0 takes the likeliest token each time
    #[arg(long, default_value_t = 0.0)]
    pub(super) temperature: f64,
    /// Completions a prompt; more than one needs a temperature
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(super) samples: u32,
    /// Seed of the noise
    #[arg(long, default_value_t = 0)]
    pub(super) seed: u64,
    /// Completions are cut here, in tokens
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub(super) max_tokens: u32,
}

impl DrawArgs {
    /// Fails where several greedy completions are asked for: they would all be the same.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            self.temperature.is_finite() && self.temperature >= 0.0,
            "--temperature is {}; it must be 0 or above",
            self.temperature
        );
        anyhow::ensure!(
            self.samples == 1 || self.is_drawn(),
            "--samples {} without --temperature would give the same completion each time",
            self.samples
        );
        Ok(())
    }

    pub(super) fn is_drawn(&self) -> bool {
        self.temperature > 0.0
    }
}
