use super::*;
use format::tensor_head;

/// A file with flags 0 and a checksum that fits its uncompressed `content`.
fn file(compression: u8, stored: &[u8], content: &[u8]) -> Vec<u8> {
    let mut bytes = b"DELTA".to_vec();
    bytes.extend([1, compression, 0]);
    bytes.extend(&sha3_256(&[content]).0[..16]);
    bytes.extend(stored);
    bytes
}

fn frame(content: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut frame = lz4::FrameWriter::new(content.len(), &mut out);
    frame.write(content).unwrap();
    frame.finish().unwrap();
    out
}

fn raw_file(parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    file(0, &content, &content)
}

#[test]
fn the_header_is_checked() {
    let good = signed(Compression::None);
    let with = |at: usize, byte: u8| {
        let mut bad = good.clone();
        bad[at] = byte;
        refusal(&bad)
    };
    assert!(with(0, b'E').contains("no delta file"), "{}", with(0, b'E'));
    assert!(with(5, 2).contains("version 2 at offset 5"));
    assert!(with(6, 3).contains("compression 3 at offset 6"));
    assert!(with(7, 7).contains("flags 0b00000111 at offset 7"));
    assert!(with(8, good[8] ^ 1).contains("checksum at offset 8"));
    assert_eq!(
        refusal(&good[..3]),
        "truncated at offset 0: 2 bytes of magic are missing"
    );
}

#[test]
fn names_are_checked() {
    let t = |name: &str| [tensor_head(name, DType::U8, &[1]), vec![1]].concat();
    assert!(decode(&raw_file(&[&t("a"), &t("b")]), &limits()).is_ok());
    let message = refusal(&raw_file(&[&t("b"), &t("a")]));
    assert_eq!(
        message,
        "tensor \"a\" at offset 40 does not come after \"b\": names ascend bytewise"
    );
    assert!(refusal(&raw_file(&[&t("a"), &t("a")])).contains("does not come after"));
    assert!(refusal(&raw_file(&[&t("")])).contains("name of 0 bytes at offset 24"));
    assert!(decode(&raw_file(&[&t(&"x".repeat(1024))]), &limits()).is_ok());
    assert!(refusal(&raw_file(&[&t(&"x".repeat(1025))])).contains("name of 1025 bytes at offset 24"));
    let mut bad = t("é");
    bad[5] = b'x';
    assert!(refusal(&raw_file(&[&bad])).contains("offset 28 is not UTF-8"));
}

#[test]
fn dtype_rank_and_shape_are_checked() {
    let head = |dtype: u8, shape: &[u64]| {
        let mut head = tensor_head("a", DType::U8, shape);
        head[5] = dtype;
        head
    };
    assert!(refusal(&raw_file(&[&head(8, &[])])).contains("tensor \"a\": dtype 8 at offset 29"));
    assert!(refusal(&raw_file(&[&head(5, &[1; 9])])).contains("rank 9 at offset 30"));
    assert!(refusal(&raw_file(&[&head(5, &[1 << 40, 1 << 40])])).contains("at offset 31 overflows"));
    assert!(refusal(&raw_file(&[&head(3, &[1 << 62])])).contains("at offset 31 overflows"));
    let empty = raw_file(&[&head(3, &[1 << 40, 1 << 40, 0])]);
    assert!(
        decode(&empty, &limits()).is_ok(),
        "an extent of 0 makes the tensor empty"
    );
}

#[test]
fn the_limits_hold() {
    let bytes = signed(Compression::None);
    let with = |change: fn(&mut Limits)| {
        let mut limits = Limits {
            file_bytes: 1 << 16,
            tensor_bytes: 40,
            tensors: 2,
        };
        change(&mut limits);
        decode(&bytes, &limits).map(|_| ()).map_err(|e| e.to_string())
    };
    assert_eq!(with(|_| ()), Ok(()));
    assert!(
        with(|l| l.file_bytes = 100)
            .unwrap_err()
            .contains("the reader's limit is 100 bytes")
    );
    let message = with(|l| l.tensor_bytes = 39).unwrap_err();
    assert!(
        message.contains("\"lora.q_proj.weight\"") && message.contains("needs 24 more bytes"),
        "{message}"
    );
    assert!(
        with(|l| l.tensors = 1)
            .unwrap_err()
            .contains("more than 1 tensors")
    );
}

/// 64 MiB of zeros in 270 KB: refused before anything is decoded, whatever the frame states.
#[test]
fn bombs_are_refused() {
    let zeros = vec![0; 64 << 20];
    let frame = frame(&zeros);
    assert!(frame.len() < 300_000);
    let small = Limits {
        file_bytes: 1 << 20,
        tensor_bytes: 1 << 20,
        tensors: 4,
    };
    let honest = [tensor_head("a", DType::U8, &[64 << 20]), frame.clone()].concat();
    let message = decode(&file(1, &honest, &[]), &small).unwrap_err().to_string();
    assert!(message.contains("needs 67108864 more bytes"), "{message}");
    let head = tensor_head("a", DType::U8, &[1000]);
    let lying = [head.clone(), frame.clone()].concat();
    let message = decode(&file(1, &lying, &[]), &small).unwrap_err().to_string();
    assert!(
        message.contains("content size 67108864 where the tensor has 1000"),
        "{message}"
    );
    // A frame that states 1000 bytes and holds 64 MiB; header checksum by hand from a frame of 1000 bytes.
    let modest = lz4_flex::frame::FrameInfo::new()
        .block_mode(lz4_flex::frame::BlockMode::Independent)
        .block_size(lz4_flex::frame::BlockSize::Max1MB)
        .content_size(Some(1000));
    let mut encoder = lz4_flex::frame::FrameEncoder::with_frame_info(modest, Vec::new());
    std::io::Write::write_all(&mut encoder, &[0; 1000]).unwrap();
    let header = encoder.finish().unwrap()[..15].to_vec();
    let bomb = [head, header, frame[15..].to_vec()].concat();
    let message = decode(&file(1, &bomb, &[]), &small).unwrap_err().to_string();
    assert!(
        message.contains("provided output is too small") || message.contains("are left of the content"),
        "{message}"
    );
}

#[test]
fn claims_allocate_nothing() {
    let wide = Limits {
        file_bytes: usize::MAX,
        tensor_bytes: usize::MAX,
        tensors: usize::MAX,
    };
    let head = tensor_head("a", DType::F32, &[1 << 40]);
    for compression in [0, 1, 2] {
        assert!(decode(&file(compression, &head, &[]), &wide).is_err());
    }
}

#[test]
fn values_are_named() {
    let mut tensors = tensor::from_set(&set());
    let q = tensors.get_mut("lora.q_proj.weight").unwrap();
    q.data[8..12].copy_from_slice(&f32::NAN.to_le_bytes());
    let error = encode_file(&tensors, Trailers::default(), Compression::None)
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "cannot write tensor \"lora.q_proj.weight\": element 2 is NaN or infinite"
    );
    let value = |dtype, n: u64, data: &[u8]| refusal(&raw_file(&[&tensor_head("a", dtype, &[n]), data]));
    assert_eq!(
        value(DType::F32, 1, &f32::INFINITY.to_le_bytes()),
        "tensor \"a\" at offset 39: element 0 is NaN or infinite"
    );
    assert!(value(DType::F16, 2, &[0, 0, 0, 0x7c]).contains("element 1 is NaN or infinite"));
    assert!(value(DType::Bf16, 1, &[0xc0, 0x7f]).contains("element 0 is NaN or infinite"));
    assert!(value(DType::F64, 1, &f64::NAN.to_le_bytes()).contains("element 0 is NaN or infinite"));
    let q8 = |q: u8, scale: f32| value(DType::Q8, 1, &[&[q][..], &scale.to_le_bytes()].concat());
    assert!(q8(0x80, 1.0).contains("integer 0 is out of range"));
    assert!(q8(1, 0.0).contains("integer 0"));
    assert!(q8(1, f32::NAN).contains("scale of block 0"));
    assert!(q8(1, -1.0).contains("scale of block 0"));
    assert!(value(DType::Q4, 2, &[0x80, 0, 0x3c]).contains("integer 1"));
    assert!(
        value(DType::Q4, 1, &[0x10, 0, 0x3c]).contains("integer 1"),
        "padding"
    );
    assert!(
        value(DType::Q4, 1, &[0x01, 0, 0]).contains("integer 0"),
        "zero scale"
    );
}

#[test]
fn linked_blocks_and_checksums_of_other_writers_are_read() {
    use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};
    let data: Vec<u8> = (0..300_000u32).map(|i| (i / 7) as u8).collect();
    let info = FrameInfo::new()
        .block_mode(BlockMode::Linked)
        .block_size(BlockSize::Max64KB)
        .block_checksums(true)
        .content_checksum(true)
        .content_size(Some(300_000));
    let mut encoder = FrameEncoder::with_frame_info(info, Vec::new());
    std::io::Write::write_all(&mut encoder, &data).unwrap();
    let frame = encoder.finish().unwrap();
    let head = tensor_head("a", DType::U8, &[300_000]);
    let bytes = file(1, &[head.clone(), frame].concat(), &[head, data.clone()].concat());
    assert_eq!(decode(&bytes, &limits()).unwrap().tensors["a"].data, data);
}

#[test]
fn frames_must_state_their_size() {
    let head = tensor_head("a", DType::U8, &[100]);
    let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
    std::io::Write::write_all(&mut encoder, &[0; 100]).unwrap();
    let frame = encoder.finish().unwrap();
    let message = refusal(&file(1, &[head, frame].concat(), &[]));
    assert!(message.contains("a frame states its content size"), "{message}");
}

/// The LZ4 library leaves a content size of 0 out of the header, as the specification lets it.
#[test]
fn an_empty_frame_may_leave_its_size_out() {
    let head = tensor_head("a", DType::F32, &[0, 3]);
    let frame = hex::decode("04224d1860408200000000").unwrap();
    for compression in [1, 2] {
        let bytes = file(compression, &[head.clone(), frame.clone()].concat(), &head);
        assert!(decode(&bytes, &limits()).unwrap().tensors["a"].data.is_empty());
    }
    let head = tensor_head("a", DType::F32, &[1]);
    assert!(refusal(&file(1, &[head, frame].concat(), &[])).contains("offset 43: a frame states its"));
}

/// Offsets of what is wrong within a frame: its header's checksum, a block, its end.
#[test]
fn a_bad_frame_is_told_by_its_offset() {
    let head = tensor_head("a", DType::U8, &[100]); // the frame begins at 39, its blocks at 54
    let good = [head.clone(), frame(&[7; 100])].concat();
    let with = |at: usize, byte: u8| {
        let mut bad = good.clone();
        bad[at - 24] = byte;
        refusal(&file(1, &bad, &[]))
    };
    assert!(
        with(39, 5).contains("offset 39: it does not begin with"),
        "{}",
        with(39, 5)
    );
    assert!(with(44, 0x30).contains("offset 44: unknown block size"));
    assert!(with(45, 99).contains("offset 45: content size 99 where"));
    assert!(with(53, good[29] ^ 1).contains("offset 53: the header's checksum"));
    assert!(
        with(56, 0xff).contains("offset 54: a block of"),
        "{}",
        with(56, 0xff)
    );
    let whole = frame(&[7; 100]);
    let cut = [&head[..], &whole[..15], &[0; 4]].concat();
    assert!(refusal(&file(1, &cut, &[])).contains("offset 54: it ends 100 bytes before"));
}

#[test]
fn metadata_is_bounded() {
    let mut metadata = metadata();
    metadata.extra = (0..33).map(|i| (i.to_string(), String::new())).collect();
    let trailers = Trailers {
        metadata: Some(&metadata),
        auth: None,
    };
    let error = encode_file(&RawTensors::new(), trailers, Compression::None).unwrap_err();
    assert!(error.to_string().contains("33 entries"));
    metadata.extra = [("k".to_owned(), "v".repeat(70_000))].into();
    let trailers = Trailers {
        metadata: Some(&metadata),
        auth: None,
    };
    assert!(encode_file(&RawTensors::new(), trailers, Compression::None).is_err());
    metadata.extra.clear();
    metadata.loss = Some(f64::NAN);
    let trailers = Trailers {
        metadata: Some(&metadata),
        auth: None,
    };
    assert!(encode_file(&RawTensors::new(), trailers, Compression::None).is_err());
    assert!(Timestamp::parse("2024-01-01 00:00").is_err());
    assert_eq!(
        Timestamp::from_unix(1_704_067_200).unwrap().as_str(),
        "2024-01-01T00:00:00Z"
    );
}
