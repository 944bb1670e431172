//! Content that a job needs: base model, questions, checkpoints, committed deltas, replicas.

use super::active::Active;
use super::commit::{self, DELTA};
use super::done::{Done, Purpose};
use super::form::{Awaited, Layout};
use super::keep::pin_name;
use super::places::Fetching;
use super::providers::fetch_from;
use super::replica::Replica;
use super::service::Service;
use super::state::{ModelState, Names};
use super::trainer::{JobFiles, Task};
use crate::content::unixfs::Limits;
use crate::content::{Content, ContentPath, Fetch, FetchError, FetchRequest, Pin};
use crate::net::peer_id;
use crate::publish::Outcome;
use gym_protocol::ids::{CidBytes, Hash32, PeerBytes, Round};
use gym_protocol::member::Held;
use gym_protocol::message::Reason;
use libp2p::PeerId;
use rand::seq::SliceRandom;
use serde_json::json;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A base model may be large.
const MODEL_DEADLINE: Duration = Duration::from_secs(6 * 3600);
/// A checkpoint or delta is small; a round waits for it.
pub(super) const ROUND_DEADLINE: Duration = Duration::from_secs(120);
/// Those that one fetch is told of.
const MAX_PROVIDERS: usize = 64;

/// Waits for the end of a fetch; each block that comes is told to `closer`.
async fn finish(fetch: Fetch, closer: &(dyn Fn() + Send + Sync)) -> Result<(), FetchError> {
    let (mut progress, mut blocks) = (fetch.progress(), 0);
    let finish = fetch.finish();
    tokio::pin!(finish);
    loop {
        tokio::select! {
            done = &mut finish => return done.map(drop),
            Ok(()) = progress.changed() => {
                let now = progress.borrow_and_update().blocks;
                if now > blocks {
                    blocks = now;
                    closer();
                }
            }
        }
    }
}

/// Fetches everything under `cid`, pins it under `name`, and writes it to `target`, unless it is there already.
async fn materialise(
    content: &Content,
    cid: &CidBytes,
    name: String,
    providers: Vec<PeerId>,
    deadline: Duration,
    target: &Path,
    closer: &(dyn Fn() + Send + Sync),
) -> Result<(), String> {
    if target.exists() {
        return Ok(());
    }
    let root = cid.to_cid().map_err(|e| format!("{cid} is no CID: {e}"))?;
    let request = FetchRequest {
        root,
        providers,
        deadline,
        pin: Pin::Named(name),
    };
    finish(content.fetch_dag(request), closer)
        .await
        .map_err(|e| e.to_string())?;
    closer();
    if let Some(parent) = target.parent() {
        std::fs::create_dir_all(parent).map_err(|e| format!("cannot create {}: {e}", parent.display()))?;
    }
    match content
        .export(ContentPath::from(root), target.to_path_buf(), Limits::default())
        .await
    {
        Ok(_) => Ok(()),
        // Somebody else wrote the same content meanwhile.
        Err(_) if target.exists() => Ok(()),
        Err(e) => Err(e.to_string()),
    }
}

impl Service {
    /// Where a CID's content lies once it is on disk: the same for every job.
    pub(super) fn cache(&self, cid: &CidBytes) -> PathBuf {
        self.tools.home.jobs().join("content").join(cid.to_string())
    }

    /// Who may have a job's content: its orchestrator and those who are connected, in no order, so that not all fetch from
    /// the same few.
    pub(super) fn providers(&self, id: &CidBytes) -> Vec<PeerId> {
        let orchestrator = self.jobs.get(id).map(|j| &j.body.orchestrator);
        let mut others: Vec<&PeerBytes> = self
            .connected
            .iter()
            .filter(|p| Some(*p) != orchestrator)
            .collect();
        others.shuffle(&mut rand::rng());
        let all = orchestrator.into_iter().chain(others);
        all.filter_map(peer_id).take(MAX_PROVIDERS).collect()
    }

    /// Fetches model and questions.
    pub(crate) fn fetch_files(&mut self, id: &CidBytes) {
        let Some(job) = self.jobs.get(id) else { return };
        let spec = &job.body.spec;
        let files = JobFiles {
            base: self.cache(&spec.base),
            train: self.cache(&spec.train),
            heldout: self.cache(&spec.heldout),
        };
        let wanted = [
            (spec.base.clone(), files.base.clone()),
            (spec.train.clone(), files.train.clone()),
            (spec.heldout.clone(), files.heldout.clone()),
        ];
        let (content, providers, job) = (self.tools.content.clone(), self.providers(id), id.clone());
        let came = Arc::new(AtomicU64::new(super::unix_ms()));
        let closer = {
            let came = came.clone();
            move || came.store(super::unix_ms(), Ordering::Relaxed)
        };
        let task = self.tools.spawn(async move {
            for (cid, target) in wanted {
                let (name, from) = ("job".to_owned(), providers.clone());
                let fetched = materialise(&content, &cid, name, from, MODEL_DEADLINE, &target, &closer);
                if let Err(why) = fetched.await {
                    return Done::Files {
                        job,
                        result: Err(format!("{cid}: {why}")),
                    };
                }
            }
            Done::Files {
                job,
                result: Ok(files),
            }
        });
        if let Some(job) = self.jobs.get_mut(id) {
            job.fetching = Some(Fetching { came, task });
        }
    }

    /// The files are here: the trainer loads them.
    pub(crate) fn on_files(&mut self, id: &CidBytes, result: Result<JobFiles, String>) {
        // One that was called off may have ended meanwhile.
        let Some(job) = self.jobs.get_mut(id).filter(|_| self.turns.has(id)) else {
            return;
        };
        job.fetching = None;
        match result {
            Ok(files) => {
                job.files = Some(files.clone());
                let spec = job.body.spec.clone();
                if !self.tools.trainer.ask(Task::Load {
                    job: id.clone(),
                    spec,
                    files,
                }) {
                    self.cannot_start(id, "the trainer thread is busy or has stopped; restart the node");
                }
            }
            Err(why) => self.cannot_start(id, &format!("model or questions cannot be fetched: {why}")),
        }
    }

    /// Fetches a checkpoint and checks its state hash.
    pub(crate) fn fetch_state(&mut self, id: &CidBytes, held: Held, purpose: Purpose) {
        let Some(job) = self.jobs.get(id) else { return };
        if let Some(state) = job.state(held.state) {
            let job = id.clone();
            self.tools.spawn(async move {
                Done::State {
                    job,
                    held,
                    purpose,
                    result: Ok(state),
                }
            });
            return;
        }
        let (content, names, job) = (self.tools.content.clone(), job.names.clone(), id.clone());
        let (providers, target) = (self.providers(id), self.cache(&held.checkpoint));
        self.tools.spawn(async move {
            let result = read_state(&content, &names, &held, providers, &target).await;
            Done::State {
                job,
                held,
                purpose,
                result,
            }
        });
    }

    /// A checkpoint left the network, or will be tried again.
    pub(crate) fn on_published(&mut self, outcome: Outcome) {
        let (address, why) = match outcome.result {
            Ok(address) => (Some(address), None),
            Err(why) => (None, Some(why)),
        };
        let checkpoint = &outcome.checkpoint;
        if let Some(address) = &address {
            tracing::info!(round = checkpoint.round, "checkpoint published: {address}");
        }
        // Of an earlier run's job this one may not have heard yet.
        let Some(job) = self.jobs.get(&checkpoint.job) else {
            return;
        };
        job.events.push(
            "published",
            json!({
                "round": checkpoint.round,
                "checkpoint": checkpoint.root.to_string(),
                "place": outcome.place,
                "address": address,
                "failed": why,
            }),
        );
    }

    /// The bytes of a committed delta file, at most `limit`.
    pub(crate) fn delta_fetch(
        &self,
        cid: &CidBytes,
        from: &[PeerBytes],
        limit: u64,
    ) -> impl Future<Output = Result<Vec<u8>, String>> + Send + 'static {
        let (source, cid, from) = (self.delta_source(), cid.clone(), from.to_vec());
        async move { source.fetch(&cid, &from, limit).await }
    }

    /// Where committed deltas come from.
    pub(crate) fn delta_source(&self) -> DeltaSource {
        DeltaSource(self.tools.content.clone())
    }

    /// A member's delta of a round, once the adapter is known.
    pub(super) fn awaited(
        &self,
        job: &Active,
        member: &PeerBytes,
        round: Round,
        parent: Hash32,
    ) -> Option<Awaited> {
        Some(Awaited {
            names: job.names.clone(),
            member: member.clone(),
            round,
            parent,
            layout: Layout::of(&job.model.as_ref()?.adapter),
            sequences: job.sequences.clone(),
            clock_skew: self.tools.clock_skew,
        })
    }

    /// Checks a replica's delta, adds its files to the store, compares the directory's CID with the one claimed.
    pub(crate) fn check_replica(&mut self, id: &CidBytes, from: PeerBytes, round: u64, replica: Replica) {
        let Some(job) = self.jobs.get(id) else { return };
        let parent = job.rosters.get(&replica.roster).map(|r| r.parent);
        let Some(awaited) = parent.and_then(|parent| self.awaited(job, &from, Round(round), parent)) else {
            return;
        };
        let holds = job.holds.clone();
        let (content, keys, job) = (self.tools.content.clone(), self.tools.keys.clone(), id.clone());
        let Replica {
            roster,
            salt,
            cid,
            files,
        } = replica;
        self.tools.spawn(async move {
            // Nothing is stored for whoever cannot sign a delta of this round.
            let checked = match files.get(DELTA) {
                Some(delta) => commit::check(delta, &awaited, &keys),
                None => Err((Reason::Malformed, format!("it has no {DELTA}"))),
            };
            let outcome = match checked {
                Ok(facts) => {
                    holds.hold(&content, round, &cid);
                    let stored = match content.add_map(files, Pin::No).await {
                        Ok(added) if CidBytes::from_cid(&added.cid) == cid => Ok(facts),
                        Ok(added) => Err((
                            Reason::FalseReveal,
                            format!("its files are {}, not {cid}", added.cid),
                        )),
                        Err(e) => Err((Reason::Unavailable, e.to_string())),
                    };
                    if stored.is_err() {
                        holds.drop_one(round, &cid);
                    }
                    stored
                }
                Err(why) => Err(why),
            };
            Done::Replica {
                job,
                from,
                roster,
                salt,
                cid,
                outcome,
            }
        });
    }
}

/// Committed deltas: this node's store, and its peers'.
#[derive(Debug)]
pub(crate) struct DeltaSource(Content);

impl DeltaSource {
    /// The bytes of a committed delta file, at most `limit`: it is read into memory, and its maker is a stranger.
    pub(crate) async fn fetch(
        &self,
        cid: &CidBytes,
        from: &[PeerBytes],
        limit: u64,
    ) -> Result<Vec<u8>, String> {
        let root = cid.to_cid().map_err(|e| e.to_string())?;
        let providers = from.iter().filter_map(peer_id).collect();
        fetch_from(&self.0, root, providers, ROUND_DEADLINE).await?;
        let path = ContentPath::from(root).join(DELTA);
        self.0.cat(path, limit).await.map_err(|e| e.to_string())
    }
}

/// A checkpoint from this store or from who may have it; its state hash is checked.
pub(super) async fn read_state(
    content: &Content,
    names: &Names,
    held: &Held,
    providers: Vec<PeerId>,
    target: &Path,
) -> Result<Arc<ModelState>, String> {
    let name = pin_name(&names.job, held.closed);
    materialise(
        content,
        &held.checkpoint,
        name,
        providers,
        ROUND_DEADLINE,
        target,
        &|| (),
    )
    .await?;
    let (names, held, target) = (names.clone(), held.clone(), target.to_path_buf());
    let read =
        tokio::task::spawn_blocking(move || ModelState::read(&names, held.closed, held.state, &target));
    match read.await {
        Ok(Ok(state)) => Ok(Arc::new(state)),
        Ok(Err(e)) => Err(e.to_string()),
        Err(e) => Err(format!("reading the checkpoint was cut off: {e}")),
    }
}
