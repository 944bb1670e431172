//! The metadata block: a DAG-CBOR map that says what a delta is.

use crate::ids::CidBytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

/// Most entries of `extra`.
pub const MAX_EXTRA: usize = 32;

/// What a delta is, each key only when it is known.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Metadata {
    /// When it was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<Timestamp>,
    /// The job's id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<CidBytes>,
    /// The round it was made in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub round: Option<u64>,
    /// Passes begun over the questions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
    /// Mean training loss; finite.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Completions trained on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
    /// Tokens of those completions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// The worker's name for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<String>,
    /// Anything else, text to text, at most [`MAX_EXTRA`] entries.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, String>,
}

/// A time as RFC 3339 text, kept as it was written: `2024-01-01T00:00:00Z`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(String);

/// A text that is no RFC 3339 time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not an RFC 3339 time such as 2024-01-01T00:00:00Z ({reason})")]
pub struct TimestampError {
    text: String,
    reason: String,
}

impl Timestamp {
    /// Takes an RFC 3339 text.
    ///
    /// # Errors
    /// When it is none.
    pub fn parse(text: &str) -> Result<Self, TimestampError> {
        let timestamp = Self(text.to_owned());
        timestamp.unix_seconds()?;
        Ok(timestamp)
    }

    /// The UTC time of a number of seconds since 1970.
    ///
    /// # Errors
    /// Beyond the year 9999.
    pub fn from_unix(seconds: i64) -> Result<Self, TimestampError> {
        let out_of_range = |reason: String| TimestampError {
            text: seconds.to_string(),
            reason,
        };
        let time = OffsetDateTime::from_unix_timestamp(seconds).map_err(|e| out_of_range(e.to_string()))?;
        time.format(&Rfc3339)
            .map(Self)
            .map_err(|e| out_of_range(e.to_string()))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whole seconds since 1970.
    ///
    /// # Errors
    /// When the text is no time, which only an unchecked one can be.
    pub fn unix_seconds(&self) -> Result<i64, TimestampError> {
        match OffsetDateTime::parse(&self.0, &Rfc3339) {
            Ok(time) => Ok(time.unix_timestamp()),
            Err(e) => Err(TimestampError {
                text: self.0.chars().take(64).collect(),
                reason: e.to_string(),
            }),
        }
    }
}
