use super::*;
use crate::ids::Rank;
use proptest::prelude::*;

fn chunks(n: u32, l: usize) -> Vec<Range<usize>> {
    (0..n).map(|c| chunk_range(ChunkIndex(c), n, l)).collect()
}

#[test]
fn chunks_tile_the_vector() {
    assert_eq!(chunks(3, 10), [0..3, 3..6, 6..10]);
    assert_eq!(chunks(4, 2), [0..0, 0..1, 1..1, 1..2]);
    assert_eq!(
        chunk_range(ChunkIndex(u32::MAX - 1), u32::MAX, usize::MAX).end,
        usize::MAX
    );
    for (n, l) in [(1, 0), (1, 7), (7, 1000), (1000, 999), (64, 1 << 40)] {
        let all = chunks(n, l);
        assert_eq!((all[0].start, all[n as usize - 1].end), (0, l));
        assert!(all.windows(2).all(|w| w[0].end == w[1].start));
    }
}

#[test]
fn segments_tile_a_chunk() {
    assert_eq!(segments(0).count(), 0);
    assert!(segments(SEGMENT).eq(std::iter::once(0..SEGMENT)));
    assert_eq!(
        segments(SEGMENT + 1).collect::<Vec<_>>(),
        [0..SEGMENT, SEGMENT..SEGMENT + 1]
    );
}

#[test]
fn rounding_is_half_to_even_and_zero_blocks_stay_zero() {
    let delta = [127.0, 0.5, 1.5, 2.5, -0.5, -1.5, 126.5];
    let shared = scales(&block_absmax(&delta, 1.0), Levels::Q8);
    assert_eq!(shared, [1.0]);
    assert_eq!(
        quantise(&delta, 1.0, &shared, Levels::Q8),
        [127, 0, 2, 2, 0, -2, 126]
    );
    assert_eq!(quantise(&[0.0, -0.0], 3.0, &[0.0], Levels::Q8), [0, 0]);
    assert_eq!(Q8::encode(&[0.0; 300]).scales, [0.0, 0.0]);
}

#[test]
fn subnormal_scales_do_not_leave_the_range() {
    let delta = [f32::from_bits(190), f32::from_bits(63), -f32::from_bits(190)];
    let shared = scales(&block_absmax(&delta, 1.0), Levels::Q8);
    assert!(
        quantise(&delta, 1.0, &shared, Levels::Q8)
            .iter()
            .all(|q| (-127..=127).contains(q))
    );
}

#[test]
fn weight_zero_keeps_everything() {
    let delta = [1.0, -2.0];
    assert_eq!(block_absmax(&delta, 0.0), [0.0]);
    assert_eq!(residual(&delta, 0.0, &[0, 0], &[0.0]), delta);
}

#[test]
fn foreign_q8_is_checked() {
    let q = Q8::encode(&[1.0, -2.0]);
    let bytes = q.to_bytes();
    assert_eq!(Q8::from_bytes(&bytes, 2).unwrap(), q);
    assert!(matches!(
        Q8::from_bytes(&bytes, 3),
        Err(Q8Error::Length { want: 7, .. })
    ));
    let with = |i: usize, b: u8| {
        let mut bad = bytes.clone();
        bad[i] = b;
        Q8::from_bytes(&bad, 2)
    };
    assert_eq!(
        with(1, 0x80),
        Err(Q8Error::Integer {
            element: 1,
            value: -128
        })
    );
    assert_eq!(with(5, 0xff), Err(Q8Error::Scale { block: 0 }));
    assert!(matches!(
        scales_from_bytes(&f32::NAN.to_le_bytes(), 1),
        Err(Q8Error::Scale { block: 0 })
    ));
    assert!(matches!(
        scales_from_bytes(&(-1f32).to_le_bytes(), 1),
        Err(Q8Error::Scale { .. })
    ));
    assert!(matches!(
        Q8::from_bytes(&[1, 0, 0, 0, 0], 1),
        Err(Q8Error::Integer { element: 0, value: 1 })
    ));
}

#[test]
fn bytes_are_counted_exactly() {
    // By hand: n = 2, l = 1000. Member 0 reduces chunk 0 (500 elements), gathers chunk 1 (500).
    assert_eq!(ring_payload_bytes_floats(Float::F32, 2, 1000, Rank(0)), 4000);
    assert_eq!(
        ring_payload_bytes_integers(Levels::Q8, 2, 1000, Rank(0)),
        (8 + 8) + 500 + (500 + 8)
    );
    // n = 3, l = 10, chunks of 3, 3, 4; member 1 reduces chunks 1 (8 bits), 0 (9 bits); gathers 2, 1.
    assert_eq!(
        ring_payload_bytes_floats(Float::F32, 3, 10, Rank(1)),
        4 * (3 + 3 + 4 + 3)
    );
    assert_eq!(
        ring_payload_bytes_integers(Levels::Q8, 3, 10, Rank(1)),
        4 * 4 + 3 + 4 + (4 + 4) + (3 + 4)
    );
    assert_eq!(ring_payload_bytes_integers(Levels::Q8, 1, 10, Rank(0)), 0);
    assert_eq!(
        ring_payload_bytes_floats(Float::Bf16, 3, 10, Rank(1)),
        2 * (3 + 3 + 4 + 3)
    );
    // q4: chunk 1 at 4 bits (2 bytes), chunk 0 at 5 (2 bytes).
    assert_eq!(
        ring_payload_bytes_integers(Levels::Q4, 3, 10, Rank(1)),
        4 * 4 + 2 + 2 + (4 + 4) + (3 + 4)
    );
    assert_eq!(
        ring_payload_bytes_floats(Float::F32, 64, 64 << 20, Rank(63)),
        2 * 63 * (1 << 20) * 4
    );
    // Segments are rounded up one by one: 9 bits × 262,145 is 294,913.1 bytes in one piece.
    let l = 3 * (SEGMENT + 1);
    let hops = (SEGMENT + 1) + (SEGMENT * 9 / 8 + 2);
    let rest = 4 * 4 * blocks(SEGMENT + 1) + 2 * Q8::byte_len(SEGMENT + 1);
    assert_eq!(
        ring_payload_bytes_integers(Levels::Q8, 3, l, Rank(0)),
        (hops + rest) as u64
    );
}

fn values(n: usize) -> impl Strategy<Value = Vec<f32>> {
    proptest::collection::vec(prop_oneof![-1.0f32..1.0, -1e-6f32..1e-6, Just(0.0)], n)
}

fn levels() -> impl Strategy<Value = Levels> {
    prop_oneof![Just(Levels::Q8), Just(Levels::Q4)]
}

proptest! {
    #[test]
    fn integer_sums_are_exact_in_any_order(members in proptest::collection::vec(values(300), 1..6), levels in levels()) {
        let mut max = vec![0.0; blocks(300)];
        for (w, delta) in members.iter().enumerate() {
            max_in_place(&mut max, &block_absmax(delta, (w + 1) as f32));
        }
        let shared = scales(&max, levels);
        let parts: Vec<_> = members.iter().enumerate().map(|(w, d)| quantise(d, (w + 1) as f32, &shared, levels)).collect();
        let mut forth = widen(&parts[0]);
        parts[1..].iter().for_each(|p| add_integers(&mut forth, p));
        let mut back = vec![0; 300];
        parts.iter().rev().for_each(|p| add_integers(&mut back, p));
        prop_assert_eq!(&forth, &back);
        for (i, sum) in forth.iter().enumerate() {
            let exact: i64 = parts.iter().map(|p| i64::from(p[i])).sum();
            prop_assert_eq!(i64::from(*sum), exact);
        }
    }

    #[test]
    fn contribution_and_residual_make_the_delta(delta in values(600), samples in 1u64..500, levels in levels()) {
        let weight = weight_f32(samples);
        let shared = scales(&block_absmax(&delta, weight), levels);
        let ints = quantise(&delta, weight, &shared, levels);
        let left = residual(&delta, weight, &ints, &shared);
        for i in 0..delta.len() {
            let (d, scale) = (f64::from(delta[i]), f64::from(shared[i / BLOCK]));
            let whole = f64::from(ints[i]) * scale / f64::from(weight) + f64::from(left[i]);
            let size = f64::from(shared[i / BLOCK]) * f64::from(levels.max()) / f64::from(weight);
            prop_assert!((whole - d).abs() <= size * 1e-6, "{} against {}", whole, d);
            prop_assert!(f64::from(left[i]).abs() <= 0.5001 * scale / f64::from(weight));
        }
    }

    #[test]
    fn q8_is_within_half_a_scale(mean in values(700)) {
        let q = Q8::encode(&mean);
        prop_assert_eq!(&Q8::from_bytes(&q.to_bytes(), 700).unwrap(), &q);
        for (i, (v, d)) in mean.iter().zip(q.decode()).enumerate() {
            prop_assert!((v - d).abs() <= 0.5001 * q.scales[i / BLOCK]);
        }
    }

    #[test]
    fn the_mean_of_one_member_is_its_contribution(delta in values(300), samples in 1u64..500, levels in levels()) {
        let weight = weight_f32(samples);
        let shared = scales(&block_absmax(&delta, weight), levels);
        let ints = quantise(&delta, weight, &shared, levels);
        let m = mean(&widen(&ints), &shared, weight);
        let left = residual(&delta, weight, &ints, &shared);
        for i in 0..300 {
            prop_assert!((m[i] + left[i] - delta[i]).abs() <= 1e-6);
        }
    }

    #[test]
    fn every_byte_of_the_ring_is_counted(n in 1u32..40, l in 0usize..5000) {
        let members = (0..n).map(Rank);
        let f32_total: u64 = members.map(|m| ring_payload_bytes_floats(Float::F32, n, l, m)).sum();
        prop_assert_eq!(f32_total, 2 * u64::from(n - 1) * l as u64 * 4);
    }
}
