//! The JSON value in a completion.

use serde_json::{Deserializer, Value};

/// Places tried in a text that is no JSON as a whole: a completion of brackets must not cost its square.
const MAX_PLACES: usize = 64;

/// The whole text if it is JSON, else its last fenced block, else the first object or array in it.
pub(super) fn json(text: &str) -> Option<Value> {
    whole(text)
        .or_else(|| fenced(text).and_then(whole))
        .or_else(|| embedded(text))
}

fn whole(text: &str) -> Option<Value> {
    serde_json::from_str(text.trim()).ok()
}

fn fenced(text: &str) -> Option<&str> {
    const FENCE: &str = "```";
    let end = text.rfind(FENCE)?;
    let before = &text[..end];
    let inside = &before[before.rfind(FENCE)? + FENCE.len()..];
    Some(inside.strip_prefix("json").unwrap_or(inside))
}

fn embedded(text: &str) -> Option<Value> {
    let places = text.match_indices(['{', '[']).take(MAX_PLACES);
    let mut found = places.filter_map(|(at, _)| Deserializer::from_str(&text[at..]).into_iter().next()?.ok());
    found.find(|value: &Value| value.is_object() || value.is_array())
}
