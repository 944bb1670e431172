//! Question files: JSON lines or Parquet, one question a row, columns named by the job (TRAINING "Data").
//!
//! A row is numbered by its place (blank lines excluded), so the order of a round is a function of numbers alone
//! (PROTOCOL section 5) and nothing here has state.

mod jsonl;
mod parquet;
mod rows;
#[cfg(test)]
mod tests;

use gym_protocol::job::spec::ColumnsSpec;
use serde::Deserialize;
use serde_json::Value;
use sha3::{Digest, Sha3_256};
use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};

/// The longest line or row read, in bytes: a longer one is a broken file, not a question.
pub const MAX_LINE_BYTES: u64 = 4 << 20;

/// One question with its reference answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// Position among the file's questions, from 0.
    pub row: u64,
    /// What is asked.
    pub prompt: Prompt,
    /// The reference answer as the file has it, empty where it has none; reward functions know forms such as GSM8K's
    /// `… #### 18`.
    pub answer: String,
    /// The whole line, for reward functions that want other columns.
    pub raw: Value,
}

/// A question's text, or the turns of a conversation that ends with it.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// Plain text.
    Text(String),
    /// Chat turns, rendered by the tokenizer's template.
    Messages(Vec<Message>),
}

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, serde::Serialize)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// What was said.
    pub content: String,
}

impl Prompt {
    /// The text for people and reward functions; turns are joined by newlines.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Messages(turns) => {
                let turns: Vec<&str> = turns.iter().map(|m| m.content.as_str()).collect();
                turns.join("\n")
            }
        }
    }
}

/// Why a question file is refused. Every message names the file, the line and what to do.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The file cannot be opened or read.
    #[error("question file {path}: {source}; check the path and its permissions")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A Parquet file that cannot be read.
    #[error(
        "question file {path} is no Parquet file that can be read: {reason}; write it again, or as JSON lines"
    )]
    Parquet {
        /// The file.
        path: PathBuf,
        /// The reader's reason.
        reason: String,
    },
    /// A row that is no object, or lacks a column.
    #[error("question file {path}, row {line}: {reason}")]
    Line {
        /// The file.
        path: PathBuf,
        /// Line or row number from 1.
        line: u64,
        /// What is wrong and what to do.
        reason: LineError,
    },
    /// No question in the file.
    #[error(
        "question file {path} holds no question; it must have one JSON object a line, or be a Parquet file"
    )]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// Training and held-out questions share content.
    #[error(
        "{count} held-out questions are training questions too (the first: held-out row {heldout_row}, {prompt:?}); \
         remove them from one of the two files, or the accuracy means nothing"
    )]
    Overlap {
        /// How many.
        count: usize,
        /// The first one's held-out row.
        heldout_row: u64,
        /// Its text, cut to 80 characters.
        prompt: String,
    },
}

/// What is wrong with one line.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// Not JSON.
    #[error("not JSON ({0}); mend or delete the line")]
    Json(serde_json::Error),
    /// Not UTF-8.
    #[error("not UTF-8; save the file as UTF-8")]
    Utf8,
    /// Longer than [`MAX_LINE_BYTES`].
    #[error("longer than {MAX_LINE_BYTES} bytes; split the question or mend the line ends")]
    TooLong,
    /// JSON, but no object.
    #[error("a JSON {0}, not an object; write {{\"question\": …, \"answer\": …}}")]
    NotObject(&'static str),
    /// A column is missing.
    #[error(
        "no column {column:?} among {found:?}; name the right one: under [columns] in a job file, with --prompt-column and --answer-column of `hanzod eval`"
    )]
    Missing {
        /// The column looked for.
        column: String,
        /// The columns there are.
        found: Vec<String>,
    },
    /// A column has a type that cannot be used.
    #[error("column {column:?} is a JSON {got}; it must be {must}")]
    Type {
        /// The column.
        column: String,
        /// What it is.
        got: &'static str,
        /// What it must be.
        must: &'static str,
    },
}

/// Reads a whole question file, of the format that its first bytes say.
///
/// # Errors
/// The first broken row, an unreadable file, or no question at all.
pub fn read_questions(path: &Path, columns: &ColumnsSpec) -> Result<Vec<Question>, DataError> {
    let io = |source| DataError::Io {
        path: path.to_owned(),
        source,
    };
    let mut file = File::open(path).map_err(io)?;
    let questions = if parquet::is_parquet(&mut file).map_err(io)? {
        parquet::read(file, path, columns)?
    } else {
        jsonl::read(file, path, columns)?
    };
    if questions.is_empty() {
        return Err(DataError::Empty {
            path: path.to_owned(),
        });
    }
    Ok(questions)
}

/// SHA3-256 of the prompt with runs of white space as one space: two spellings of one question are one question.
#[must_use]
pub fn content_hash(prompt: &Prompt) -> [u8; 32] {
    let mut hash = Sha3_256::new();
    for word in prompt.text().split_whitespace() {
        hash.update(word.as_bytes());
        hash.update(b" ");
    }
    hash.finalize().into()
}

/// Refuses held-out questions that are training questions too.
///
/// # Errors
/// How many are shared, and the first of them.
pub fn check_disjoint(train: &[Question], heldout: &[Question]) -> Result<(), DataError> {
    let seen: BTreeSet<[u8; 32]> = train.iter().map(|q| content_hash(&q.prompt)).collect();
    let mut shared = heldout.iter().filter(|q| seen.contains(&content_hash(&q.prompt)));
    let Some(first) = shared.next() else {
        return Ok(());
    };
    Err(DataError::Overlap {
        count: 1 + shared.count(),
        heldout_row: first.row,
        prompt: first.prompt.text().chars().take(80).collect(),
    })
}

/// Which part of a file that has no split of its own a question belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// To train on.
    Train,
    /// To measure with.
    HeldOut,
}

/// Splits by content: a question's side depends on its text alone, whatever file or order it comes in.
///
/// `heldout_permille` of 1,000 questions are held out on average.
#[must_use]
pub fn split_of(prompt: &Prompt, heldout_permille: u16) -> Split {
    let hash = content_hash(prompt);
    let draw = u32::from_le_bytes([hash[0], hash[1], hash[2], hash[3]]) % 1000;
    if draw < u32::from(heldout_permille) {
        Split::HeldOut
    } else {
        Split::Train
    }
}
