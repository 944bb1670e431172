//! `hanzod generate`.

use super::Context;
use super::model::{DrawArgs, Model, ModelArgs};
use super::output::{self, Output};
use gym_training::data::Prompt;
use gym_training::generate::{Completion, Draw, Finish, GenerateConfig, Request, generate};
use gym_training::sampling::{Filters, RolloutKey};
use serde_json::json;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// What to complete; rendered by the model's chat template where it has one
    #[arg(long, value_name = "TEXT")]
    prompt: String,
    #[command(flatten)]
    draw: DrawArgs,
}

pub(super) fn main(context: &Context, args: &Args) -> anyhow::Result<()> {
    args.draw.check()?;
    let model = args.model.load()?;
    let prompt = model
        .tokenizer
        .encode_prompt(&Prompt::Text(args.prompt.clone()))?;
    let requests = [Request {
        prompt: &prompt,
        draws: draws(&args.draw),
    }];
    let completions = generate(
        &model.decoder,
        model.lora.as_ref(),
        &requests,
        &config(&model, &args.draw),
    )?;
    for completion in completions.iter().flatten() {
        show(context.output, &model, completion)?;
    }
    Ok(())
}

fn draws(args: &DrawArgs) -> Vec<Draw> {
    if !args.is_drawn() {
        return vec![Draw::Greedy];
    }
    let key = RolloutKey::offline(args.seed);
    (0..args.samples)
        .map(|sample| Draw::Noise(key.noise(0, 0, sample)))
        .collect()
}

fn config(model: &Model, args: &DrawArgs) -> GenerateConfig {
    let mut filters = Filters::default();
    if args.is_drawn() {
        filters.temperature = args.temperature;
    }
    GenerateConfig {
        filters,
        max_new_tokens: args.max_tokens as usize,
        eos: model.tokenizer.eos_ids().to_vec(),
        pad: model.tokenizer.pad_id(),
        stop: None,
        max_rows: 64,
    }
}

/// Plain text, or one JSON object a completion.
fn show(output: Output, model: &Model, completion: &Completion) -> anyhow::Result<()> {
    let text = model.tokenizer.decode(&completion.tokens)?;
    let value = json!({
        "text": text,
        "tokens": completion.tokens,
        "log_probs": completion.log_probs,
        "finish": match completion.finish {
            Finish::Eos => "eos",
            Finish::Stop => "stop",
            Finish::Length => "length",
        },
    });
    match output {
        Output::Json => output::line(&value.to_string()),
        Output::Plain => output::line(&text),
    }
    Ok(())
}
