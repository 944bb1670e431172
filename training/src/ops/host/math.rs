//! Arithmetic that compiles to vector instructions.

/// Lanes of a sum: enough for the widest vectors.
const LANES: usize = 16;

/// Σ f(aᵢ, bᵢ), in one order whatever the vectors' width. The slices are equally long.
#[inline(always)]
pub(in crate::ops) fn sum2(a: &[f32], b: &[f32], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [0f32; LANES];
    let (a, a_rest) = a.as_chunks::<LANES>();
    let (b, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a.iter().zip(b) {
        for i in 0..LANES {
            lanes[i] += f(a[i], b[i]);
        }
    }
    for (i, (a, b)) in a_rest.iter().zip(b_rest).enumerate() {
        lanes[i] += f(*a, *b);
    }
    fold(lanes)
}

/// Σ aᵢ·bᵢ.
#[inline(always)]
pub(in crate::ops) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0f32; LANES];
    let (a, a_rest) = a.as_chunks::<LANES>();
    let (b, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a.iter().zip(b) {
        for i in 0..LANES {
            lanes[i] = a[i].mul_add(b[i], lanes[i]);
        }
    }
    for (i, (a, b)) in a_rest.iter().zip(b_rest).enumerate() {
        lanes[i] = a.mul_add(*b, lanes[i]);
    }
    fold(lanes)
}

/// Σ aᵢ², in f64.
#[inline(always)]
pub(in crate::ops) fn sum_of_squares(a: &[f32]) -> f64 {
    let mut lanes = [0f64; LANES];
    let (chunks, rest) = a.as_chunks::<LANES>();
    for chunk in chunks {
        for i in 0..LANES {
            let x = f64::from(chunk[i]);
            lanes[i] = x.mul_add(x, lanes[i]);
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane += f64::from(*x) * f64::from(*x);
    }
    lanes.iter().sum()
}

/// Σ aᵢ.
#[inline(always)]
pub(in crate::ops) fn sum(a: &[f32]) -> f32 {
    sum2(a, a, |x, _| x)
}

/// The largest.
#[inline(always)]
pub(in crate::ops) fn largest(a: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = a.as_chunks::<LANES>();
    for chunk in chunks {
        for i in 0..LANES {
            lanes[i] = if chunk[i] > lanes[i] { chunk[i] } else { lanes[i] };
        }
    }
    rest.iter()
        .chain(&lanes)
        .copied()
        .fold(f32::NEG_INFINITY, f32::max)
}

#[inline(always)]
fn fold(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// eˣ within two units in the last place, by Cody and Waite's reduction and a polynomial (Cephes' coefficients); 0 where
/// it would be subnormal, 2.4e38 above 88.37. NaN stays NaN.
#[inline(always)]
pub(in crate::ops) fn exp(x: f32) -> f32 {
    const LOWEST: f32 = -87.33;
    const HIGHEST: f32 = 88.37;
    /// 1.5·2²³: adding it rounds to an integer that then stands in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 355.0 / 512.0;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let kept = if x > HIGHEST { HIGHEST } else { x };
    let kept = if kept < LOWEST { LOWEST } else { kept };
    let shifted = kept.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN_2_LOW, n.mul_add(-LN_2_HIGH, kept));
    let p = 1.987_569_1e-4f32
        .mul_add(r, 1.398_2e-3)
        .mul_add(r, 8.333_452e-3)
        .mul_add(r, 4.166_579_6e-2)
        .mul_add(r, 1.666_666_5e-1)
        .mul_add(r, 0.5);
    let value = p.mul_add(r * r, r) + 1.0;
    // 2ⁿ, −126 ≤ n ≤ 127.
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23));
    if x < LOWEST { 0.0 } else { value * power }
}

/// 1/(1 + e⁻ˣ).
#[inline(always)]
pub(in crate::ops) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_the_exponential() {
        for i in -87_300..=88_370 {
            let x = i as f32 / 1000.0;
            let want = f64::from(x).exp();
            let relative = (f64::from(exp(x)) - want).abs() / want;
            assert!(relative < 2.4e-7, "{x}: {relative}");
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!((exp(-100.0), exp(f32::NEG_INFINITY)), (0.0, 0.0));
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn sums_take_every_element() {
        for count in [0, 1, 15, 16, 17, 47] {
            let a: Vec<f32> = (0..count).map(|i| i as f32).collect();
            let b: Vec<f32> = (0..count).map(|i| (i % 3) as f32).collect();
            assert_eq!(sum(&a), a.iter().sum::<f32>());
            assert_eq!(dot(&a, &b), a.iter().zip(&b).map(|(a, b)| a * b).sum::<f32>());
            assert_eq!(largest(&a), a.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        }
    }
}
