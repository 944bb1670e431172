use super::{composed, swiglu};
use crate::ops::testing::{assert_close, assert_thread_independent, host, leaf, random};

#[test]
fn values_and_gradients_are_the_compositions() {
    for shape in [[1, 1], [3, 7], [40, 96]] {
        let (gate, up) = (leaf("gate", shape), leaf("up", shape));
        let weigh = random("g", shape);
        let [mine, theirs] = [swiglu, composed].map(|f| {
            let y = f(gate.clone().mul_scalar(9.0), up.clone());
            let gradients = (y.clone() * weigh.clone()).sum().backward();
            let by = [gate.grad(&gradients).unwrap(), up.grad(&gradients).unwrap()];
            (y.inner(), by)
        });
        assert_close("y", mine.0, theirs.0, 1e-5);
        for (mine, theirs) in mine.1.into_iter().zip(theirs.1) {
            assert_close("gradient", mine, theirs, 1e-5);
        }
    }
}

#[test]
fn threads_do_not_matter() {
    assert_thread_independent(|| {
        let (gate, up) = (leaf("gate", [301, 700]), leaf("up", [301, 700]));
        let y = swiglu(gate.clone(), up.clone());
        let gradients = (y.clone() * random("g", [301, 700])).sum().backward();
        let of = |t: &burn::tensor::Tensor<2>| host(t.grad(&gradients).unwrap());
        [host(y.inner()), of(&gate), of(&up)].concat()
    });
}
