//! A node's API, asked from where it listens.

use crate::netlab::Space;
use hanzod::api::{Client, ClientError};
use hanzod::home::Home;
use serde_json::Value;

/// Talks to a node, in its network namespace if it has one.
#[derive(Debug)]
pub struct Api {
    client: Client,
    space: Option<Space>,
}

impl Api {
    /// Finds the node running in `home`.
    ///
    /// # Errors
    /// When none is.
    pub fn connect(home: &Home, space: Option<&Space>) -> Result<Self, ClientError> {
        Ok(Self {
            client: Client::connect(home)?,
            space: space.cloned(),
        })
    }

    /// `GET path`.
    ///
    /// # Errors
    /// When the node is gone or refuses.
    pub fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.ask(|| self.client.get(path))
    }

    /// `POST path` with a JSON body.
    ///
    /// # Errors
    /// When the node is gone or refuses.
    pub fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.ask(|| self.client.post(path, body))
    }

    fn ask(&self, call: impl FnOnce() -> Result<Value, ClientError> + Send) -> anyhow::Result<Value> {
        Ok(match &self.space {
            Some(space) => space.within(call)??,
            None => call()?,
        })
    }
}
