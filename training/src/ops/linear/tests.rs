use super::{Adapter, linear};
use crate::ops::testing::{assert_close, assert_thread_independent, host, leaf, random};
use burn::tensor::Tensor;

/// The layer from burn's own operations.
fn composed(x: Tensor<2>, weight: &Tensor<2>, bias: &Tensor<1>, adapter: &Adapter) -> Tensor<2> {
    let low = x
        .clone()
        .matmul(adapter.a.clone().transpose())
        .matmul(adapter.b.clone().transpose());
    x.matmul(weight.clone().transpose()) + bias.clone().unsqueeze() + low.mul_scalar(adapter.scale)
}

fn adapter(rank: usize, input: usize, output: usize) -> Adapter {
    Adapter {
        a: leaf("a", [rank, input]),
        b: leaf("b", [output, rank]),
        scale: 1.5,
    }
}

#[test]
fn values_and_gradients_are_the_compositions() {
    for (rows, input, output, rank) in [(1, 1, 1, 1), (7, 5, 3, 2), (33, 40, 17, 16), (65, 64, 96, 4)] {
        let (x, weight, bias) = (
            leaf("x", [rows, input]),
            leaf("w", [output, input]),
            leaf("c", [output]),
        );
        let adapter = adapter(rank, input, output);
        let weigh = random("g", [rows, output]);
        let both = [
            linear(x.clone(), &weight, Some(&bias), Some(&adapter)),
            composed(x.clone(), &weight, &bias, &adapter),
        ];
        let [mine, theirs] = both.map(|y| {
            let gradients = (y.clone() * weigh.clone()).sum().backward();
            (y.inner(), gradients)
        });
        assert_close("y", mine.0, theirs.0, 1e-4);
        for (name, leaf) in [("x", &x), ("w", &weight), ("a", &adapter.a), ("b", &adapter.b)] {
            let of = |gradients| leaf.grad(gradients).unwrap();
            assert_close(name, of(&mine.1), of(&theirs.1), 2e-4);
        }
        assert_close(
            "c",
            bias.grad(&mine.1).unwrap(),
            bias.grad(&theirs.1).unwrap(),
            2e-4,
        );
    }
}

#[test]
fn a_plain_layer_has_the_gradients_of_what_is_tracked() {
    let (x, weight) = (leaf("x", [6, 5]), leaf("w", [4, 5]));
    let whole = linear(x.clone(), &weight, None, None).sum().backward();
    let theirs = x.clone().matmul(weight.clone().transpose()).sum().backward();
    assert_close("x", x.grad(&whole).unwrap(), x.grad(&theirs).unwrap(), 1e-5);
    assert_close(
        "w",
        weight.grad(&whole).unwrap(),
        weight.grad(&theirs).unwrap(),
        1e-5,
    );

    let frozen = linear(x.clone(), &weight.clone().inner(), None, None)
        .sum()
        .backward();
    assert_close("x", x.grad(&frozen).unwrap(), x.grad(&theirs).unwrap(), 1e-5);
    let first = linear(x.clone().inner(), &weight, None, None).sum().backward();
    assert_close(
        "w",
        weight.grad(&first).unwrap(),
        weight.grad(&theirs).unwrap(),
        1e-5,
    );
    assert!(x.grad(&first).is_none());
}

#[test]
fn a_view_gives_what_its_copy_gives() {
    let (wide, weight) = (random::<2>("x", [9, 6]), random("w", [4, 3]));
    let view = wide.clone().transpose().narrow(0, 2, 4).narrow(1, 3, 3);
    let copy = Tensor::from_data(view.clone().to_data(), &view.device());
    assert_close(
        "y",
        linear(view, &weight, None, None),
        linear(copy, &weight, None, None),
        0.0,
    );
}

#[test]
fn threads_do_not_matter() {
    assert_thread_independent(|| {
        let x = leaf("x", [300, 260]);
        let adapter = adapter(16, 260, 520);
        let y = linear(x.clone(), &random("w", [520, 260]), None, Some(&adapter));
        let gradients = (y.clone() * random("g", [300, 520])).sum().backward();
        let of = |t: &Tensor<2>| host(t.grad(&gradients).unwrap());
        [host(y.inner()), of(&x), of(&adapter.a), of(&adapter.b)].concat()
    });
}
