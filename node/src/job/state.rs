//! The model state a node holds for a job, and the checkpoint directory that is a function of it (PROTOCOL sections 4, 8).

use crate::files::{self, Access, FileError};
use gym_protocol::cbor::CborError;
use gym_protocol::ids::{CidBytes, Hash32, PeerBytes};
use gym_protocol::job::spec::{JobSpec, OuterSpec};
use gym_protocol::message::Manifest;
use gym_protocol::state::{AdapterKind, OuterError, StateName, apply_outer, state_hash};
use gym_protocol::tensor::{LayoutError, TensorSet};
use gym_training::adapter::{Adapter, AdapterError};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// What names the states of a job.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    pub(crate) genesis: Hash32,
    pub(crate) job: CidBytes,
    pub(crate) spec: JobSpec,
}

/// Adapter and outer momentum after a number of closed rounds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ModelState {
    pub(crate) closed: u64,
    pub(crate) adapter: TensorSet,
    pub(crate) momentum: TensorSet,
    pub(crate) hash: Hash32,
}

/// Where a state comes from: written into its checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Origin {
    pub(crate) parent: Option<Hash32>,
    pub(crate) manifest: Option<Hash32>,
    pub(crate) contributors: Vec<PeerBytes>,
}

impl Origin {
    /// Of the state that a manifest's round ends in.
    pub(crate) fn of(hash: Hash32, manifest: &Manifest) -> Self {
        Self {
            parent: Some(manifest.parent),
            manifest: Some(hash),
            contributors: manifest.entries.iter().map(|e| e.member.clone()).collect(),
        }
    }
}

/// Why a state cannot be made, written or read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StateError {
    #[error(transparent)]
    Hash(#[from] CborError),
    #[error("the mean delta does not fit the adapter: {0}")]
    Layout(#[from] LayoutError),
    #[error("the outer step: {0}")]
    Outer(#[from] OuterError),
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("writing the checkpoint: {0}")]
    Save(#[from] gym_training::model::SaveError),
    #[error("the checkpoint in {} has state {found} where {expected} was named", path.display())]
    OtherState {
        path: PathBuf,
        found: Hash32,
        expected: Hash32,
    },
}

impl ModelState {
    /// Names a state by its hash.
    pub(crate) fn new(
        names: &Names,
        closed: u64,
        adapter: TensorSet,
        momentum: TensorSet,
    ) -> Result<Self, StateError> {
        let kind = AdapterKind::new(&names.spec.lora);
        let name = StateName {
            genesis: &names.genesis,
            job: &names.job,
            closed_rounds: closed,
            base: &names.spec.base,
            adapter: &kind,
        };
        let hash = state_hash(&name, &adapter, &momentum)?;
        Ok(Self {
            closed,
            adapter,
            momentum,
            hash,
        })
    }

    /// The state after the outer step with `mean`.
    pub(crate) fn apply(&self, names: &Names, mean: &[f32]) -> Result<Self, StateError> {
        let stepped = apply_outer(
            names.spec.outer,
            &self.adapter.flatten(),
            &self.momentum.flatten(),
            mean,
        )?;
        let adapter = self.adapter.with_flat(&stepped.state)?;
        let momentum = match names.spec.outer {
            OuterSpec::Average => TensorSet::default(),
            OuterSpec::Nesterov { .. } => self.adapter.with_flat(&stepped.momentum)?,
        };
        Self::new(names, self.closed + 1, adapter, momentum)
    }

    /// Writes the checkpoint directory: what Hugging Face PEFT loads, a model card and `gym.json`.
    pub(crate) fn write(&self, names: &Names, origin: &Origin, dir: &Path) -> Result<(), StateError> {
        self.as_adapter(names, &self.adapter).save(dir)?;
        if !self.momentum.0.is_empty() {
            self.as_adapter(names, &self.momentum)
                .save(&dir.join("momentum"))?;
        }
        let json = serde_json::to_vec_pretty(&self.gym_json(names, origin)).unwrap_or_default();
        files::write_atomic(&dir.join("gym.json"), &json, Access::Everyone)?;
        files::write_atomic(
            &dir.join("README.md"),
            self.card(names).as_bytes(),
            Access::Everyone,
        )?;
        Ok(())
    }

    /// Reads a checkpoint directory and checks that it is the state named `expected`.
    pub(crate) fn read(names: &Names, closed: u64, expected: Hash32, dir: &Path) -> Result<Self, StateError> {
        let adapter = Adapter::load(dir)?.tensors;
        let momentum = match names.spec.outer {
            OuterSpec::Nesterov { .. } if closed > 0 => Adapter::load(&dir.join("momentum"))?.tensors,
            OuterSpec::Average | OuterSpec::Nesterov { .. } => TensorSet::default(),
        };
        let state = Self::new(names, closed, adapter, momentum)?;
        if state.hash != expected {
            return Err(StateError::OtherState {
                path: dir.to_path_buf(),
                found: state.hash,
                expected,
            });
        }
        Ok(state)
    }

    fn as_adapter(&self, names: &Names, tensors: &TensorSet) -> Adapter {
        Adapter::new(
            names.spec.lora.clone(),
            names.spec.base.to_string(),
            tensors.clone(),
        )
    }

    fn gym_json(&self, names: &Names, origin: &Origin) -> Value {
        json!({
            "version": 1,
            "genesis": names.genesis.to_hex(),
            "job": names.job.to_string(),
            "base": names.spec.base.to_string(),
            "closed_rounds": self.closed,
            "state_hash": self.hash.to_hex(),
            "parent": origin.parent.map(|h| h.to_hex()),
            "manifest": origin.manifest.map(|h| h.to_hex()),
            "contributors": origin.contributors.iter().map(ToString::to_string).collect::<Vec<_>>(),
        })
    }

    fn card(&self, names: &Names) -> String {
        let spec = &names.spec;
        format!(
            "---\nlibrary_name: peft\ntags:\n- gspo\n- gym\n---\n\n# {}\n\nA LoRA adapter (rank {}, alpha {}) trained with GSPO by \
             the GYM network: {} rounds closed.\n\n- Job: `{}`\n- Base model: `{}`\n- State hash: `{}`\n\nLoad the base \
             model, then this directory with `peft.PeftModel.from_pretrained`. `gym.json` says who contributed to the \
             last round.\n",
            spec.name, spec.lora.rank, spec.lora.alpha, self.closed, names.job, spec.base, self.hash
        )
    }
}
