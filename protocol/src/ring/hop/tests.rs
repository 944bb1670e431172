use super::{BadElement, float, int};
use crate::buffers::Buffers;
use crate::pack;
use crate::quant::{self, BLOCK, Float, Levels, Q8};
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
fn shared_scales(deltas: &[Vec<f32>], weights: &[f32], levels: Levels) -> Vec<f32> {
    let mut max = vec![0.0; quant::blocks(deltas[0].len())];
    for (d, w) in deltas.iter().zip(weights) {
        quant::max_in_place(&mut max, &quant::block_absmax(d, *w));
    }
    quant::scales(&max, levels)
}

/// Memory that holds something already.
fn used() -> Buffers {
    Buffers::holding(vec![0xa5; 16_384])
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn integer_hops_are_the_plain_arithmetic(members in 1usize..9, n in 0usize..1300, seed in any::<u32>(), q4 in any::<bool>()) {
        let levels = if q4 { Levels::Q4 } else { Levels::Q8 };
        let deltas: Vec<_> = (0..members).map(|m| numbers(n, seed ^ m as u32)).collect();
        let weights: Vec<f32> = (0..members).map(|m| (m * 3 % 7) as f32).collect();
        let total = weights.iter().sum::<f32>().max(1.0);
        let scales = shared_scales(&deltas, &weights, levels);
        let mut payload: Option<Vec<u8>> = None;
        for (m, (delta, weight)) in deltas.iter().zip(&weights).enumerate() {
            let mut left = delta.clone();
            let mut own = int::Own { delta: &mut left, weight: *weight, levels, scales: &scales };
            prop_assert_eq!(bits(&int::block_absmax(delta, *weight)), bits(&quant::block_absmax(delta, *weight)));
            let sum = plain_sum(&deltas[..=m], &weights, &scales, levels);
            if m + 1 == members {
                let mut mean = vec![0.0; n];
                let mut bytes = payload.take().unwrap_or_default();
                int::close(&mut bytes, m as u32, &mut own, total, &mut mean).unwrap();
                let want = Q8::encode(&quant::mean(&sum, &scales, total));
                prop_assert_eq!(&bytes, &want.to_bytes());
                prop_assert_eq!(bits(&mean), bits(&want.decode()));
                let mut read = vec![0.0; n];
                int::read(&bytes, &mut read).unwrap();
                prop_assert_eq!(bits(&read), bits(&mean));
            } else {
                let bytes = match payload {
                    None => int::begin(&mut own, 1, &used()),
                    Some(mut p) => {
                        int::add(&mut p, m as u32, &mut own).unwrap();
                        p
                    }
                };
                prop_assert_eq!(&bytes, &pack::pack(&sum, levels, m as u32 + 1));
                payload = Some(bytes);
            }
            let integers = quant::quantise(delta, *weight, &scales, levels);
            prop_assert_eq!(bits(&left), bits(&quant::residual(delta, *weight, &integers, &scales)));
        }
    }

    #[test]
    fn float_hops_are_the_plain_arithmetic(n in 0usize..3000, seed in any::<u32>()) {
        let (a, b, c) = (numbers(n, seed), numbers(n, seed ^ 1), numbers(n, seed ^ 2));
        for float in [Float::F32, Float::Bf16] {
            let travels = |values: &mut [f32]| {
                if float == Float::Bf16 {
                    values.iter_mut().for_each(|v| *v = half::bf16::from_f32(*v).to_f32());
                }
            };
            let mut payload = float::begin(float, &a, 3.0, &used());
            float::add(float, &mut payload, 1, &b, 5.0).unwrap();
            let mut mean = c.clone();
            float::close(float, &mut payload, 2, &mut mean, (7.0, 15.0)).unwrap();
            let mut want = quant::weigh(&a, 3.0);
            travels(&mut want);
            quant::add_in_place(&mut want, &quant::weigh(&b, 5.0));
            travels(&mut want);
            quant::add_in_place(&mut want, &quant::weigh(&c, 7.0));
            quant::divide_in_place(&mut want, 15.0);
            travels(&mut want);
            prop_assert_eq!(bits(&mean), bits(&want));
            let mut read = vec![0.0; n];
            float::read(float, &payload, &mut read).unwrap();
            prop_assert_eq!(bits(&read), bits(&want));
            prop_assert_eq!(float::encode(float, &want), payload);
        }
    }
}

fn plain_sum(deltas: &[Vec<f32>], weights: &[f32], scales: &[f32], levels: Levels) -> Vec<i32> {
    let mut sum = vec![0; deltas[0].len()];
    for (d, w) in deltas.iter().zip(weights) {
        quant::add_integers(&mut sum, &quant::quantise(d, *w, scales, levels));
    }
    sum
}

#[test]
fn wide_sums_pack_as_the_layout_says() {
    let contributions = [1, 2, 3, 5, 9, 10, 17, 19, 33, 65, 129, 258, 259, 1000, 10_000];
    let both = [Levels::Q8, Levels::Q4];
    for (levels, contributions) in both.iter().flat_map(|l| contributions.map(|c| (*l, c))) {
        let bound = levels.max() * contributions as i32;
        let sums: Vec<i32> = (0..BLOCK as i32 + 77)
            .map(|i| match i % 5 {
                0 => bound,
                1 => -bound,
                2 => 0,
                _ => (i * 7919) % (bound + 1),
            })
            .collect();
        let mut payload = pack::pack(&sums, levels, contributions);
        let mut delta = vec![0.0; sums.len()];
        let scales = [0.0, 0.0];
        let mut own = int::Own {
            delta: &mut delta,
            weight: 1.0,
            levels,
            scales: &scales,
        };
        int::add(&mut payload, contributions, &mut own).unwrap();
        assert_eq!(payload, pack::pack(&sums, levels, contributions + 1));
    }
}

#[test]
fn bad_values_are_named() {
    for (float, infinity) in [
        (Float::F32, &[0, 0, 0x80, 0xff][..]),
        (Float::Bf16, &[0x80, 0xff]),
    ] {
        let bytes = float.bytes();
        let mut payload = float::begin(float, &vec![1.0; 2000], 1.0, &Buffers::default());
        payload[bytes * 1500..bytes * 1501].copy_from_slice(infinity);
        let delta = &mut vec![0.0; 2000];
        assert_eq!(float::read(float, &payload, delta), Err(BadElement(1500)));
        assert_eq!(
            float::add(float, &mut payload, 1, delta, 1.0),
            Err(BadElement(1500))
        );
        assert_eq!(
            float::close(float, &mut payload, 1, delta, (1.0, 2.0)),
            Err(BadElement(1500))
        );
    }

    let scales = [1.0, 1.0];
    let mut delta = vec![0.0; 300];
    let mut own = int::Own {
        delta: &mut delta,
        weight: 1.0,
        levels: Levels::Q8,
        scales: &scales,
    };
    let mut payload = pack::pack(&[0; 300], Levels::Q8, 1);
    payload[257] = 0x80;
    assert_eq!(int::add(&mut payload, 1, &mut own), Err(BadElement(257)));
    let mut payload = pack::pack(&[0; 299], Levels::Q8, 2);
    *payload.last_mut().unwrap() |= 0x80;
    let mut own = int::Own {
        delta: &mut delta[..299],
        weight: 1.0,
        levels: Levels::Q8,
        scales: &scales,
    };
    assert_eq!(int::add(&mut payload, 2, &mut own), Err(BadElement(299)));
    let mut payload = pack::pack(&[0; 300], Levels::Q4, 1);
    payload[100] = 0x80;
    let mut own = int::Own {
        delta: &mut delta,
        weight: 1.0,
        levels: Levels::Q4,
        scales: &scales,
    };
    assert_eq!(
        int::add(&mut payload, 1, &mut own),
        Err(BadElement(201)),
        "a nibble of −8"
    );

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
