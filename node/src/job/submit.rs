//! From a job file to a signed, announced job.

use super::done::Done;
use super::service::Service;
use crate::content::{Content, Pin};
use crate::role::Role;
use gym_protocol::cbor;
use gym_protocol::genesis::Constants;
use gym_protocol::ids::{CidBytes, PeerBytes};
use gym_protocol::job::spec::{JobFile, LoraSpec, LrScheduler, Resolved};
use gym_protocol::message::{Body, JobBody};
use gym_training::inspect::inspect;
use gym_training::lora::Lora;
use gym_training::reward::{Programs, Rewards};
use gym_training::tokenizer::TextTokenizer;
use std::path::{Path, PathBuf};
use tokio::sync::oneshot;

const BUSY: &str =
    "this orchestrator runs a job already; wait for its end or cancel it (see `hanzod job list`)";

impl Service {
    /// Reads the file, adds what it names to the content store, and answers with the job's id once it is announced.
    pub(crate) fn submit(
        &mut self,
        file: String,
        base: PathBuf,
        answer: oneshot::Sender<Result<CidBytes, String>>,
    ) {
        if !self.tools.roles.has(Role::Orchestrator) {
            let why =
                "this node does not orchestrate: submit the job to one that runs with --role orchestrator";
            let _ = answer.send(Err(why.into()));
            return;
        }
        if self.orchestrates() {
            let _ = answer.send(Err(BUSY.into()));
            return;
        }
        let (content, me) = (self.tools.content.clone(), self.tools.me());
        let (programs, redundancy) = (self.tools.programs, self.tools.redundancy);
        let done = self.tools.done_sender();
        tokio::spawn(async move {
            let network = Constants {
                redundancy,
                ..Constants::default()
            };
            let file = JobFile::parse_in(&file, &network).map_err(|e| e.to_string());
            let body = match file {
                Ok(file) => prepare(&content, file, &base, me, programs).await,
                Err(why) => Err(why),
            };
            match body {
                Ok(body) => {
                    let _ = done
                        .send(Done::Submitted {
                            body: Box::new(body),
                            answer,
                        })
                        .await;
                }
                Err(why) => {
                    let _ = answer.send(Err(why));
                }
            }
        });
    }

    fn orchestrates(&self) -> bool {
        self.jobs
            .values()
            .any(|j| j.orchestrator.is_some() && j.is_running())
    }

    pub(crate) fn on_submitted(&mut self, body: JobBody, answer: oneshot::Sender<Result<CidBytes, String>>) {
        // Another file may have been submitted while this one's content was added.
        if self.orchestrates() {
            let _ = answer.send(Err(BUSY.into()));
            return;
        }
        let id = cbor::to_dag(&body)
            .map(|bytes| cbor::dag_cid(&bytes))
            .map_err(|e| e.to_string());
        if let Ok(id) = &id {
            tracing::info!(job = %id, name = %body.spec.name, "job submitted");
            self.publish(Body::Job(body), Vec::new());
        }
        let _ = answer.send(id);
    }
}

async fn prepare(
    content: &Content,
    file: JobFile,
    base: &Path,
    me: PeerBytes,
    programs: Programs,
) -> Result<JobBody, String> {
    Rewards::with_programs(&file.rewards, programs).map_err(|e| format!("job file: {e}"))?;
    if file.gspo.lr_scheduler != LrScheduler::ConstantWithWarmup && file.schedule.rounds.is_none() {
        return Err(
            "job file: gspo.lr_scheduler falls to the job's end, which schedule.epochs does not tell; give schedule.rounds"
                .into(),
        );
    }
    let rows = check_locally(&file, base).await?;
    let resolved = Resolved {
        base: locate(content, "model", &file.model, base).await?,
        train: locate(content, "train", &file.train, base).await?,
        heldout: locate(content, "heldout", &file.heldout, base).await?,
    };
    let spec = Box::new(file.resolve(resolved));
    spec.check().map_err(|e| format!("job file: {e}"))?;
    Ok(JobBody {
        spec,
        orchestrator: me,
        submitted: super::unix_ms(),
        rows,
    })
}

/// Reads what lies on this disk, so that a missing tensor or a broken line is told to whoever submits the job, and counts
/// the training questions.
async fn check_locally(file: &JobFile, base: &Path) -> Result<u64, String> {
    let (model, columns) = (base.join(&file.model), file.columns.clone());
    let lora = file.lora.clone();
    let (train, heldout) = (base.join(&file.train), base.join(&file.heldout));
    let check = move || {
        if model.is_dir() {
            loads(&model, &lora)?;
        }
        let read =
            |path: &PathBuf| gym_training::data::read_questions(path, &columns).map_err(|e| e.to_string());
        if !train.exists() || !heldout.exists() {
            return Ok(0);
        }
        let (train, heldout) = (read(&train)?, read(&heldout)?);
        gym_training::data::check_disjoint(&train, &heldout).map_err(|e| e.to_string())?;
        Ok(train.len() as u64)
    };
    tokio::task::spawn_blocking(check)
        .await
        .map_err(|e| format!("checking the job's files was cut off: {e}"))?
}

/// A CID as it is, a path by adding what lies there.
async fn locate(content: &Content, key: &str, value: &str, base: &Path) -> Result<CidBytes, String> {
    let path = base.join(value);
    if !path.exists() {
        let bare = value
            .strip_prefix("ipfs://")
            .or_else(|| value.strip_prefix("/ipfs/"))
            .unwrap_or(value);
        return bare
            .parse::<cid::Cid>()
            .map(|c| CidBytes::from_cid(&c))
            .map_err(|_| {
                format!(
                    "job file: {key} = {value:?} is no CID, and {} does not exist",
                    path.display()
                )
            });
    }
    let pin = Pin::Named(format!("job {key}"));
    let added = if path.is_dir() {
        content.add_dir(path, pin).await
    } else {
        content.add_file(path, pin).await
    };
    let added = added.map_err(|e| e.to_string())?;
    if content.provide(added.cid).await.is_err() {
        tracing::debug!("offline: {} is not announced", added.cid);
    }
    Ok(CidBytes::from_cid(&added.cid))
}

/// Whether the model would load where the job trains it and has the layers that its adapter is for. No weight is read: the
/// node that submits need not have the memory to train.
fn loads(model: &Path, lora: &LoraSpec) -> Result<(), String> {
    TextTokenizer::load(model).map_err(|e| e.to_string())?;
    let found = inspect(model);
    if let Some(problem) = found.problems.into_iter().next() {
        return Err(problem);
    }
    let config = found
        .config
        .ok_or_else(|| format!("{}: no config.json", model.display()))?;
    Lora::check_targets(&config, lora).map_err(|e| format!("job file: lora.target_modules: {e}"))
}
