//! `config.toml`: each part of the node brings its section, this file nests, loads and checks them. The command line
//! overrides the environment (`HANZOD_*`), which overrides the file.

use crate::files::{self, FileError};
use crate::role::{Role, Roles};
use crate::{api, logging, net, publish};
pub use gym_training::device::DeviceChoice;
use gym_training::memory::MemoryLimit;
use gym_training::reward::Programs;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Everything a node can be told.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// What the node does.
    pub roles: Roles,
    /// Connections.
    pub network: net::Config,
    /// The local HTTP API.
    pub api: api::Config,
    /// The content store.
    pub content: ContentConfig,
    /// Training and evaluation.
    pub training: TrainingConfig,
    /// Where checkpoints go besides this network.
    pub publish: publish::Config,
    /// The log.
    pub log: logging::Config,
    /// Faults to commit, from the command line alone: for scenarios.
    #[serde(skip)]
    pub faults: Vec<crate::job::Fault>,
}

/// The `[content]` section.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ContentConfig {
    /// Bytes the store may use, in MiB; unpinned blocks go first.
    pub limit_mib: u64,
    /// Rounds of each job whose checkpoints stay pinned.
    pub keep_checkpoints: u64,
    /// How long older ones stay pinned, in seconds: fetches that began while they were kept end by then.
    pub checkpoint_grace_seconds: u64,
}

impl Default for ContentConfig {
    fn default() -> Self {
        Self {
            limit_mib: 32 * 1024,
            keep_checkpoints: 8,
            checkpoint_grace_seconds: 600,
        }
    }
}

/// The `[training]` section.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainingConfig {
    /// Where tensors live.
    pub device: DeviceChoice,
    /// Memory that training and evaluation may use: batches that do not fit are split.
    pub memory_limit: MemoryLimit,
    /// Jobs may run reward programs (`command`) here. Off: a program can do whatever this process can.
    pub allow_reward_programs: bool,
}

impl TrainingConfig {
    /// What a job's rewards may do.
    #[must_use]
    pub fn programs(&self) -> Programs {
        if self.allow_reward_programs {
            Programs::Allowed
        } else {
            Programs::Refused
        }
    }
}

/// Why the configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// Not TOML, an unknown key or a wrong type.
    #[error("{} does not parse: {source}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Line, column and key.
        source: Box<toml::de::Error>,
    },
    /// A value out of its range.
    #[error("configuration: {0}")]
    Network(#[from] net::ConfigError),
    /// The API would be reachable from other machines.
    #[error("configuration: {0}")]
    Api(#[from] api::ConfigError),
    /// An address that is none.
    #[error("configuration: {0}")]
    Publish(#[from] publish::ConfigError),
    /// A job needs the last closed state beside the one that is being made.
    #[error("configuration: content.keep_checkpoints is {0}; it must be at least 2")]
    KeepCheckpoints(u64),
}

impl Config {
    /// Reads a configuration file; a missing one is the defaults.
    ///
    /// # Errors
    /// The file, the line and the key that are wrong.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        match files::read_text(path, 1 << 20) {
            Ok(text) => Self::parse(path, &text),
            Err(e) if e.source.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(e) => Err(e.into()),
        }
    }

    fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let config: Self = toml::from_str(text).map_err(|source| ConfigError::Parse {
            path: path.to_path_buf(),
            source: Box::new(source),
        })?;
        config.check()?;
        Ok(config)
    }

    /// Checks what types cannot; called again after the command line was applied.
    ///
    /// # Errors
    /// The key and what it must be.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.network.check()?;
        self.api.check()?;
        self.publish.check()?;
        match self.content.keep_checkpoints {
            few @ 0..2 => Err(ConfigError::KeepCheckpoints(few)),
            _ => Ok(()),
        }
    }

    /// Replaces the roles when `roles` names any.
    pub fn override_roles(&mut self, roles: &[Role]) {
        if !roles.is_empty() {
            self.roles = roles.iter().copied().collect();
        }
    }
}

/// The commented file that `init` writes: every key with its default.
pub const TEMPLATE: &str = include_str!("config.template.toml");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_says_the_defaults() {
        let uncommented: String = TEMPLATE
            .lines()
            .map(|line| line.strip_prefix("#: ").unwrap_or(line))
            .flat_map(|line| [line, "\n"])
            .collect();
        assert_eq!(
            Config::parse(Path::new("t"), &uncommented).unwrap(),
            Config::default()
        );
        assert_eq!(
            Config::parse(Path::new("t"), TEMPLATE).unwrap(),
            Config::default()
        );
    }

    #[test]
    fn an_unknown_key_is_named_with_its_place() {
        let error = Config::parse(Path::new("/h/config.toml"), "[network]\nlistn = []\n")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("/h/config.toml") && error.contains("line 2") && error.contains("listn"),
            "{error}"
        );
    }

    #[test]
    fn devices_parse() {
        assert_eq!("cuda:1".parse(), Ok(DeviceChoice::Cuda(1)));
        assert!("gpu".parse::<DeviceChoice>().unwrap_err().contains("cuda:N"));
        let error = Config::parse(Path::new("t"), "[training]\ndevice = \"gpu\"\n")
            .unwrap_err()
            .to_string();
        assert!(error.contains("\"gpu\" is no device"), "{error}");
    }

    #[test]
    fn memory_limits_parse() {
        let parse = |value: &str| {
            let text = format!("[training]\nmemory_limit = \"{value}\"\n");
            Config::parse(Path::new("t"), &text).map(|config| config.training.memory_limit)
        };
        assert_eq!(parse("2GiB").unwrap(), MemoryLimit::Bytes(2 << 30));
        assert_eq!(parse("auto").unwrap(), MemoryLimit::Auto);
        let error = parse("plenty").unwrap_err().to_string();
        assert!(
            error.contains("8GiB") && error.contains("memory_limit"),
            "{error}"
        );
    }

    /// What an error tells people to change can be changed: every `section.key` in the program's texts is in the template.
    #[test]
    fn settings_that_texts_name_exist() {
        let mut section = "";
        let (mut sections, mut known) = (Vec::new(), Vec::new());
        for line in TEMPLATE.lines() {
            let bare = line.trim_start_matches(['#', ':', ' ']);
            if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
                section = name;
                sections.push(name);
            } else if let Some((key, _)) = bare.split_once(" = ") {
                known.push(format!("{section}.{key}"));
            }
        }
        let mut named = Vec::new();
        let mut todo = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
        while let Some(path) = todo.pop() {
            if path.is_dir() {
                todo.extend(
                    std::fs::read_dir(&path)
                        .unwrap()
                        .map(|entry| entry.unwrap().path()),
                );
            } else if path.extension().is_some_and(|end| end == "rs") {
                named.extend(named_settings(
                    &std::fs::read_to_string(&path).unwrap(),
                    &sections,
                ));
            }
        }
        assert!(named.iter().any(|name| name == "content.limit_mib"), "{named:?}");
        named.retain(|name| !known.contains(name));
        assert!(named.is_empty(), "not in config.template.toml: {named:?}");
    }

    /// Words such as `content.limit_mib` in the string literals of a source file, names of files aside.
    fn named_settings(source: &str, sections: &[&str]) -> Vec<String> {
        let code = source.lines().filter(|line| !line.trim_start().starts_with("//"));
        let code = code
            .collect::<Vec<_>>()
            .join("\n")
            .replace("'\"'", "")
            .replace("\\\"", "");
        let texts = code.split('"').skip(1).step_by(2);
        let words =
            texts.flat_map(|text| text.split(|c: char| !c.is_ascii_alphanumeric() && !"._".contains(c)));
        words
            .map(|word| word.trim_end_matches('.'))
            .filter(|word| {
                let key = word
                    .split_once('.')
                    .filter(|(section, _)| sections.contains(section));
                key.is_some_and(|(_, key)| !["json", "car", "toml", "rs", "1"].contains(&key))
            })
            .map(str::to_owned)
            .collect()
    }
}
