//! What can go wrong between this node and the Hub.

use std::io;
use std::path::{Path, PathBuf};

/// Why the Hub did not give or take something.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// Text that names no repository.
    #[error("{text:?} names no repository: it is owner/name, such as Qwen/Qwen3-0.6B")]
    BadRepo {
        /// The text.
        text: String,
    },
    /// An endpoint without a scheme.
    #[error("the endpoint {endpoint:?} must begin with https:// or http://")]
    Endpoint {
        /// The text.
        endpoint: String,
    },
    /// The connection failed.
    #[error("{url} cannot be reached: {reason}")]
    Connection {
        /// What was asked.
        url: String,
        /// What went wrong.
        reason: String,
    },
    /// It wants to know who asks.
    #[error("{url} refuses (HTTP {status}): {hint}. {said}")]
    Forbidden {
        /// What was asked.
        url: String,
        /// The status.
        status: u16,
        /// What to do.
        hint: &'static str,
        /// The Hub's words.
        said: String,
    },
    /// Any other refusal.
    #[error("{url} answers with HTTP {status}. {said}")]
    Status {
        /// What was asked.
        url: String,
        /// The status.
        status: u16,
        /// The Hub's words.
        said: String,
    },
    /// An answer that makes no sense.
    #[error("{url} gives an answer that is not understood: {reason}")]
    Answer {
        /// What was asked.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A repository without the files of a model.
    #[error("{repo} holds no config.json: it is no model that this program trains")]
    NoModel {
        /// The repository.
        repo: String,
    },
    /// What arrived is not what was listed.
    #[error("{file} arrived with the hash {found} where {expected} is listed; it was removed. Try again")]
    Hash {
        /// The file's name.
        file: String,
        /// What the Hub lists.
        expected: String,
        /// What the bytes give.
        found: String,
    },
    /// A symbolic link in a directory that is pushed.
    #[error("{} is a symbolic link, which is not pushed: remove it, or copy the whole with `cp -rL` and push the copy", path.display())]
    Link {
        /// The link.
        path: PathBuf,
    },
    /// It would not fit.
    #[error("{needed} bytes are missing and the disk that holds {} has {free} free", path.display())]
    NoRoom {
        /// Where.
        path: PathBuf,
        /// Bytes to fetch.
        needed: u64,
        /// Bytes free.
        free: u64,
    },
    /// A file here cannot be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl HubError {
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }

    pub(super) fn refused(url: &str, status: u16, body: &str, has_token: bool) -> Self {
        let (url, said) = (url.to_owned(), words(body));
        let hint = match (status, has_token) {
            (401, false) => {
                "there is no such repository, or it is private: set HF_TOKEN to a token that may see it"
            }
            (401, true) => "the token in HF_TOKEN is not valid",
            (403, false) => "set HF_TOKEN to a token of an account that was granted access",
            (403, true) => {
                "the account of HF_TOKEN has no such right; a gated model's terms are accepted on its page, a push needs a token with write access"
            }
            _ => return Self::Status { url, status, said },
        };
        Self::Forbidden {
            url,
            status,
            hint,
            said,
        }
    }

    /// Whether another try may go better.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        let worth_a_try = |status| matches!(status, 408 | 429 | 500..);
        matches!(self, Self::Connection { .. })
            || matches!(self, Self::Status { status, .. } if worth_a_try(*status))
    }

    /// The HTTP status, where there was one.
    pub(super) fn status(&self) -> Option<u16> {
        if let Self::Status { status, .. } | Self::Forbidden { status, .. } = self {
            Some(*status)
        } else {
            None
        }
    }
}

/// What an error's body says to people: its `error` field, or its first line.
fn words(body: &str) -> String {
    let json = serde_json::from_str::<serde_json::Value>(body).ok();
    let error = json
        .as_ref()
        .and_then(|json| json.get("error"))
        .and_then(|error| error.as_str());
    let line = error.unwrap_or_else(|| body.lines().next().unwrap_or_default());
    line.chars().filter(|c| !c.is_control()).take(300).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_to_do() {
        let say = |status, token| HubError::refused("u", status, r#"{"error":"Gated"}"#, token).to_string();
        assert!(say(401, false).contains("HF_TOKEN") && say(401, false).contains("Gated"));
        assert!(say(403, true).contains("terms are accepted"));
        assert!(say(404, false).contains("404"));
        assert!(HubError::refused("u", 503, "", false).is_transient());
        assert!(!HubError::refused("u", 404, "", false).is_transient());
    }
}
