//! Which part of a text is its answer.

use std::borrow::Cow;

const BOX: &str = "\\boxed{";

/// The answer in a completion: the last box, with those that it continues ("\boxed{1} and \boxed{2}"), else what follows
/// the last "answer is", "answer:" or "####", else the last formula between dollars, else the last line.
pub(super) fn answer(text: &str) -> Cow<'_, str> {
    boxes(text).unwrap_or_else(|| {
        let plain = announced(text).or_else(|| last_formula(text));
        Cow::Borrowed(plain.unwrap_or_else(|| text.trim().lines().next_back().unwrap_or_default()))
    })
}

/// The answer in a reference: its boxes when it has any (MATH's solutions), else all of it.
pub(super) fn wanted(reference: &str) -> Cow<'_, str> {
    boxes(reference).unwrap_or(Cow::Borrowed(reference))
}

/// The inside of the last box; of several with nothing but "and", "or" or a comma between them, all, with commas.
fn boxes(text: &str) -> Option<Cow<'_, str>> {
    let (mut before, inside, _) = last_box(text)?;
    let mut all = vec![inside];
    while let Some(rest) = joined(before)
        && let Some((earlier, inside, after)) = last_box(rest)
        && after.is_empty()
    {
        all.insert(0, inside);
        before = earlier;
    }
    Some(match all.as_slice() {
        [one] => Cow::Borrowed(*one),
        several => Cow::Owned(several.join(", ")),
    })
}

/// What stands before, in and after the last `\boxed{…}`, braces balanced.
fn last_box(text: &str) -> Option<(&str, &str, &str)> {
    let start = text.rfind(BOX)?;
    let (inside, after) = super::clean::group(&text[start + BOX.len() - 1..])?;
    Some((&text[..start], inside, after))
}

/// A text without the word or comma at its end that joins it to what follows; `None` where there is none.
fn joined(text: &str) -> Option<&str> {
    let fence = |c: char| c.is_whitespace() || c == '$';
    let text = text.trim_end_matches(fence);
    let word = text.strip_suffix("and").or_else(|| text.strip_suffix("or"));
    let rest = word.unwrap_or(text).trim_end_matches(fence);
    let comma = rest.strip_suffix(',');
    (word.is_some() || comma.is_some()).then(|| comma.unwrap_or(rest).trim_end_matches(fence))
}

fn announced(text: &str) -> Option<&str> {
    const MARKS: [&str; 5] = ["answer is", "Answer:", "answer:", "<answer>", "####"];
    let end = MARKS
        .iter()
        .filter_map(|mark| Some(text.rfind(mark)? + mark.len()))
        .max()?;
    if let (true, Some((inside, _))) = (text[..end].ends_with('>'), text[end..].split_once("</answer>"))
        && inside.trim().contains('\n')
    {
        return Some(inside.trim());
    }
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
