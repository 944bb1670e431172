//! A linear layer with its low-rank adapter: an operation of its own, with its own backward pass.
//!
//! y = x·Wᵀ + s·h·Bᵀ, h = x·Aᵀ. With g = ∂L/∂y and u = s·g·B: ∂L/∂x = g·W + u·A, ∂L/∂A = uᵀ·x, ∂L/∂B = s·gᵀ·h. Only
//! x and h are kept for it; a frozen W has no gradient, and an x that nothing trains has none.

mod autodiff;
mod compose;
mod flex;
mod merged;
mod nf4;
#[cfg(test)]
mod tests;

use crate::quant::Nf4Tensor;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, Dispatch, ExtensionType, TensorMetadata, backend_extension};
use burn::tensor::{DType, Tensor};

/// A and B of one layer with their scale alpha/r.
#[derive(Clone, Debug)]
pub(crate) struct Adapter {
    /// [r, in]
    pub(crate) a: Tensor<2>,
    /// [out, r]
    pub(crate) b: Tensor<2>,
    /// alpha/r
    pub(crate) scale: f64,
}

/// y = x·Wᵀ + bias + scale·(x·Aᵀ)·Bᵀ. `x`: [N, in]; `weight`: [out, in]; the result: [N, out].
pub(crate) fn linear(
    x: Tensor<2>,
    weight: &Frozen,
    bias: Option<&Tensor<1>>,
    adapter: Option<&Adapter>,
) -> Tensor<2> {
    let weight = weight.dispatch();
    let x = x.into_dispatch();
    let y = match adapter {
        Some(Adapter { a, b, scale }) => {
            let (a, b) = (a.clone().into_dispatch(), b.clone().into_dispatch());
            Dispatch::lora_linear(x, weight, a, b, *scale)
        }
        None => Dispatch::plain_linear(x, weight),
    };
    let y = Tensor::from_dispatch(y);
    match bias {
        Some(bias) => y + bias.clone().unsqueeze(),
        None => y,
    }
}

/// W [out, in] as a layer holds it.
#[allow(
    clippy::large_enum_variant,
    reason = "a layer holds one, and most hold the larger"
)]
#[derive(Clone, Debug)]
pub(crate) enum Frozen {
    /// Every value. It may be tracked: in pretraining it is not frozen.
    Dense(Tensor<2>),
    /// Four bits a value; unpacked for each product, forward and backward, and dropped after it.
    Nf4(Nf4Tensor),
}

impl Frozen {
    fn dispatch(&self) -> Weight<Dispatch> {
        match self {
            Self::Dense(values) => Weight::Dense(values.clone().into_dispatch()),
            Self::Nf4(packed) => {
                let parts = packed.parts();
                Weight::Nf4 {
                    codes: parts.codes.clone().into_dispatch(),
                    scales: parts.scales.clone().into_dispatch(),
                    nested: parts.nested.clone().into_dispatch(),
                    shape: parts.shape,
                    group: parts.group,
                    offset: parts.offset,
                }
            }
        }
    }
}

impl From<Tensor<2>> for Frozen {
    fn from(values: Tensor<2>) -> Self {
        Self::Dense(values)
    }
}

/// The same as a backend's operations take it.
#[derive(Clone, Debug, ExtensionType)]
pub(crate) enum Weight<B: Backend> {
    /// Every value.
    Dense(FloatTensor<B>),
    /// NF4 (`crate::quant`).
    Nf4 {
        /// Two codes a byte.
        codes: IntTensor<B>,
        /// The code of each block's scale.
        scales: IntTensor<B>,
        /// The scale of `group` scales.
        nested: FloatTensor<B>,
        /// [out, in]
        shape: [usize; 2],
        /// Scales that share one of `nested`.
        group: usize,
        /// Added to every scale.
        offset: f32,
    },
}

impl<B: Backend> Weight<B> {
    fn shape(&self) -> [usize; 2] {
        match self {
            Self::Dense(w) => w.shape().dims(),
            Self::Nf4 { shape, .. } => *shape,
        }
    }

    /// Numbers of its values, or of its scales.
    fn dtype(&self) -> DType {
        match self {
            Self::Dense(w) => w.dtype(),
            Self::Nf4 { nested, .. } => nested.dtype(),
        }
    }

    /// Features of a result.
    fn output(&self) -> usize {
        self.shape()[0]
    }

    /// Features of an input.
    fn input(&self) -> usize {
        self.shape()[1]
    }
}

/// The layer on a backend. The defaults compose it from the backend's own operations.
#[backend_extension(Flex, Cube: cfg(feature = "cuda"), Autodiff)]
pub(crate) trait LinearOps: Backend {
    /// x·Wᵀ.
    fn plain_linear(x: FloatTensor<Self>, #[extension_type] weight: Weight<Self>) -> FloatTensor<Self> {
        compose::linear::<Self>(x, weight)
    }

    /// y.
    fn lora_linear(
        x: FloatTensor<Self>,
        #[extension_type] weight: Weight<Self>,
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        scale: f64,
    ) -> FloatTensor<Self> {
        Self::lora_parts(x, weight, a, b, scale).0
    }

    /// y and h.
    fn lora_parts(
        x: FloatTensor<Self>,
        #[extension_type] weight: Weight<Self>,
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        scale: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        compose::lora_parts::<Self>(x, weight, a, b, scale)
    }

    /// g·W.
    fn linear_by_input(
        gradient: FloatTensor<Self>,
        #[extension_type] weight: Weight<Self>,
    ) -> FloatTensor<Self> {
        compose::linear_by_input::<Self>(gradient, weight)
    }

    /// g·W + u·A.
    fn lora_by_input(
        gradient: FloatTensor<Self>,
        #[extension_type] weight: Weight<Self>,
        u: FloatTensor<Self>,
        a: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        compose::lora_by_input::<Self>(gradient, weight, u, a)
    }

    /// scale·a·b.
    fn scaled_product(a: FloatTensor<Self>, b: FloatTensor<Self>, scale: f64) -> FloatTensor<Self> {
        compose::scaled_product::<Self>(a, b, scale)
    }

    /// scale·aᵀ·b.
    fn scaled_product_over_rows(a: FloatTensor<Self>, b: FloatTensor<Self>, scale: f64) -> FloatTensor<Self> {
        compose::scaled_product_over_rows::<Self>(a, b, scale)
    }
}

#[cfg(feature = "cuda")]
impl LinearOps for burn::backend::Cube {}
