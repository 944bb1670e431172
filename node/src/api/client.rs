//! The command line's side of the API.

use super::token::Place;
use crate::files::FileError;
use crate::home::Home;
use serde_json::Value;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// How long a request may take beyond what it is asked to wait for.
const DEADLINE: Duration = Duration::from_secs(60);
/// Fetching and adding content may take long; a node that died ends it at once.
const CONTENT_DEADLINE: Duration = Duration::from_secs(24 * 3600);
/// The longest answer.
const MAX_ANSWER: u64 = 256 << 20;

/// Talks to the node running in a home.
#[derive(Debug)]
pub struct Client {
    agent: ureq::Agent,
    place: Place,
    home: PathBuf,
}

/// Why the node did not do it.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// None is running.
    #[error("no node is running in {root}: start one with `hanzod run --home {root}`", root = .0.display())]
    NotRunning(PathBuf),
    /// `api.json` cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// It refused, and why.
    #[error("{message}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The node's words.
        message: String,
    },
    /// The connection failed.
    #[error("the node at {address} (process {pid}) does not answer: {reason}")]
    Connection {
        /// Where.
        address: std::net::SocketAddr,
        /// Which process.
        pid: u32,
        /// What went wrong.
        reason: String,
    },
}

impl Client {
    /// Finds the node running in `home`.
    ///
    /// # Errors
    /// When none is.
    pub fn connect(home: &Home) -> Result<Self, ClientError> {
        let place = match Place::read(&home.api()) {
            Ok(place) => place,
            Err(e) if e.source.kind() == io::ErrorKind::NotFound => {
                return Err(ClientError::NotRunning(home.root().to_path_buf()));
            }
            Err(e) => return Err(e.into()),
        };
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .build()
            .new_agent();
        Ok(Self {
            agent,
            place,
            home: home.root().to_path_buf(),
        })
    }

    /// `GET path`.
    ///
    /// # Errors
    /// When the node is gone or refuses.
    pub fn get(&self, path: &str) -> Result<Value, ClientError> {
        let request = self
            .agent
            .get(self.url(path))
            .config()
            .timeout_global(Some(DEADLINE))
            .build();
        self.finish(
            request
                .header("Authorization", self.place.token.header().as_str())
                .call(),
        )
    }

    /// `POST path` with a JSON body.
    ///
    /// # Errors
    /// When the node is gone or refuses.
    pub fn post(&self, path: &str, body: &Value) -> Result<Value, ClientError> {
        let deadline = if path.starts_with("/v1/content") || path == "/v1/jobs" {
            CONTENT_DEADLINE
        } else {
            DEADLINE
        };
        let request = self
            .agent
            .post(self.url(path))
            .config()
            .timeout_global(Some(deadline))
            .build();
        self.finish(
            request
                .header("Authorization", self.place.token.header().as_str())
                .send_json(body),
        )
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.place.address)
    }

    fn finish(
        &self,
        result: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<Value, ClientError> {
        let mut response = result.map_err(|error| self.failed(&error))?;
        let status = response.status().as_u16();
        let body: Result<Value, _> = response.body_mut().with_config().limit(MAX_ANSWER).read_json();
        match (status, body) {
            (200..=299, Ok(value)) => Ok(value),
            (200..=299, Err(error)) => Err(self.failed(&error)),
            (_, Ok(Value::Object(map))) if map.get("error").is_some_and(Value::is_string) => {
                let message = map
                    .get("error")
                    .and_then(Value::as_str)
                    .unwrap_or_default()
                    .to_owned();
                Err(ClientError::Refused { status, message })
            }
            (_, _) => Err(ClientError::Refused {
                status,
                message: format!("the node answered with HTTP status {status}"),
            }),
        }
    }

    /// A node that was killed leaves its file behind: nobody listens there.
    #[allow(clippy::wildcard_enum_match_arm)]
    fn failed(&self, error: &ureq::Error) -> ClientError {
        match error {
            ureq::Error::ConnectionFailed => ClientError::NotRunning(self.home.clone()),
            ureq::Error::Io(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
                ClientError::NotRunning(self.home.clone())
            }
            other => ClientError::Connection {
                address: self.place.address,
                pid: self.place.pid,
                reason: other.to_string(),
            },
        }
    }
}
