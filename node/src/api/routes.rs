//! The routes: each asks one part of the node and answers JSON.

use super::{ApiError, JobsApi, content, gateway};
use crate::content::Content;
use crate::identity::NodeIdentity;
use crate::metrics::Metrics;
use crate::net::{BootstrapInfo, NetError, NetHandle, Standing};
use crate::role::Roles;
use axum::extract::{DefaultBodyLimit, Path, Query, State as Shared};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// The longest that a request for events waits.
const MAX_WAIT: Duration = Duration::from_secs(30);
/// The longest request, in bytes: a job file.
const MAX_BODY: usize = 1 << 20;

/// What the routes can ask.
#[derive(Clone)]
pub struct State {
    /// Who this node is.
    pub identity: Arc<NodeIdentity>,
    /// What it does.
    pub roles: Roles,
    /// The network.
    pub net: NetHandle,
    /// The counters.
    pub metrics: Metrics,
    /// Jobs, when this node takes part in any.
    pub jobs: Option<Arc<dyn JobsApi>>,
    /// The content store.
    pub content: Option<Content>,
    /// When the node started.
    pub started: Instant,
    /// Stops the node.
    pub stop: CancellationToken,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("roles", &self.roles)
            .finish_non_exhaustive()
    }
}

impl State {
    fn jobs(&self) -> Result<&dyn JobsApi, ApiError> {
        self.jobs.as_deref().ok_or_else(|| {
            ApiError::Unavailable(
                "this node takes no part in jobs: start it with --role worker, validator or orchestrator"
                    .into(),
            )
        })
    }

    pub(super) fn content(&self) -> Result<&Content, ApiError> {
        self.content
            .as_ref()
            .ok_or_else(|| ApiError::Unavailable("this node has no content store".into()))
    }
}

type Reply = Result<Json<Value>, ApiError>;

/// The routes that need the token.
pub(super) fn commands() -> Router<State> {
    Router::new()
        .route("/v1/status", get(status))
        .route("/v1/peers", get(peers))
        .route("/v1/jobs", get(list_jobs).post(submit_job))
        .route("/v1/jobs/{id}", get(show_job))
        .route("/v1/jobs/{id}/cancel", post(cancel_job))
        .route("/v1/jobs/{id}/events", get(job_events))
        .route("/v1/content", get(content::pins).post(content::command))
        .route("/v1/shutdown", post(shutdown))
        .layer(DefaultBodyLimit::max(MAX_BODY))
}

/// The routes that do not.
pub(super) fn public() -> Router<State> {
    Router::new()
        .route("/metrics", get(metrics))
        .merge(gateway::routes())
}

async fn metrics(Shared(state): Shared<State>) -> String {
    state.metrics.prometheus()
}

async fn status(Shared(state): Shared<State>) -> Reply {
    let peers = state.net.peers().await?;
    let members = peers
        .iter()
        .filter(|peer| peer.standing == Standing::Member)
        .count();
    let bootstrap = state.net.bootstrap().await?;
    let bootstrap: Vec<Value> = bootstrap.iter().map(BootstrapInfo::to_json).collect();
    Ok(Json(json!({
        "peer": state.identity.peer().to_string(),
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "roles": state.roles,
        "genesis": state.identity.genesis().to_hex(),
        "record": state.identity.record_hash().to_hex(),
        "listen": state.net.listeners().await?,
        "reach": state.net.reach().await?.to_json(),
        "bootstrap": bootstrap,
        "peers": peers.len(),
        "members": members,
        "uptime_s": state.started.elapsed().as_secs(),
        "metrics": state.metrics.snapshot(),
    })))
}

async fn peers(Shared(state): Shared<State>) -> Reply {
    let peers = state.net.peers().await?;
    Ok(Json(peers.iter().map(crate::net::PeerInfo::to_json).collect()))
}

async fn list_jobs(Shared(state): Shared<State>) -> Reply {
    Ok(Json(state.jobs()?.list().await?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Submission {
    file: String,
    base: PathBuf,
}

async fn submit_job(Shared(state): Shared<State>, Json(job): Json<Submission>) -> Reply {
    Ok(Json(state.jobs()?.submit(job.file, job.base).await?))
}

async fn show_job(Shared(state): Shared<State>, Path(id): Path<String>) -> Reply {
    Ok(Json(state.jobs()?.show(id).await?))
}

async fn cancel_job(Shared(state): Shared<State>, Path(id): Path<String>) -> Reply {
    Ok(Json(state.jobs()?.cancel(id).await?))
}

#[derive(Deserialize)]
struct Since {
    #[serde(default)]
    after: u64,
    #[serde(default)]
    wait_ms: u64,
}

async fn job_events(
    Shared(state): Shared<State>,
    Path(id): Path<String>,
    Query(since): Query<Since>,
) -> Reply {
    let wait = Duration::from_millis(since.wait_ms).min(MAX_WAIT);
    let jobs = state.jobs()?;
    tokio::select! {
        events = jobs.events(id, since.after, wait) => Ok(Json(events?)),
        // A waiting request must not keep a node from stopping.
        () = state.stop.cancelled() => Err(ApiError::Unavailable("the node is shutting down".into())),
    }
}

async fn shutdown(Shared(state): Shared<State>) -> Reply {
    state.stop.cancel();
    Ok(Json(json!({ "stopping": true })))
}

impl From<NetError> for ApiError {
    fn from(error: NetError) -> Self {
        Self::Internal(error.to_string())
    }
}
