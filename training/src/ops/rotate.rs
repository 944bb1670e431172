//! Rotary position embedding (Su et al. 2021), in Hugging Face's half-split layout.

use burn::tensor::Tensor;

/// cos and sin of every token's angles: [N, R/2] each, R being the rotated width of a head.
#[derive(Clone, Debug)]
pub(crate) struct Rotation {
    pub(crate) cos: Tensor<2>,
    pub(crate) sin: Tensor<2>,
}

/// Rotates the pairs (x_i, x_{i+R/2}), i < R/2, of every head; features from R on stay. `x`: [N, heads, D].
pub(crate) fn rotate(x: Tensor<3>, rotation: &Rotation) -> Tensor<3> {
    let half = rotation.cos.dims()[1];
    let width = x.dims()[2];
    let cos = rotation.cos.clone().unsqueeze_dim(1);
    let sin = rotation.sin.clone().unsqueeze_dim(1);
    let a = x.clone().narrow(2, 0, half);
    let b = x.clone().narrow(2, half, half);
    let first = a.clone() * cos.clone() - b.clone() * sin.clone();
    let second = b * cos + a * sin;
    let mut parts = vec![first, second];
    if width > 2 * half {
        parts.push(x.narrow(2, 2 * half, width - 2 * half));
    }
    Tensor::cat(parts, 2)
}
