//! Question files: JSON lines, one question a line, columns named by the job (TRAINING "Data").
//!
//! A row is numbered by its line (blank lines excluded), so the order of a round is a function of numbers alone
//! (PROTOCOL section 5) and nothing here has state.

use gym_protocol::job::spec::ColumnsSpec;
use serde::Deserialize;
use serde_json::{Map, Value};
use sha3::{Digest, Sha3_256};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

/// The longest line read, in bytes: a longer one is a broken file, not a question.
pub const MAX_LINE_BYTES: u64 = 4 << 20;

/// One question with its reference answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// Position among the file's questions, from 0.
    pub row: u64,
    /// What is asked.
    pub prompt: Prompt,
    /// The reference answer as the file has it; reward functions know forms such as GSM8K's `… #### 18`.
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
    /// A line that is no JSON object, or lacks a column.
    #[error("question file {path}, line {line}: {reason}")]
    Line {
        /// The file.
        path: PathBuf,
        /// Line number from 1.
        line: u64,
        /// What is wrong and what to do.
        reason: LineError,
    },
    /// No question in the file.
    #[error("question file {path} holds no question; it must have one JSON object a line")]
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
    #[error("no column {column:?} among {found:?}; name the right one under [columns] in the job file")]
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

/// Reads a whole question file.
///
/// # Errors
/// The first broken line, an unreadable file, or no question at all.
pub fn read_questions(path: &Path, columns: &ColumnsSpec) -> Result<Vec<Question>, DataError> {
    let io = |source| DataError::Io {
        path: path.to_owned(),
        source,
    };
    let mut reader = BufReader::new(File::open(path).map_err(io)?);
    let mut questions = Vec::new();
    let mut line_number = 0;
    while let Some(bytes) = next_line(&mut reader).map_err(io)? {
        line_number += 1;
        let parsed =
            parse_line(&bytes, questions.len() as u64, columns).map_err(|reason| DataError::Line {
                path: path.to_owned(),
                line: line_number,
                reason,
            })?;
        questions.extend(parsed);
    }
    if questions.is_empty() {
        return Err(DataError::Empty {
            path: path.to_owned(),
        });
    }
    Ok(questions)
}

/// The next line without its end, at most one byte over the limit; `None` at the end of the file.
fn next_line(reader: &mut impl BufRead) -> std::io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    let read = std::io::Read::take(&mut *reader, MAX_LINE_BYTES + 1).read_until(b'\n', &mut bytes)?;
    if read == 0 {
        return Ok(None);
    }
    while bytes.last().is_some_and(|b| matches!(b, b'\n' | b'\r')) {
        bytes.pop();
    }
    Ok(Some(bytes))
}

/// One line's question; `None` for a blank line.
fn parse_line(bytes: &[u8], row: u64, columns: &ColumnsSpec) -> Result<Option<Question>, LineError> {
    if bytes.len() as u64 >= MAX_LINE_BYTES {
        return Err(LineError::TooLong);
    }
    let text = std::str::from_utf8(bytes).map_err(|_| LineError::Utf8)?;
    if text.trim().is_empty() {
        return Ok(None);
    }
    let raw: Value = serde_json::from_str(text).map_err(LineError::Json)?;
    let object = raw.as_object().ok_or_else(|| LineError::NotObject(kind(&raw)))?;
    let prompt = prompt(object, &columns.prompt)?;
    let answer = answer(object, &columns.answer)?;
    Ok(Some(Question {
        row,
        prompt,
        answer,
        raw,
    }))
}

fn column<'a>(object: &'a Map<String, Value>, name: &str) -> Result<&'a Value, LineError> {
    object.get(name).ok_or_else(|| LineError::Missing {
        column: name.to_owned(),
        found: object.keys().cloned().collect(),
    })
}

fn prompt(object: &Map<String, Value>, name: &str) -> Result<Prompt, LineError> {
    let value = column(object, name)?;
    let wrong = |got| LineError::Type {
        column: name.to_owned(),
        got,
        must: "text, or a non-empty list of {\"role\", \"content\"}",
    };
    match value {
        Value::String(text) => Ok(Prompt::Text(text.clone())),
        Value::Array(_) => {
            let turns: Vec<Message> =
                serde_json::from_value(value.clone()).map_err(|_| wrong(kind(value)))?;
            if turns.is_empty() {
                return Err(wrong("empty array"));
            }
            Ok(Prompt::Messages(turns))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => Err(wrong(kind(value))),
    }
}

fn answer(object: &Map<String, Value>, name: &str) -> Result<String, LineError> {
    let value = column(object, name)?;
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => Err(LineError::Type {
            column: name.to_owned(),
            got: kind(value),
            must: "text or a number",
        }),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn file(lines: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(lines.as_bytes()).unwrap();
        file
    }

    fn read(lines: &str) -> Result<Vec<Question>, DataError> {
        read_questions(file(lines).path(), &ColumnsSpec::default())
    }

    #[test]
    fn rows_skip_blank_lines_and_numbers_are_answers() {
        let questions =
            read("{\"question\":\"a\",\"answer\":\"1\"}\r\n\n{\"question\":\"b\",\"answer\":2}").unwrap();
        assert_eq!(questions.len(), 2);
        assert_eq!((questions[1].row, questions[1].answer.as_str()), (1, "2"));
        assert_eq!(questions[0].prompt, Prompt::Text("a".into()));
    }

    #[test]
    fn a_broken_line_is_named() {
        let message = read("{\"question\":\"a\",\"answer\":\"1\"}\n{\"question\":")
            .unwrap_err()
            .to_string();
        assert!(
            message.contains("line 2") && message.contains("mend or delete"),
            "{message}"
        );
    }

    #[test]
    fn a_missing_column_is_named_with_those_there_are() {
        let message = read("{\"prompt\":\"a\",\"answer\":\"1\"}")
            .unwrap_err()
            .to_string();
        assert!(
            message.contains("\"question\"") && message.contains("\"prompt\""),
            "{message}"
        );
    }

    #[test]
    fn wrong_types_are_refused() {
        for line in [
            "[1]",
            "{\"question\":1,\"answer\":\"1\"}",
            "{\"question\":\"a\",\"answer\":null}",
        ] {
            assert!(
                matches!(read(line), Err(DataError::Line { line: 1, .. })),
                "{line}"
            );
        }
        let messages = "{\"question\":[{\"role\":\"user\"}],\"answer\":\"1\"}";
        assert!(read(messages).unwrap_err().to_string().contains("content"));
    }

    #[test]
    fn messages_are_read() {
        let columns = ColumnsSpec {
            prompt: "messages".into(),
            answer: "answer".into(),
        };
        let file = file("{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"answer\":\"1\"}");
        let questions = read_questions(file.path(), &columns).unwrap();
        assert_eq!(questions[0].prompt.text(), "hi");
    }

    #[test]
    fn an_empty_or_absent_file_is_an_error() {
        assert!(matches!(read("\n\n"), Err(DataError::Empty { .. })));
        let gone = read_questions(Path::new("/nonexistent/q.jsonl"), &ColumnsSpec::default());
        assert!(matches!(gone, Err(DataError::Io { .. })));
    }

    #[test]
    fn not_utf8_and_too_long_are_refused() {
        assert!(matches!(
            parse_line(&[b'{', 0xff], 0, &ColumnsSpec::default()),
            Err(LineError::Utf8)
        ));
        let long = vec![b' '; MAX_LINE_BYTES as usize];
        assert!(matches!(
            parse_line(&long, 0, &ColumnsSpec::default()),
            Err(LineError::TooLong)
        ));
    }

    #[test]
    fn overlap_is_found_whatever_the_spacing() {
        let train = read("{\"question\":\"1 +  2\",\"answer\":\"3\"}").unwrap();
        let heldout =
            read("{\"question\":\"1 + 3\",\"answer\":\"4\"}\n{\"question\":\"1 + 2\",\"answer\":\"3\"}")
                .unwrap();
        let error = check_disjoint(&train, &heldout).unwrap_err();
        assert!(
            matches!(
                error,
                DataError::Overlap {
                    count: 1,
                    heldout_row: 1,
                    ..
                }
            ),
            "{error}"
        );
        assert!(check_disjoint(&train, &heldout[..1]).is_ok());
    }

    #[test]
    fn the_split_is_near_its_share_and_depends_on_text_alone() {
        let held = (0..4000)
            .filter(|i| split_of(&Prompt::Text(format!("q {i}")), 250) == Split::HeldOut)
            .count();
        assert!((900..1100).contains(&held), "{held}");
        let spaced = Prompt::Text("q   7".into());
        assert_eq!(split_of(&spaced, 500), split_of(&Prompt::Text("q 7".into()), 500));
    }
}
