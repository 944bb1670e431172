//! Metrics as JSON lines, one object a step, with TRL's names where TRL has one (TRAINING "What is logged").

use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Why metrics cannot be kept or read.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// The file cannot be opened, read or written.
    #[error("metrics file {path}: {source}; check the path, and where it is written the free space")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A record cannot be written as JSON.
    #[error("metrics file {path}: a record cannot be written: {source}")]
    Encode {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: serde_json::Error,
    },
    /// A line that cannot be read.
    #[error("metrics file {path}, line {line}: {source}; delete the line")]
    Line {
        /// The file.
        path: PathBuf,
        /// Line number from 1.
        line: usize,
        /// The parser's reason.
        source: serde_json::Error,
    },
}

/// Appends records to a file. Each is one `write`, so that a kill tears at most the last line.
#[derive(Debug)]
pub struct MetricsWriter {
    path: PathBuf,
    file: File,
}

impl MetricsWriter {
    /// Opens for appending; a last line torn by a kill is cut off.
    ///
    /// # Errors
    /// When the file cannot be opened, read or cut.
    pub fn open(path: &Path) -> Result<Self, MetricsError> {
        let open = || -> std::io::Result<File> {
            let mut file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(path)?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            let whole = bytes.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
            file.set_len(whole as u64)?;
            file.seek(SeekFrom::End(0))?;
            Ok(file)
        };
        let path = path.to_owned();
        match open() {
            Ok(file) => Ok(Self { path, file }),
            Err(source) => Err(MetricsError::Io { path, source }),
        }
    }

    /// Appends one record as a line. A number that is not finite is written as null.
    ///
    /// # Errors
    /// A full disk, or a record that is no JSON.
    pub fn append(&mut self, record: &impl Serialize) -> Result<(), MetricsError> {
        let encoded = serde_json::to_string(record).map_err(|source| MetricsError::Encode {
            path: self.path.clone(),
            source,
        })?;
        let written = self.file.write_all((encoded + "\n").as_bytes());
        written.map_err(|source| MetricsError::Io {
            path: self.path.clone(),
            source,
        })
    }

    /// Waits until the disk has everything.
    ///
    /// # Errors
    /// When it does not.
    pub fn sync(&self) -> Result<(), MetricsError> {
        self.file.sync_data().map_err(|source| MetricsError::Io {
            path: self.path.clone(),
            source,
        })
    }
}

/// Reads all records of a file.
///
/// # Errors
/// An unreadable file or line, named.
pub fn read_metrics<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<Vec<T>, MetricsError> {
    let text = std::fs::read_to_string(path).map_err(|source| MetricsError::Io {
        path: path.to_owned(),
        source,
    })?;
    let lines = text.lines().enumerate().map(|(index, line)| {
        serde_json::from_str(line).map_err(|source| MetricsError::Line {
            path: path.to_owned(),
            line: index + 1,
            source,
        })
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn step(step: u64) -> BTreeMap<String, f64> {
        BTreeMap::from([("step".into(), step as f64), ("reward".into(), 0.25)])
    }

    #[test]
    fn a_restart_appends_and_cuts_a_torn_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        MetricsWriter::open(&path).unwrap().append(&step(1)).unwrap();
        let mut torn = std::fs::read(&path).unwrap();
        torn.extend_from_slice(b"{\"step\": 2, \"rew");
        std::fs::write(&path, torn).unwrap();
        let mut writer = MetricsWriter::open(&path).unwrap();
        writer.append(&step(2)).unwrap();
        writer.sync().unwrap();
        assert_eq!(
            read_metrics::<BTreeMap<String, f64>>(&path).unwrap(),
            [step(1), step(2)]
        );
    }

    #[test]
    fn a_number_that_is_none_is_null_and_errors_name_the_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let mut writer = MetricsWriter::open(&path).unwrap();
        writer.append(&BTreeMap::from([("loss", f64::NAN)])).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "{\"loss\":null}\n");
        let error = read_metrics::<BTreeMap<String, f64>>(&path)
            .unwrap_err()
            .to_string();
        assert!(error.contains("line 1"), "{error}");
    }
}
