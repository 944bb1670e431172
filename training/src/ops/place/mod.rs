//! Heads normed and placed: RMSNorm over each head (Qwen3) and rotary position embedding (Su et al. 2021) in Hugging
//! Face's half-split layout, as one operation that keeps its input alone.
//!
//! A rotation's transpose turns back, so ∂L/∂x is the norm's backward pass of the gradient turned back.

mod autodiff;
mod kernel;
#[cfg(test)]
mod tests;

use super::graph::{Backend, Dispatch, Flex, FloatTensor, backend_extension, on_host};
use super::host::{Values, tensor};
use super::norm;
use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use burn::tensor::Tensor;
use kernel::Heads;

/// cos and sin of every token's angles: [N, R/2] each, R being the rotated width of a head.
#[derive(Clone, Debug)]
pub(crate) struct Rotation {
    pub(crate) cos: Tensor<2>,
    pub(crate) sin: Tensor<2>,
}

/// A norm over each head.
#[derive(Clone, Debug)]
pub(crate) struct HeadNorm {
    /// [D]
    pub(crate) weight: Tensor<1>,
    /// ε
    pub(crate) eps: f64,
}

/// Norms every head, then rotates its pairs (x_i, x_{i+R/2}), i < R/2; features from R on stay. `x` and the result:
/// [N, heads·D], D being `head_dim`.
pub(crate) fn place(x: Tensor<2>, head_dim: usize, norm: Option<HeadNorm>, rotation: &Rotation) -> Tensor<2> {
    if !on_host(&x) {
        return composed(x, head_dim, norm, rotation);
    }
    let x = x.into_dispatch();
    let (cos, sin) = (
        rotation.cos.clone().into_dispatch(),
        rotation.sin.clone().into_dispatch(),
    );
    Tensor::from_dispatch(match norm {
        Some(HeadNorm { weight, eps }) => {
            Dispatch::normed_rotated(x, weight.into_dispatch(), cos, sin, head_dim, eps)
        }
        None => Dispatch::rotated(x, cos, sin, head_dim),
    })
}

/// The same from burn's own operations.
fn composed(x: Tensor<2>, head_dim: usize, norm: Option<HeadNorm>, rotation: &Rotation) -> Tensor<2> {
    let [tokens, width] = x.dims();
    let mut x = x.reshape([tokens, width / head_dim, head_dim]);
    if let Some(HeadNorm { weight, eps }) = norm {
        x = norm::composed(x, weight, eps);
    }
    let half = rotation.cos.dims()[1];
    let cos = rotation.cos.clone().unsqueeze_dim(1);
    let sin = rotation.sin.clone().unsqueeze_dim(1);
    let a = x.clone().narrow(2, 0, half);
    let b = x.clone().narrow(2, half, half);
    let first = a.clone() * cos.clone() - b.clone() * sin.clone();
    let second = b * cos + a * sin;
    let mut parts = vec![first, second];
    if head_dim > 2 * half {
        parts.push(x.narrow(2, 2 * half, head_dim - 2 * half));
    }
    Tensor::cat(parts, 2).reshape([tokens, width])
}

/// The operation on the CPU backend.
#[backend_extension(Flex, Autodiff)]
pub(crate) trait PlaceOps: Backend {
    /// Rotated heads.
    fn rotated(
        x: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        head_dim: usize,
    ) -> FloatTensor<Self>;

    /// Normed and rotated heads.
    fn normed_rotated(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        head_dim: usize,
        eps: f64,
    ) -> FloatTensor<Self>;
}

/// Its backward pass there.
pub(crate) trait PlaceGradients: PlaceOps {
    /// ∂L/∂x without a norm.
    fn turned_back(state: RotatedState<Self>, gradient: FloatTensor<Self>) -> FloatTensor<Self>;

    /// ∂L/∂x.
    fn by_input(state: PlacedState<Self>, gradient: FloatTensor<Self>) -> FloatTensor<Self>;

    /// ∂L/∂w.
    fn by_weight(state: PlacedState<Self>, gradient: FloatTensor<Self>) -> FloatTensor<Self>;
}

/// What a rotation keeps.
#[derive(Clone, Debug)]
pub(crate) struct RotatedState<B: Backend> {
    cos: FloatTensor<B>,
    sin: FloatTensor<B>,
    head_dim: usize,
}

/// What a norm with a rotation keeps.
#[derive(Clone, Debug)]
pub(crate) struct PlacedState<B: Backend> {
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    rotation: RotatedState<B>,
    eps: f64,
}

impl PlaceOps for Flex {
    fn rotated(x: FlexTensor, cos: FlexTensor, sin: FlexTensor, head_dim: usize) -> FlexTensor {
        let heads = Heads::new(&cos, &sin, head_dim);
        tensor(heads.forward(&Values::of(&x), None), x.shape())
    }

    fn normed_rotated(
        x: FlexTensor,
        weight: FlexTensor,
        cos: FlexTensor,
        sin: FlexTensor,
        head_dim: usize,
        eps: f64,
    ) -> FlexTensor {
        let heads = Heads::new(&cos, &sin, head_dim);
        let norm = (Values::of(&weight), eps as f32);
        tensor(heads.forward(&Values::of(&x), Some(norm)), x.shape())
    }
}

impl PlaceGradients for Flex {
    fn turned_back(state: RotatedState<Self>, gradient: FlexTensor) -> FlexTensor {
        let heads = Heads::new(&state.cos, &state.sin, state.head_dim);
        tensor(heads.backward(&Values::of(&gradient), None), gradient.shape())
    }

    fn by_input(state: PlacedState<Self>, gradient: FlexTensor) -> FlexTensor {
        let PlacedState {
            x,
            weight,
            rotation,
            eps,
        } = &state;
        let heads = Heads::new(&rotation.cos, &rotation.sin, rotation.head_dim);
        let norm = (Values::of(x), Values::of(weight), *eps as f32);
        tensor(
            heads.backward(&Values::of(&gradient), Some(norm)),
            gradient.shape(),
        )
    }

    fn by_weight(state: PlacedState<Self>, gradient: FlexTensor) -> FlexTensor {
        let PlacedState { x, rotation, eps, .. } = &state;
        let heads = Heads::new(&rotation.cos, &rotation.sin, rotation.head_dim);
        let sum = heads.by_weight(&Values::of(&gradient), &Values::of(x), *eps as f32);
        tensor(sum, [rotation.head_dim])
    }
}
