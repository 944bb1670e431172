//! The `[publish]` section.

use crate::hub::{self, Repo, Visibility};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Where closed rounds' checkpoints go besides this network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The RPC address of an IPFS node of yours, such as `http://127.0.0.1:5001`: it is given every checkpoint and pins it.
    pub ipfs_url: Option<String>,
    /// A repository on the Hub, `owner/name`: each checkpoint becomes a commit. The token is taken from `HF_TOKEN`.
    #[serde(serialize_with = "write_repo", deserialize_with = "read_repo")]
    pub hub_repo: Option<Repo>,
    /// The Hub, or a server that speaks the same.
    pub hub_endpoint: String,
    /// Who may see the repository, if it has to be made.
    pub hub_visibility: Visibility,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            ipfs_url: None,
            hub_repo: None,
            hub_endpoint: hub::ENDPOINT.to_owned(),
            hub_visibility: Visibility::default(),
        }
    }
}

/// An address that is none.
#[derive(Debug, thiserror::Error)]
#[error("publish.{key} is {value:?}; it must begin with http:// or https://")]
pub struct ConfigError {
    key: &'static str,
    value: String,
}

impl Config {
    /// Checks the addresses.
    ///
    /// # Errors
    /// The key and what it must be.
    pub fn check(&self) -> Result<(), ConfigError> {
        let ipfs = self.ipfs_url.as_ref().map(|url| ("ipfs_url", url));
        for (key, value) in ipfs.into_iter().chain([("hub_endpoint", &self.hub_endpoint)]) {
            if !value.starts_with("http://") && !value.starts_with("https://") {
                let value = value.clone();
                return Err(ConfigError { key, value });
            }
        }
        Ok(())
    }
}

fn write_repo<S: Serializer>(repo: &Option<Repo>, to: S) -> Result<S::Ok, S::Error> {
    repo.as_ref().map(ToString::to_string).serialize(to)
}

fn read_repo<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Repo>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    text.map(|text| text.parse().map_err(serde::de::Error::custom))
        .transpose()
}
