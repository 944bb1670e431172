//! Streams: the same bytes and the same errors as in memory, however they come.

use super::*;
use std::io::{self, Cursor, Read, Seek, Write};

/// Gives out at most `step` bytes at a time, and is interrupted now and then.
struct Slow<'a> {
    bytes: &'a [u8],
    step: usize,
    reads: usize,
}

impl Read for Slow<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.reads += 1;
        if self.reads.is_multiple_of(5) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let n = self.step.min(to.len()).min(self.bytes.len());
        to[..n].copy_from_slice(&self.bytes[..n]);
        self.bytes = &self.bytes[n..];
        Ok(n)
    }
}

fn slowly(bytes: &[u8], step: usize) -> Result<Delta, DeltaDecodeError> {
    let slow = Slow {
        bytes,
        step,
        reads: 0,
    };
    decode_from(slow, &limits())
}

/// Tensors of several mebibytes, so that the hash is computed elsewhere and frames have many blocks.
fn large() -> RawTensors {
    let data: Vec<f32> = (0..900_001u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 9) as f32 * 1e-7 - 0.4)
        .collect();
    let tensor = F32Tensor {
        shape: vec![900_001],
        data,
    };
    let of = |dtype| RawTensor::from_f32(&tensor, dtype).unwrap();
    [DType::F32, DType::Bf16, DType::F64, DType::Q8, DType::Q4]
        .into_iter()
        .map(|dtype| (format!("{dtype:?}"), of(dtype)))
        .collect()
}

fn wide() -> Limits {
    Limits::for_f32(8 << 20)
}

#[test]
fn a_stream_is_written_and_read_as_memory_is() {
    let tensors = large();
    let trailers = Trailers {
        metadata: Some(&metadata()),
        auth: Some((&auth_body(), &HashSigner)),
    };
    for compression in Compression::ALL {
        let bytes = encode_file(&tensors, trailers, compression).unwrap();
        let mut out = Cursor::new(b"before".to_vec());
        out.seek(io::SeekFrom::End(0)).unwrap();
        let views = tensors.iter().map(|(name, tensor)| tensor.view(name));
        let hash = encode_to(views, trailers, compression, &mut out).unwrap();
        assert!(
            *out.get_ref() == [b"before", &bytes[..]].concat(),
            "{compression:?}"
        );
        let delta = decode_from(&bytes[..], &wide()).unwrap();
        assert!(delta.tensors == tensors, "{compression:?}");
        assert_eq!((delta.content_hash, delta.offsets.end), (hash, bytes.len()));
        assert!(delta.verify_signatures(&HashSigner).is_ok());
        let (metadata_at, auth_at) = (delta.offsets.metadata.unwrap(), delta.offsets.auth.unwrap());
        let length = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        assert_eq!(metadata_at + 4 + length(metadata_at), auth_at);
        assert_eq!(auth_at + 4 + length(auth_at), bytes.len());
    }
}

#[test]
fn bytes_may_come_one_by_one() {
    for compression in Compression::ALL {
        let bytes = signed(compression);
        for step in [1, 3, 4096] {
            assert_eq!(slowly(&bytes, step).unwrap(), decode(&bytes, &limits()).unwrap());
        }
        for cut in 0..bytes.len() {
            let (ours, theirs) = (
                slowly(&bytes[..cut], 5).unwrap_err(),
                decode(&bytes[..cut], &limits()).unwrap_err(),
            );
            assert_eq!(ours.to_string(), theirs.to_string());
        }
    }
}

#[test]
fn a_stream_beyond_the_limit_is_refused() {
    let bytes = signed(Compression::Lz4);
    let with = |limit: usize| {
        let limits = Limits {
            file_bytes: limit,
            ..limits()
        };
        decode_from(&bytes[..], &limits)
            .map(|_| ())
            .map_err(|e| e.to_string())
    };
    assert_eq!(with(bytes.len()), Ok(()));
    for limit in 0..bytes.len() {
        assert_eq!(
            with(limit),
            Err(format!(
                "the file is too long: the reader's limit is {limit} bytes"
            ))
        );
    }
    let longer = [&bytes[..], &[0; 10_000]].concat();
    let limits = Limits {
        file_bytes: bytes.len(),
        ..limits()
    };
    assert!(
        decode_from(&longer[..], &limits)
            .unwrap_err()
            .to_string()
            .contains("too long")
    );
    assert!(
        decode_from(&longer[..], &self::limits())
            .unwrap_err()
            .to_string()
            .starts_with("10000 trailing bytes")
    );
}

#[test]
fn a_failing_stream_is_told_by_its_offset() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("pulled out"))
        }
    }
    let bytes = signed(Compression::None);
    let error = decode_from(bytes[..30].chain(Broken), &limits()).unwrap_err();
    assert_eq!(error.to_string(), "cannot read on at offset 30: pulled out");
}

#[test]
fn a_full_disk_is_an_error() {
    let tensors = large();
    let mut room = vec![0; 1 << 20];
    let views = || tensors.iter().map(|(name, tensor)| tensor.view(name));
    for compression in Compression::ALL {
        let mut out = Cursor::new(&mut room[..]);
        let error = encode_to(views(), Trailers::default(), compression, &mut out).unwrap_err();
        assert!(error.to_string().starts_with("cannot write "), "{error}");
        assert_eq!(room[..24], [0; 24], "no header");
    }
}

#[test]
fn names_must_ascend() {
    let tensor = RawTensor::from(&f32_tensor(&[2], 1.0));
    for names in [["b", "a"], ["a", "a"]] {
        let views = names.map(|name| tensor.view(name));
        let error = encode_to(
            views,
            Trailers::default(),
            Compression::None,
            &mut Cursor::new(Vec::new()),
        )
        .unwrap_err();
        assert!(error.to_string().contains("does not come after"), "{error}");
    }
}

#[test]
fn f32_values_are_written_from_where_they_lie() {
    let set = set();
    let views = set.0.iter().map(|(name, tensor)| TensorView::f32(name, tensor));
    let mut out = Cursor::new(Vec::new());
    encode_to(views, Trailers::default(), Compression::ShuffleLz4, &mut out).unwrap();
    let delta = decode(out.get_ref(), &limits()).unwrap();
    assert_eq!(delta.tensors, tensor::from_set(&set));
    assert_eq!(delta.into_tensor_set().unwrap(), set);
    out.flush().unwrap();
}
