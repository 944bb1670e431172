use super::*;
use proptest::prelude::*;

#[test]
fn a_signed_delta_comes_back() {
    for compression in Compression::ALL {
        let bytes = signed(compression);
        let delta = decode(&bytes, &limits()).unwrap();
        assert_eq!(delta.tensor_set().unwrap(), set());
        assert_eq!(delta.metadata, Some(metadata()));
        assert_eq!(delta.auth.as_ref().unwrap().body, auth_body());
        assert_eq!((delta.header.compression, delta.header.flags), (compression, 3));
        assert_eq!(delta.header.checksum, delta.content_hash.0[..16]);
        assert_eq!(bytes, signed(compression), "one encoding");
    }
}

#[test]
fn the_content_hash_does_not_depend_on_the_compressor() {
    let hash = |c| decode(&signed(c), &limits()).unwrap().content_hash;
    let [none, lz4, shuffled] = Compression::ALL.map(hash);
    assert_eq!((none, none), (lz4, shuffled));
}

#[test]
fn files_without_trailers_and_without_tensors() {
    for compression in Compression::ALL {
        for tensors in [RawTensors::new(), tensor::from_set(&set())] {
            let bytes = encode_file(&tensors, Trailers::default(), compression).unwrap();
            let delta = decode(&bytes, &limits()).unwrap();
            assert_eq!((&delta.tensors, delta.header.flags), (&tensors, 0));
            let one = Trailers {
                metadata: Some(&Metadata::default()),
                auth: None,
            };
            let bytes = encode_file(&tensors, one, compression).unwrap();
            assert_eq!(
                decode(&bytes, &limits()).unwrap().metadata,
                Some(Metadata::default())
            );
            let one = Trailers {
                metadata: None,
                auth: Some((&auth_body(), &HashSigner)),
            };
            let bytes = encode_file(&tensors, one, compression).unwrap();
            assert!(decode(&bytes, &limits()).unwrap().auth.is_some());
        }
    }
}

#[test]
fn empty_tensors_and_scalars() {
    let raw = |shape: &[u64]| RawTensor::from(&f32_tensor(shape, 1.0));
    let tensors = RawTensors::from([
        ("a".into(), raw(&[])),
        ("b".into(), raw(&[0])),
        ("c".into(), raw(&[3, 0, 2])),
    ]);
    for compression in Compression::ALL {
        let bytes = encode_file(&tensors, Trailers::default(), compression).unwrap();
        assert_eq!(decode(&bytes, &limits()).unwrap().tensors, tensors);
    }
}

#[test]
fn large_tensors_take_several_blocks() {
    // Runs that compress and noise that does not.
    let data: Vec<f32> = (0..700_000u32)
        .map(|i| {
            if i % 3 == 0 {
                1.5
            } else {
                (i.wrapping_mul(2_654_435_761) >> 8) as f32
            }
        })
        .collect();
    let set = TensorSet(BTreeMap::from([(
        "w".into(),
        F32Tensor {
            shape: vec![700, 1000],
            data,
        },
    )]));
    let tensors = tensor::from_set(&set);
    for compression in Compression::ALL {
        let bytes = encode_file(&tensors, Trailers::default(), compression).unwrap();
        assert_eq!(decode(&bytes, &limits()).unwrap().tensors, tensors);
    }
}

fn shuffled(data: &[u8], parts: [format::Part; 2]) -> Vec<u8> {
    let mut out = Vec::new();
    shuffle::gather(data, parts, 0..data.len(), &mut out);
    out
}

#[test]
fn shuffle_gathers_equal_bytes() {
    let parts = DType::F32.parts(2).unwrap();
    assert_eq!(
        shuffled(&[1, 2, 3, 4, 5, 6, 7, 8], parts),
        [1, 5, 2, 6, 3, 7, 4, 8]
    );
    let parts = DType::Q8.parts(257).unwrap();
    let data: Vec<u8> = (0..265u32).map(|i| i as u8).collect();
    let shuffled = shuffled(&data, parts);
    assert_eq!(shuffled[..257], data[..257]);
    assert_eq!(shuffled[257..], [1, 5, 2, 6, 3, 7, 4, 8]);
}

/// In whatever stretches it is done; and scattering hands on every byte in order, once.
#[test]
fn shuffling_by_stretches_is_shuffling() {
    for dtype in DType::ALL {
        let parts = dtype.parts(300).unwrap();
        let len = dtype.byte_len(300).unwrap();
        let data: Vec<u8> = (0..len).map(|i| (i * 7 + i / 256) as u8).collect();
        let whole = shuffled(&data, parts);
        for step in [1, 7, 256, 300, 1000, len] {
            let (mut gathered, mut back, mut handed_on) = (Vec::new(), Vec::new(), Vec::new());
            for at in (0..len).step_by(step) {
                let range = at..len.min(at + step);
                shuffle::gather(&data, parts, range.clone(), &mut gathered);
                shuffle::scatter(&mut back, parts, at, &whole[range], |b| {
                    handed_on.extend_from_slice(b)
                });
            }
            assert_eq!(gathered, whole, "{dtype:?} by {step}");
            assert_eq!((&back, &handed_on), (&data, &data), "{dtype:?} by {step}");
        }
    }
}

#[test]
fn shuffled_bf16_is_smaller() {
    let data: Vec<f32> = (0..50_000u32)
        .map(|i| (f64::from(i) * 0.37).sin() as f32 * 0.01)
        .collect();
    let tensor = F32Tensor {
        shape: vec![50_000],
        data,
    };
    let tensors = RawTensors::from([("w".into(), RawTensor::from_f32(&tensor, DType::Bf16).unwrap())]);
    let size = |c| encode_file(&tensors, Trailers::default(), c).unwrap().len();
    assert!(size(Compression::ShuffleLz4) * 10 < size(Compression::None) * 9);
}

#[test]
fn conversions_are_within_their_precision() {
    let tensor = F32Tensor {
        shape: vec![301],
        data: (0..301).map(|i| (i as f32 - 150.0) / 100.0).collect(),
    };
    let bounds = [
        (DType::F32, 0.0),
        (DType::F64, 0.0),
        (DType::F16, 1e-3),
        (DType::Bf16, 8e-3),
        (DType::Q8, 6e-3),
        (DType::Q4, 0.11),
    ];
    for (dtype, bound) in bounds {
        let back = RawTensor::from_f32(&tensor, dtype).unwrap().to_f32();
        assert_eq!(back.shape, tensor.shape);
        let worst = back
            .data
            .iter()
            .zip(&tensor.data)
            .map(|(a, b)| (a - b).abs())
            .fold(0.0, f32::max);
        assert!(worst <= bound, "{dtype:?}: {worst}");
    }
    assert_eq!(RawTensor::from_f32(&tensor, DType::I8), None);
}

#[test]
fn q4_is_low_nibble_first() {
    let tensor = F32Tensor {
        shape: vec![3],
        data: vec![7.0, -1.0, 3.5],
    };
    // Scale 1 (f16 0x3c00); 7, −1 = 0xf, 3.5 rounds to 4.
    assert_eq!(
        RawTensor::from_f32(&tensor, DType::Q4).unwrap().data,
        [0xf7, 0x04, 0x00, 0x3c]
    );
}

fn any_tensor() -> impl Strategy<Value = RawTensor> {
    let shape = proptest::collection::vec(0u64..7, 0..4);
    (proptest::sample::select(DType::ALL.to_vec()), shape).prop_flat_map(|(dtype, shape)| {
        let n = format::elements(&shape).unwrap();
        let values = proptest::collection::vec(-100.0f32..100.0, n);
        let bytes = proptest::collection::vec(any::<u8>(), dtype.byte_len(n).unwrap());
        (Just(dtype), Just(shape), values, bytes).prop_map(|(dtype, shape, data, bytes)| {
            let floats = RawTensor::from_f32(
                &F32Tensor {
                    shape: shape.clone(),
                    data,
                },
                dtype,
            );
            floats.unwrap_or(RawTensor {
                dtype,
                shape,
                data: bytes,
            })
        })
    })
}

fn any_tensors() -> impl Strategy<Value = RawTensors> {
    proptest::collection::btree_map("[a-zäß.]{1,12}", any_tensor(), 0..6)
}

proptest! {
    #[test]
    fn any_tensors_come_back(tensors in any_tensors(), compression in proptest::sample::select(Compression::ALL.to_vec())) {
        let trailers = Trailers { metadata: Some(&metadata()), auth: Some((&auth_body(), &HashSigner)) };
        let bytes = encode_file(&tensors, trailers, compression).unwrap();
        let delta = decode(&bytes, &limits()).unwrap();
        prop_assert_eq!(&delta.tensors, &tensors);
        prop_assert!(delta.verify_signatures(&HashSigner).is_ok());
        let again = encode_file(&delta.tensors, trailers, compression).unwrap();
        prop_assert_eq!(again, bytes);
    }
}
