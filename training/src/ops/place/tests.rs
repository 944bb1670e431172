use super::{HeadNorm, Rotation, composed, place};
use crate::ops::testing::{assert_close, assert_thread_independent, host, leaf, random};
use burn::tensor::Tensor;

/// Angles of `tokens` tokens, `half` pairs a head.
fn rotation(tokens: usize, half: usize) -> Rotation {
    let angles: Tensor<2> = random("angles", [tokens, half]).mul_scalar(3.0);
    Rotation {
        cos: angles.clone().cos(),
        sin: angles.sin(),
    }
}

fn head_norm(weight: &Tensor<1>) -> Option<HeadNorm> {
    Some(HeadNorm {
        weight: weight.clone(),
        eps: 1e-6,
    })
}

#[test]
fn values_and_gradients_are_the_compositions() {
    // The last head is rotated in part.
    for (tokens, heads, dim, half) in [(1, 1, 2, 1), (5, 3, 8, 4), (70, 4, 33, 16), (9, 2, 16, 2)] {
        let (x, weight) = (leaf("x", [tokens, heads * dim]), leaf("w", [dim]));
        let (weigh, rotation) = (random("g", [tokens, heads * dim]), rotation(tokens, half));
        for norm in [None, head_norm(&weight)] {
            let [mine, theirs] = [place, composed].map(|f| {
                let y = f(x.clone(), dim, norm.clone(), &rotation);
                let gradients = (y.clone() * weigh.clone()).sum().backward();
                (y.inner(), x.grad(&gradients).unwrap(), weight.grad(&gradients))
            });
            assert_close("y", mine.0, theirs.0, 1e-5);
            assert_close("x", mine.1, theirs.1, 1e-4);
            assert_eq!(mine.2.is_some(), norm.is_some());
            if let (Some(mine), Some(theirs)) = (mine.2, theirs.2) {
                assert_close("w", mine, theirs, 1e-4);
            }
        }
    }
}

#[test]
fn threads_do_not_matter() {
    assert_thread_independent(|| {
        let (x, weight) = (leaf("x", [601, 256]), leaf("w", [32]));
        let y = place(x.clone(), 32, head_norm(&weight), &rotation(601, 16));
        let gradients = (y.clone() * random("g", [601, 256])).sum().backward();
        let by_x = host(x.grad(&gradients).unwrap());
        [host(y.inner()), by_x, host(weight.grad(&gradients).unwrap())].concat()
    });
}
