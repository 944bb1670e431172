use super::*;
use proptest::prelude::*;

/// A file of every dtype and both trailers, smaller than 2 KB.
fn rich(compression: Compression) -> Vec<u8> {
    let tensor = f32_tensor(&[5], -0.5);
    let mut tensors = RawTensors::new();
    for dtype in DType::ALL {
        let n = dtype.byte_len(5).unwrap();
        let raw = RawTensor {
            dtype,
            shape: vec![5],
            data: (0..n as u8).collect(),
        };
        let raw = RawTensor::from_f32(&tensor, dtype).unwrap_or(raw);
        tensors.insert(format!("{dtype:?}"), raw);
    }
    let trailers = Trailers {
        metadata: Some(&metadata()),
        auth: Some((&auth_body(), &HashSigner)),
    };
    encode_file(&tensors, trailers, compression).unwrap()
}

#[test]
fn every_truncation_is_refused() {
    for compression in Compression::ALL {
        let bytes = rich(compression);
        for cut in 0..bytes.len() {
            assert!(
                decode(&bytes[..cut], &limits()).is_err(),
                "{compression:?} cut at {cut}"
            );
        }
        let plain = encode_file(&tensor::from_set(&set()), Trailers::default(), compression).unwrap();
        for cut in 0..plain.len() {
            assert!(
                decode(&plain[..cut], &limits()).is_err(),
                "{compression:?}, no trailers, cut at {cut}"
            );
        }
    }
}

#[test]
fn every_extension_is_refused() {
    for compression in Compression::ALL {
        for byte in [0, 1, 0xff] {
            let longer = [rich(compression), vec![byte]].concat();
            assert!(refusal(&longer).contains("1 trailing bytes"), "{compression:?}");
        }
    }
}

/// Whatever bit flips, the file is refused, or its signatures are, or (within an LZ4 frame) it says the same.
#[test]
fn every_flipped_bit_is_noticed() {
    for compression in Compression::ALL {
        let bytes = rich(compression);
        let good = decode(&bytes, &limits()).unwrap();
        let mut unchanged = 0;
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let Ok(delta) = decode(&bad, &limits()) else {
                continue;
            };
            if delta.verify_signatures(&HashSigner).is_err() {
                continue;
            }
            assert_eq!(
                (&delta.tensors, &delta.metadata),
                (&good.tensors, &good.metadata),
                "bit {bit}"
            );
            assert_eq!(
                (&delta.auth, delta.content_hash),
                (&good.auth, good.content_hash),
                "bit {bit}"
            );
            unchanged += 1;
        }
        if compression == Compression::None {
            assert_eq!(unchanged, 0, "an uncompressed file has no two forms");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn noise_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(decode(&bytes, &limits()).is_err() || bytes.is_empty());
    }

    #[test]
    fn damaged_files_never_panic(
        compression in proptest::sample::select(Compression::ALL.to_vec()),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = rich(compression);
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(delta) = decode(&bytes, &limits()) {
            let good = decode(&rich(compression), &limits()).unwrap();
            prop_assert!(delta.content_hash == good.content_hash || delta.header != good.header);
        }
    }
}
