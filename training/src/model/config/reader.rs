//! One JSON file, and where to say an error was.

use super::ConfigError;
use serde_json::{Map, Value};
use std::path::PathBuf;

pub(super) struct Reader {
    path: PathBuf,
    object: Map<String, Value>,
}

impl Reader {
    pub(super) fn open(path: PathBuf) -> Result<Self, ConfigError> {
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(source) => return Err(ConfigError::Read { path, source }),
        };
        match serde_json::from_str(&text) {
            Ok(value) => Self::of(path, value),
            Err(e) => Err(ConfigError::Json {
                path,
                reason: e.to_string(),
            }),
        }
    }

    pub(super) fn of(path: PathBuf, value: Value) -> Result<Self, ConfigError> {
        match value {
            Value::Object(object) => Ok(Self { path, object }),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                Err(ConfigError::Json {
                    path,
                    reason: "another JSON value".into(),
                })
            }
        }
    }

    /// A value that is there and not null.
    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.object.get(key).filter(|v| !v.is_null())
    }

    /// Whether the key is written, be it as null.
    pub(super) fn has(&self, key: &str) -> bool {
        self.object.contains_key(key)
    }

    /// An object within, read as a file of its own.
    pub(super) fn nested(&self, key: &str) -> Option<Self> {
        let object = self.get(key)?.as_object()?.clone();
        Some(Self {
            path: self.path.clone(),
            object,
        })
    }

    pub(super) fn text(&self, key: &str) -> Option<&str> {
        self.get(key).and_then(Value::as_str)
    }

    pub(super) fn size(&self, key: &str) -> Result<usize, ConfigError> {
        self.optional_size(key)?
            .ok_or_else(|| self.key(key, "is missing"))
    }

    pub(super) fn size_or(&self, key: &str, default: usize) -> Result<usize, ConfigError> {
        Ok(self.optional_size(key)?.unwrap_or(default))
    }

    /// A size of which there are many objects: layers, experts.
    pub(super) fn count(&self, key: &str, most: usize) -> Result<usize, ConfigError> {
        match self.size(key)? {
            n if n <= most => Ok(n),
            n => Err(self.key(key, &format!("is {n}; at most {most} are read"))),
        }
    }

    pub(super) fn optional_size(&self, key: &str) -> Result<Option<usize>, ConfigError> {
        /// Larger than any model's dimension, small enough that products of two do not overflow.
        const LARGEST: u64 = 1 << 24;
        match self.get(key) {
            None => Ok(None),
            Some(v) => match v.as_u64() {
                Some(n @ 1..=LARGEST) => Ok(Some(n as usize)),
                _ => Err(self.key(key, &format!("is {v}; it must be an integer from 1 to {LARGEST}"))),
            },
        }
    }

    pub(super) fn number(&self, key: &str) -> Result<f64, ConfigError> {
        self.optional_number(key)?
            .ok_or_else(|| self.key(key, "is missing"))
    }

    pub(super) fn number_or(&self, key: &str, default: f64) -> Result<f64, ConfigError> {
        Ok(self.optional_number(key)?.unwrap_or(default))
    }

    pub(super) fn optional_number(&self, key: &str) -> Result<Option<f64>, ConfigError> {
        match self.get(key) {
            None => Ok(None),
            Some(v) => v
                .as_f64()
                .filter(|n| n.is_finite() && *n >= 0.0)
                .map(Some)
                .ok_or_else(|| self.key(key, &format!("is {v}; it must be a number, 0 or above"))),
        }
    }

    pub(super) fn flag_or(&self, key: &str, default: bool) -> Result<bool, ConfigError> {
        match self.get(key) {
            None => Ok(default),
            Some(v) => v
                .as_bool()
                .ok_or_else(|| self.key(key, &format!("is {v}; it must be true or false"))),
        }
    }

    /// One integer from 0.
    pub(super) fn index_or(&self, key: &str, default: u64) -> Result<u64, ConfigError> {
        match self.get(key) {
            None => Ok(default),
            Some(v) => v
                .as_u64()
                .ok_or_else(|| self.key(key, &format!("is {v}; it must be an integer from 0"))),
        }
    }

    /// A list of integers from 0; empty when missing.
    pub(super) fn indices(&self, key: &str) -> Result<Vec<u64>, ConfigError> {
        let bad = || self.key(key, "must be a list of integers from 0");
        match self.get(key) {
            None => Ok(Vec::new()),
            Some(v) => {
                let list = v.as_array().ok_or_else(bad)?;
                list.iter().map(|v| v.as_u64().ok_or_else(bad)).collect()
            }
        }
    }

    /// A list of names; `None` when missing.
    pub(super) fn names(&self, key: &str) -> Result<Option<Vec<&str>>, ConfigError> {
        let bad = || self.key(key, "must be a list of names");
        match self.get(key) {
            None => Ok(None),
            Some(v) => {
                let list = v.as_array().ok_or_else(bad)?;
                let names = list.iter().map(|v| v.as_str().ok_or_else(bad));
                names.collect::<Result<_, _>>().map(Some)
            }
        }
    }

    /// One id or a list of them.
    pub(super) fn token_ids(&self, key: &str) -> Result<Vec<u32>, ConfigError> {
        let one = |v: &Value| {
            v.as_u64()
                .and_then(|n| u32::try_from(n).ok())
                .ok_or_else(|| self.key(key, &format!("holds {v}; token ids are integers from 0")))
        };
        match self.get(key) {
            None => Ok(Vec::new()),
            Some(Value::Array(list)) => list.iter().map(one).collect(),
            Some(v) => Ok(vec![one(v)?]),
        }
    }

    pub(super) fn key(&self, key: &str, reason: &str) -> ConfigError {
        ConfigError::Key {
            path: self.path.clone(),
            key: key.into(),
            reason: reason.into(),
        }
    }
}
