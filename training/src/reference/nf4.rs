//! Four-bit weights against bitsandbytes.

use super::report::{Quantity, Tally};
use super::tensors::Tensors;
use super::{ReferenceError, Set};
use crate::quant::{CODE, Nf4Matrix, Scales, block_scales, scale_code};

const VALUES: f64 = 1e-6;

pub(super) fn compare(set: &Set<'_>, tally: &mut Tally) -> Result<(), ReferenceError> {
    let file = Tensors::open(&set.path("nf4.safetensors"))?;
    let code = Quantity::absolute("nf4_code", VALUES);
    tally.numbers(code, "", &wide(&CODE), &file.numbers("nf4_code")?);
    let code = Quantity::absolute("state2_code", VALUES);
    tally.numbers(code, "", &wide(scale_code()), &file.numbers("state2_code")?);
    let weights: Vec<&str> = file.names().filter_map(|name| name.strip_suffix(".w")).collect();
    if weights.is_empty() {
        tally.problem("there is no weight NAME.w".into());
    }
    for weight in weights {
        compare_weight(&file, weight, tally)?;
    }
    file.finish(tally);
    Ok(())
}

fn compare_weight(file: &Tensors, weight: &str, tally: &mut Tally) -> Result<(), ReferenceError> {
    let name = format!("{weight}.w");
    let values = file.f32(&name)?;
    let shape: [usize; 2] = file
        .shape(&name)?
        .try_into()
        .map_err(|_| ReferenceError::Ours(format!("{name} is no matrix")))?;
    let matrix = Nf4Matrix::quantise(shape, &values).map_err(ReferenceError::ours)?;
    compare_codes(file, &format!("{weight}.dq"), &matrix, tally)?;
    compare_double(file, weight, &matrix, tally)?;
    compare_plain(file, weight, shape, &values, tally)
}

fn compare_codes(
    file: &Tensors,
    name: &str,
    matrix: &Nf4Matrix,
    tally: &mut Tally,
) -> Result<(), ReferenceError> {
    let part = name.rsplit('.').next().unwrap_or(name);
    let packed = file.bytes(&format!("{name}.packed"))?;
    tally.exact(&format!("{part}.packed"), name, matrix.codes(), &packed);
    let mut codes: Vec<u8> = matrix.codes().iter().flat_map(|b| [b >> 4, b & 15]).collect();
    // An odd number of values leaves half a byte.
    codes.truncate(matrix.shape().iter().product());
    let want = file.bytes(&format!("{name}.codes"))?;
    tally.exact(&format!("{part}.codes"), name, &codes, &want);
    let what = format!("{part}.dequant");
    let want = file.numbers(&format!("{name}.dequant"))?;
    tally.numbers(
        Quantity::absolute(&what, VALUES),
        name,
        &wide(&matrix.dequantise()),
        &want,
    );
    Ok(())
}

/// Scales in 8 bits.
fn compare_double(
    file: &Tensors,
    weight: &str,
    matrix: &Nf4Matrix,
    tally: &mut Tally,
) -> Result<(), ReferenceError> {
    let Scales::Double {
        codes,
        nested,
        offset,
    } = matrix.scales()
    else {
        return Err(ReferenceError::Ours("scales are not doubly quantised".into()));
    };
    let part = |name: &str| format!("{weight}.dq.{name}");
    tally.exact("dq.absmax_u8", weight, codes, &file.bytes(&part("absmax_u8"))?);
    let what = Quantity::absolute("dq.state2_absmax", VALUES);
    tally.numbers(
        what,
        weight,
        &wide(nested),
        &file.numbers(&part("state2_absmax"))?,
    );
    let what = Quantity::absolute("dq.offset", VALUES);
    tally.numbers(
        what,
        weight,
        &[f64::from(*offset)],
        &file.numbers(&part("offset"))?,
    );
    let scales: Vec<f32> = (0..codes.len()).map(|block| matrix.scales().of(block)).collect();
    let what = Quantity::absolute("dq.absmax_reconstructed", VALUES);
    tally.numbers(
        what,
        weight,
        &wide(&scales),
        &file.numbers(&part("absmax_reconstructed"))?,
    );
    Ok(())
}

/// Scales as they are.
fn compare_plain(
    file: &Tensors,
    weight: &str,
    shape: [usize; 2],
    values: &[f32],
    tally: &mut Tally,
) -> Result<(), ReferenceError> {
    let (codes, scales) = block_scales(values);
    let name = format!("{weight}.nf4");
    let what = Quantity::absolute("nf4.absmax", VALUES);
    tally.numbers(
        what,
        weight,
        &wide(&scales),
        &file.numbers(&format!("{name}.absmax"))?,
    );
    let matrix = Nf4Matrix::from_parts(shape, codes, Scales::Plain(scales)).map_err(ReferenceError::ours)?;
    compare_codes(file, &name, &matrix, tally)
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|v| f64::from(*v)).collect()
}
