//! Which part of a text is its answer.

use super::super::text::last_boxed;

/// The answer in a completion: the last box, else what follows the last "answer is" or "answer:", else the last formula
/// between dollars, else the last line.
pub(super) fn answer(text: &str) -> &str {
    last_boxed(text)
        .or_else(|| announced(text))
        .or_else(|| last_formula(text))
        .unwrap_or_else(|| text.trim().lines().next_back().unwrap_or_default())
}

/// The answer in a reference: its box when it has one (MATH's solutions), else all of it.
pub(super) fn wanted(reference: &str) -> &str {
    last_boxed(reference).unwrap_or(reference)
}

fn announced(text: &str) -> Option<&str> {
    const MARKS: [&str; 4] = ["answer is", "Answer:", "answer:", "<answer>"];
    let end = MARKS
        .iter()
        .filter_map(|mark| Some(text.rfind(mark)? + mark.len()))
        .max()?;
    let rest = text[end..].trim_start_matches([':', ' ', '*', '\n']);
    let line = rest.lines().next()?;
    let line = line.split("</answer>").next()?;
    if let Some(formula) = first_formula(line) {
        return Some(formula);
    }
    let stop = line.find(". ").unwrap_or(line.len());
    Some(line[..stop].trim_end_matches(['*', ' ']))
}

const FENCES: [(&str, &str); 4] = [("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]")];

fn first_formula(line: &str) -> Option<&str> {
    let found = FENCES.iter().filter_map(|(open, close)| {
        let start = line.find(open)?;
        let inside = &line[start + open.len()..];
        Some((start, &inside[..inside.find(close)?]))
    });
    // At one place the longer fence comes first: min_by_key keeps the first of equals.
    found.min_by_key(|(start, _)| *start).map(|(_, inside)| inside)
}

fn last_formula(text: &str) -> Option<&str> {
    let found = FENCES.iter().filter_map(|(open, close)| {
        let end = text.rfind(close)?;
        let before = &text[..end];
        let start = before.rfind(open)? + open.len();
        let inside = &before[start..];
        (!inside.trim().is_empty()).then_some((end, inside))
    });
    found.max_by_key(|(end, _)| *end).map(|(_, inside)| inside)
}
