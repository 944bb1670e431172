//! How much memory a trainer may use, and for what.

use super::{Fit, Place, parse_size, size};
use crate::device::{self, DeviceChoice};
use serde::{Deserialize, Serialize};
use std::fmt::{self, Display};
use std::str::FromStr;

/// Share of the free memory that is planned with: estimates are not exact (docs/results.md), and others need some too.
const SHARE: f64 = 0.75;

/// `auto`, or a size such as `8GiB`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum MemoryLimit {
    /// Three quarters of what is free.
    #[default]
    Auto,
    /// Bytes.
    Bytes(u64),
}

impl MemoryLimit {
    /// The limit in bytes at `place`; `None` where nothing says how much memory is free.
    #[must_use]
    pub fn bytes(self, place: DeviceChoice) -> Option<u64> {
        match self {
            Self::Auto => Some((device::free_memory(place)? as f64 * SHARE) as u64),
            Self::Bytes(bytes) => Some(bytes),
        }
    }
}

impl FromStr for MemoryLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "auto" => Ok(Self::Auto),
            size => Ok(Self::Bytes(parse_size(size)?)),
        }
    }
}

impl TryFrom<String> for MemoryLimit {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Bytes(bytes) => write!(f, "{bytes}B"),
        }
    }
}

impl From<MemoryLimit> for String {
    fn from(limit: MemoryLimit) -> Self {
        limit.to_string()
    }
}

/// What memory is needed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Steps, and answers to this many held-out questions at a time.
    Training {
        /// Held-out questions.
        heldout: u64,
    },
    /// Answers alone.
    Evaluation {
        /// Held-out questions.
        heldout: u64,
    },
}

/// What a trainer may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Where its tensors live.
    pub place: Place,
    /// What it does.
    pub work: Work,
    /// Bytes it may hold.
    pub bytes: u64,
}

impl From<DeviceChoice> for Place {
    fn from(device: DeviceChoice) -> Self {
        match device {
            DeviceChoice::Cuda(_) => Self::Gpu,
            DeviceChoice::Cpu | DeviceChoice::Auto => Self::Cpu,
        }
    }
}

impl Fit {
    /// How work is cut up to stay within `bytes`, for people; `None` when it is not.
    #[must_use]
    pub fn narrowed(&self, bytes: u64) -> Option<String> {
        let again = if self.checkpointing {
            ", blocks are run again in the backward pass"
        } else {
            ""
        };
        self.narrower.then(|| {
            format!(
                "memory: {} may be used: {} completions are generated and {} tokens trained at a time{again}",
                size(bytes),
                self.limits.rollout_rows,
                self.limits.micro_batch_tokens,
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_and_written() {
        for (text, limit) in [
            ("auto", MemoryLimit::Auto),
            ("1KiB", MemoryLimit::Bytes(1024)),
            ("2 GB", MemoryLimit::Bytes(2_000_000_000)),
        ] {
            assert_eq!(text.parse(), Ok(limit));
            assert_eq!(limit.to_string().parse(), Ok(limit));
        }
        assert!("much".parse::<MemoryLimit>().unwrap_err().contains("8GiB"));
        assert_eq!(MemoryLimit::Bytes(7).bytes(DeviceChoice::Cpu), Some(7));
    }
}
