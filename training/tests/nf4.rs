//! NF4 against bitsandbytes' own numbers (fixtures `nf4`, `qlora`).
#![allow(clippy::unwrap_used, reason = "test helpers fail by panicking")]

mod common;

use common::{Reference, fixture, max_diff};
use gym_training::quant::{self, CODE, Nf4Matrix, Scales};

const CASES: [&str; 3] = ["a64x64", "b256x128", "c32x96_x"];

fn shape(reference: &Reference, name: &str) -> [usize; 2] {
    reference.shape(name).try_into().unwrap()
}

/// A tensor's kind and bytes by name.
fn parts<'a>(
    file: &'a safetensors::SafeTensors<'_>,
) -> impl Fn(&str) -> Option<(safetensors::Dtype, &'a [u8])> {
    |name| file.tensor(name).ok().map(|view| (view.dtype(), view.data()))
}

fn unpacked(matrix: &Nf4Matrix) -> Vec<u8> {
    matrix.codes().iter().flat_map(|b| [b >> 4, b & 15]).collect()
}

#[test]
fn codes_and_values_equal_bitsandbytes() {
    let reference = Reference::open("nf4/nf4.safetensors");
    assert_eq!(reference.f32("nf4_code"), CODE);
    for case in CASES {
        let weight = format!("{case}.w");
        let matrix = Nf4Matrix::quantise(shape(&reference, &weight), &reference.f32(&weight)).unwrap();
        assert_eq!(
            matrix.codes(),
            reference.u8(&format!("{case}.dq.packed")),
            "{case}"
        );
        assert_eq!(
            unpacked(&matrix),
            reference.u8(&format!("{case}.dq.codes")),
            "{case}"
        );
        let Scales::Double {
            codes,
            nested,
            offset,
        } = matrix.scales()
        else {
            panic!("scales are not doubly quantised");
        };
        assert_eq!(*codes, reference.u8(&format!("{case}.dq.absmax_u8")), "{case}");
        assert!(max_diff(nested.clone(), reference.f32(&format!("{case}.dq.state2_absmax"))) < 1e-6);
        assert!((offset - reference.f32(&format!("{case}.dq.offset"))[0]).abs() < 1e-6);
        let diff = max_diff(matrix.dequantise(), reference.f32(&format!("{case}.dq.dequant")));
        println!("{case}: {diff:e}");
        assert!(diff < 1e-6, "{case}: {diff:e}");
    }
}

#[test]
fn plain_scales_give_bitsandbytes_values() {
    let reference = Reference::open("nf4/nf4.safetensors");
    for case in CASES {
        let scales = Scales::Plain(reference.f32(&format!("{case}.nf4.absmax")));
        let codes = reference.u8(&format!("{case}.nf4.packed"));
        let shape = shape(&reference, &format!("{case}.w"));
        let matrix = Nf4Matrix::from_parts(shape, codes, scales).unwrap();
        let diff = max_diff(matrix.dequantise(), reference.f32(&format!("{case}.nf4.dequant")));
        assert!(diff < 1e-6, "{case}: {diff:e}");
    }
}

#[test]
fn a_quantised_file_loads_and_equals_what_we_quantise() {
    let bytes = std::fs::read(fixture("qlora/quantised.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let base = Reference::open("models/qwen3_untied/model.safetensors");
    let names: Vec<&str> = file
        .names()
        .into_iter()
        .filter_map(|name| name.strip_suffix(".quant_state.bitsandbytes__nf4"))
        .collect();
    assert_eq!(names.len(), 14);
    for name in names {
        let theirs = quant::read(parts(&file), name).unwrap();
        let ours = Nf4Matrix::quantise(shape(&base, name), &base.f32(name)).unwrap();
        assert_eq!(theirs.shape(), ours.shape(), "{name}");
        assert_eq!(theirs.codes(), ours.codes(), "{name}");
        let (Scales::Double { codes: a, .. }, Scales::Double { codes: b, .. }) =
            (theirs.scales(), ours.scales())
        else {
            panic!("{name} is not doubly quantised");
        };
        assert_eq!(a, b, "{name}");
        assert!(max_diff(theirs.dequantise(), ours.dequantise()) < 1e-6, "{name}");
    }
}

#[test]
fn a_quantised_file_with_a_part_missing_or_wrong_says_which() {
    let bytes = std::fs::read(fixture("qlora/quantised.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let name = "model.layers.0.self_attn.q_proj.weight";
    let without = |part: &str| {
        let views: Vec<_> = file
            .iter()
            .filter(|(n, _)| *n != format!("{name}{part}"))
            .collect();
        safetensors::serialize(views, None).unwrap()
    };
    for part in ["", ".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map"] {
        let bytes = without(part);
        let cut = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let error = quant::read(parts(&cut), name).unwrap_err().to_string();
        assert!(error.contains(&format!("{name}{part}")), "{error}");
    }
    let absmax = file.tensor(&format!("{name}.absmax")).unwrap();
    let short =
        safetensors::tensor::TensorView::new(safetensors::Dtype::U8, vec![3], &absmax.data()[..3]).unwrap();
    let views: Vec<_> = file
        .iter()
        .map(|(n, v)| {
            if n == format!("{name}.absmax") {
                (n, short.clone())
            } else {
                (n, v)
            }
        })
        .collect();
    let bytes = safetensors::serialize(views, None).unwrap();
    let cut = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let error = quant::read(parts(&cut), name).unwrap_err().to_string();
    assert!(error.contains("3 scales"), "{error}");
}

#[test]
fn a_matrix_holds_at_most_053_bytes_a_weight_and_refuses_nan() {
    let shape = [512, 768];
    let mut values: Vec<f32> = (0..shape[0] * shape[1])
        .map(|i| ((i * 7919 % 10007) as f32).sin())
        .collect();
    let matrix = Nf4Matrix::quantise(shape, &values).unwrap();
    let each = matrix.resident_bytes() as f64 / values.len() as f64;
    println!("{each} bytes a weight");
    assert!(each <= 0.53, "{each}");
    values[1234] = f32::NAN;
    let error = Nf4Matrix::quantise(shape, &values).unwrap_err().to_string();
    assert!(error.contains("1234"), "{error}");
}
