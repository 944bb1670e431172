//! What a round's members must attest: the state and the checkpoint that follow from its committed deltas.

use super::active::Active;
use super::fetch::read_state;
use super::service::Service;
use super::state::{ModelState, Names, Origin};
use crate::content::{Content, Pin};
use gym_protocol::ids::{CidBytes, Hash32};
use gym_protocol::member::Held;
use gym_protocol::message::Manifest;
use gym_protocol::orchestrator::Follows;
use libp2p::PeerId;
use std::path::PathBuf;
use std::sync::Arc;

/// The state that a round starts from, and what names the one after it.
pub(super) struct Start {
    names: Names,
    origin: Origin,
    parent: Parent,
    content: Content,
    /// Where the checkpoint is written to be added; gone afterwards.
    scratch: PathBuf,
}

enum Parent {
    /// In memory.
    Known(Arc<ModelState>),
    /// A checkpoint: an orchestrator that does not train keeps those of its rounds in its store.
    Kept {
        held: Held,
        providers: Vec<PeerId>,
        target: PathBuf,
    },
}

impl Service {
    /// Where a manifest's round starts. `None` when its roster is not known.
    pub(super) fn start_of(&self, job: &Active, hash: Hash32, manifest: &Manifest) -> Option<Start> {
        let parent = match job.state(manifest.parent) {
            Some(state) => Parent::Known(state),
            None => {
                let checkpoint = job.rosters.get(&manifest.roster)?.checkpoint.clone();
                Parent::Kept {
                    providers: self.providers(&job.id),
                    target: self.cache(&checkpoint),
                    held: Held {
                        closed: manifest.round.0,
                        state: manifest.parent,
                        checkpoint,
                    },
                }
            }
        };
        let of_job = self.tools.home.jobs().join(job.id.to_string());
        Some(Start {
            names: job.names.clone(),
            origin: Origin::of(hash, manifest),
            parent,
            content: self.tools.content.clone(),
            scratch: of_job.join("audits").join(hash.to_hex()),
        })
    }
}

impl Start {
    /// The outer step of `mean`, and its checkpoint, as every honest member makes them.
    pub(super) async fn follows(self, mean: Vec<f32>) -> Result<Follows, String> {
        let (names, content) = (self.names, self.content);
        let parent = match self.parent {
            Parent::Known(state) => state,
            Parent::Kept {
                held,
                providers,
                target,
            } => read_state(&content, &names, &held, providers, &target).await?,
        };
        let (origin, scratch) = (self.origin, self.scratch.clone());
        let stepped = tokio::task::spawn_blocking(move || {
            let state = parent.apply(&names, &mean).map_err(|e| e.to_string())?;
            std::fs::create_dir_all(&scratch)
                .map_err(|e| format!("cannot create {}: {e}", scratch.display()))?;
            state
                .write(&names, &origin, &scratch)
                .map_err(|e| e.to_string())?;
            Ok::<Hash32, String>(state.hash)
        });
        let stepped = stepped.await;
        let added = content.add_dir(self.scratch.clone(), Pin::No).await;
        // What is left is overwritten when this manifest is audited again.
        let _ = tokio::fs::remove_dir_all(&self.scratch).await;
        let state = stepped.map_err(|e| format!("the outer step was cut off: {e}"))??;
        let added = added.map_err(|e| e.to_string())?;
        Ok(Follows {
            state,
            checkpoint: CidBytes::from_cid(&added.cid),
        })
    }
}
