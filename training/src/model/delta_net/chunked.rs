//! The gated delta rule over chunks (Yang et al. 2024, "Parallelizing Linear Transformers with the Delta Rule"):
//! within a chunk products of matrices, from chunk to chunk the state.

use burn::tensor::{DType, Device, Tensor, TensorData};

/// Tokens of a chunk. Always this many, so that a sequence's numbers do not depend on its neighbours' lengths.
pub(super) const CHUNK: usize = 32;

/// Inputs of the recurrence, [sequences·heads, chunks, CHUNK, width]. A place of padding has zeros throughout: it
/// adds nothing to the state and leaves it undecayed.
pub(super) struct Chunks {
    pub(super) q: Tensor<4>,
    pub(super) k: Tensor<4>,
    pub(super) v: Tensor<4>,
    /// β, of width 1.
    pub(super) beta: Tensor<4>,
    /// ln α, of width 1.
    pub(super) log_decay: Tensor<4>,
}

/// Runs the chunks from the states `start` [sequences, heads, key width, value width]: what every place reads
/// [sequences·chunks·CHUNK, heads, value width], and the last states.
///
/// With G the running sum of ln α in a chunk, D_ij = exp(G_i − G_j) for j ≤ i, and L the strictly lower part of
/// (βk)kᵀ ∘ D: U = (I + L)⁻¹βv, W = (I + L)⁻¹(βk·exp G); then from chunk to chunk V = U − W·S,
/// o = (q·exp G)·S + (qkᵀ ∘ D)·V, S ← exp(G_last)·S + (k·exp(G_last − G))ᵀ·V.
pub(super) fn scan(chunks: Chunks, start: Tensor<4>) -> (Tensor<3>, Tensor<4>) {
    let Chunks {
        q,
        k,
        v,
        beta,
        log_decay,
    } = chunks;
    let [rows, heads, key_dim, value_dim] = start.dims();
    let count = q.dims()[1];
    let at = (q.device(), q.dtype());
    let sums = triangle(&at, 0, 1.0, 0.0).matmul(log_decay);
    let apart = sums.clone() - sums.clone().swap_dims(2, 3);
    // Above the diagonal the difference may overflow exp: hidden before, not after.
    let decay = (apart + triangle(&at, 0, 0.0, -1e30)).exp();
    let stepped = k.clone() * beta.clone();
    let products = stepped.clone().matmul(k.clone().swap_dims(2, 3)) * decay.clone();
    let inverse = inverse(products * triangle(&at, 1, 1.0, 0.0));
    let grown = sums.clone().exp();
    let u = inverse.clone().matmul(v * beta);
    let w = inverse.matmul(stepped * grown.clone());
    let scores = q.clone().matmul(k.clone().swap_dims(2, 3)) * decay;
    let q = q * grown;
    let last = sums.clone().narrow(2, CHUNK - 1, 1);
    let k = k * (last.clone() - sums).exp();
    let shrink = last.exp();
    let mut state = start.reshape([rows * heads, key_dim, value_dim]);
    let mut reads = Vec::with_capacity(count);
    for chunk in 0..count {
        let here = |t: &Tensor<4>| -> Tensor<3> { t.clone().narrow(1, chunk, 1).squeeze_dim(1) };
        let new = here(&u) - here(&w).matmul(state.clone());
        reads.push(here(&q).matmul(state.clone()) + here(&scores).matmul(new.clone()));
        state = state * here(&shrink) + here(&k).swap_dims(1, 2).matmul(new);
    }
    let width = count * CHUNK;
    let read = Tensor::cat(reads, 1)
        .reshape([rows, heads, width, value_dim])
        .swap_dims(1, 2)
        .reshape([rows * width, heads, value_dim]);
    (read, state.reshape([rows, heads, key_dim, value_dim]))
}

/// (I + L)⁻¹ of strictly lower triangular L [.., CHUNK, CHUNK], by halves: the inverse of [[P, 0], [Q, R]] is
/// [[P⁻¹, 0], [−R⁻¹QP⁻¹, R⁻¹]], from blocks of one place up. As exact as substitution, in log₂ CHUNK steps.
fn inverse(lower: Tensor<4>) -> Tensor<4> {
    let at = (lower.device(), lower.dtype());
    let mut inverse = blocks(&at, |i, j| i == j);
    let mut size = 1;
    while size < CHUNK {
        let corner = |i: usize, j: usize| i / (2 * size) == j / (2 * size) && i / size > j / size;
        let corner = lower.clone() * blocks(&at, corner);
        inverse = inverse.clone() - inverse.clone().matmul(corner).matmul(inverse);
        size *= 2;
    }
    inverse
}

/// `within` where j + below ≤ i, `beyond` elsewhere: [1, 1, CHUNK, CHUNK].
fn triangle(at: &(Device, DType), below: usize, within: f32, beyond: f32) -> Tensor<4> {
    square(at, |i, j| if j + below <= i { within } else { beyond })
}

fn blocks(at: &(Device, DType), inside: impl Fn(usize, usize) -> bool) -> Tensor<4> {
    square(at, |i, j| f32::from(u8::from(inside(i, j))))
}

fn square((device, dtype): &(Device, DType), value: impl Fn(usize, usize) -> f32) -> Tensor<4> {
    let values: Vec<f32> = (0..CHUNK * CHUNK)
        .map(|at| value(at / CHUNK, at % CHUNK))
        .collect();
    let values = TensorData::new(values, [1, 1, CHUNK, CHUNK]);
    Tensor::from_data(values, (device, *dtype))
}
