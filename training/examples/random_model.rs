//! A model directory with random weights and a small tokenizer, to measure with: completions never end by themselves.
//!
//! ```text
//! cargo run --release -p gym-training --example random_model -- CONFIG.json DIR
//! ```

use burn::tensor::Device;
use gym_training::model::{Decoder, ModelConfig};
use gym_training::pretrain::write_tokenizer;
use std::error::Error;
use std::fs;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [config, dir] = args.as_slice() else {
        return Err("usage: random_model CONFIG.json DIR".into());
    };
    let dir = Path::new(dir);
    fs::create_dir_all(dir)?;
    fs::copy(config, dir.join("config.json"))?;
    let config = ModelConfig::load(dir)?;
    // The tokenizer knows some eighty ids, and only those are drawn.
    let end = config.vocab_size - 1;
    Decoder::init(config, 1, &Device::flex())?.save(dir)?;
    write_tokenizer(dir)?;
    fs::write(
        dir.join("generation_config.json"),
        format!("{{\"eos_token_id\": {end}}}"),
    )?;
    Ok(())
}
