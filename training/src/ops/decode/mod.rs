//! Attention of one new token a row over its cached keys and values, which are read where they lie.

mod compose;
mod kernel;
#[cfg(test)]
mod tests;

use super::AttentionShape;
use super::graph::{Backend, Dispatch, Flex, FloatTensor, backend_extension, on_host};
use super::host::{Values, tensor};
use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use burn::tensor::Tensor;
use kernel::Cache;

/// Which cached places each row may see: `starts[b]..filled`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CachedRows<'a> {
    /// Padding before each row.
    pub(crate) starts: &'a [usize],
    /// Places filled, the new token's included.
    pub(crate) filled: usize,
}

/// softmax(q·kᵀ/√D)·v by heads, without gradients. `q`: [B, heads·D]; `keys`, `values`: [B, kv heads, capacity, D];
/// the result: [B, heads·D].
pub(crate) fn attend_cached(
    q: Tensor<2>,
    keys: &Tensor<4>,
    values: &Tensor<4>,
    rows: CachedRows<'_>,
    shape: &AttentionShape,
) -> Tensor<2> {
    if !on_host(&q) || q.device().is_autodiff() {
        return compose::attend_cached(q, keys, values, rows, shape);
    }
    let (keys, values) = (keys.clone().into_dispatch(), values.clone().into_dispatch());
    Tensor::from_dispatch(Dispatch::attend_one(q.into_dispatch(), keys, values, rows, shape))
}

/// The operation on the CPU backend, without gradients.
#[backend_extension(Flex)]
pub(crate) trait DecodeOps: Backend {
    /// See [`attend_cached`].
    fn attend_one(
        q: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        rows: CachedRows<'_>,
        shape: &AttentionShape,
    ) -> FloatTensor<Self>;
}

impl DecodeOps for Flex {
    fn attend_one(
        q: FlexTensor,
        keys: FlexTensor,
        values: FlexTensor,
        rows: CachedRows<'_>,
        shape: &AttentionShape,
    ) -> FlexTensor {
        let [keys, values] = [&keys, &values].map(|cache| Cache::of(cache, shape));
        tensor(
            kernel::attend(&Values::of(&q), &keys, &values, rows, shape),
            q.shape(),
        )
    }
}
