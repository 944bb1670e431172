//! JSON lines.

use super::rows::question;
use super::{DataError, LineError, MAX_LINE_BYTES, Question};
use gym_protocol::job::spec::ColumnsSpec;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// Every line's question.
pub(super) fn read(file: File, path: &Path, columns: &ColumnsSpec) -> Result<Vec<Question>, DataError> {
    let io = |source| DataError::Io {
        path: path.to_owned(),
        source,
    };
    let mut reader = BufReader::new(file);
    let mut questions = Vec::new();
    let mut line_number = 0;
    while let Some(bytes) = next_line(&mut reader).map_err(io)? {
        line_number += 1;
        let parsed = parse_line(&bytes, questions.len() as u64, columns);
        questions.extend(parsed.map_err(|reason| DataError::Line {
            path: path.to_owned(),
            line: line_number,
            reason,
        })?);
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
pub(super) fn parse_line(
    bytes: &[u8],
    row: u64,
    columns: &ColumnsSpec,
) -> Result<Option<Question>, LineError> {
    if bytes.len() as u64 >= MAX_LINE_BYTES {
        return Err(LineError::TooLong);
    }
    let text = std::str::from_utf8(bytes).map_err(|_| LineError::Utf8)?;
    // Some editors begin a file with a byte order mark.
    let text = text.trim_start_matches('\u{feff}');
    if text.trim().is_empty() {
        return Ok(None);
    }
    let raw = serde_json::from_str(text).map_err(LineError::Json)?;
    question(raw, row, columns).map(Some)
}
