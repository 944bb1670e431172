//! Attention over slices: one task for each segment and key head, in blocks of queries.

use super::{AttentionShape, prefix};
use crate::model::Segment;
use crate::ops::host::{Into, Matrix, Values, dot, exp, is_large, largest, product, sum, wide};
use rayon::prelude::*;
use std::ops::Range;

/// Queries of one block, of each of a group's heads.
const BLOCK: usize = 64;

/// q, k and v of one layer.
pub(super) struct Heads<'a> {
    q: &'a Values<'a>,
    k: &'a Values<'a>,
    v: &'a Values<'a>,
    layout: &'a [Segment],
    shape: &'a AttentionShape,
}

impl<'a> Heads<'a> {
    pub(super) fn new(
        [q, k, v]: &'a [Values<'a>; 3],
        layout: &'a [Segment],
        shape: &'a AttentionShape,
    ) -> Self {
        Self {
            q,
            k,
            v,
            layout,
            shape,
        }
    }

    /// o [N, heads·D] and ℓ [N, heads].
    pub(super) fn forward(&self) -> (Vec<f32>, Vec<f32>) {
        let AttentionShape { heads, head_dim, .. } = *self.shape;
        let mut o = vec![0.0; self.q.slice().len()];
        let mut log_sums = vec![0.0; self.q.rows() * heads];
        self.tasks(
            |task| task.forward(),
            |task, (own_o, own_sums)| {
                task.scatter_queries(&mut o, head_dim, &own_o);
                task.scatter_queries(&mut log_sums, 1, &own_sums);
            },
        );
        (o, log_sums)
    }

    /// ∂L/∂q, ∂L/∂k and ∂L/∂v.
    pub(super) fn backward(
        &self,
        o: &Values<'_>,
        log_sums: &Values<'_>,
        gradient: &Values<'_>,
    ) -> [Vec<f32>; 3] {
        let mut by_q = vec![0.0; self.q.slice().len()];
        let mut by_k = vec![0.0; self.k.slice().len()];
        let mut by_v = vec![0.0; self.v.slice().len()];
        self.tasks(
            |task| task.backward(o, log_sums, gradient),
            |task, [own_q, own_k, own_v]| {
                task.scatter_queries(&mut by_q, self.shape.head_dim, &own_q);
                task.add_to_keys(&mut by_k, &own_k);
                task.add_to_keys(&mut by_v, &own_v);
            },
        );
        [by_q, by_k, by_v]
    }

    /// Runs `work` on every segment and key head, and `finish` on the results in order.
    fn tasks<R: Send>(&self, work: impl Fn(&Task<'_>) -> R + Sync, mut finish: impl FnMut(&Task<'_>, R)) {
        let all: Vec<Task<'_>> = self
            .layout
            .iter()
            .flat_map(|segment| (0..self.shape.kv_heads).map(move |head| Task::new(self, segment, head)))
            .filter(|task| !task.own.is_empty())
            .collect();
        let scores: usize = all.iter().map(Task::scores).sum();
        if is_large(scores * self.shape.head_dim) {
            let results: Vec<R> = all.par_iter().map(&work).collect();
            for (task, result) in all.iter().zip(results) {
                finish(task, result);
            }
        } else {
            for task in &all {
                finish(task, work(task));
            }
        }
    }
}

/// One key head of one segment, with the query heads that share it.
struct Task<'a> {
    heads: &'a Heads<'a>,
    /// Places of the prefix and of the segment.
    before: Range<usize>,
    own: Range<usize>,
    head: usize,
}

/// Some queries of a task and the keys that any of them sees.
struct Block {
    /// Among the task's own.
    queries: Range<usize>,
    /// Among the task's keys, prefix first.
    keys: Range<usize>,
}

impl<'a> Task<'a> {
    fn new(heads: &'a Heads<'a>, segment: &Segment, head: usize) -> Self {
        Self {
            heads,
            before: prefix(heads.layout, segment),
            own: segment.places.clone(),
            head,
        }
    }

    fn width(&self) -> usize {
        self.heads.shape.head_dim
    }

    /// Query heads of the key head.
    fn group(&self) -> usize {
        self.heads.shape.heads / self.heads.shape.kv_heads
    }

    fn scores(&self) -> usize {
        self.group() * self.own.len() * (self.before.len() + self.own.len())
    }

    fn scale(&self) -> f32 {
        1.0 / (self.width() as f32).sqrt()
    }

    fn blocks(&self) -> impl Iterator<Item = Block> {
        let (own, before) = (self.own.len(), self.before.len());
        (0..own).step_by(BLOCK).map(move |start| {
            let queries = start..(start + BLOCK).min(own);
            let first = self.visible(start).start;
            Block {
                keys: first..before + queries.end,
                queries,
            }
        })
    }

    /// The keys that own query `query` sees.
    fn visible(&self, query: usize) -> Range<usize> {
        let end = self.before.len() + query + 1;
        self.heads.shape.window.map_or(0, |w| end.saturating_sub(w))..end
    }

    /// o and ℓ, [group, own, D] and [group, own].
    fn forward(&self) -> (Vec<f32>, Vec<f32>) {
        let (group, own, width) = (self.group(), self.own.len(), self.width());
        let (k, v) = (self.keys(self.heads.k), self.keys(self.heads.v));
        let mut o = vec![0.0; group * own * width];
        let mut log_sums = vec![0.0; group * own];
        let (mut scores, mut mixed) = (Vec::new(), Vec::new());
        for block in self.blocks() {
            let q = self.queries(self.heads.q, width, &block, self.scale());
            let rows = group * block.queries.len();
            self.scores_of(&mut scores, &q, &k, &block);
            let inverse = wide(
                #[inline(always)]
                || self.softmax(&mut scores, &mut log_sums, &block),
            );
            mixed.resize(rows * width, 0.0);
            let p = Matrix::new(&scores, rows, block.keys.len());
            product(&mut mixed, Into::Set, 1.0, p, rows_of(&v, &block.keys, width));
            for (row, (mixed, inverse)) in mixed.chunks_exact(width).zip(&inverse).enumerate() {
                let at = self.place(row, &block) * width;
                for (o, m) in o[at..at + width].iter_mut().zip(mixed) {
                    *o = m * inverse;
                }
            }
        }
        (o, log_sums)
    }

    /// Scores to exp(score − largest), hidden ones to 0; ℓ of every row; returns every row's 1/Σ.
    #[inline(always)]
    fn softmax(&self, scores: &mut [f32], log_sums: &mut [f32], block: &Block) -> Vec<f32> {
        let keys = block.keys.len();
        let mut inverse = vec![0.0; scores.len() / keys];
        for (row, (line, inverse)) in scores.chunks_exact_mut(keys).zip(&mut inverse).enumerate() {
            let seen = self.seen(row, block);
            line[..seen.start].fill(0.0);
            line[seen.end..].fill(0.0);
            let line = &mut line[seen];
            let top = largest(line);
            for s in line.iter_mut() {
                *s = exp(*s - top);
            }
            let total = sum(line);
            *inverse = 1.0 / total;
            log_sums[self.place(row, block)] = top + total.ln();
        }
        inverse
    }

    /// ∂L/∂q [group, own, D], ∂L/∂k and ∂L/∂v [keys, D].
    fn backward(&self, o: &Values<'_>, log_sums: &Values<'_>, gradient: &Values<'_>) -> [Vec<f32>; 3] {
        let (group, own, width) = (self.group(), self.own.len(), self.width());
        let (k, v) = (self.keys(self.heads.k), self.keys(self.heads.v));
        let mut by_q = vec![0.0; group * own * width];
        let (mut by_k, mut by_v) = (vec![0.0; k.len()], vec![0.0; v.len()]);
        let (mut p, mut by_p, mut by_block) = (Vec::new(), Vec::new(), Vec::new());
        for block in self.blocks() {
            let rows = group * block.queries.len();
            let keys = block.keys.len();
            let q = self.queries(self.heads.q, width, &block, self.scale());
            let g = self.queries(gradient, width, &block, 1.0);
            let o = self.queries(o, width, &block, 1.0);
            let log_sums = self.queries(log_sums, 1, &block, 1.0);
            self.scores_of(&mut p, &q, &k, &block);
            by_p.resize(rows * keys, 0.0);
            let g_matrix = Matrix::new(&g, rows, width);
            let v_rows = rows_of(&v, &block.keys, width).transposed();
            product(&mut by_p, Into::Set, 1.0, g_matrix, v_rows);
            wide(
                #[inline(always)]
                || {
                    for (row, log_sum) in log_sums.iter().enumerate() {
                        let seen = self.seen(row, &block);
                        let line = row * keys..(row + 1) * keys;
                        let vector = row * width..(row + 1) * width;
                        let along = dot(&g[vector.clone()], &o[vector]);
                        let (p, by_p) = (&mut p[line.clone()], &mut by_p[line]);
                        probabilities(p, by_p, seen, *log_sum, along);
                    }
                },
            );
            let p = Matrix::new(&p, rows, keys);
            let by_s = Matrix::new(&by_p, rows, keys);
            let in_block = block.keys.start * width..block.keys.end * width;
            product(
                &mut by_v[in_block.clone()],
                Into::Add,
                1.0,
                p.transposed(),
                g_matrix,
            );
            let q_matrix = Matrix::new(&q, rows, width);
            product(&mut by_k[in_block], Into::Add, 1.0, by_s.transposed(), q_matrix);
            by_block.resize(rows * width, 0.0);
            let k_rows = rows_of(&k, &block.keys, width);
            product(&mut by_block, Into::Set, self.scale(), by_s, k_rows);
            for (row, values) in by_block.chunks_exact(width).enumerate() {
                let at = self.place(row, &block) * width;
                by_q[at..at + width].copy_from_slice(values);
            }
        }
        [by_q, by_k, by_v]
    }

    /// out ← q·kᵀ over a block.
    fn scores_of(&self, out: &mut Vec<f32>, q: &[f32], k: &[f32], block: &Block) {
        let rows = self.group() * block.queries.len();
        out.resize(rows * block.keys.len(), 0.0);
        let q = Matrix::new(q, rows, self.width());
        product(
            out,
            Into::Set,
            1.0,
            q,
            rows_of(k, &block.keys, self.width()).transposed(),
        );
    }

    /// Columns of a block's row that its query sees.
    #[inline(always)]
    fn seen(&self, row: usize, block: &Block) -> Range<usize> {
        let seen = self.visible(block.queries.start + row % block.queries.len());
        seen.start - block.keys.start..seen.end - block.keys.start
    }

    /// Place in [group, own] of a block's row, rows being [group, queries].
    #[inline(always)]
    fn place(&self, row: usize, block: &Block) -> usize {
        let count = block.queries.len();
        row / count * self.own.len() + block.queries.start + row % count
    }

    /// Features of the task's key head, prefix first: [keys, D].
    fn keys(&self, of: &Values<'_>) -> Vec<f32> {
        let columns = self.head * self.width()..(self.head + 1) * self.width();
        let mut out = Vec::with_capacity((self.before.len() + self.own.len()) * self.width());
        for place in self.before.clone().chain(self.own.clone()) {
            out.extend_from_slice(&of.row(place)[columns.clone()]);
        }
        out
    }

    /// `width` features of each of the group's query heads in a block, times `scale`: [group, queries, width].
    fn queries(&self, of: &Values<'_>, width: usize, block: &Block, scale: f32) -> Vec<f32> {
        let mut out = Vec::with_capacity(self.group() * block.queries.len() * width);
        for head in self.query_heads() {
            for query in block.queries.clone() {
                let row = &of.row(self.own.start + query)[head * width..(head + 1) * width];
                out.extend(row.iter().map(|x| x * scale));
            }
        }
        out
    }

    fn query_heads(&self) -> Range<usize> {
        self.head * self.group()..(self.head + 1) * self.group()
    }

    /// Writes [group, own, width] into the columns of the group's heads in `out`, [N, heads·width].
    fn scatter_queries(&self, out: &mut [f32], width: usize, values: &[f32]) {
        let columns = self.heads.shape.heads * width;
        let mut values = values.chunks_exact(width);
        for head in self.query_heads() {
            for (place, values) in self.own.clone().zip(&mut values) {
                let at = place * columns + head * width;
                out[at..at + width].copy_from_slice(values);
            }
        }
    }

    /// Adds [keys, D] to the columns of the key head in `out`, [N, kv heads·D].
    fn add_to_keys(&self, out: &mut [f32], values: &[f32]) {
        let width = self.width();
        let columns = self.heads.shape.kv_heads * width;
        let places = self.before.clone().chain(self.own.clone());
        for (place, values) in places.zip(values.chunks_exact(width)) {
            let at = place * columns + self.head * width;
            for (out, x) in out[at..at + width].iter_mut().zip(values) {
                *out += x;
            }
        }
    }
}

/// Scores `p` to exp(score − ℓ), and `by_p` to ∂L/∂score, both 0 where hidden.
#[inline(always)]
fn probabilities(p: &mut [f32], by_p: &mut [f32], seen: Range<usize>, log_sum: f32, along: f32) {
    for line in [&mut *p, &mut *by_p] {
        line[..seen.start].fill(0.0);
        line[seen.end..].fill(0.0);
    }
    for (p, by_p) in p[seen.clone()].iter_mut().zip(&mut by_p[seen]) {
        *p = exp(*p - log_sum);
        *by_p = *p * (*by_p - along);
    }
}

/// Some rows of [.., width].
fn rows_of<'a>(values: &'a [f32], rows: &Range<usize>, width: usize) -> Matrix<'a> {
    Matrix::new(&values[rows.start * width..rows.end * width], rows.len(), width)
}
