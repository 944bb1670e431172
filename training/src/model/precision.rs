//! Which floating-point numbers a model computes in.

use super::layout::Role;
use crate::quant::Quantisation;
use burn::tensor::{DType, Device, FloatDType, Tensor};

/// What weights are held and activations computed in.
///
/// In bf16 norms, softmax, rotation, routers and the delta rule still compute in f32, and adapters are f32: their
/// product is added in f32 and rounded once. On the CPU a model with delta-nets computes in f64 in place of f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// Single precision.
    #[default]
    F32,
    /// bfloat16.
    Bf16,
}

impl Precision {
    /// bf16 on a GPU that has it; f32 on the CPU, which would only widen it again for each product.
    #[must_use]
    pub fn for_device(device: &Device) -> Self {
        if device.clone().inner() != Device::flex() && device.supports_dtype(DType::BF16) {
            Self::Bf16
        } else {
            Self::F32
        }
    }

    /// How a tensor is held. Norms and what routes or decays are small, and what they decide is not.
    pub(super) fn dtype(self, role: Role) -> DType {
        match (self, role) {
            (Self::F32, _) | (Self::Bf16, Role::Norm | Role::Router | Role::Convolution | Role::Decay) => {
                DType::F32
            }
            (Self::Bf16, Role::Embedding | Role::Head | Role::Bias | Role::Linear | Role::Expert) => {
                DType::BF16
            }
        }
    }
}

/// How a model is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loading {
    /// How linear layers are held.
    pub quantisation: Quantisation,
    /// What the rest is held and everything computed in.
    pub precision: Precision,
}

impl From<Quantisation> for Loading {
    fn from(quantisation: Quantisation) -> Self {
        Self {
            quantisation,
            precision: Precision::F32,
        }
    }
}

impl From<Precision> for Loading {
    fn from(precision: Precision) -> Self {
        Self {
            quantisation: Quantisation::None,
            precision,
        }
    }
}

/// What attention's products are taken in: the activations' own numbers, but f32 on the CPU, which has no others.
pub(crate) fn mixing_dtype(x: &Tensor<2>) -> DType {
    if x.device().inner() == Device::flex() {
        DType::F32
    } else {
        x.dtype()
    }
}

/// In the numbers of a model with delta-nets: f64 on the CPU, f32 elsewhere. A decay is the exponential of a difference of
/// sums, and a norm over what little a head reads magnifies its error: f32 loses three digits on some weights.
pub(crate) fn exact<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let host = x.device().inner() == Device::flex();
    x.cast(if host { FloatDType::F64 } else { FloatDType::F32 })
}

/// In f32, for a reduction; f64 stays.
pub(crate) fn wide<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    if x.dtype() == DType::F64 {
        x
    } else {
        x.cast(FloatDType::F32)
    }
}

/// Back from a reduction, as activations of `dtype` are.
pub(crate) fn narrow<const D: usize>(x: Tensor<D>, dtype: DType) -> Tensor<D> {
    if x.dtype() == dtype { x } else { x.cast(dtype) }
}
