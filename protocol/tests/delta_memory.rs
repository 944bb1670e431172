//! Beside the caller's tensors, writing and reading a file of 256 MiB takes less than 32 MiB (PROTOCOL section 3).

#![allow(clippy::unwrap_used, reason = "a test")]

use gym_protocol::delta::{Compression, Limits, TensorView, Trailers, decode_from, encode_to};
use gym_protocol::tensor::F32Tensor;
use peak_alloc::PeakAlloc;
use std::collections::BTreeMap;
use std::io::{Seek, SeekFrom};

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

const ALLOWED: usize = 32 << 20;

/// One tensor of 192 MiB and 64 of 1 MiB, half of them noise.
fn tensors() -> BTreeMap<String, F32Tensor> {
    let tensor = |elements: u32| F32Tensor {
        shape: vec![u64::from(elements)],
        data: (0..elements)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32)
            .collect(),
    };
    let mut tensors = BTreeMap::from([("large".to_owned(), tensor(48 << 20))]);
    tensors.extend((0..64).map(|i| (format!("small.{i:02}"), tensor(256 << 10))));
    tensors
}

#[test]
fn working_memory_is_bounded() {
    let tensors = tensors();
    let total = 256 << 20;
    let limits = Limits {
        file_bytes: total + (8 << 20),
        tensor_bytes: total,
        tensors: 65,
    };
    for compression in Compression::ALL {
        let mut file = tempfile::tempfile().unwrap();
        let views = tensors.iter().map(|(name, tensor)| TensorView::f32(name, tensor));
        let (hash, writing) =
            extra(|| encode_to(views, Trailers::default(), compression, &mut file).unwrap());
        assert!(writing < ALLOWED, "{compression:?}: writing took {writing} bytes");
        file.seek(SeekFrom::Start(0)).unwrap();
        let (delta, reading) = extra(|| decode_from(&file, &limits).unwrap());
        assert!(
            reading < total + ALLOWED,
            "{compression:?}: reading took {} bytes",
            reading - total
        );
        assert_eq!(delta.content_hash, hash);
        println!(
            "{compression:?}: writing {writing} bytes, reading {} beside the tensors",
            reading - total
        );
    }
}

/// The most memory that `work` held beyond what was there before, in bytes.
fn extra<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = ALLOCATOR.current_usage();
    ALLOCATOR.reset_peak_usage();
    let result = work();
    (result, ALLOCATOR.peak_usage() - before)
}
