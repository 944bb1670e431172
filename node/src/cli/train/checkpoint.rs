//! What a run continues from, in one file: written whole or not at all.

use crate::files::{self, Access, FileError};
use gym_protocol::cbor::{self, CborError};
use gym_protocol::ids::Hash32;
use gym_training::optim::Moments;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;
use std::io;
use std::path::Path;

/// The largest checkpoint read, in bytes.
const MAX_BYTES: u64 = 64 << 30;

/// A run between two steps. Noise, shuffles and the position in the questions are functions of seed and step, and the
/// step counts for them all.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Checkpoint {
    /// What is trained: another job does not continue this one.
    pub(super) job: Hash32,
    /// Steps done.
    pub(super) step: u64,
    /// The adapter, flat.
    pub(super) adapter: Vec<f32>,
    /// The optimizer's moments.
    pub(super) moments: Moments,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum CheckpointError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("the checkpoint {path} is damaged: {source}. Take it away to start anew")]
    Damaged { path: String, source: CborError },
    #[error(
        "{path} is of another job, other questions or another schedule: choose another --out, or take that file away to start anew"
    )]
    OtherJob { path: String },
    #[error("the checkpoint cannot be encoded: {0}")]
    Encode(CborError),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    job: Hash32,
    step: u64,
    adapter: ByteBuf,
    m: ByteBuf,
    v: ByteBuf,
    updates: u64,
}

impl Checkpoint {
    pub(super) fn save(&self, path: &Path) -> Result<(), CheckpointError> {
        let stored = Stored {
            job: self.job,
            step: self.step,
            adapter: to_bytes(&self.adapter),
            m: to_bytes(&self.moments.m),
            v: to_bytes(&self.moments.v),
            updates: self.moments.updates,
        };
        let bytes = cbor::to_dag(&stored).map_err(CheckpointError::Encode)?;
        Ok(files::write_atomic(path, &bytes, Access::Everyone)?)
    }

    /// The checkpoint at `path` of the job with this hash; `None` when there is none.
    pub(super) fn load(path: &Path, job: Hash32) -> Result<Option<Self>, CheckpointError> {
        let bytes = match files::read(path, MAX_BYTES) {
            Ok(bytes) => bytes,
            Err(e) if e.source.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        let name = || path.display().to_string();
        let stored: Stored = cbor::from_dag(&bytes, bytes.len())
            .map_err(|source| CheckpointError::Damaged { path: name(), source })?;
        if stored.job != job {
            return Err(CheckpointError::OtherJob { path: name() });
        }
        Ok(Some(Self {
            job,
            step: stored.step,
            adapter: to_floats(&stored.adapter),
            moments: Moments {
                m: to_floats(&stored.m),
                v: to_floats(&stored.v),
                updates: stored.updates,
            },
        }))
    }
}

fn to_bytes(values: &[f32]) -> ByteBuf {
    ByteBuf::from(values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>())
}

fn to_floats(bytes: &[u8]) -> Vec<f32> {
    bytes
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_survives_and_belongs_to_its_job() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("checkpoint.cbor");
        let job = Hash32([1; 32]);
        assert!(Checkpoint::load(&path, job).unwrap().is_none());
        let checkpoint = Checkpoint {
            job,
            step: 3,
            adapter: vec![1.5, -0.0],
            moments: Moments {
                m: vec![1e-30, 2.0],
                v: vec![0.0, 3.0],
                updates: 12,
            },
        };
        checkpoint.save(&path).unwrap();
        assert_eq!(Checkpoint::load(&path, job).unwrap(), Some(checkpoint));
        let other = Checkpoint::load(&path, Hash32::ZERO).unwrap_err().to_string();
        assert!(other.contains("another job"), "{other}");
        std::fs::write(&path, b"x").unwrap();
        assert!(
            Checkpoint::load(&path, job)
                .unwrap_err()
                .to_string()
                .contains("damaged")
        );
    }
}
