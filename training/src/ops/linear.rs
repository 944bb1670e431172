//! A frozen linear layer with its low-rank adapter.

use burn::tensor::Tensor;

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
    weight: &Tensor<2>,
    bias: Option<&Tensor<1>>,
    adapter: Option<&Adapter>,
) -> Tensor<2> {
    let mut y = x.clone().matmul(weight.clone().transpose());
    if let Some(bias) = bias {
        y = y + bias.clone().unsqueeze();
    }
    match adapter {
        // B is small; scaling it is cheaper than scaling the product.
        Some(Adapter { a, b, scale }) => {
            let b = b.clone().mul_scalar(*scale);
            y + x.matmul(a.clone().transpose()).matmul(b.transpose())
        }
        None => y,
    }
}
