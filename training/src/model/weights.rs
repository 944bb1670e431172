//! Named weights.

use super::LoadError;
use super::layout::{Role, TensorSpec};
use super::precision::Loading;
use crate::quant::{Nf4Matrix, Nf4Tensor, Quantisation};
use burn::tensor::{DType, Device, Tensor, TensorData};
use gym_protocol::tensor::{F32Tensor, TensorSet};
use std::collections::BTreeMap;

/// One weight: a norm's vector or a linear layer's matrix [out, in].
#[derive(Clone, Debug)]
pub enum Weight {
    /// One dimension.
    Vector(Tensor<1>),
    /// Two dimensions, row-major as Hugging Face stores them.
    Matrix(Tensor<2>),
    /// A linear layer's matrix in four bits a value; never tracked.
    Nf4(Nf4Tensor),
}

impl Weight {
    /// The tensor's extent.
    #[must_use]
    pub fn shape(&self) -> Vec<usize> {
        match self {
            Self::Vector(t) => t.dims().to_vec(),
            Self::Matrix(t) => t.dims().to_vec(),
            Self::Nf4(t) => t.shape().to_vec(),
        }
    }

    /// Copies the values to the host, row-major; four bits a value are unpacked.
    #[must_use]
    pub fn to_host(&self) -> F32Tensor {
        let data = match self {
            Self::Vector(t) => t.to_data().iter::<f32>().collect(),
            Self::Matrix(t) => t.to_data().iter::<f32>().collect(),
            Self::Nf4(t) => t.to_host().dequantise(),
        };
        F32Tensor {
            shape: self.shape().iter().map(|n| *n as u64).collect(),
            data,
        }
    }

    /// Bytes of the device that hold the values.
    #[must_use]
    pub fn resident_bytes(&self) -> usize {
        match self {
            Self::Vector(t) => t.dtype().size() * t.dims()[0],
            Self::Matrix(t) => t.dtype().size() * t.dims().iter().product::<usize>(),
            Self::Nf4(t) => t.resident_bytes(),
        }
    }

    /// Puts host values on `device` as f32; `None` unless `shape` has one or two dimensions that `data` fills.
    #[must_use]
    pub fn from_host(shape: &[usize], data: Vec<f32>, device: &Device) -> Option<Self> {
        Self::from_values(shape, data, device, DType::F32)
    }

    fn from_values(shape: &[usize], data: Vec<f32>, device: &Device, dtype: DType) -> Option<Self> {
        if shape.iter().product::<usize>() != data.len() {
            return None;
        }
        let data = |shape: &[usize]| {
            let data = TensorData::new(data, shape.to_vec());
            if dtype == DType::F32 {
                data
            } else {
                data.convert_dtype(dtype)
            }
        };
        match *shape {
            [n] => Some(Self::Vector(Tensor::from_data(data(&[n]), (device, dtype)))),
            [m, n] => Some(Self::Matrix(Tensor::from_data(data(&[m, n]), (device, dtype)))),
            _ => None,
        }
    }

    /// Puts the values of one of a model's tensors on `device`, quantised where that is asked for and the tensor is a
    /// linear layer's; `None` when `data` does not fill its shape.
    ///
    /// # Errors
    /// A value to be quantised that is not finite.
    pub(super) fn held(
        spec: &TensorSpec,
        data: Vec<f32>,
        device: &Device,
        loading: Loading,
    ) -> Result<Option<Self>, LoadError> {
        let linear = matches!(spec.role, Role::Linear | Role::Expert);
        match (loading.quantisation, spec.shape.as_slice()) {
            (Quantisation::Nf4, [output, input]) if linear && output * input == data.len() => {
                let matrix =
                    Nf4Matrix::quantise([*output, *input], &data).map_err(|source| LoadError::Quantise {
                        name: spec.name.clone(),
                        source,
                    })?;
                Ok(Some(Self::Nf4(Nf4Tensor::new(matrix, device))))
            }
            _ => {
                let dtype = loading.precision.dtype(spec.role);
                Ok(Self::from_values(&spec.shape, data, device, dtype))
            }
        }
    }

    /// Without autodiff: for rollouts, the reference pass and saving.
    #[must_use]
    pub fn inner(self) -> Self {
        match self {
            Self::Vector(t) => Self::Vector(t.inner()),
            Self::Matrix(t) => Self::Matrix(t.inner()),
            Self::Nf4(t) => Self::Nf4(t),
        }
    }

    /// As a fresh leaf of the autodiff graph that keeps its gradient; a quantised weight has none.
    #[must_use]
    pub fn tracked(self) -> Self {
        match self {
            Self::Vector(t) => Self::Vector(t.inner().autodiff().require_grad()),
            Self::Matrix(t) => Self::Matrix(t.inner().autodiff().require_grad()),
            Self::Nf4(t) => Self::Nf4(t),
        }
    }
}

/// Weights by Hugging Face name (`model.layers.0.self_attn.q_proj.weight`), in bytewise name order.
#[derive(Clone, Debug, Default)]
pub struct Weights(pub BTreeMap<String, Weight>);

impl Weights {
    /// Applies `f` to every weight.
    #[must_use]
    pub fn map(&self, f: impl Fn(Weight) -> Weight) -> Self {
        Self(self.0.iter().map(|(k, w)| (k.clone(), f(w.clone()))).collect())
    }

    /// Copies all to the host.
    #[must_use]
    pub fn to_host(&self) -> TensorSet {
        TensorSet(self.0.iter().map(|(k, w)| (k.clone(), w.to_host())).collect())
    }
}
