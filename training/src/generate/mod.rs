//! Batched generation with a KV cache (TRAINING "Rollouts").
//!
//! A prompt is prefilled once for all completions drawn from it, and a finished completion leaves the batch. Nothing
//! here depends on what else is in the batch, but for the rounding of matrix products.

mod decode;
mod stop;

pub use stop::StopStrings;

use crate::lora::Lora;
use crate::model::Decoder;
use crate::sampling::{Filters, Noise};
use decode::Decoding;

/// How one completion's tokens are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draw {
    /// The likeliest token.
    Greedy,
    /// arg max of score plus this noise.
    Noise(Noise),
}

/// A prompt and the completions wanted of it.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// Token ids, at least one.
    pub prompt: &'a [u32],
    /// One entry a completion.
    pub draws: Vec<Draw>,
}

/// Limits and filters of a generation.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateConfig {
    /// Filters before the draw. A greedy draw sees them too.
    pub filters: Filters,
    /// Completions are cut here, in tokens, EOS included.
    pub max_new_tokens: usize,
    /// Tokens that end a completion.
    pub eos: Vec<u32>,
    /// Texts that end a completion.
    pub stop: Option<StopStrings>,
    /// Filler of short rows.
    pub pad: u32,
    /// Completions that run together, at least one prompt's.
    pub max_rows: usize,
}

/// Why a completion ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// With an EOS token, which is its last.
    Eos,
    /// With the token that completes a stop string.
    Stop,
    /// At `max_new_tokens`.
    Length,
}

/// One completion.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// Token ids, EOS included.
    pub tokens: Vec<u32>,
    /// The sampler's log-probability of each token: log softmax(logits/T), without filters.
    pub log_probs: Vec<f32>,
    /// Mean over tokens of the entropy of softmax(logits/T), in nats.
    pub entropy: f64,
    /// Why it ended.
    pub finish: Finish,
    /// Tokens chosen by less than [`NEAR_TIE`](crate::sampling::NEAR_TIE): in another batch they might differ.
    pub near_ties: u32,
}

/// Why nothing was generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GenerateError {
    /// The model gave no finite logit.
    #[error("the model's logits for request {request} are not finite at completion token {position}")]
    NonFinite {
        /// Index among the requests.
        request: usize,
        /// Completion position.
        position: usize,
    },
    /// A prompt has no token.
    #[error("request {request} has an empty prompt")]
    EmptyPrompt {
        /// Index among the requests.
        request: usize,
    },
    /// A prompt's token is not in the model's vocabulary.
    #[error(
        "token {token} of request {request} is outside the model's vocabulary; is the tokenizer this model's?"
    )]
    Vocabulary {
        /// Index among the requests.
        request: usize,
        /// The token.
        token: u32,
    },
}

/// Completes every request; the result has one list a request, one completion a draw. Runs without autodiff.
///
/// # Errors
/// A prompt that is empty or outside the vocabulary; logits that are not finite.
pub fn generate(
    decoder: &Decoder,
    lora: Option<&Lora>,
    requests: &[Request<'_>],
    config: &GenerateConfig,
) -> Result<Vec<Vec<Completion>>, GenerateError> {
    check(decoder, requests)?;
    let lora = lora.map(Lora::inner);
    let decoder = &decoder.merged(lora.as_ref());
    let mut results: Vec<Vec<Completion>> = requests.iter().map(|_| Vec::new()).collect();
    for batch in batches(requests, config.max_rows) {
        let decoding = Decoding::prefill(decoder, lora.as_ref(), requests, &batch, config)?;
        for (request, completion) in decoding.finish()? {
            results[request].push(completion);
        }
    }
    Ok(results)
}

fn check(decoder: &Decoder, requests: &[Request<'_>]) -> Result<(), GenerateError> {
    for (request, r) in requests.iter().enumerate() {
        if r.prompt.is_empty() {
            return Err(GenerateError::EmptyPrompt { request });
        }
        let vocabulary = decoder.config().vocab_size;
        if let Some(token) = r.prompt.iter().find(|t| **t as usize >= vocabulary) {
            return Err(GenerateError::Vocabulary {
                request,
                token: *token,
            });
        }
    }
    Ok(())
}

/// Indices of requests that run together: of like length, so that little is padding, and at most `max_rows`
/// completions.
fn batches(requests: &[Request<'_>], max_rows: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..requests.len())
        .filter(|i| !requests[*i].draws.is_empty())
        .collect();
    order.sort_by_key(|i| requests[*i].prompt.len());
    let mut all: Vec<Vec<usize>> = Vec::new();
    let mut rows = 0;
    for request in order {
        let draws = requests[request].draws.len();
        match all.last_mut() {
            Some(batch) if rows + draws <= max_rows => {
                batch.push(request);
                rows += draws;
            }
            _ => {
                all.push(vec![request]);
                rows = draws;
            }
        }
    }
    all
}
