//! Reading reference files.
#![allow(dead_code, reason = "each test file uses some of these")]

use safetensors::SafeTensors;
use std::path::{Path, PathBuf};

/// The reference models, under `tests/fixtures/models`.
pub(crate) const MODELS: [&str; 9] = [
    "qwen2",
    "qwen3",
    "qwen3_untied",
    "llama3",
    "mistral",
    "mistral_sw",
    "mixtral",
    "qwen3_moe",
    "qwen3_next",
];

/// A path under `tests/fixtures`.
pub(crate) fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(path)
}

/// A safetensors file in memory.
pub(crate) struct Reference(Vec<u8>);

impl Reference {
    pub(crate) fn open(path: &str) -> Self {
        Self(std::fs::read(fixture(path)).unwrap())
    }

    fn bytes(&self, name: &str) -> (Vec<usize>, Vec<u8>) {
        let file = SafeTensors::deserialize(&self.0).unwrap();
        let view = file.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        (view.shape().to_vec(), view.data().to_vec())
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let file = SafeTensors::deserialize(&self.0).unwrap();
        file.names().into_iter().map(str::to_owned).collect()
    }

    pub(crate) fn shape(&self, name: &str) -> Vec<usize> {
        self.bytes(name).0
    }

    pub(crate) fn u8(&self, name: &str) -> Vec<u8> {
        self.bytes(name).1
    }

    pub(crate) fn f32(&self, name: &str) -> Vec<f32> {
        let (_, bytes) = self.bytes(name);
        bytes
            .as_chunks()
            .0
            .iter()
            .map(|b| f32::from_le_bytes(*b))
            .collect()
    }

    pub(crate) fn f64(&self, name: &str) -> Vec<f64> {
        let (_, bytes) = self.bytes(name);
        bytes
            .as_chunks()
            .0
            .iter()
            .map(|b| f64::from_le_bytes(*b))
            .collect()
    }

    pub(crate) fn i32(&self, name: &str) -> Vec<i32> {
        let (_, bytes) = self.bytes(name);
        bytes
            .as_chunks()
            .0
            .iter()
            .map(|b| i32::from_le_bytes(*b))
            .collect()
    }

    /// A [rows, width] tensor of token ids, with the places whose mask is 1.
    pub(crate) fn rows(&self, ids: &str, mask: &str) -> Vec<Vec<u32>> {
        let width = self.shape(ids)[1];
        let (ids, mask) = (self.i32(ids), self.i32(mask));
        let row = |(ids, mask): (&[i32], &[i32])| {
            let kept = ids.iter().zip(mask).filter(|(_, m)| **m == 1);
            kept.map(|(id, _)| u32::try_from(*id).unwrap()).collect()
        };
        ids.chunks(width).zip(mask.chunks(width)).map(row).collect()
    }
}

/// Largest |a − b| of as many values, infinite where one is no number: `f32::max` would pass over it.
pub(crate) fn max_diff(a: impl IntoIterator<Item = f32>, b: impl IntoIterator<Item = f32>) -> f32 {
    let (a, b): (Vec<f32>, Vec<f32>) = (a.into_iter().collect(), b.into_iter().collect());
    assert_eq!(a.len(), b.len(), "another number of values");
    a.iter().zip(&b).map(|(x, y)| apart(*x, *y)).fold(0.0, f32::max)
}

/// |a − b|, infinite where one is no number.
pub(crate) fn apart(a: f32, b: f32) -> f32 {
    let difference = (a - b).abs();
    if difference.is_nan() {
        f32::INFINITY
    } else {
        difference
    }
}
