use super::float::{self, F32};
use super::{BadElement, int};
use crate::pack;
use crate::quant::{self, BLOCK, Q8};
use proptest::prelude::*;

fn numbers(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).max(1);
    (0..n)
        .map(|i| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            let unit = f64::from(state) / f64::from(u32::MAX) * 2.0 - 1.0;
            // Among them halves of a scale, zero blocks and very small blocks.
            match i / BLOCK % 4 {
                1 => 0.0,
                2 => (unit * 1e-44) as f32,
                _ if i % 3 == 0 => (unit * 254.0).round() as f32 / 2.0,
                _ => unit as f32,
            }
        })
        .collect()
}

/// The scales that the members share, plainly.
fn shared_scales(deltas: &[Vec<f32>], weights: &[f32]) -> Vec<f32> {
    let mut max = vec![0.0; quant::blocks(deltas[0].len())];
    for (d, w) in deltas.iter().zip(weights) {
        quant::max_in_place(&mut max, &quant::block_absmax(d, *w));
    }
    quant::scales(&max)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn integer_hops_are_the_plain_arithmetic(members in 1usize..9, n in 0usize..1300, seed in any::<u32>()) {
        let deltas: Vec<_> = (0..members).map(|m| numbers(n, seed ^ m as u32)).collect();
        let weights: Vec<f32> = (0..members).map(|m| (m * 3 % 7) as f32).collect();
        let total = weights.iter().sum::<f32>().max(1.0);
        let scales = shared_scales(&deltas, &weights);
        let mut payload: Option<Vec<u8>> = None;
        for (m, (delta, weight)) in deltas.iter().zip(&weights).enumerate() {
            let mut left = delta.clone();
            let mut own = int::Own { delta: &mut left, weight: *weight, scales: &scales };
            prop_assert_eq!(bits(&int::block_absmax(delta, *weight)), bits(&quant::block_absmax(delta, *weight)));
            let sum = plain_sum(&deltas[..=m], &weights, &scales);
            if m + 1 == members {
                let mut mean = vec![0.0; n];
                let bytes = int::close(payload.as_deref(), m as u32, &mut own, total, &mut mean).unwrap();
                let want = Q8::encode(&quant::mean(&sum, &scales, total));
                prop_assert_eq!(&bytes, &want.to_bytes());
                prop_assert_eq!(bits(&mean), bits(&want.decode()));
                let mut read = vec![0.0; n];
                int::read(&bytes, &mut read).unwrap();
                prop_assert_eq!(bits(&read), bits(&mean));
            } else {
                let bytes = match &payload {
                    None => int::begin(&mut own),
                    Some(p) => int::add(p, m as u32, &mut own).unwrap(),
                };
                prop_assert_eq!(&bytes, &pack::pack(&sum, m as u32 + 1));
                payload = Some(bytes);
            }
            let integers = quant::quantise(delta, *weight, &scales);
            prop_assert_eq!(bits(&left), bits(&quant::residual(delta, *weight, &integers, &scales)));
        }
    }

    #[test]
    fn float_hops_are_the_plain_arithmetic(n in 0usize..3000, seed in any::<u32>()) {
        let (a, b, c) = (numbers(n, seed), numbers(n, seed ^ 1), numbers(n, seed ^ 2));
        let mut payload = float::begin::<F32, 4>(&a, 3.0);
        float::add::<F32, 4>(&mut payload, &b, 5.0).unwrap();
        let mut mean = c.clone();
        float::close::<F32, 4>(&mut payload, &mut mean, 7.0, 15.0).unwrap();
        let mut want = quant::weigh(&a, 3.0);
        quant::add_in_place(&mut want, &quant::weigh(&b, 5.0));
        quant::add_in_place(&mut want, &quant::weigh(&c, 7.0));
        quant::divide_in_place(&mut want, 15.0);
        prop_assert_eq!(bits(&mean), bits(&want));
        let mut read = vec![0.0; n];
        float::read::<F32, 4>(&mut payload, &mut read).unwrap();
        prop_assert_eq!(bits(&read), bits(&want));
    }
}

fn plain_sum(deltas: &[Vec<f32>], weights: &[f32], scales: &[f32]) -> Vec<i32> {
    let mut sum = vec![0; deltas[0].len()];
    for (d, w) in deltas.iter().zip(weights) {
        quant::add_integers(&mut sum, &quant::quantise(d, *w, scales));
    }
    sum
}

#[test]
fn wide_sums_pack_as_the_layout_says() {
    for contributions in [1, 2, 3, 5, 9, 17, 33, 65, 129, 258, 259, 1000] {
        let bound = 127 * contributions as i32;
        let sums: Vec<i32> = (0..BLOCK as i32 + 77)
            .map(|i| match i % 5 {
                0 => bound,
                1 => -bound,
                2 => 0,
                _ => (i * 7919) % (bound + 1),
            })
            .collect();
        let payload = pack::pack(&sums, contributions);
        let mut delta = vec![0.0; sums.len()];
        let scales = [0.0, 0.0];
        let mut own = int::Own {
            delta: &mut delta,
            weight: 1.0,
            scales: &scales,
        };
        assert_eq!(
            int::add(&payload, contributions, &mut own).unwrap(),
            pack::pack(&sums, contributions + 1)
        );
    }
}

#[test]
fn bad_values_are_named() {
    let mut payload = float::begin::<F32, 4>(&vec![1.0; 2000], 1.0);
    payload[4 * 1500..4 * 1501].copy_from_slice(&f32::NAN.to_le_bytes());
    assert_eq!(
        float::add::<F32, 4>(&mut payload, &vec![0.0; 2000], 1.0),
        Err(BadElement(1500))
    );

    let scales = [1.0, 1.0];
    let mut delta = vec![0.0; 300];
    let mut own = int::Own {
        delta: &mut delta,
        weight: 1.0,
        scales: &scales,
    };
    let mut payload = pack::pack(&[0; 300], 1);
    payload[257] = 0x80;
    assert_eq!(int::add(&payload, 1, &mut own), Err(BadElement(257)));
    let mut payload = pack::pack(&[0; 299], 2);
    *payload.last_mut().unwrap() |= 0x80;
    let mut own = int::Own {
        delta: &mut delta[..299],
        weight: 1.0,
        scales: &scales,
    };
    assert_eq!(int::add(&payload, 2, &mut own), Err(BadElement(299)));

    let good = Q8::encode(&numbers(300, 9)).to_bytes();
    let with = |at: usize, byte: u8| {
        let mut bad = good.clone();
        bad[at] = byte;
        int::read(&bad, &mut vec![0.0; 300])
    };
    assert_eq!(with(3, 0x80), Err(BadElement(0)));
    assert_eq!(
        with(299, 1),
        Err(BadElement(256)),
        "an integer under a zero scale"
    );
    assert_eq!(with(303, 0xff), Err(BadElement(0)), "a negative scale");
}
