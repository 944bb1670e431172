//! What an operation with a backward pass of its own takes from burn, and where it may run.

pub(super) use burn::backend::autodiff::checkpoint::base::Checkpointer;
pub(super) use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
pub(super) use burn::backend::autodiff::grads::Gradients;
pub(super) use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
pub(super) use burn::backend::tensor::FloatTensor;
pub(super) use burn::backend::{Autodiff, Backend, Dispatch, Flex, backend_extension};

use burn::backend::{DispatchTensorKind, TensorMetadata};
use burn::tensor::{DType, Tensor};

/// Whether a tensor lies in this machine's memory as f32, where the kernels of `host` can take it.
pub(super) fn on_host<const D: usize>(tensor: &Tensor<D>) -> bool {
    let tensor = tensor.clone().into_dispatch();
    tensor.dtype() == DType::F32 && is_flex(&tensor.kind)
}

fn is_flex(kind: &DispatchTensorKind) -> bool {
    match kind {
        DispatchTensorKind::Autodiff(inner) => is_flex(inner),
        other => matches!(other, DispatchTensorKind::Flex(_)),
    }
}
