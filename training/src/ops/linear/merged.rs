//! Weights for rollouts: the adapter's term in them, and laid out for products with few rows.
//!
//! A product of 32 rows reads each value of W a few times only, so putting W into the order that the product wants
//! costs as much as the product. Here it is done once for all tokens of a rollout.

use super::{Adapter, Frozen};
use crate::ops::graph::{Backend, Dispatch, Flex, FloatTensor, backend_extension, on_host};
use crate::ops::host::{Into, Values, product};
use burn::backend::flex::FlexTensor;
use burn::tensor::Tensor;

impl Frozen {
    /// W + s·B·A, without gradients. `None` for a weight in four bits, or on another device than the CPU.
    pub(crate) fn merged(&self, adapter: Option<&Adapter>) -> Option<Self> {
        let Self::Dense(weight) = self else {
            return None;
        };
        if !on_host(weight) {
            return None;
        }
        let of = |t: &Tensor<2>| t.clone().inner().into_dispatch();
        let laid = match adapter {
            Some(Adapter { a, b, scale }) => Dispatch::merged_by_input(of(weight), of(a), of(b), *scale),
            None => Dispatch::by_input(of(weight)),
        };
        Some(Self::Dense(Tensor::<2>::from_dispatch(laid).transpose()))
    }
}

/// Weights by input feature on the CPU backend, [in, out].
#[backend_extension(Flex)]
pub(crate) trait MergeOps: Backend {
    /// Wᵀ.
    fn by_input(weight: FloatTensor<Self>) -> FloatTensor<Self>;

    /// (W + scale·B·A)ᵀ.
    fn merged_by_input(
        weight: FloatTensor<Self>,
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        scale: f64,
    ) -> FloatTensor<Self>;
}

impl MergeOps for Flex {
    fn by_input(weight: FlexTensor) -> FlexTensor {
        weight.transpose(0, 1).to_contiguous()
    }

    fn merged_by_input(weight: FlexTensor, a: FlexTensor, b: FlexTensor, scale: f64) -> FlexTensor {
        let mut laid = Self::by_input(weight);
        let (a, b) = (Values::of(&a), Values::of(&b));
        let (a, b) = (a.matrix().transposed(), b.matrix().transposed());
        // The copy is this function's alone, so it is written in place.
        product(laid.storage_mut::<f32>(), Into::Add, scale as f32, a, b);
        laid
    }
}
