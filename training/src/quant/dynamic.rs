//! The signed 8-bit dynamic code (Dettmers 2015, "8-Bit Approximations for Parallelism in Deep Learning"), in which
//! bitsandbytes holds the scales of scales.

use std::sync::LazyLock;

/// Scales that share a scale of their own.
pub(super) const BLOCK: usize = 256;

/// The code's 256 values, ascending.
pub(crate) fn code() -> &'static [f32; 256] {
    static CODE: LazyLock<[f32; 256]> = LazyLock::new(build);
    &CODE
}

/// Seven decades, each with twice as many fractions as the one below, both signs, 0 and 1; computed in f32 as PyTorch
/// does.
fn build() -> [f32; 256] {
    let mut values = vec![0.0, 1.0];
    for exponent in 0..7 {
        let decade = 10f64.powi(exponent - 6) as f32;
        let fractions = linspace((1 << exponent) + 1);
        for pair in fractions.windows(2) {
            let value = decade * ((pair[0] + pair[1]) / 2.0);
            values.extend([value, -value]);
        }
    }
    values.sort_unstable_by(f32::total_cmp);
    let mut code = [0.0; 256];
    code.copy_from_slice(&values);
    code
}

/// `count` values from 0.1 to 1, filled from both ends as `torch.linspace` does.
fn linspace(count: usize) -> Vec<f32> {
    let step = (1.0 - 0.1f32) / (count - 1) as f32;
    let value = |i: usize| {
        if i < count / 2 {
            0.1 + step * i as f32
        } else {
            1.0 - step * (count - 1 - i) as f32
        }
    };
    (0..count).map(value).collect()
}

/// The nearest code of each value, scaled by the largest magnitude of its block, and those magnitudes.
pub(super) fn quantise(values: &[f32]) -> (Vec<u8>, Vec<f32>) {
    let mut codes = Vec::with_capacity(values.len());
    let mut absmax = Vec::with_capacity(values.len().div_ceil(BLOCK));
    for block in values.chunks(BLOCK) {
        let largest = block.iter().fold(0f32, |m, v| m.max(v.abs()));
        let inverse = if largest > 0.0 { 1.0 / largest } else { 0.0 };
        codes.extend(block.iter().map(|v| nearest(v * inverse)));
        absmax.push(largest);
    }
    (codes, absmax)
}

fn nearest(scaled: f32) -> u8 {
    let code = code();
    let above = code.partition_point(|c| *c < scaled).min(255);
    let below = above.saturating_sub(1);
    // At the middle the lower one.
    if scaled - code[below] <= code[above] - scaled {
        below as u8
    } else {
        above as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_of_the_code_is_its_own_code() {
        for (i, value) in code().iter().enumerate() {
            assert_eq!(usize::from(nearest(*value)), i, "{value}");
        }
        assert_eq!((nearest(-2.0), nearest(2.0)), (0, 255));
        assert_eq!(quantise(&[0.0; 3]), (vec![127; 3], vec![0.0]));
    }
}
