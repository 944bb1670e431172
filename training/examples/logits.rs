//! `logits MODEL ADAPTER < IDS > LOGITS`: what `scripts/peft-check` holds against Hugging Face PEFT.
//!
//! MODEL and ADAPTER are directories in Hugging Face's and PEFT's formats. IDS is a JSON array with an array of token
//! ids for each prompt. LOGITS is a JSON object: `base` and `adapted`, each [prompt][place][vocabulary].

use burn::tensor::Device;
use gym_training::adapter::Adapter;
use gym_training::lora::Lora;
use gym_training::model::{Decoder, Packed};
use std::io::Write;
use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(model), Some(adapter)) = (arguments.next(), arguments.next()) else {
        return Err("usage: logits MODEL ADAPTER < IDS > LOGITS".into());
    };
    let prompts: Vec<Vec<u32>> = serde_json::from_reader(std::io::stdin().lock())?;
    let decoder = Decoder::load(Path::new(&model), &Device::flex())?;
    let adapter = Adapter::load(Path::new(&adapter))?;
    let lora = Lora::from_adapter(&decoder, &adapter)?;
    let all = |lora: Option<&Lora>| {
        prompts
            .iter()
            .map(|ids| logits(&decoder, lora, ids))
            .collect::<Vec<_>>()
    };
    let result = serde_json::json!({ "base": all(None), "adapted": all(Some(&lora)) });
    writeln!(std::io::stdout().lock(), "{result}")?;
    Ok(())
}

/// Logits at every place of one prompt, [place][vocabulary].
fn logits(decoder: &Decoder, lora: Option<&Lora>, ids: &[u32]) -> Vec<Vec<f32>> {
    let batch = Packed::rows(&[ids]);
    let logits = decoder.logits(decoder.hidden(&batch, lora));
    let flat: Vec<f32> = logits.to_data().iter::<f32>().collect();
    flat.chunks(decoder.config().vocab_size)
        .map(<[f32]>::to_vec)
        .collect()
}
