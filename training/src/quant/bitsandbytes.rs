//! NF4 weights in the names that bitsandbytes saves them under.
//!
//! Beside `W.weight` (codes, U8) lie `W.weight.absmax`, `.quant_map`, `.nested_absmax`, `.nested_quant_map` and
//! `.quant_state.bitsandbytes__nf4`, a JSON text of block sizes, shape and offset.

use super::matrix::{Nf4Matrix, QuantError, Scales};
use super::{dynamic, nf4};
use safetensors::Dtype;
use serde::Deserialize;

const STATE: &str = ".quant_state.bitsandbytes__nf4";
const PARTS: [&str; 5] = [
    ".absmax",
    ".quant_map",
    ".nested_absmax",
    ".nested_quant_map",
    STATE,
];

/// Why a quantised weight cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum BitsAndBytesError {
    /// A tensor of the weight is not there.
    #[error("there is no tensor {name}, which the quantised weight needs")]
    Missing {
        /// Its name.
        name: String,
    },
    /// A tensor is of another kind or holds another code.
    #[error("tensor {name} {reason}")]
    Part {
        /// Its name.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// The parts do not make a matrix.
    #[error("weight {name}: {source}")]
    Matrix {
        /// The weight.
        name: String,
        /// What is wrong.
        source: QuantError,
    },
}

/// The JSON in `.quant_state.bitsandbytes__nf4`.
#[derive(Deserialize)]
struct State {
    blocksize: usize,
    shape: Vec<usize>,
    nested_blocksize: Option<usize>,
    nested_offset: Option<f64>,
}

/// The name of the state of the weight `weight`, by which a quantised one is known.
pub(crate) fn state_name(weight: &str) -> String {
    format!("{weight}{STATE}")
}

/// The weight that a tensor beside its codes belongs to: `W.weight` for `W.weight.absmax`.
pub(crate) fn weight_of_part(tensor: &str) -> Option<&str> {
    PARTS.iter().find_map(|part| tensor.strip_suffix(part))
}

/// Reads the quantised weight `name` (`model.layers.0.mlp.up_proj.weight`); `file` gives a tensor's kind and bytes.
///
/// # Errors
/// A part that is missing or of another kind; blocks other than 64 and 256; another code than NF4.
pub fn read<'a>(
    file: impl Fn(&str) -> Option<(Dtype, &'a [u8])>,
    name: &str,
) -> Result<Nf4Matrix, BitsAndBytesError> {
    let part = |suffix: &str, reason: &str| BitsAndBytesError::Part {
        name: format!("{name}{suffix}"),
        reason: reason.into(),
    };
    let state: State = serde_json::from_slice(&bytes(&file, name, STATE)?)
        .map_err(|e| part(STATE, &format!("is no quantisation state: {e}")))?;
    let [rows, columns] = state.shape[..] else {
        return Err(part(
            STATE,
            &format!("has shape {:?}; two dimensions are read", state.shape),
        ));
    };
    if state.blocksize != nf4::BLOCK {
        return Err(part(
            STATE,
            &format!("has blocks of {}; 64 is read", state.blocksize),
        ));
    }
    if !same(&floats(&file, name, ".quant_map")?, &nf4::CODE) {
        return Err(part(".quant_map", "is not the NF4 code"));
    }
    if rows.checked_mul(columns).is_none() {
        return Err(part(STATE, "has a shape that no tensor has"));
    }
    let scales = scales(&file, name, &state)?;
    let codes = bytes(&file, name, "")?;
    Nf4Matrix::from_parts([rows, columns], codes, scales).map_err(|source| BitsAndBytesError::Matrix {
        name: name.into(),
        source,
    })
}

fn scales<'a>(
    file: &impl Fn(&str) -> Option<(Dtype, &'a [u8])>,
    name: &str,
    state: &State,
) -> Result<Scales, BitsAndBytesError> {
    let part = |suffix: &str, reason: &str| BitsAndBytesError::Part {
        name: format!("{name}{suffix}"),
        reason: reason.into(),
    };
    let (Some(blocks), Some(offset)) = (state.nested_blocksize, state.nested_offset) else {
        return Ok(Scales::Plain(floats(file, name, ".absmax")?));
    };
    if blocks != dynamic::BLOCK {
        return Err(part(
            STATE,
            &format!("has nested blocks of {blocks}; 256 is read"),
        ));
    }
    if !same(&floats(file, name, ".nested_quant_map")?, dynamic::code()) {
        return Err(part(".nested_quant_map", "is not the signed 8-bit dynamic code"));
    }
    Ok(Scales::Double {
        codes: bytes(file, name, ".absmax")?,
        nested: floats(file, name, ".nested_absmax")?,
        offset: offset as f32,
    })
}

fn bytes<'a>(
    file: &impl Fn(&str) -> Option<(Dtype, &'a [u8])>,
    name: &str,
    suffix: &str,
) -> Result<Vec<u8>, BitsAndBytesError> {
    view(file, name, suffix, Dtype::U8)
}

fn floats<'a>(
    file: &impl Fn(&str) -> Option<(Dtype, &'a [u8])>,
    name: &str,
    suffix: &str,
) -> Result<Vec<f32>, BitsAndBytesError> {
    let bytes = view(file, name, suffix, Dtype::F32)?;
    Ok(bytes
        .as_chunks()
        .0
        .iter()
        .map(|b| f32::from_le_bytes(*b))
        .collect())
}

fn view<'a>(
    file: &impl Fn(&str) -> Option<(Dtype, &'a [u8])>,
    name: &str,
    suffix: &str,
    dtype: Dtype,
) -> Result<Vec<u8>, BitsAndBytesError> {
    let name = format!("{name}{suffix}");
    match file(&name) {
        Some((kind, bytes)) if kind == dtype => Ok(bytes.to_vec()),
        Some((kind, _)) => {
            let reason = format!("is {kind:?} where {dtype:?} is read");
            Err(BitsAndBytesError::Part { name, reason })
        }
        None => Err(BitsAndBytesError::Missing { name }),
    }
}

/// Equal up to rounding: other versions computed the codes by another route.
fn same(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6)
}
