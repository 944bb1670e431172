use super::{composed, rms_norm};
use crate::ops::testing::{assert_close, assert_thread_independent, host, leaf, random};

const EPS: f64 = 1e-6;

#[test]
fn values_and_gradients_are_the_compositions() {
    for [rows, width] in [[1, 1], [3, 7], [5, 32], [300, 130]] {
        let (x, weight) = (leaf("x", [rows, width]), leaf("w", [width]));
        let weigh = random("g", [rows, width]);
        let [mine, theirs] = [rms_norm, composed].map(|norm| {
            let y = norm(x.clone(), weight.clone(), EPS);
            let gradients = (y.clone() * weigh.clone()).sum().backward();
            let by = (x.grad(&gradients).unwrap(), weight.grad(&gradients).unwrap());
            (y.inner(), by)
        });
        assert_close("y", mine.0, theirs.0, 1e-5);
        assert_close("x", mine.1.0, theirs.1.0, 1e-4);
        assert_close("w", mine.1.1, theirs.1.1, 1e-4);
    }
}

#[test]
fn a_frozen_weight_and_an_untracked_input_have_no_gradient() {
    let (x, weight) = (leaf("x", [3, 8]), leaf("w", [8]));
    let gradients = rms_norm(x.clone(), weight.clone().inner(), EPS).sum().backward();
    assert!(x.grad(&gradients).is_some() && weight.grad(&gradients).is_none());
    let gradients = rms_norm(x.clone().inner(), weight.clone(), EPS).sum().backward();
    assert!(x.grad(&gradients).is_none() && weight.grad(&gradients).is_some());
}

#[test]
fn threads_do_not_matter() {
    assert_thread_independent(|| {
        let (x, weight) = (leaf("x", [1100, 130]), leaf("w", [130]));
        let y = rms_norm(x.clone(), weight.clone(), EPS);
        let gradients = (y.clone() * random("g", [1100, 130])).sum().backward();
        let by_x = host(x.grad(&gradients).unwrap());
        [host(y.inner()), by_x, host(weight.grad(&gradients).unwrap())].concat()
    });
}
