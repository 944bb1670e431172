//! The Hugging Face Hub: models in, checkpoints out (<https://huggingface.co/docs/hub/api>). Calls block.
//!
//! `pull` takes a model's files by its name, resumably, and checks each by the hash that the Hub lists: SHA-256 for
//! large files, git's SHA-1 for small ones. `push` makes a commit: small files inside it, large ones over git-lfs.
//! The endpoint can be any server that speaks the same, such as a mirror or a test's.

mod error;
mod hash;
mod list;
mod pull;
mod push;
#[cfg(test)]
mod tests;

pub use error::HubError;
pub use pull::{Pulled, pull};
pub use push::{Pushed, Visibility, push};

use serde::de::DeserializeOwned;
use std::io::Read;
use std::str::FromStr;
use std::time::Duration;
use ureq::http::{Response, Uri, header};
use ureq::{Body, RequestBuilder};
use zeroize::Zeroizing;

/// Where the Hub is.
pub const ENDPOINT: &str = "https://huggingface.co";
/// The variable that holds a user's token, as the Hub's own programs name it.
pub const TOKEN: &str = "HF_TOKEN";
/// How long a connection may take to be made, and an answer to begin.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long one file, or one part of a large one, may take on its way out.
const LONGEST_UPLOAD: Duration = Duration::from_secs(3600);
/// The longest answer that is parsed, in bytes.
const MAX_ANSWER: u64 = 64 << 20;
/// Tries of one request, and the pause before the second; it doubles.
const TRIES: u32 = 4;
const PAUSE: Duration = Duration::from_secs(1);

/// `owner/name`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repo(String);

impl FromStr for Repo {
    type Err = HubError;

    fn from_str(text: &str) -> Result<Self, HubError> {
        let part = |part: &str| {
            !part.is_empty()
                && part.len() <= 96
                && !part.starts_with(['.', '-'])
                && !part.contains("..")
                && part
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
        };
        let mut parts = text.split('/');
        match (parts.next(), parts.next(), parts.next()) {
            (Some(owner), Some(name), None) if part(owner) && part(name) => Ok(Self(text.to_owned())),
            _ => Err(HubError::BadRepo {
                text: text.to_owned(),
            }),
        }
    }
}

impl std::fmt::Display for Repo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// How long a file on its way in is waited for.
#[derive(Clone, Copy, Debug)]
struct Times {
    /// A connection that brings nothing for this long is given up.
    silence: Duration,
    /// The pause before the next try; it doubles.
    pause: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            silence: PATIENCE,
            pause: PAUSE,
        }
    }
}

/// A server and who asks it.
pub struct Hub {
    agent: ureq::Agent,
    endpoint: String,
    token: Option<Zeroizing<String>>,
    times: Times,
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hub")
            .field("endpoint", &self.endpoint)
            .finish_non_exhaustive()
    }
}

impl Hub {
    /// The server at `endpoint`, asked with the token in the environment if there is one.
    ///
    /// # Errors
    /// [`HubError::Endpoint`].
    pub fn new(endpoint: &str) -> Result<Self, HubError> {
        let token = std::env::var(TOKEN).ok().filter(|token| !token.trim().is_empty());
        Self::with_token(
            endpoint,
            token.map(|token| Zeroizing::new(token.trim().to_owned())),
        )
    }

    fn with_token(endpoint: &str, token: Option<Zeroizing<String>>) -> Result<Self, HubError> {
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        if !endpoint.starts_with("https://") && !endpoint.starts_with("http://") {
            return Err(HubError::Endpoint { endpoint });
        }
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(PATIENCE))
            .timeout_recv_response(Some(PATIENCE))
            .timeout_send_body(Some(LONGEST_UPLOAD))
            .user_agent(concat!("hanzod/", env!("CARGO_PKG_VERSION")))
            .build()
            .new_agent();
        Ok(Self {
            agent,
            endpoint,
            token,
            times: Times::default(),
        })
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.endpoint)
    }

    /// The token goes to the endpoint alone: not to where it redirects, nor to any other address that an answer names.
    fn signed<B>(&self, request: RequestBuilder<B>) -> RequestBuilder<B> {
        match &self.token {
            Some(token) if request.uri_ref().is_some_and(|uri| self.is_endpoint(uri)) => {
                request.header(header::AUTHORIZATION, format!("Bearer {}", token.as_str()))
            }
            _ => request,
        }
    }

    /// Whether an address has the endpoint's scheme, host and port.
    fn is_endpoint(&self, uri: &Uri) -> bool {
        let origin = |uri: &Uri| {
            let scheme = uri.scheme_str()?.to_ascii_lowercase();
            let port = uri.port_u16().unwrap_or(if scheme == "https" { 443 } else { 80 });
            Some((scheme, uri.host()?.to_ascii_lowercase(), port))
        };
        let endpoint = self.endpoint.parse::<Uri>().ok();
        endpoint.is_some_and(|endpoint| origin(&endpoint).is_some() && origin(&endpoint) == origin(uri))
    }

    fn get(&self, url: &str) -> Result<Response<Body>, HubError> {
        retried(|| self.answer(url, self.signed(self.agent.get(url)).call()))
    }

    fn post(&self, url: &str, kind: &str, body: &[u8]) -> Result<Response<Body>, HubError> {
        retried(|| {
            let request = self
                .signed(self.agent.post(url))
                .header(header::CONTENT_TYPE, kind);
            self.answer(url, request.send(body))
        })
    }

    fn post_json<T: DeserializeOwned>(&self, url: &str, body: &serde_json::Value) -> Result<T, HubError> {
        parse(
            url,
            self.post(url, "application/json", body.to_string().as_bytes())?,
        )
    }

    /// Sorts an answer: a good one, or what is wrong in the Hub's own words.
    fn answer(
        &self,
        url: &str,
        result: Result<Response<Body>, ureq::Error>,
    ) -> Result<Response<Body>, HubError> {
        let mut response = result.map_err(|source| HubError::Connection {
            url: url.to_owned(),
            reason: source.to_string(),
        })?;
        let status = response.status().as_u16();
        if (200..300).contains(&status) {
            return Ok(response);
        }
        let mut said = String::new();
        // An answer without words is told by its status.
        let _ = response
            .body_mut()
            .with_config()
            .limit(4096)
            .reader()
            .read_to_string(&mut said);
        Err(HubError::refused(url, status, &said, self.token.is_some()))
    }
}

fn parse<T: DeserializeOwned>(url: &str, mut response: Response<Body>) -> Result<T, HubError> {
    let body = response.body_mut().with_config().limit(MAX_ANSWER);
    body.read_json().map_err(|error| HubError::Answer {
        url: url.to_owned(),
        reason: error.to_string(),
    })
}

/// Tries again what may go better the next time.
fn retried<T>(mut attempt: impl FnMut() -> Result<T, HubError>) -> Result<T, HubError> {
    let mut pause = PAUSE;
    for _ in 1..TRIES {
        match attempt() {
            Err(error) if error.is_transient() => {
                tracing::info!(%error, ?pause, "the Hub is asked again");
                std::thread::sleep(pause);
                pause *= 2;
            }
            result => return result,
        }
    }
    attempt()
}
