//! The log: plain one-line messages to a file in the home directory, and the important ones to the terminal. Secrets
//! are never logged: the types that hold them have no `Debug` that shows them.

use crate::files::FileError;
use crate::home::Home;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::IsTerminal;
use std::sync::Arc;
use tracing_subscriber::filter::{EnvFilter, LevelFilter};
use tracing_subscriber::fmt;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

/// The `[log]` section.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// A level, or directives such as `info,hanzod=debug`.
    pub level: String,
    /// How a line looks.
    pub format: Format,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            level: "info".to_owned(),
            format: Format::Plain,
        }
    }
}

/// How a log line looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// Time, level, message, fields.
    #[default]
    Plain,
    /// One JSON object.
    Json,
}

/// Why there is no log.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The file cannot be opened.
    #[error(transparent)]
    File(#[from] FileError),
    /// The level is none.
    #[error(
        "log.level {level:?} is not understood ({reason}): give error, warn, info, debug or trace, or directives such as \
         info,hanzod=debug"
    )]
    Level {
        /// What was given.
        level: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Another log was set up in this process.
    #[error("the log is already set up in this process: {0}")]
    Twice(#[from] TryInitError),
}

/// Sends this process's log to the home's file and, from `warn` up (`info` on a terminal), to standard error.
///
/// # Errors
/// When the file cannot be opened or the level is none.
pub fn start(config: &Config, home: &Home) -> Result<(), LogError> {
    let file = Arc::new(open(home)?);
    let filter = filter(&config.level).map_err(|reason| LogError::Level {
        level: config.level.clone(),
        reason,
    })?;
    let level = if std::io::stderr().is_terminal() {
        LevelFilter::INFO
    } else {
        LevelFilter::WARN
    };
    let terminal = fmt::layer()
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .with_target(false)
        .without_time()
        .with_filter(level)
        .with_filter(ours());
    tracing_subscriber::registry()
        .with(to_file(config.format, file).with_filter(filter))
        .with(terminal)
        .try_init()?;
    Ok(())
}

/// The target of what the terminal is told otherwise.
pub const FILE_ALONE: &str = "start";

/// The terminal shows what this program says; what its libraries say goes to the file.
fn ours() -> tracing_subscriber::filter::Targets {
    tracing_subscriber::filter::Targets::new().with_target("hanzod", LevelFilter::INFO)
}

/// A bare word that is no level would name a module, all of whose lines are wanted: a typing error logs nothing at all.
fn filter(level: &str) -> Result<EnvFilter, String> {
    let is_none = |word: &&str| !word.contains(['=', '[', ':']) && word.parse::<LevelFilter>().is_err();
    if let Some(word) = level.split(',').map(str::trim).find(is_none) {
        return Err(format!("{word:?} is no level"));
    }
    EnvFilter::try_new(level).map_err(|error| error.to_string())
}

fn to_file<S>(format: Format, file: Arc<File>) -> Box<dyn Layer<S> + Send + Sync>
where
    S: tracing::Subscriber + for<'a> LookupSpan<'a>,
{
    match format {
        Format::Plain => fmt::layer().with_ansi(false).with_writer(file).boxed(),
        Format::Json => fmt::layer().json().with_writer(file).boxed(),
    }
}

/// A log this long, in bytes, is set aside when the node starts.
const LONG: u64 = 64 << 20;

/// Keeps one old log beside the new one.
fn set_aside(path: &std::path::Path) {
    if std::fs::metadata(path).is_ok_and(|m| m.len() > LONG) {
        // A log that cannot be set aside just goes on growing.
        let _ = std::fs::rename(path, path.with_extension("log.1"));
    }
}

fn open(home: &Home) -> Result<File, FileError> {
    let path = home.log();
    if let Some(parent) = path.parent() {
        crate::files::create_dir(parent, crate::files::Access::Everyone)?;
    }
    set_aside(&path);
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .map_err(|e| FileError::new("open", &path, e))
}
