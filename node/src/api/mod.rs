//! The local HTTP API that the command line uses: loopback TCP, a bearer token, JSON.
//!
//! | Route | |
//! |---|---|
//! | `GET /v1/status` | who this node is, what it does, whether others reach it (`reach`), its counters |
//! | `GET /v1/peers` | connected peers |
//! | `GET /v1/jobs`, `POST /v1/jobs` | jobs known; submit `{"file": TOML, "base": DIR}` |
//! | `GET /v1/jobs/{id}`, `POST /v1/jobs/{id}/cancel` | one job |
//! | `GET /v1/jobs/{id}/events?after=N&wait_ms=M` | what happened since event N, waiting up to M ms for the next |
//! | `GET /v1/content` | pinned content |
//! | `POST /v1/content` | a [`Command`](crate::content::command::Command) such as `{"op": "add", "path": FILE OR DIR}`; with `Accept: application/x-ndjson` lines of progress, then the result |
//! | `POST /v1/shutdown` | stop the node |
//! | `GET /metrics` | Prometheus text; without a token |
//! | `GET /ipfs/{cid}/{path}` | a gateway to content, with ranges; without a token |
//!
//! An error is `{"error": "…"}` with a fitting status.

mod client;
mod content;
mod error;
mod gateway;
mod routes;
mod server;
mod token;

pub use client::{Client, ClientError};
pub use error::ApiError;
pub use routes::State;
pub use server::{Server, ServerError};
pub use token::Token;

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// The `[api]` section.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// A loopback address; port 0 is any free one.
    pub listen: SocketAddr,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        }
    }
}

/// The API would be reachable from other machines.
#[derive(Debug, thiserror::Error)]
#[error(
    "api.listen is {0}; it must be a loopback address such as 127.0.0.1:0, because whoever reaches it commands the node"
)]
pub struct ConfigError(SocketAddr);

impl Config {
    /// Checks that the address is loopback.
    ///
    /// # Errors
    /// When it is not.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.listen.ip().is_loopback() {
            Ok(())
        } else {
            Err(ConfigError(self.listen))
        }
    }
}

/// An answer on its way.
pub type Answer<'a> = BoxFuture<'a, Result<Value, ApiError>>;

/// What the API asks of the part that runs jobs.
pub trait JobsApi: Send + Sync {
    /// Takes a job file's text; relative paths in it start at `base`. Answers `{"job": CID}`.
    fn submit(&self, file: String, base: PathBuf) -> Answer<'_>;
    /// Every job known, newest first: an array of summaries.
    fn list(&self) -> Answer<'_>;
    /// One job: an object.
    fn show(&self, job: String) -> Answer<'_>;
    /// Cancels a job of this node's.
    fn cancel(&self, job: String) -> Answer<'_>;
    /// `{"events": [...], "next": N, "ended": bool}`: what happened from event `after` on, waiting up to `wait` when
    /// there is nothing yet.
    fn events(&self, job: String, after: u64, wait: Duration) -> Answer<'_>;
}
