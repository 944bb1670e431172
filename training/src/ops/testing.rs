//! What the operations' tests share.

use crate::sampling::{derive_key, units};
use burn::tensor::{Device, Tensor, TensorData};

/// Numbers in ±1, by name.
pub(super) fn random<const D: usize>(name: &str, shape: [usize; D]) -> Tensor<D> {
    let count = shape.iter().product();
    let values: Vec<f32> = units(derive_key(&[name.as_bytes()]), count)
        .map(|u| (2.0 * u - 1.0) as f32)
        .collect();
    Tensor::from_data(TensorData::new(values, shape), &Device::flex())
}

/// The same as a leaf that keeps its gradient.
pub(super) fn leaf<const D: usize>(name: &str, shape: [usize; D]) -> Tensor<D> {
    random(name, shape).autodiff().require_grad()
}

pub(super) fn host<const D: usize>(t: Tensor<D>) -> Vec<f32> {
    t.into_data().iter::<f32>().collect()
}

/// Asserts that two tensors differ nowhere by more than `tolerance`.
#[track_caller]
pub(super) fn assert_close<const D: usize>(name: &str, a: Tensor<D>, b: Tensor<D>, tolerance: f32) {
    assert_eq!(a.dims(), b.dims(), "{name}");
    let (a, b) = (host(a), host(b));
    let differences = a.iter().zip(&b).map(|(x, y)| (x - y).abs());
    assert!(!differences.clone().any(f32::is_nan), "{name} has no number");
    let difference = differences.fold(0.0, f32::max);
    assert!(difference <= tolerance, "{name} differs by {difference}");
}

/// Runs `f` with one thread and with two, and asserts that the numbers are the same to the bit.
#[track_caller]
pub(super) fn assert_thread_independent(f: impl Fn() -> Vec<f32> + Sync) {
    let with = |threads| crate::threads::with_threads(threads, &f).unwrap();
    let (one, two) = (with(1), with(2));
    assert!(one.iter().zip(&two).all(|(a, b)| a.to_bits() == b.to_bits()) && one.len() == two.len());
}
