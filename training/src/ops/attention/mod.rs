//! Grouped-query attention (Ainslie et al. 2023) over packed segments, as an operation of its own.
//!
//! Scores stand in blocks of a few queries, never [N, N]. Kept for the backward pass are q, k, v, the result o and every
//! query's log Σ exp ℓ; probabilities are computed again from them, as in flash attention (Dao et al. 2022). With
//! g = ∂L/∂o, p = exp(s − ℓ) and s = q·kᵀ/√D: ∂L/∂v = pᵀ·g, ∂L/∂s = p·(g·vᵀ − Σ g·o), ∂L/∂q = ∂L/∂s·k/√D and
//! ∂L/∂k = (∂L/∂s)ᵀ·q/√D. A prefix's keys and values sum the gradients of all segments that see them.

mod autodiff;
mod compose;
mod kernel;
#[cfg(test)]
mod tests;

use super::graph::{Backend, Dispatch, Flex, FloatTensor, backend_extension, on_host};
use super::host::{Values, tensor};
use crate::model::Segment;
use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use burn::tensor::Tensor;
use kernel::Heads;
use std::ops::Range;
use std::sync::Arc;

/// Heads of one attention layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct AttentionShape {
    /// Query heads.
    pub(crate) heads: usize,
    /// Key and value heads; divides the query heads.
    pub(crate) kv_heads: usize,
    /// Width of one head, D.
    pub(crate) head_dim: usize,
    /// How many places a query sees, itself included; all before it when `None`.
    pub(crate) window: Option<usize>,
}

/// softmax(q·kᵀ/√D)·v by heads: every token sees its segment up to itself and its segment's prefix, within the
/// window. `q`: [N, heads·D]; `k`, `v`: [N, kv heads·D]; the result: [N, heads·D].
pub(crate) fn attention(
    q: Tensor<2>,
    k: Tensor<2>,
    v: Tensor<2>,
    layout: &Arc<[Segment]>,
    shape: &AttentionShape,
) -> Tensor<2> {
    if !on_host(&q) {
        return compose::attention(q, k, v, layout, shape);
    }
    let (q, k, v) = (q.into_dispatch(), k.into_dispatch(), v.into_dispatch());
    Tensor::from_dispatch(Dispatch::attend(q, k, v, Arc::clone(layout), *shape))
}

fn prefix(layout: &[Segment], segment: &Segment) -> Range<usize> {
    segment.prefix.map_or(0..0, |p| layout[p].places.clone())
}

/// Attention on the CPU backend.
#[backend_extension(Flex, Autodiff)]
pub(crate) trait AttentionOps: Backend {
    /// o.
    fn attend(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        layout: Arc<[Segment]>,
        shape: AttentionShape,
    ) -> FloatTensor<Self>;
}

/// Its backward pass there.
pub(crate) trait AttentionGradients: AttentionOps {
    /// o, with ℓ [N, heads] in what is kept.
    fn attend_keeping(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        layout: Arc<[Segment]>,
        shape: AttentionShape,
    ) -> (FloatTensor<Self>, Kept<Self>);

    /// ∂L/∂q, ∂L/∂k and ∂L/∂v.
    fn attend_backward(kept: Kept<Self>, gradient: FloatTensor<Self>) -> [FloatTensor<Self>; 3];
}

/// What the backward pass needs.
#[derive(Clone, Debug)]
pub(crate) struct Kept<B: Backend> {
    q: FloatTensor<B>,
    k: FloatTensor<B>,
    v: FloatTensor<B>,
    o: FloatTensor<B>,
    log_sums: FloatTensor<B>,
    layout: Arc<[Segment]>,
    shape: AttentionShape,
}

impl AttentionOps for Flex {
    fn attend(
        q: FlexTensor,
        k: FlexTensor,
        v: FlexTensor,
        layout: Arc<[Segment]>,
        shape: AttentionShape,
    ) -> FlexTensor {
        let inputs = [&q, &k, &v].map(Values::of);
        let (o, _) = Heads::new(&inputs, &layout, &shape).forward();
        tensor(o, q.shape())
    }
}

impl AttentionGradients for Flex {
    fn attend_keeping(
        q: FlexTensor,
        k: FlexTensor,
        v: FlexTensor,
        layout: Arc<[Segment]>,
        shape: AttentionShape,
    ) -> (FlexTensor, Kept<Self>) {
        let inputs = [&q, &k, &v].map(Values::of);
        let (o, log_sums) = Heads::new(&inputs, &layout, &shape).forward();
        drop(inputs);
        let o = tensor(o, q.shape());
        let log_sums = tensor(log_sums, [q.shape()[0], shape.heads]);
        let kept = Kept {
            q,
            k,
            v,
            o: o.clone(),
            log_sums,
            layout,
            shape,
        };
        (o, kept)
    }

    fn attend_backward(kept: Kept<Self>, gradient: FlexTensor) -> [FlexTensor; 3] {
        let Kept {
            q,
            k,
            v,
            o,
            log_sums,
            layout,
            shape,
        } = &kept;
        let inputs = [q, k, v].map(Values::of);
        let heads = Heads::new(&inputs, layout, shape);
        let [by_q, by_k, by_v] =
            heads.backward(&Values::of(o), &Values::of(log_sums), &Values::of(&gradient));
        [
            tensor(by_q, q.shape()),
            tensor(by_k, k.shape()),
            tensor(by_v, v.shape()),
        ]
    }
}
