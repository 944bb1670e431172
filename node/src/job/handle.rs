//! The API's way to the jobs.

use super::service::Service;
use crate::api::{Answer, ApiError, JobsApi};
use gym_protocol::ids::CidBytes;
use gym_protocol::orchestrator;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// How long the service may take to take up a call.
const TAKE_UP: Duration = Duration::from_secs(10);
/// How long adding a job's content may take.
const SUBMIT: Duration = Duration::from_secs(3600);

/// What the API asks of the service.
#[derive(Debug)]
pub(crate) enum Call {
    Submit {
        file: String,
        base: PathBuf,
        answer: oneshot::Sender<Result<CidBytes, String>>,
    },
    List {
        answer: oneshot::Sender<Value>,
    },
    Show {
        job: CidBytes,
        answer: oneshot::Sender<Option<Value>>,
    },
    Cancel {
        job: CidBytes,
        answer: oneshot::Sender<Result<(), String>>,
    },
    Events {
        job: CidBytes,
        answer: oneshot::Sender<Option<super::events::Events>>,
    },
}

/// Asks the service; clones are not needed, the API shares one.
#[derive(Debug)]
pub struct JobsHandle {
    calls: mpsc::Sender<Call>,
}

impl JobsHandle {
    pub(crate) fn new(calls: mpsc::Sender<Call>) -> Self {
        Self { calls }
    }

    async fn ask<T>(
        &self,
        wait: Duration,
        call: impl FnOnce(oneshot::Sender<T>) -> Call,
    ) -> Result<T, ApiError> {
        let (answer, answered) = oneshot::channel();
        let exchange = async {
            self.calls.send(call(answer)).await.map_err(|_| stopped())?;
            answered.await.map_err(|_| stopped())
        };
        let late = |_| {
            ApiError::Unavailable("the node did not answer in time; it may be overloaded: try again".into())
        };
        tokio::time::timeout(wait, exchange).await.map_err(late)?
    }
}

fn stopped() -> ApiError {
    ApiError::Unavailable("the node is shutting down".into())
}

fn parse(job: &str) -> Result<CidBytes, ApiError> {
    let cid: cid::Cid = job
        .parse()
        .map_err(|_| ApiError::BadRequest(format!("{job:?} is no job id (a CID)")))?;
    Ok(CidBytes::from_cid(&cid))
}

fn unknown(job: &str) -> ApiError {
    ApiError::NotFound(format!("this node knows no job {job}; see `hanzod job list`"))
}

impl JobsApi for JobsHandle {
    fn submit(&self, file: String, base: PathBuf) -> Answer<'_> {
        Box::pin(async move {
            let result = self
                .ask(SUBMIT, |answer| Call::Submit { file, base, answer })
                .await?;
            let job = result.map_err(ApiError::BadRequest)?;
            Ok(json!({ "job": job.to_string() }))
        })
    }

    fn list(&self) -> Answer<'_> {
        Box::pin(self.ask(TAKE_UP, |answer| Call::List { answer }))
    }

    fn show(&self, job: String) -> Answer<'_> {
        Box::pin(async move {
            let id = parse(&job)?;
            self.ask(TAKE_UP, |answer| Call::Show { job: id, answer })
                .await?
                .ok_or_else(|| unknown(&job))
        })
    }

    fn cancel(&self, job: String) -> Answer<'_> {
        Box::pin(async move {
            let id = parse(&job)?;
            let result = self
                .ask(TAKE_UP, |answer| Call::Cancel { job: id, answer })
                .await?;
            result.map_err(ApiError::BadRequest)?;
            Ok(json!({ "job": job, "cancelled": true }))
        })
    }

    fn events(&self, job: String, after: u64, wait: Duration) -> Answer<'_> {
        Box::pin(async move {
            let id = parse(&job)?;
            let events = self
                .ask(TAKE_UP, |answer| Call::Events { job: id, answer })
                .await?;
            Ok(events.ok_or_else(|| unknown(&job))?.after(after, wait).await)
        })
    }
}

impl Service {
    /// Callers that have gone away are not told.
    pub(crate) fn on_call(&mut self, call: Call) {
        match call {
            Call::Submit { file, base, answer } => self.submit(file, base, answer),
            Call::List { answer } => {
                let mut jobs: Vec<_> = self.jobs.values().collect();
                jobs.sort_by_key(|j| std::cmp::Reverse(j.body.submitted));
                let _ = answer.send(jobs.iter().map(|j| j.summary()).collect());
            }
            Call::Show { job, answer } => {
                let _ = answer.send(self.jobs.get(&job).map(super::active::Active::summary));
            }
            Call::Cancel { job, answer } => {
                let _ = answer.send(self.cancel(&job));
            }
            Call::Events { job, answer } => {
                let _ = answer.send(self.jobs.get(&job).map(|j| j.events.clone()));
            }
        }
    }

    fn cancel(&mut self, id: &CidBytes) -> Result<(), String> {
        let job = self
            .jobs
            .get(id)
            .ok_or("this node knows no such job; see `hanzod job list`")?;
        if job.orchestrator.is_none() {
            return Err(format!(
                "the job belongs to {}: cancel it there",
                job.body.orchestrator
            ));
        }
        if let Some((standing, _)) = &job.standing {
            return Err(format!("the job is over already: {standing:?}").to_lowercase());
        }
        self.tell_orchestrator(id, orchestrator::Event::Cancel);
        Ok(())
    }
}
