//! Packed segments as a recurrence reads them: sequences without a prefix first, then those that continue one.

use super::chunked::{CHUNK, Chunks, scan};
use super::{Mixed, by_value_head};
use crate::model::packed::Segment;
use burn::tensor::{Device, Int, Tensor, TensorData};
use std::sync::Arc;

/// The layout of one packed pass.
#[derive(Clone, Debug)]
pub(crate) struct Sequences {
    layout: Arc<[Segment]>,
    /// Segments without a prefix, then those with one; the second stage starts from the first's states.
    stages: Vec<Stage>,
    /// For each token, its place among the stages' padded places laid end to end: [N].
    places: Tensor<1, Int>,
    /// N
    tokens: usize,
    device: Device,
}

/// Sequences that run side by side.
#[derive(Clone, Debug)]
struct Stage {
    rows: usize,
    /// Padded length, a multiple of [`CHUNK`].
    width: usize,
    /// Token of each padded place, [rows·width]; N, which is a row of zeros, where there is none.
    tokens: Tensor<1, Int>,
    /// First-stage sequence that each row continues, [rows].
    continues: Option<Tensor<1, Int>>,
}

impl Sequences {
    pub(crate) fn new(layout: Arc<[Segment]>, device: &Device) -> Self {
        let all = layout.iter().map(|s| s.places.len()).sum();
        let mut places = vec![0; all];
        let mut offset = 0;
        // A segment's row in its own stage.
        let mut rows = vec![0; layout.len()];
        let mut stages = Vec::new();
        for continued in [false, true] {
            let own: Vec<usize> = (0..layout.len())
                .filter(|i| layout[*i].prefix.is_some() == continued)
                .collect();
            if own.is_empty() {
                continue;
            }
            let longest = own.iter().map(|i| layout[*i].places.len()).max().unwrap_or(0);
            let width = longest.next_multiple_of(CHUNK).max(CHUNK);
            let mut tokens = vec![all as i64; own.len() * width];
            for (row, segment) in own.iter().enumerate() {
                rows[*segment] = row as i64;
                for (i, token) in layout[*segment].places.clone().enumerate() {
                    tokens[row * width + i] = token as i64;
                    places[token] = (offset + row * width + i) as i64;
                }
            }
            offset += own.len() * width;
            let from = |i: &usize| layout[*i].prefix.map(|p| rows[p]);
            let continues: Vec<i64> = own.iter().filter_map(from).collect();
            stages.push(Stage {
                rows: own.len(),
                width,
                tokens: indices(tokens, device),
                continues: continued.then(|| indices(continues, device)),
            });
        }
        Self {
            layout,
            stages,
            places: indices(places, device),
            tokens: all,
            device: device.clone(),
        }
    }

    /// Σ_j taps[·, j] · x[t − (kernel − 1) + j] along each sequence, its prefix included; x is zero before its start.
    /// `x` and the result: [N, features]; `taps`: [features, kernel].
    pub(super) fn convolve(&self, x: Tensor<2>, taps: &Tensor<2>) -> Tensor<2> {
        let kernel = taps.dims()[1];
        let padded = with_zero_row(x.clone());
        let tap = |j: usize| taps.clone().narrow(1, j, 1).transpose();
        let mut sum = x * tap(kernel - 1);
        for back in 1..kernel {
            let earlier: Vec<i64> = self
                .layout
                .iter()
                .flat_map(|s| s.places.clone().map(|place| self.before(s, place, back)))
                .collect();
            let earlier = padded.clone().select(0, indices(earlier, &self.device));
            sum = sum + earlier * tap(kernel - 1 - back);
        }
        sum
    }

    /// The inputs that a convolution of the token after each sequence needs, [rows, kernel − 1, features].
    pub(super) fn last_inputs(&self, x: &Tensor<2>, kernel: usize) -> Tensor<3> {
        let features = x.dims()[1];
        let last: Vec<i64> = self
            .layout
            .iter()
            .flat_map(|s| (1..kernel).rev().map(|back| self.before(s, s.places.end, back)))
            .collect();
        with_zero_row(x.clone().inner())
            .select(0, indices(last, &self.device))
            .reshape([self.layout.len(), kernel - 1, features])
    }

    /// Runs the recurrence: what every token reads [N, value heads, value width], and the state after each
    /// first-stage sequence.
    pub(super) fn scan(
        &self,
        mixed: &Mixed,
        beta: Tensor<2>,
        log_decay: Tensor<2>,
    ) -> (Tensor<3>, Tensor<4>) {
        let heads = beta.dims()[1];
        let [_, _, value_dim] = mixed.v.dims();
        let key_dim = mixed.k.dims()[2];
        let wide = |x: Tensor<3>| {
            let [tokens, heads, dim] = x.dims();
            with_zero_row(x.reshape([tokens, heads * dim]))
        };
        let q = wide(by_value_head(mixed.q.clone(), heads));
        let k = wide(by_value_head(mixed.k.clone(), heads));
        let v = wide(mixed.v.clone());
        let (beta, log_decay) = (with_zero_row(beta), with_zero_row(log_decay));
        let mut first: Option<Tensor<4>> = None;
        let mut reads = Vec::new();
        for stage in &self.stages {
            let chunks = Chunks {
                q: stage.grid(&q, heads),
                k: stage.grid(&k, heads),
                v: stage.grid(&v, heads),
                beta: stage.grid(&beta, heads),
                log_decay: stage.grid(&log_decay, heads),
            };
            let start = match (&first, &stage.continues) {
                (Some(states), Some(rows)) => states.clone().select(0, rows.clone()),
                _ => Tensor::zeros(
                    [stage.rows, heads, key_dim, value_dim],
                    (&self.device, mixed.k.dtype()),
                ),
            };
            let (read, state) = scan(chunks, start);
            reads.push(read);
            first.get_or_insert(state);
        }
        let read = Tensor::cat(reads, 0).select(0, self.places.clone());
        let state = first.unwrap_or_else(|| {
            Tensor::zeros([0, heads, key_dim, value_dim], (&self.device, mixed.k.dtype()))
        });
        (read, state)
    }

    /// The token `back` places before place `place` of `segment`'s sequence, or N where there is none.
    fn before(&self, segment: &Segment, place: usize, back: usize) -> i64 {
        let inside = place - segment.places.start;
        if back <= inside {
            return (place - back) as i64;
        }
        let beyond = back - inside;
        match segment.prefix.map(|p| self.layout[p].places.clone()) {
            Some(prefix) if beyond <= prefix.len() => (prefix.end - beyond) as i64,
            _ => self.tokens as i64,
        }
    }
}

impl Stage {
    /// Features by token [N + 1, heads·D] as [rows·heads, chunks, CHUNK, D].
    fn grid(&self, x: &Tensor<2>, heads: usize) -> Tensor<4> {
        let dim = x.dims()[1] / heads;
        x.clone()
            .select(0, self.tokens.clone())
            .reshape([self.rows, self.width, heads, dim])
            .swap_dims(1, 2)
            .reshape([self.rows * heads, self.width / CHUNK, CHUNK, dim])
    }
}

fn with_zero_row(x: Tensor<2>) -> Tensor<2> {
    let zeros = Tensor::zeros([1, x.dims()[1]], (&x.device(), x.dtype()));
    Tensor::cat(vec![x, zeros], 0)
}

fn indices(values: Vec<i64>, device: &Device) -> Tensor<1, Int> {
    let count = values.len();
    Tensor::from_data(TensorData::new(values, [count]), device)
}
