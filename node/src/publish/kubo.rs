//! Content to an IPFS node over Kubo's RPC API: a CAR file, which it takes in and pins
//! (<https://docs.ipfs.tech/reference/kubo/rpc/#api-v0-dag-import>). It need not be able to reach this node.

use crate::content::Cid;
use serde::Deserialize;
use std::path::Path;
use std::time::Duration;
use ureq::unversioned::multipart::Form;

const PATIENCE: Duration = Duration::from_secs(60);
const LONGEST: Duration = Duration::from_secs(3600);
const MAX_ANSWER: u64 = 1 << 20;

/// Why the IPFS node did not take it.
#[derive(Debug, thiserror::Error)]
pub(super) enum KuboError {
    /// The connection failed.
    #[error("{url} cannot be reached: {reason}")]
    Connection { url: String, reason: String },
    /// It refused.
    #[error("{url} answers with HTTP {status}: {said}")]
    Status { url: String, status: u16, said: String },
    /// It did not pin the root.
    #[error("{url} did not pin {root}: {said}")]
    NotPinned { url: String, root: Cid, said: String },
}

#[derive(Debug, Deserialize)]
struct Line {
    #[serde(rename = "Root")]
    root: Option<Root>,
}

#[derive(Debug, Deserialize)]
struct Root {
    #[serde(rename = "Cid")]
    cid: Link,
    #[serde(rename = "PinErrorMsg", default)]
    error: String,
}

#[derive(Debug, Deserialize)]
struct Link {
    #[serde(rename = "/")]
    cid: String,
}

/// Sends a CAR file whose root is `root`; returns its address once the node has pinned it.
pub(super) fn import(server: &str, file: &Path, root: Cid) -> Result<String, KuboError> {
    let url = format!(
        "{}/api/v0/dag/import?pin-roots=true",
        server.trim_end_matches('/')
    );
    let failed = |reason: String| KuboError::Connection {
        url: url.clone(),
        reason,
    };
    let form = Form::new()
        .file("file", file)
        .map_err(|e| failed(e.to_string()))?;
    let agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_connect(Some(PATIENCE))
        .timeout_global(Some(LONGEST))
        .build()
        .new_agent();
    let mut response = agent.post(&url).send(form).map_err(|e| failed(e.to_string()))?;
    let said = response
        .body_mut()
        .with_config()
        .limit(MAX_ANSWER)
        .read_to_string();
    let said = said.map_err(|e| failed(e.to_string()))?;
    let status = response.status().as_u16();
    if status != 200 {
        return Err(KuboError::Status {
            url,
            status,
            said: said.trim().to_owned(),
        });
    }
    let wanted = root.to_string();
    let mut lines = said
        .lines()
        .filter_map(|line| serde_json::from_str::<Line>(line).ok());
    let pinned = lines.any(|line| {
        line.root
            .is_some_and(|root| root.cid.cid == wanted && root.error.is_empty())
    });
    if pinned {
        Ok(format!("ipfs://{root}"))
    } else {
        let said = said.trim().to_owned();
        Err(KuboError::NotPinned { url, root, said })
    }
}
