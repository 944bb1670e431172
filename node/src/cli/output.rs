//! Printing: plain lines or JSON. A reader that went away (`| head`) is no error.

use serde_json::Value;
use std::io::{self, Write};

/// How a command answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Output {
    /// For people.
    Plain,
    /// For programs.
    Json,
}

impl Output {
    pub(super) fn new(json: bool) -> Self {
        if json { Self::Json } else { Self::Plain }
    }

    /// Prints `value` as JSON, or what `plain` makes of it.
    pub(super) fn show(self, value: &Value, plain: impl FnOnce(&Value) -> String) {
        match self {
            Self::Json => line(&value.to_string()),
            Self::Plain => line(plain(value).trim_end()),
        }
    }

    /// A remark for people, beside what was asked for; in JSON it has a field of its own.
    pub(super) fn note(self, text: &str) {
        if self == Self::Plain {
            complain(text);
        }
    }
}

/// One line (or several) on standard output.
pub(super) fn line(text: &str) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{text}");
    let _ = out.flush();
}

/// One line on standard error.
pub(super) fn complain(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// `key` of an object as text; `-` when it is absent.
pub(super) fn text(value: &Value, key: &str) -> String {
    match value.get(key) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Null) | None => "-".to_owned(),
        Some(other) => other.to_string(),
    }
}

/// An array of texts as `a, b`; `none` when it is empty.
pub(super) fn list(value: &Value, key: &str) -> String {
    let items: Vec<&str> = value
        .get(key)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    if items.is_empty() {
        "none".to_owned()
    } else {
        items.join(", ")
    }
}

/// Rows under headings, columns aligned.
pub(super) fn table(headings: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = headings.iter().map(|h| h.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let format = |cells: Vec<&str>| {
        let padded: Vec<String> = cells
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        padded.join("  ").trim_end().to_owned()
    };
    let mut lines = vec![format(headings.to_vec())];
    lines.extend(
        rows.iter()
            .map(|row| format(row.iter().map(String::as_str).collect())),
    );
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align() {
        let rows = vec![vec!["a".into(), "long".into()], vec!["bbb".into(), "c".into()]];
        assert_eq!(table(&["X", "Y"], &rows), "X    Y\na    long\nbbb  c");
    }
}
