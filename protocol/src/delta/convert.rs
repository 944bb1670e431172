//! From f32 to the smaller dtypes and back.

use super::format::{DType, Q4_BLOCK};
use super::tensor::{RawTensor, chunks, nibble};
use crate::quant::{Q8, blocks, scales_from_bytes};
use crate::tensor::F32Tensor;
use half::{bf16, f16};

/// Largest magnitude of a q4 integer.
const Q4_MAX: f32 = 7.0;

impl RawTensor {
    /// Encodes f32 values as `dtype`, rounding to nearest even; `None` for the integer dtypes, which hold no fractions.
    /// A value beyond f16's range becomes infinite and is refused when the file is written.
    #[must_use]
    pub fn from_f32(tensor: &F32Tensor, dtype: DType) -> Option<Self> {
        let v = &tensor.data;
        let data = match dtype {
            DType::F32 => return Some(Self::from(tensor)),
            DType::F16 => v.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect(),
            DType::Bf16 => v.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect(),
            DType::F64 => v.iter().flat_map(|v| f64::from(*v).to_le_bytes()).collect(),
            DType::Q8 => Q8::encode(v).to_bytes(),
            DType::Q4 => encode_q4(v),
            DType::I8 | DType::U8 | DType::I32 | DType::I64 => return None,
        };
        Some(Self {
            dtype,
            shape: tensor.shape.clone(),
            data,
        })
    }

    /// The values as f32 (f64 and large integers are rounded to nearest even).
    #[must_use]
    pub fn to_f32(&self) -> F32Tensor {
        let d = &self.data;
        let n = super::format::elements(&self.shape).unwrap_or(0);
        let data = match self.dtype {
            DType::F32 => chunks(d).map(f32::from_le_bytes).collect(),
            DType::F16 => chunks(d).map(|b| f16::from_le_bytes(b).to_f32()).collect(),
            DType::Bf16 => chunks(d).map(|b| bf16::from_le_bytes(b).to_f32()).collect(),
            DType::F64 => chunks(d).map(|b| f64::from_le_bytes(b) as f32).collect(),
            DType::I8 => d.iter().map(|&b| f32::from(b as i8)).collect(),
            DType::U8 => d.iter().map(|&b| f32::from(b)).collect(),
            DType::I32 => chunks(d).map(|b| i32::from_le_bytes(b) as f32).collect(),
            DType::I64 => chunks(d).map(|b| i64::from_le_bytes(b) as f32).collect(),
            DType::Q8 => decode_q8(d, n),
            DType::Q4 => decode_q4(d, n),
        };
        F32Tensor {
            shape: self.shape.clone(),
            data,
        }
    }
}

fn decode_q8(data: &[u8], n: usize) -> Vec<f32> {
    let (integers, scales) = data.split_at(n.min(data.len()));
    let integers = integers.iter().map(|&b| b as i8).collect();
    Q8 {
        integers,
        scales: scales_from_bytes(scales, blocks(n)).unwrap_or_default(),
    }
    .decode()
}

/// ⌈n/2⌉ bytes of nibbles, then ⌈n/64⌉ f16 scales = absmax/7 rounded to f16.
fn encode_q4(values: &[f32]) -> Vec<u8> {
    let mut nibbles = vec![0u8; values.len().div_ceil(2)];
    let mut scales = Vec::new();
    for (b, block) in values.chunks(Q4_BLOCK).enumerate() {
        let absmax = block.iter().map(|v| v.abs()).fold(0.0, f32::max);
        let scale = f16::from_f32(absmax / Q4_MAX);
        scales.extend(scale.to_le_bytes());
        for (i, v) in block.iter().enumerate() {
            let at = b * Q4_BLOCK + i;
            nibbles[at / 2] |= q4_integer(*v, scale.to_f32()) << (4 * (at % 2));
        }
    }
    nibbles.extend(scales);
    nibbles
}

fn q4_integer(value: f32, scale: f32) -> u8 {
    if scale == 0.0 {
        return 0;
    }
    let integer = (value / scale).round_ties_even().clamp(-Q4_MAX, Q4_MAX) as i8;
    integer as u8 & 0x0f
}

fn decode_q4(data: &[u8], n: usize) -> Vec<f32> {
    let (nibbles, scales) = data.split_at(n.div_ceil(2).min(data.len()));
    let scales: Vec<f32> = chunks(scales).map(|b| f16::from_le_bytes(b).to_f32()).collect();
    (0..n)
        .map(|i| f32::from(nibble(nibbles, i)) * scales[i / Q4_BLOCK])
        .collect()
}
