//! Named weights.

use burn::tensor::{Device, Tensor, TensorData};
use gym_protocol::tensor::{F32Tensor, TensorSet};
use std::collections::BTreeMap;

/// One weight: a norm's vector or a linear layer's matrix [out, in].
#[derive(Clone, Debug)]
pub enum Weight {
    /// One dimension.
    Vector(Tensor<1>),
    /// Two dimensions, row-major as Hugging Face stores them.
    Matrix(Tensor<2>),
}

impl Weight {
    /// The tensor's extent.
    #[must_use]
    pub fn shape(&self) -> Vec<usize> {
        match self {
            Self::Vector(t) => t.dims().to_vec(),
            Self::Matrix(t) => t.dims().to_vec(),
        }
    }

    /// Copies the values to the host, row-major.
    #[must_use]
    pub fn to_host(&self) -> F32Tensor {
        let data = match self {
            Self::Vector(t) => t.to_data(),
            Self::Matrix(t) => t.to_data(),
        };
        F32Tensor {
            shape: self.shape().iter().map(|n| *n as u64).collect(),
            data: data.iter::<f32>().collect(),
        }
    }

    /// Puts host values on `device`; `None` unless `shape` has one or two dimensions that `data` fills.
    #[must_use]
    pub fn from_host(shape: &[usize], data: Vec<f32>, device: &Device) -> Option<Self> {
        if shape.iter().product::<usize>() != data.len() {
            return None;
        }
        match *shape {
            [n] => Some(Self::Vector(Tensor::from_data(
                TensorData::new(data, [n]),
                device,
            ))),
            [m, n] => Some(Self::Matrix(Tensor::from_data(
                TensorData::new(data, [m, n]),
                device,
            ))),
            _ => None,
        }
    }

    /// Without autodiff: for rollouts, the reference pass and saving.
    #[must_use]
    pub fn inner(self) -> Self {
        match self {
            Self::Vector(t) => Self::Vector(t.inner()),
            Self::Matrix(t) => Self::Matrix(t.inner()),
        }
    }

    /// As a fresh leaf of the autodiff graph that keeps its gradient.
    #[must_use]
    pub fn tracked(self) -> Self {
        match self {
            Self::Vector(t) => Self::Vector(t.inner().autodiff().require_grad()),
            Self::Matrix(t) => Self::Matrix(t.inner().autodiff().require_grad()),
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
