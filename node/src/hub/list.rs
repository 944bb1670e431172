//! What a repository holds.

use super::hash::Expected;
use super::{Hub, HubError, Repo, parse};
use crate::content::unixfs::{escape_url, is_safe_name};
use serde::Deserialize;

/// Endings of files that a model needs: configuration, weights, tokenizer, card.
const WANTED: [&str; 7] = [
    ".json",
    ".safetensors",
    ".txt",
    ".model",
    ".jinja",
    ".md",
    ".tiktoken",
];

/// A file to be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) name: String,
    pub(super) size: u64,
    pub(super) hash: Expected,
}

/// A repository at one commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listing {
    pub(super) commit: String,
    pub(super) files: Vec<Listed>,
}

#[derive(Deserialize)]
struct Answer {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: String,
    size: u64,
}

/// Lists a model's files. Those in subdirectories are other formats of the same weights, and left out.
pub(super) fn list(hub: &Hub, repo: &Repo, revision: &str) -> Result<Listing, HubError> {
    let url = hub.url(&format!(
        "/api/models/{repo}/revision/{}?blobs=true",
        escape_url(revision)
    ));
    let answer: Answer = parse(&url, hub.get(&url)?)?;
    let bad = |reason: &str| HubError::Answer {
        url: url.clone(),
        reason: reason.to_owned(),
    };
    if answer.sha.is_empty() || !answer.sha.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return Err(bad("the commit is no hash"));
    }
    let files = answer
        .siblings
        .into_iter()
        .filter(|file| is_wanted(&file.rfilename))
        .map(|file| listed(file).ok_or_else(|| bad("a file has no size or no hash")))
        .collect::<Result<Vec<_>, _>>()?;
    if !files.iter().any(|file| file.name == "config.json") {
        return Err(HubError::NoModel {
            repo: repo.to_string(),
        });
    }
    Ok(Listing {
        commit: answer.sha,
        files,
    })
}

fn is_wanted(name: &str) -> bool {
    is_safe_name(name)
        && !name.starts_with('.')
        && (name.starts_with("LICENSE") || WANTED.iter().any(|ending| name.ends_with(ending)))
}

fn listed(file: Sibling) -> Option<Listed> {
    let is_hex = |text: &str, digits| text.len() == digits && text.bytes().all(|b| b.is_ascii_hexdigit());
    let (size, hash) = match (file.lfs, file.blob) {
        (Some(lfs), _) if is_hex(&lfs.sha256, 64) => (lfs.size, Expected::Sha256(lfs.sha256.to_lowercase())),
        (None, Some(blob)) if is_hex(&blob, 40) => (file.size?, Expected::Git(blob.to_lowercase())),
        _ => return None,
    };
    Some(Listed {
        name: file.rfilename,
        size,
        hash,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_model_needs_is_wanted() {
        for name in [
            "config.json",
            "model-00001-of-00002.safetensors",
            "tokenizer.json",
            "LICENSE",
            "README.md",
        ] {
            assert!(is_wanted(name), "{name}");
        }
        for name in [
            "pytorch_model.bin",
            "onnx/model.json",
            ".gitattributes",
            "../config.json",
            "a\\b.json",
            ".json",
        ] {
            assert!(!is_wanted(name), "{name}");
        }
    }
}
