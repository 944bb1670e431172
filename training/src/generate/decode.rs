//! One batch: prefill, then a token for every live row until none lives.

use super::{Completion, Draw, Finish, GenerateConfig, GenerateError, Request};
use crate::lora::Lora;
use crate::model::{Decoder, KvCache, Packed};
use crate::sampling::{Choice, LogSoftmax};
use burn::tensor::{Int, Tensor, TensorData};
use std::borrow::Cow;

/// A batch under way. Row i of the cache is `rows[i]`.
pub(super) struct Decoding<'a> {
    decoder: &'a Decoder,
    lora: Option<&'a Lora>,
    config: &'a GenerateConfig,
    requests: &'a [Request<'a>],
    cache: KvCache,
    rows: Vec<Row>,
    /// Every completion by (request, draw) order, filled as rows finish.
    done: Vec<Option<(usize, Completion)>>,
}

struct Row {
    /// Place in `done`.
    slot: usize,
    request: usize,
    draw: Draw,
    tokens: Vec<u32>,
    log_probs: Vec<f32>,
    entropy_sum: f64,
    near_ties: u32,
    finished: bool,
}

impl<'a> Decoding<'a> {
    /// Runs the prompts once each, draws every completion's first token.
    pub(super) fn prefill(
        decoder: &'a Decoder,
        lora: Option<&'a Lora>,
        requests: &'a [Request<'a>],
        batch: &[usize],
        config: &'a GenerateConfig,
    ) -> Result<Self, GenerateError> {
        let prompts: Vec<&[u32]> = batch.iter().map(|r| requests[*r].prompt).collect();
        let tokens = Packed::rows(&prompts);
        let longest = prompts.iter().map(|p| p.len()).max().unwrap_or(0);
        let capacity = longest + config.max_new_tokens;
        let mut cache = KvCache::new(decoder.config().num_hidden_layers, capacity);
        let hidden = decoder.prefill(&tokens, lora, &mut cache);
        let last: Vec<i64> = tokens
            .segments()
            .iter()
            .map(|s| s.places.end as i64 - 1)
            .collect();
        let last = Tensor::<1, Int>::from_data(TensorData::new(last, [batch.len()]), decoder.device());
        let logits = to_rows(decoder.logits(hidden.select(0, last)));
        let mut this = Self {
            decoder,
            lora,
            config,
            requests,
            cache,
            rows: Vec::new(),
            done: Vec::new(),
        };
        let mut source = Vec::new();
        for (place, request) in batch.iter().enumerate() {
            for draw in &requests[*request].draws {
                let mut row = this.new_row(*request, *draw);
                this.step(&mut row, &logits[place])?;
                this.rows.push(row);
                source.push(place);
            }
        }
        this.cache.select(&source, decoder.device());
        Ok(this)
    }

    /// Decodes until every row has finished.
    pub(super) fn finish(mut self) -> Result<Vec<(usize, Completion)>, GenerateError> {
        self.drop_finished();
        while !self.rows.is_empty() {
            let next: Vec<u32> = self
                .rows
                .iter()
                .map(|r| r.tokens.last().copied().unwrap_or(self.config.pad))
                .collect();
            let hidden = self.decoder.decode(&next, self.lora, &mut self.cache);
            let logits = to_rows(self.decoder.logits(hidden));
            let mut rows = std::mem::take(&mut self.rows);
            for (row, logits) in rows.iter_mut().zip(&logits) {
                if !row.finished {
                    self.step(row, logits)?;
                }
            }
            self.rows = rows;
            self.drop_finished();
        }
        Ok(self.done.into_iter().flatten().collect())
    }

    fn new_row(&mut self, request: usize, draw: Draw) -> Row {
        self.done.push(None);
        Row {
            slot: self.done.len() - 1,
            request,
            draw,
            tokens: Vec::new(),
            log_probs: Vec::new(),
            entropy_sum: 0.0,
            near_ties: 0,
            finished: false,
        }
    }

    /// Draws a row's next token.
    fn step(&mut self, row: &mut Row, logits: &[f32]) -> Result<(), GenerateError> {
        let filters = &self.config.filters;
        let position = row.tokens.len();
        let seen = if filters.repetition_penalty == 1.0 {
            Vec::new()
        } else {
            [self.requests[row.request].prompt, row.tokens.as_slice()].concat()
        };
        let scores = filters.scores(&drawable(logits, self.decoder.drawable()), &seen);
        let choice = match row.draw {
            Draw::Greedy => Choice::greedy(&scores),
            Draw::Noise(noise) => noise.choice(&scores, position as u32),
        };
        row.near_ties += u32::from(choice.is_some_and(|c| c.is_near_tie()));
        let token = choice.map(|c| c.token);
        let whole = LogSoftmax::of(logits, filters.temperature);
        let log_p = token.map_or(f64::NAN, |t| whole.at(t));
        let Some(token) = token.filter(|_| log_p.is_finite()) else {
            return Err(GenerateError::NonFinite {
                request: row.request,
                position,
            });
        };
        row.tokens.push(token);
        row.log_probs.push(log_p as f32);
        row.entropy_sum += whole.entropy();
        let finish = if self.config.eos.contains(&token) {
            Finish::Eos
        } else if self
            .config
            .stop
            .as_ref()
            .is_some_and(|stop| stop.is_reached(&row.tokens))
        {
            Finish::Stop
        } else if row.tokens.len() >= self.config.max_new_tokens {
            Finish::Length
        } else {
            return Ok(());
        };
        row.finished = true;
        let completion = Completion {
            tokens: row.tokens.clone(),
            log_probs: std::mem::take(&mut row.log_probs),
            entropy: row.entropy_sum / row.tokens.len() as f64,
            finish,
            near_ties: row.near_ties,
        };
        self.done[row.slot] = Some((row.request, completion));
        Ok(())
    }

    /// Shrinks the batch once enough of it is finished to be worth a copy of the cache.
    fn drop_finished(&mut self) {
        let finished = self.rows.iter().filter(|r| r.finished).count();
        if finished == self.rows.len() {
            self.rows.clear();
        } else if finished * 4 >= self.rows.len() {
            let live: Vec<usize> = (0..self.rows.len()).filter(|i| !self.rows[*i].finished).collect();
            self.cache.select(&live, self.decoder.device());
            self.rows.retain(|r| !r.finished);
        }
    }
}

/// Logits with nothing left for ids from `limit` on.
fn drawable(logits: &[f32], limit: usize) -> Cow<'_, [f32]> {
    if limit >= logits.len() {
        return Cow::Borrowed(logits);
    }
    let mut logits = logits.to_vec();
    logits[limit..].fill(f32::NEG_INFINITY);
    Cow::Owned(logits)
}

fn to_rows(logits: Tensor<2>) -> Vec<Vec<f32>> {
    let width = logits.dims()[1];
    let flat: Vec<f32> = logits.to_data().iter::<f32>().collect();
    flat.chunks(width).map(<[f32]>::to_vec).collect()
}
