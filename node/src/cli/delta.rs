//! `hanzod delta inspect | verify`.

use super::Context;
use super::output::{self, Output};
use crate::files;
use crate::runtime::Network;
use anyhow::Context as _;
use clap::Subcommand;
use gym_crypto::identity::ed25519_from_peer;
use gym_crypto::record::{Anchor, MAX_RECORD_BYTES, SignedRecord, VerifiedRecord};
use gym_crypto::signing::{Signatures, verify_ed25519};
use gym_protocol::delta::{self, Delta, Limits};
use gym_protocol::ids::{Hash32, PeerBytes};
use gym_protocol::message::{Verifier, VerifyError};
use serde_json::{Value, json};
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
    /// Without --record the Ed25519 signature is checked alone; the ML-DSA-87 one needs the worker's identity record.
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

fn read(file: &Path) -> anyhow::Result<Delta> {
    let bytes = files::read(file, MAX_DELTA as u64)?;
    let limits = Limits {
        file_bytes: MAX_DELTA,
        tensor_bytes: MAX_DELTA,
        tensors: 1 << 20,
    };
    delta::decode(&bytes, &limits).with_context(|| file.display().to_string())
}

fn inspect(output: Output, file: &Path) -> anyhow::Result<()> {
    let delta = read(file)?;
    output.show(&describe(&delta)?, |value| plain(value, &delta));
    Ok(())
}

fn describe(delta: &Delta) -> anyhow::Result<Value> {
    let tensors: Vec<Value> = delta
        .tensors
        .iter()
        .map(|(name, tensor)| {
            json!({ "name": name, "dtype": format!("{:?}", tensor.dtype).to_lowercase(), "shape": tensor.shape })
        })
        .collect();
    let auth = delta.auth.as_ref().map(|auth| {
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
    });
    let metadata = delta.metadata.as_ref().map(|metadata| {
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
    });
    Ok(json!({
        "content_hash": delta.content_hash.to_hex(),
        "compression": format!("{:?}", delta.header.compression),
        "norm": norm(delta),
        "metadata": metadata,
        "auth": auth,
        "tensors": tensors,
    }))
}

/// The L2 norm over all float tensors.
fn norm(delta: &Delta) -> Option<f64> {
    let set = delta.tensor_set().ok()?;
    let sum: f64 = set
        .0
        .values()
        .flat_map(|tensor| &tensor.data)
        .map(|x| f64::from(*x) * f64::from(*x))
        .sum();
    Some(sum.sqrt())
}

fn plain(value: &Value, delta: &Delta) -> String {
    let mut lines = vec![
        format!("content hash  {}", output::text(value, "content_hash")),
        format!("compression   {}", output::text(value, "compression")),
        format!("norm          {}", output::text(value, "norm")),
    ];
    for block in ["metadata", "auth"] {
        for (key, value) in value.get(block).and_then(Value::as_object).into_iter().flatten() {
            if !value.is_null() {
                lines.push(format!("{block}.{key} = {value}"));
            }
        }
    }
    lines.push(format!("{} tensors", delta.tensors.len()));
    let row = |tensor: &Value| {
        ["name", "dtype", "shape"]
            .map(|key| output::text(tensor, key))
            .to_vec()
    };
    let rows: Vec<_> = value
        .get("tensors")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .map(row)
        .collect();
    lines.push(output::table(&["TENSOR", "DTYPE", "SHAPE"], &rows));
    lines.join("\n")
}

fn verify(output: Output, file: &Path, genesis: &Path, record: Option<&Path>) -> anyhow::Result<()> {
    let delta = read(file)?;
    let network = Network::load(genesis)?;
    let record = record.map(|path| read_record(path, &network.hash)).transpose()?;
    let verifier = RecordVerifier {
        genesis: network.hash,
        record,
    };
    delta
        .verify_signatures(&verifier)
        .with_context(|| file.display().to_string())?;
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
        let bad = |which| VerifyError::BadSignature(which);
        let ed25519: [u8; 64] = ed25519.try_into().map_err(|_| bad("Ed25519"))?;
        let key = ed25519_from_peer(sender.as_bytes()).map_err(|_| bad("Ed25519"))?;
        verify_ed25519(&key, domain, &self.genesis.0, body, &ed25519).map_err(|_| bad("Ed25519"))?;
        let Some(record) = &self.record else { return Ok(()) };
        if record.peer().as_slice() != sender.as_bytes() {
            return Err(VerifyError::UnknownSender);
        }
        let signatures = Signatures {
            ed25519,
            mldsa: mldsa.unwrap_or_default().to_vec(),
        };
        record
            .keys()
            .verify_both(domain, &self.genesis.0, body, &signatures)
            .map_err(|_| bad("ML-DSA-87"))
    }
}
