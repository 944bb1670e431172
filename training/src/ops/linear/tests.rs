use super::{Adapter, Frozen, LinearOps, Weight, compose};
use crate::ops::testing::{assert_close, assert_thread_independent, host, leaf, random};
use crate::quant::{Nf4Matrix, Nf4Tensor, Scales};
use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::tensor::{Device, Tensor, TensorData};

fn linear(
    x: Tensor<2>,
    weight: &Tensor<2>,
    bias: Option<&Tensor<1>>,
    adapter: Option<&Adapter>,
) -> Tensor<2> {
    super::linear(x, &Frozen::from(weight.clone()), bias, adapter)
}

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

fn packed(name: &str, shape: [usize; 2]) -> Nf4Matrix {
    Nf4Matrix::quantise(shape, &host(random(name, shape))).unwrap()
}

fn unpacked(matrix: &Nf4Matrix) -> Tensor<2> {
    let data = TensorData::new(matrix.dequantise(), matrix.shape());
    Tensor::from_data(data, &Device::flex())
}

/// Shapes whose rows end within blocks and bytes, whose last block ends short, and that take several tiles.
const PACKED: [[usize; 2]; 5] = [[4, 64], [7, 33], [3, 5], [17, 40], [600, 520]];

#[test]
fn a_packed_weight_gives_the_values_and_gradients_of_its_dense_one() {
    for shape in PACKED {
        let [output, input] = shape;
        for rows in [1, 9] {
            let matrix = packed("w", shape);
            let dense = unpacked(&matrix);
            let weight = Frozen::Nf4(Nf4Tensor::new(matrix, &Device::flex()));
            let (x, adapter) = (leaf("x", [rows, input]), adapter(2, input, output));
            let weigh = random("g", [rows, output]);
            for adapter in [Some(&adapter), None] {
                let both = [
                    super::linear(x.clone(), &weight, None, adapter),
                    linear(x.clone(), &dense, None, adapter),
                ];
                let [mine, theirs] = both.map(|y| {
                    let gradients = (y.clone() * weigh.clone()).sum().backward();
                    (y.inner(), gradients)
                });
                assert_close("y", mine.0, theirs.0, 1e-4);
                let leaves = adapter.map_or(vec![&x], |l| vec![&x, &l.a, &l.b]);
                for leaf in leaves {
                    assert_close(
                        "gradient",
                        leaf.grad(&mine.1).unwrap(),
                        leaf.grad(&theirs.1).unwrap(),
                        2e-4,
                    );
                }
            }
        }
    }
}

/// What a backend without kernels of its own computes, on the CPU.
#[test]
fn unpacking_by_any_backends_operations_is_the_kernels() {
    for shape in PACKED {
        let double = packed("w", shape);
        let absmax = (0..(shape[0] * shape[1]).div_ceil(64))
            .map(|b| double.scales().of(b))
            .collect();
        let plain = Nf4Matrix::from_parts(shape, double.codes().to_vec(), Scales::Plain(absmax)).unwrap();
        for matrix in [double, plain] {
            let packed = Nf4Tensor::new(matrix.clone(), &Device::flex());
            let parts = packed.parts();
            let int = |t: &Tensor<1, burn::tensor::Int>| FlexTensor::from_data(t.to_data());
            let weight = Weight::<Flex>::Nf4 {
                codes: int(&parts.codes),
                scales: int(&parts.scales),
                nested: FlexTensor::from_data(parts.nested.to_data()),
                shape,
                group: parts.group,
                offset: parts.offset,
            };
            let identity: Tensor<2> = Tensor::eye(shape[0], &Device::flex());
            let x = FlexTensor::from_data(identity.into_data());
            let got = [
                compose::linear_by_input::<Flex>(x.clone(), weight.clone()),
                <Flex as LinearOps>::linear_by_input(x, weight),
            ];
            for values in got {
                let values = Tensor::<2>::from_data(values.into_data(), &Device::flex());
                assert_close("w", values, unpacked(&matrix), 1e-6);
            }
        }
    }
}

#[test]
fn threads_do_not_matter_to_a_packed_weight() {
    let weight = Frozen::Nf4(Nf4Tensor::new(packed("w", [600, 520]), &Device::flex()));
    assert_thread_independent(|| {
        let x = leaf("x", [40, 520]);
        let y = super::linear(x.clone(), &weight, None, None);
        let gradients = (y.clone() * random("g", [40, 600])).sum().backward();
        [host(y.inner()), host(x.grad(&gradients).unwrap())].concat()
    });
}

#[test]
fn a_merged_weight_gives_what_weight_and_adapter_give() {
    for (input, output, rank) in [(1, 1, 1), (7, 3, 2), (40, 96, 16)] {
        let (x, weight) = (random("x", [5, input]), random::<2>("w", [output, input]));
        let adapter = adapter(rank, input, output);
        let weight = Frozen::from(weight);
        let apart = super::linear(x.clone(), &weight, None, Some(&adapter)).inner();
        let merged = weight.merged(Some(&adapter)).unwrap();
        assert_close("y", super::linear(x.clone(), &merged, None, None), apart, 2e-5);
        let plain = super::linear(x.clone(), &weight, None, None);
        assert_close(
            "y",
            super::linear(x, &weight.merged(None).unwrap(), None, None),
            plain,
            1e-5,
        );
    }
}
