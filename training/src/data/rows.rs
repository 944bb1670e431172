//! A row's columns as a question.

use super::{LineError, Message, Prompt, Question};
use gym_protocol::job::spec::ColumnsSpec;
use serde_json::{Map, Value};

/// The question in one row, which is a JSON object whatever the file's format.
pub(super) fn question(raw: Value, row: u64, columns: &ColumnsSpec) -> Result<Question, LineError> {
    let object = raw.as_object().ok_or_else(|| LineError::NotObject(kind(&raw)))?;
    Ok(Question {
        row,
        prompt: prompt(object, &columns.prompt)?,
        answer: answer(object, &columns.answer)?,
        raw,
    })
}

/// A column by its name, or a place inside one: `reward_model.ground_truth`.
fn column<'a>(object: &'a Map<String, Value>, name: &str) -> Result<&'a Value, LineError> {
    let whole = object.get(name);
    let inside = || {
        let mut parts = name.split('.');
        let first = object.get(parts.next()?)?;
        parts.try_fold(first, |value, part| value.get(part))
    };
    whole.or_else(inside).ok_or_else(|| LineError::Missing {
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

/// A question may have no answer of its own (null), as several of reasoning-gym's do: rewards that compare with one do not
/// judge it, the others do.
fn answer(object: &Map<String, Value>, name: &str) -> Result<String, LineError> {
    let value = column(object, name)?;
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        Value::Null => Ok(String::new()),
        Value::Bool(_) | Value::Array(_) | Value::Object(_) => Err(LineError::Type {
            column: name.to_owned(),
            got: kind(value),
            must: "text, a number or null",
        }),
    }
}

pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
