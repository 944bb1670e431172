//! What a model directory holds and whether it would load, from its configuration and the files' headers alone.

use crate::model::{ModelConfig, ModelSize, Store};
use crate::tokenizer::TextTokenizer;
use std::collections::BTreeMap;
use std::path::Path;

/// What was found in a model directory.
#[derive(Debug)]
pub struct Inspection {
    /// Sizes and parts, where `config.json` can be read.
    pub config: Option<ModelConfig>,
    /// Counts of weights, where the configuration is known.
    pub size: Option<ModelSize>,
    /// The weight files, where there are any.
    pub files: Option<WeightFiles>,
    /// The tokenizer, where there is one.
    pub tokenizer: Option<TokenizerFound>,
    /// Why the model would not load, one sentence each; empty when it would.
    pub problems: Vec<String>,
}

/// Weights on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightFiles {
    /// Bytes of all files.
    pub bytes: u64,
    /// Values by kind (`BF16`).
    pub kinds: BTreeMap<String, u64>,
}

/// A tokenizer that loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenizerFound {
    /// Tokens, added ones included.
    pub tokens: usize,
    /// Whether conversations can be rendered.
    pub chat_template: bool,
}

/// Looks into a model directory. No weight is read.
#[must_use]
pub fn inspect(dir: &Path) -> Inspection {
    let mut problems = Vec::new();
    let config = kept(ModelConfig::load(dir), &mut problems);
    let store = kept(Store::open(dir), &mut problems);
    if let (Some(config), Some(store)) = (&config, &store) {
        problems.extend(store.problems(config).iter().map(ToString::to_string));
    }
    let tokenizer = match dir.join("tokenizer.json").exists() {
        true => kept(TextTokenizer::load(dir), &mut problems),
        false => None,
    };
    let tokenizer = tokenizer.map(|t| TokenizerFound {
        tokens: t.vocab_size(),
        chat_template: t.has_chat_template(),
    });
    if let (Some(config), Some(found)) = (&config, &tokenizer)
        && found.tokens > config.vocab_size
    {
        problems.push(format!(
            "the tokenizer has {} tokens where the model's vocabulary has {}; is it this model's?",
            found.tokens, config.vocab_size
        ));
    }
    Inspection {
        size: config.as_ref().map(ModelConfig::size),
        config,
        files: store.map(|s| WeightFiles {
            bytes: s.bytes(),
            kinds: s.kinds(),
        }),
        tokenizer,
        problems,
    }
}

fn kept<T, E: std::fmt::Display>(result: Result<T, E>, problems: &mut Vec<String>) -> Option<T> {
    result.map_err(|e| problems.push(e.to_string())).ok()
}
