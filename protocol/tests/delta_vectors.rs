//! The committed delta files (`tests/vectors/delta`): ours and those that `scripts/delta_file.py`, written from the
//! specification alone, wrote. Their contents are described in the JSON files beside them. A change is a change of the
//! format; `scripts/delta-check` exchanges more of them live.

#![allow(clippy::unwrap_used, reason = "a test")]

use gym_protocol::cbor;
use gym_protocol::delta::{
    Auth, Compression, DType, Delta, DeltaSignatures, DeltaSigner, Limits, Metadata, RawTensor, RawTensors,
    Trailers, decode, encode_file,
};
use serde_json::Value;
use std::path::{Path, PathBuf};

fn vector(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/vectors/delta")
        .join(name)
}

fn limits() -> Limits {
    Limits::for_f32(1 << 20)
}

/// What a file holds, by its description.
struct Described {
    tensors: RawTensors,
    metadata: Option<Metadata>,
    auth: Option<Auth>,
    content_hash: String,
}

fn described(name: &str) -> Described {
    let text = std::fs::read_to_string(vector(&format!("{name}.json"))).unwrap();
    let value: Value = serde_json::from_str(&text).unwrap();
    let tensor = |t: &Value| {
        let raw = RawTensor {
            dtype: DType::from_number(t["dtype"].as_u64().unwrap() as u8).unwrap(),
            shape: t["shape"]
                .as_array()
                .unwrap()
                .iter()
                .map(|d| d.as_u64().unwrap())
                .collect(),
            data: hex::decode(t["data"].as_str().unwrap()).unwrap(),
        };
        (t["name"].as_str().unwrap().to_owned(), raw)
    };
    Described {
        tensors: value["tensors"].as_array().unwrap().iter().map(tensor).collect(),
        metadata: block(&value["metadata"]),
        auth: block(&value["auth"]),
        content_hash: value["content_hash"].as_str().unwrap().to_owned(),
    }
}

/// A metadata or auth block: JSON with byte strings as `{"hex": …}`.
fn block<T: serde::Serialize + serde::de::DeserializeOwned>(value: &Value) -> Option<T> {
    let object = value.as_object()?;
    let pairs = object
        .iter()
        .map(|(key, value)| (key.clone(), Dag(value.clone())))
        .collect::<Vec<_>>();
    let map: std::collections::BTreeMap<String, Dag> = pairs.into_iter().collect();
    let bytes = cbor::to_dag(&map).unwrap();
    Some(cbor::from_dag(&bytes, bytes.len()).unwrap())
}

/// A described value as DAG-CBOR writes it.
struct Dag(Value);

impl serde::Serialize for Dag {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self.0.get("hex").and_then(Value::as_str) {
            Some(hex) => s.serialize_bytes(&hex::decode(hex).unwrap()),
            None => self.0.serialize(s),
        }
    }
}

/// Gives back the signatures that were there.
struct Kept(DeltaSignatures);

impl DeltaSigner for Kept {
    fn sign(&self, _: &'static str, _: &[u8]) -> DeltaSignatures {
        self.0.clone()
    }
}

fn write(what: &Described, compression: Compression) -> Vec<u8> {
    let auth = what.auth.clone().map(|auth| (auth.body, Kept(auth.signatures)));
    let trailers = Trailers {
        metadata: what.metadata.as_ref(),
        auth: auth.as_ref().map(|(body, kept)| (body, kept as &dyn DeltaSigner)),
    };
    encode_file(&what.tensors, trailers, compression).unwrap()
}

fn assert_is(delta: &Delta, what: &Described, file: &str) {
    assert_eq!(delta.content_hash.to_hex(), what.content_hash, "{file}");
    assert!(delta.tensors == what.tensors, "{file}: tensors");
    assert_eq!(delta.metadata, what.metadata, "{file}");
    assert_eq!(delta.auth, what.auth, "{file}");
}

#[test]
fn the_vectors_hold_what_is_described() {
    for name in ["lora", "dtypes"] {
        let what = described(name);
        for writer in ["", "-python"] {
            for compression in Compression::ALL {
                let n = compression.number();
                if writer == "-python" && compression == Compression::None {
                    continue; // the same bytes as ours: `scripts/delta-check`
                }
                let file = format!("{name}-{n}{writer}.bin");
                let delta = decode(&std::fs::read(vector(&file)).unwrap(), &limits()).unwrap();
                assert_eq!(delta.header.compression, compression, "{file}");
                assert_is(&delta, &what, &file);
            }
        }
    }
}

#[test]
fn we_still_write_the_same_bytes() {
    for name in ["lora", "dtypes"] {
        let what = described(name);
        for compression in Compression::ALL {
            let file = format!("{name}-{}.bin", compression.number());
            assert!(
                write(&what, compression) == std::fs::read(vector(&file)).unwrap(),
                "{file} has changed"
            );
        }
    }
}

#[test]
fn every_dtype_is_among_them() {
    let what = described("dtypes");
    for dtype in DType::ALL {
        assert!(
            what.tensors
                .values()
                .any(|t| t.dtype == dtype && !t.data.is_empty()),
            "{dtype:?}"
        );
    }
    assert!(what.auth.is_some() && what.metadata.is_some());
}
