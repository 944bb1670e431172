//! How fast delta files are written and read, beside SHA3-256 alone, and how small they get:
//! `cargo run --release -p gym-protocol --example delta_bench -- [--mib 256] [--runs 5] [--dir DIR] [--json]`.
//!
//! Tensors are shaped like a LoRA adapter's and hold normal values of 1e-4, as deltas do. A case's time is the median
//! over runs; all cases take turns within a run. `scripts/bench/bench_delta.py` runs this beside safetensors, lz4 and
//! hashlib.

#![allow(clippy::print_stdout, reason = "a program that prints its measurements")]

use gym_protocol::delta::{
    Compression, DType, Limits, RawTensor, RawTensors, Trailers, decode_from, encode_file, encode_to,
};
use gym_protocol::tensor::F32Tensor;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use sha3::{Digest, Sha3_256};
use std::error::Error;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::path::PathBuf;
use std::time::Instant;

/// (rows, columns) of a layer's LoRA matrices of rank 16, as in a model of width 2048.
const LAYER: [(&str, u64, u64); 6] = [
    ("self_attn.q_proj.lora_A", 16, 2048),
    ("self_attn.q_proj.lora_B", 2048, 16),
    ("self_attn.v_proj.lora_A", 16, 2048),
    ("self_attn.v_proj.lora_B", 512, 16),
    ("mlp.up_proj.lora_A", 16, 2048),
    ("mlp.up_proj.lora_B", 8192, 16),
];
/// What is timed.
const TIMED: [DType; 2] = [DType::F32, DType::Bf16];
/// What is measured in size alone.
const SIZED: [DType; 3] = [DType::F16, DType::Q8, DType::Q4];

struct Options {
    mib: usize,
    runs: usize,
    dir: PathBuf,
    json: bool,
}

fn options() -> Result<Options, Box<dyn Error>> {
    let mut options = Options {
        mib: 256,
        runs: 5,
        dir: std::env::temp_dir(),
        json: false,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{name} needs a value"));
        match name.as_str() {
            "--mib" => options.mib = value()?.parse()?,
            "--runs" => options.runs = value()?.parse()?,
            "--dir" => options.dir = value()?.into(),
            "--json" => options.json = true,
            _ => return Err(format!("{name} is not known: --mib N, --runs N, --dir DIR, --json").into()),
        }
    }
    Ok(options)
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = options()?;
    let sets: Vec<(DType, RawTensors)> = TIMED.map(|dtype| (dtype, tensors(dtype, options.mib))).into();
    let (mut hash, mut hash_cpu) = (Vec::new(), Vec::new());
    let mut cases: Vec<Case> = TIMED
        .into_iter()
        .flat_map(|dtype| Compression::ALL.map(|compression| Case::new(dtype, compression)))
        .collect();
    for _ in 0..options.runs {
        let (wall, cpu) = hash_alone(&sets[0].1);
        hash.push(wall);
        hash_cpu.push(cpu);
        for case in &mut cases {
            let (_, tensors) = sets
                .iter()
                .find(|(dtype, _)| *dtype == case.dtype)
                .ok_or("a timed dtype")?;
            case.run(tensors, &options)?;
        }
    }
    let seconds = median(&mut hash);
    let bytes: usize = sets[0].1.values().map(|tensor| tensor.data.len()).sum();
    let report = json!({
        "bytes": bytes,
        "runs": options.runs,
        "sha3_256": { "seconds": seconds, "gb_s": bytes as f64 / seconds / 1e9, "cpu_seconds": median(&mut hash_cpu) },
        "files": cases.iter_mut().map(|case| case.report(seconds)).collect::<Vec<_>>(),
        "sizes": sizes()?,
    });
    if options.json {
        println!("{report}");
    } else {
        show(&report);
    }
    Ok(())
}

/// Tensors of about `mib` mebibytes.
fn tensors(dtype: DType, mib: usize) -> RawTensors {
    let mut rng = StdRng::seed_from_u64(1);
    let (mut tensors, mut bytes) = (RawTensors::new(), 0);
    for layer in 0.. {
        for (name, rows, columns) in LAYER {
            if bytes >= mib << 20 {
                return tensors;
            }
            let tensor = normal(&mut rng, rows, columns);
            let tensor = RawTensor::from_f32(&tensor, dtype).unwrap_or_else(|| RawTensor::from(&tensor));
            bytes += tensor.data.len();
            tensors.insert(
                format!("base_model.model.model.layers.{layer}.{name}.weight"),
                tensor,
            );
        }
    }
    tensors
}

fn normal(rng: &mut StdRng, rows: u64, columns: u64) -> F32Tensor {
    // Box and Muller's, both of a pair.
    let pair = |rng: &mut StdRng| {
        let (radius, angle) = (
            rng.random::<f32>().max(1e-30),
            rng.random::<f32>() * std::f32::consts::TAU,
        );
        let radius = 1e-4 * (-2.0 * radius.ln()).sqrt();
        [radius * angle.cos(), radius * angle.sin()]
    };
    F32Tensor {
        shape: vec![rows, columns],
        data: (0..rows * columns / 2).flat_map(|_| pair(rng)).collect(),
    }
}

/// Wall and CPU seconds.
fn hash_alone(tensors: &RawTensors) -> (f64, f64) {
    let (start, cpu) = (Instant::now(), own_cpu());
    let mut hasher = Sha3_256::new();
    for tensor in tensors.values() {
        hasher.update(&tensor.data);
    }
    std::hint::black_box(hasher.finalize());
    (start.elapsed().as_secs_f64(), own_cpu() - cpu)
}

/// CPU seconds of this thread so far, where Linux says (zero elsewhere).
fn own_cpu() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = text.split(' ').next().and_then(|n| n.parse::<f64>().ok());
    nanoseconds.unwrap_or(0.0) / 1e9
}

struct Case {
    dtype: DType,
    compression: Compression,
    encode: Vec<f64>,
    decode: Vec<f64>,
    /// Seconds of the calling thread, which does all but the hashing.
    encode_cpu: Vec<f64>,
    decode_cpu: Vec<f64>,
    file_bytes: u64,
    /// What the tensors take as bf16.
    bf16_bytes: usize,
}

impl Case {
    fn new(dtype: DType, compression: Compression) -> Self {
        Self {
            dtype,
            compression,
            encode: Vec::new(),
            decode: Vec::new(),
            encode_cpu: Vec::new(),
            decode_cpu: Vec::new(),
            file_bytes: 0,
            bf16_bytes: 0,
        }
    }

    fn run(&mut self, tensors: &RawTensors, options: &Options) -> Result<(), Box<dyn Error>> {
        let path = options.dir.join(format!("delta-bench-{}", std::process::id()));
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)?;
        std::fs::remove_file(&path)?;
        let (start, cpu) = (Instant::now(), own_cpu());
        let views = tensors.iter().map(|(name, tensor)| tensor.view(name));
        encode_to(views, Trailers::default(), self.compression, &mut file)?;
        self.encode.push(start.elapsed().as_secs_f64());
        self.encode_cpu.push(own_cpu() - cpu);
        self.file_bytes = file.stream_position()?;
        self.bf16_bytes = bf16_bytes(tensors);

        file.seek(SeekFrom::Start(0))?;
        let limits = Limits {
            file_bytes: usize::MAX,
            tensor_bytes: tensors.values().map(|tensor| tensor.data.len()).sum(),
            tensors: tensors.len(),
        };
        let (start, cpu) = (Instant::now(), own_cpu());
        let delta = decode_from(&file, &limits)?;
        self.decode.push(start.elapsed().as_secs_f64());
        self.decode_cpu.push(own_cpu() - cpu);
        if delta.tensors != *tensors {
            return Err("what was read is not what was written".into());
        }
        Ok(())
    }

    fn report(&mut self, hash: f64) -> Value {
        let (encode, decode) = (median(&mut self.encode), median(&mut self.decode));
        json!({
            "dtype": format!("{:?}", self.dtype).to_lowercase(),
            "compression": self.compression.number(),
            "encode_seconds": encode,
            "decode_seconds": decode,
            "encode_to_hash": encode / hash,
            "decode_to_hash": decode / hash,
            "encode_beside_hash_cpu_seconds": median(&mut self.encode_cpu),
            "decode_beside_hash_cpu_seconds": median(&mut self.decode_cpu),
            "size_to_bf16": self.file_bytes as f64 / self.bf16_bytes as f64,
        })
    }
}

fn bf16_bytes(tensors: &RawTensors) -> usize {
    tensors
        .values()
        .map(|tensor| 2 * tensor.shape.iter().product::<u64>() as usize)
        .sum()
}

/// Sizes of the dtypes that are not timed, on 16 MiB.
fn sizes() -> Result<Vec<Value>, Box<dyn Error>> {
    let mut sizes = Vec::new();
    for dtype in SIZED {
        let tensors = tensors(dtype, 16);
        for compression in Compression::ALL {
            let bytes = encode_file(&tensors, Trailers::default(), compression)?.len();
            sizes.push(json!({
                "dtype": format!("{dtype:?}").to_lowercase(),
                "compression": compression.number(),
                "size_to_bf16": bytes as f64 / bf16_bytes(&tensors) as f64,
            }));
        }
    }
    Ok(sizes)
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

fn show(report: &Value) {
    let number = |value: &Value, key: &str| value[key].as_f64().unwrap_or(f64::NAN);
    let hash = &report["sha3_256"];
    println!(
        "SHA3-256 alone: {:.3} s, {:.3} GB/s, {:.3} s of CPU",
        number(hash, "seconds"),
        number(hash, "gb_s"),
        number(hash, "cpu_seconds")
    );
    for file in report["files"].as_array().into_iter().flatten() {
        println!(
            "{:>5} compression {}: encode {:.3} s ({:.2}x, {:.3} s of CPU beside), decode {:.3} s ({:.2}x, {:.3} s), {:.3} of bf16's size",
            file["dtype"].as_str().unwrap_or_default(),
            file["compression"],
            number(file, "encode_seconds"),
            number(file, "encode_to_hash"),
            number(file, "encode_beside_hash_cpu_seconds"),
            number(file, "decode_seconds"),
            number(file, "decode_to_hash"),
            number(file, "decode_beside_hash_cpu_seconds"),
            number(file, "size_to_bf16"),
        );
    }
    for size in report["sizes"].as_array().into_iter().flatten() {
        let (dtype, compression) = (size["dtype"].as_str().unwrap_or_default(), &size["compression"]);
        println!(
            "{dtype:>5} compression {compression}: {:.3} of bf16's size",
            number(size, "size_to_bf16")
        );
    }
}
