//! The command line's side of the API.

use super::content::LINES;
use super::token::Place;
use crate::content::ContentPath;
use crate::content::unixfs::ReadError;
use crate::files::FileError;
use crate::home::Home;
use serde_json::Value;
use std::io::{self, BufRead as _, Read};
use std::path::{Path, PathBuf};
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
    #[error("no node is running in {}{}", .0.display(), how_to_start(.0))]
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
        let deadline = if path == "/v1/jobs" {
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

    /// Whether the node answers at all.
    ///
    /// # Errors
    /// [`ClientError::NotRunning`] and others.
    pub fn answers(&self) -> Result<(), ClientError> {
        self.get("/v1/status").map(|_| ())
    }

    /// `POST path` with a JSON body, answered by lines: `told` gets the progress in them.
    ///
    /// # Errors
    /// When the node is gone or refuses.
    pub fn post_lines(
        &self,
        path: &str,
        body: &Value,
        mut told: impl FnMut(Value),
    ) -> Result<Value, ClientError> {
        let request = self
            .agent
            .post(self.url(path))
            .config()
            .timeout_global(Some(CONTENT_DEADLINE))
            .build()
            .header("Authorization", self.place.token.header().as_str())
            .header("Accept", LINES);
        let mut response = request.send_json(body).map_err(|error| self.failed(&error))?;
        let kind = response
            .headers()
            .get("Content-Type")
            .and_then(|kind| kind.to_str().ok());
        if kind != Some(LINES) {
            return self.finish(Ok(response));
        }
        let reader = response.body_mut().with_config().limit(MAX_ANSWER).reader();
        for line in std::io::BufReader::new(reader).lines() {
            let line = line.map_err(|error| self.failed(&error.into()))?;
            let mut line: Value = serde_json::from_str(&line).map_err(|_| self.cut_off())?;
            if let Some(result) = line.get_mut("result") {
                return Ok(result.take());
            }
            match line.get_mut("progress") {
                Some(progress) => told(progress.take()),
                None => return Err(refusal(&line)),
            }
        }
        Err(self.cut_off())
    }

    /// A file's bytes from `offset` on, at most `length`; nothing when it ends before.
    ///
    /// # Errors
    /// When the node is gone or refuses.
    pub fn read_content(
        &self,
        path: &ContentPath,
        offset: u64,
        length: Option<u64>,
    ) -> Result<Option<impl Read + use<>>, ClientError> {
        let last = length.map(|length| offset.saturating_add(length).saturating_sub(1));
        if length == Some(0) {
            return Ok(None);
        }
        let last = last.map(|last| last.to_string()).unwrap_or_default();
        let mut request = self
            .agent
            .get(self.url(&path.to_url()))
            .config()
            // A directory is told by the way to its listing, which is no file.
            .max_redirects(0)
            .timeout_global(Some(CONTENT_DEADLINE))
            .build();
        if offset > 0 || length.is_some() {
            request = request.header("Range", format!("bytes={offset}-{last}"));
        }
        let response = request.call().map_err(|error| self.failed(&error))?;
        match response.status().as_u16() {
            416 => Ok(None),
            308 => Err(is_directory(path, &response)),
            200..=299 => Ok(Some(response.into_body().into_reader())),
            _ => self.finish(Ok(response)).map(|_| None),
        }
    }

    fn cut_off(&self) -> ClientError {
        ClientError::Connection {
            address: self.place.address,
            pid: self.place.pid,
            reason: "it ended its answer early; was it stopped?".to_owned(),
        }
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
            (_, Ok(answer)) if answer.get("error").is_some_and(Value::is_string) => Err(refusal(&answer)),
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

fn how_to_start(root: &Path) -> String {
    let (at, start) = (root.display(), format!("`hanzod run --home {}`", root.display()));
    if Home::locate(Some(root)).is_ok_and(|home| home.is_initialised()) {
        format!(": start one with {start}")
    } else {
        format!(", and none was set up there: `hanzod init --genesis FILE --home {at}`, then {start}")
    }
}

/// What the store itself says of a directory where a file was expected.
fn is_directory(path: &ContentPath, response: &ureq::http::Response<ureq::Body>) -> ClientError {
    let roots = response.headers().get("X-Ipfs-Roots");
    let last = roots.and_then(|roots| roots.to_str().ok()?.rsplit(',').next()?.parse().ok());
    let cid = last.unwrap_or(path.root);
    ClientError::Refused {
        status: 400,
        message: ReadError::IsDirectory { cid }.to_string(),
    }
}

/// The node's words.
fn refusal(answer: &Value) -> ClientError {
    let message = answer.get("error").and_then(Value::as_str);
    ClientError::Refused {
        status: answer.get("status").and_then(Value::as_u64).unwrap_or(0) as u16,
        message: message.unwrap_or("the node does not say why").to_owned(),
    }
}
