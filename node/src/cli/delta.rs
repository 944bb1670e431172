//! `hanzod delta inspect | verify`.

use super::Context;
use super::output::{self, Output};
use crate::files;
use crate::runtime::Network;
use crate::signatures::Signed;
use anyhow::Context as _;
use clap::Subcommand;
use gym_crypto::record::{Anchor, MAX_RECORD_BYTES, SignedRecord, VerifiedRecord};
use gym_protocol::delta::{self, Auth, Delta, Limits, Metadata, RawTensor, format};
use gym_protocol::ids::{Hash32, PeerBytes};
use gym_protocol::message::{Verifier, VerifyError};
use serde_json::{Value, json};
use std::fs::File;
use std::path::{Path, PathBuf};

/// The largest delta read, in bytes.
const MAX_DELTA: usize = 8 << 30;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Show what a delta file holds; checks form, checksum and values, not who made it
    Inspect {
        /// The file
        file: PathBuf,
    },
    /// Check a delta file and its signatures
    ///
    /// Says what is wrong and at which offset. Without --record the Ed25519 signature is checked alone; the ML-DSA-87 one
    /// needs the worker's identity record.
    Verify {
        /// The file
        file: PathBuf,
        /// The genesis file of its network [default: the one in the home directory]
        #[arg(long, value_name = "FILE")]
        genesis: Option<PathBuf>,
        /// The worker's identity record (identity/record.cbor in its home)
        #[arg(long, value_name = "FILE")]
        record: Option<PathBuf>,
    },
}

pub(super) fn main(context: &Context, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Inspect { file } => inspect(context.output, &file),
        Command::Verify {
            file,
            genesis,
            record,
        } => {
            let genesis = genesis.unwrap_or_else(|| context.home.genesis());
            verify(context.output, &file, &genesis, record.as_deref())
        }
    }
}

fn read(path: &Path) -> anyhow::Result<Delta> {
    let named = || path.display().to_string();
    let file = File::open(path).with_context(named)?;
    let limits = Limits {
        file_bytes: MAX_DELTA,
        tensor_bytes: MAX_DELTA,
        tensors: 1 << 20,
    };
    delta::decode_from(file, &limits).with_context(named)
}

fn inspect(output: Output, file: &Path) -> anyhow::Result<()> {
    let delta = read(file)?;
    output.show(&describe(&delta), plain);
    Ok(())
}

fn describe(delta: &Delta) -> Value {
    let norms: Vec<Norms> = delta.tensors.values().map(Norms::of).collect();
    let tensors: Vec<Value> = delta
        .tensors
        .iter()
        .zip(&norms)
        .map(|((name, tensor), norms)| {
            json!({
                "name": name,
                "dtype": format!("{:?}", tensor.dtype).to_lowercase(),
                "shape": tensor.shape,
                "bytes": tensor.data.len(),
                "norm": norms.squares.sqrt(),
                "largest": norms.largest,
            })
        })
        .collect();
    let header = &delta.header;
    json!({
        "version": format::VERSION,
        "compression": format!("{:?}", header.compression),
        "flags": header.flags,
        "checksum": hex::encode(header.checksum),
        "bytes": delta.offsets.end,
        "content_hash": delta.content_hash.to_hex(),
        "norm": norms.iter().map(|norms| norms.squares).sum::<f64>().sqrt(),
        "metadata": delta.metadata.as_ref().map(describe_metadata),
        "auth": delta.auth.as_ref().map(describe_auth),
        "tensors": tensors,
    })
}

fn describe_metadata(metadata: &Metadata) -> Value {
    json!({
        "timestamp": metadata.timestamp,
        "job": metadata.job.as_ref().map(ToString::to_string),
        "round": metadata.round,
        "epoch": metadata.epoch,
        "loss": metadata.loss,
        "samples": metadata.samples,
        "tokens": metadata.tokens,
        "worker_id": metadata.worker_id,
        "extra": metadata.extra,
    })
}

fn describe_auth(auth: &Auth) -> Value {
    let body = &auth.body;
    json!({
        "peer": body.peer.to_string(),
        "job": body.job.to_string(),
        "round": body.round,
        "parent": body.parent.to_hex(),
        "sequence": body.sequence,
        "timestamp": body.timestamp,
        "attestation": body.attestation,
        "mldsa": auth.signatures.mldsa.is_some(),
    })
}

/// Of a tensor's values, whatever its dtype.
struct Norms {
    /// Their sum of squares.
    squares: f64,
    /// The largest magnitude.
    largest: f32,
}

impl Norms {
    fn of(tensor: &RawTensor) -> Self {
        let values = tensor.to_f32().data;
        Self {
            squares: values.iter().map(|x| f64::from(*x) * f64::from(*x)).sum(),
            largest: values.iter().map(|x| x.abs()).fold(0.0, f32::max),
        }
    }
}

fn plain(value: &Value) -> String {
    let mut lines: Vec<String> = [
        ("version", "version"),
        ("compression", "compression"),
        ("flags", "flags"),
        ("checksum", "checksum"),
        ("bytes", "bytes"),
        ("content hash", "content_hash"),
        ("norm", "norm"),
    ]
    .map(|(label, key)| format!("{label:<14}{}", output::text(value, key)))
    .into();
    match value.get("auth") {
        Some(Value::Object(auth)) => {
            let peer = auth.get("peer").and_then(Value::as_str).unwrap_or("-");
            lines.push(format!("signer        {peer} (`hanzod delta verify` checks it)"));
        }
        _ => lines.push("signer        none".to_owned()),
    }
    for block in ["metadata", "auth"] {
        for (key, value) in value.get(block).and_then(Value::as_object).into_iter().flatten() {
            if !value.is_null() {
                lines.push(format!("{block}.{key} = {value}"));
            }
        }
    }
    let tensors = value.get("tensors").and_then(Value::as_array);
    lines.push(format!("{} tensors", tensors.map_or(0, Vec::len)));
    let columns = ["name", "dtype", "shape", "bytes", "norm", "largest"];
    let row = |tensor: &Value| columns.map(|key| output::text(tensor, key)).to_vec();
    let rows: Vec<_> = tensors.into_iter().flatten().map(row).collect();
    lines.push(output::table(
        &columns.map(str::to_uppercase).each_ref().map(String::as_str),
        &rows,
    ));
    lines.join("\n")
}

fn verify(output: Output, file: &Path, genesis: &Path, record: Option<&Path>) -> anyhow::Result<()> {
    let delta = read(file)?;
    let network = Network::load(genesis)?;
    let record = record.map(|path| read_record(path, &network.hash)).transpose()?;
    if let (Some(record), Some(auth)) = (&record, &delta.auth) {
        let (owner, signer) = (PeerBytes::new(record.peer().to_vec()), &auth.body.peer);
        anyhow::ensure!(
            owner.as_ref() == Some(signer),
            "the record is of {}, the delta is signed by {signer}: give that worker's record",
            owner.map_or_else(|| "nobody".to_owned(), |owner| owner.to_string())
        );
    }
    let verifier = RecordVerifier {
        genesis: network.hash,
        record,
    };
    delta
        .verify_signatures(&verifier)
        .with_context(|| match delta.offsets.auth {
            Some(offset) => format!("{}: auth block at offset {offset}", file.display()),
            None => format!("{}: at its end, offset {}", file.display(), delta.offsets.end),
        })?;
    let peer = delta.auth.as_ref().map(|auth| auth.body.peer.to_string());
    let signatures = if verifier.record.is_some() {
        "ed25519, mldsa"
    } else {
        "ed25519"
    };
    let value = json!({ "valid": true, "peer": peer, "content_hash": delta.content_hash.to_hex(), "signatures": signatures });
    output.show(&value, |value| {
        format!("valid: signed by {} ({signatures})", output::text(value, "peer"))
    });
    Ok(())
}

fn read_record(path: &Path, genesis: &Hash32) -> anyhow::Result<VerifiedRecord> {
    let bytes = files::read(path, MAX_RECORD_BYTES as u64)?;
    let signed = SignedRecord::decode(&bytes).with_context(|| path.display().to_string())?;
    // A delta may be older than its worker's newest record; whether the record was valid then is not asked here.
    signed
        .verify(&genesis.0, signed.body.issued, Anchor::Itself)
        .with_context(|| path.display().to_string())
}

/// Checks against one record, or Ed25519 alone, whose key is in the peer id.
struct RecordVerifier {
    genesis: Hash32,
    record: Option<VerifiedRecord>,
}

impl Verifier for RecordVerifier {
    fn verify(
        &self,
        sender: &PeerBytes,
        domain: &'static str,
        body: &[u8],
        ed25519: &[u8],
        mldsa: Option<&[u8]>,
    ) -> Result<(), VerifyError> {
        let signed = Signed {
            genesis: &self.genesis.0,
            sender,
            domain,
            body,
            ed25519,
        };
        let Some(record) = &self.record else {
            return signed.check();
        };
        let own = record.peer().as_slice() == sender.as_bytes();
        signed.check_both(mldsa.unwrap_or_default(), own.then_some(&record.keys().mldsa))
    }
}
