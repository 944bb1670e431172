//! `json_schema`: the completion's JSON against a schema in the job file.
//!
//! The schema is a subset of JSON Schema 2020-12: `type`, `enum`, `const`, `properties`, `required`,
//! `additionalProperties`, `minProperties`, `maxProperties`, `items`, `minItems`, `maxItems`, `uniqueItems`, `minimum`,
//! `maximum`, `exclusiveMinimum`, `exclusiveMaximum`, `multipleOf`, `minLength`, `maxLength`, `pattern`, `anyOf`,
//! `oneOf`, `allOf`, `not`, and `true` and `false`. Annotations (`title`, `description`, `$schema`, `default`,
//! `examples`, `$comment`) are skipped. Any other keyword is refused when the job is read: it would check nothing.

mod compile;
mod find;

use super::{RewardConfigError, RewardFunction, Sample, Unscored};
use compile::Schema;
use serde_json::Value;

/// 1 when the completion holds JSON that the schema accepts, else 0.
#[derive(Debug)]
pub(super) struct JsonSchema {
    schema: Schema,
}

impl JsonSchema {
    pub(super) fn new(schema: Option<&str>) -> Result<Self, RewardConfigError> {
        let text = schema.ok_or(RewardConfigError::MissingKey {
            name: "json_schema",
            key: "schema",
            example: "schema = '{\"type\": \"object\", \"required\": [\"answer\"]}'",
        })?;
        let wrong = |reason: String| RewardConfigError::Schema { reason };
        let value: Value = serde_json::from_str(text).map_err(|e| wrong(format!("it is not JSON: {e}")))?;
        let schema = Schema::compile(&value, "#").map_err(wrong)?;
        Ok(Self { schema })
    }
}

impl RewardFunction for JsonSchema {
    fn score(&self, sample: &Sample<'_>) -> Result<f64, Unscored> {
        let valid = find::json(sample.completion).is_some_and(|value| self.schema.accepts(&value));
        Ok(f64::from(u8::from(valid)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn score(schema: &str, completion: &str) -> f64 {
        let function = JsonSchema::new(Some(schema)).unwrap();
        let sample = Sample {
            prompt: "",
            completion,
            completion_tokens: 1,
            answer: "",
            row: &Value::Null,
        };
        function.score(&sample).unwrap()
    }

    #[test]
    fn every_keyword_accepts_and_refuses() {
        let cases = [
            (r#"{"type": "object"}"#, "{}", "[]"),
            (r#"{"type": ["integer", "null"]}"#, "3.0", "3.5"),
            (r#"{"type": "boolean"}"#, "true", "1"),
            (
                r#"{"type": "string", "minLength": 2, "maxLength": 3}"#,
                "\"äöü\"",
                "\"a\"",
            ),
            (r#"{"pattern": "^a+$"}"#, "\"aa\"", "\"ab\""),
            (r#"{"enum": [1, "x"]}"#, "1.0", "2"),
            (r#"{"const": {"a": 1}}"#, r#"{"a": 1}"#, r#"{"a": 2}"#),
            (r#"{"minimum": 1, "maximum": 2}"#, "2", "2.5"),
            (r#"{"exclusiveMinimum": 1, "exclusiveMaximum": 2}"#, "1.5", "1"),
            (r#"{"multipleOf": 0.5}"#, "1.5", "1.6"),
            (r#"{"required": ["a"]}"#, r#"{"a": null}"#, r#"{"b": 1}"#),
            (
                r#"{"properties": {"a": {"type": "number"}}}"#,
                r#"{"a": 1, "b": "x"}"#,
                r#"{"a": "1"}"#,
            ),
            (
                r#"{"properties": {"a": true}, "additionalProperties": false}"#,
                r#"{"a": 1}"#,
                r#"{"a": 1, "b": 2}"#,
            ),
            (
                r#"{"additionalProperties": {"type": "string"}}"#,
                r#"{"a": "x"}"#,
                r#"{"a": 1}"#,
            ),
            (r#"{"minProperties": 1, "maxProperties": 1}"#, r#"{"a": 1}"#, "{}"),
            (r#"{"items": {"type": "integer"}, "minItems": 1}"#, "[1, 2]", "[]"),
            (
                r#"{"items": {"type": "integer"}, "maxItems": 2}"#,
                "[1]",
                "[1, \"2\"]",
            ),
            (r#"{"uniqueItems": true}"#, "[1, 2]", "[1, 1]"),
            (r#"{"anyOf": [{"type": "null"}, {"minimum": 3}]}"#, "4", "1"),
            (r#"{"oneOf": [{"minimum": 3}, {"maximum": 5}]}"#, "6", "4"),
            (r#"{"allOf": [{"minimum": 3}, {"maximum": 5}]}"#, "4", "6"),
            (r#"{"not": {"type": "string"}}"#, "1", "\"a\""),
        ];
        for (schema, yes, no) in cases {
            assert_eq!(score(schema, yes), 1.0, "{schema} {yes}");
            assert_eq!(score(schema, no), 0.0, "{schema} {no}");
        }
        assert_eq!(score("true", "1"), 1.0);
        assert_eq!(score("false", "1"), 0.0);
    }

    #[test]
    fn the_json_is_found_in_a_completion() {
        let schema = r#"{"type": "object", "required": ["a"]}"#;
        for text in [
            "{\"a\": 1}",
            "Sure! Here it is:\n```json\n{\"a\": 1}\n```\nDone.",
            "The result {\"a\": {\"b\": [1]}} is final",
            "set {x} and then {\"a\": 1}",
        ] {
            assert_eq!(score(schema, text), 1.0, "{text}");
        }
        for text in ["", "{\"a\": 1", "{'a': 1}", "a: 1", "[1]"] {
            assert_eq!(score(schema, text), 0.0, "{text}");
        }
    }

    #[test]
    fn a_schema_that_would_check_nothing_is_refused() {
        for (schema, word) in [
            ("{", "not JSON"),
            (r#"{"typ": "object"}"#, "typ"),
            (r##"{"$ref": "#/x"}"##, "$ref"),
            (r#"{"type": "objekt"}"#, "objekt"),
            (r#"{"properties": {"a": {"minimum": "1"}}}"#, "#/properties/a"),
            (r#"{"pattern": "("}"#, "pattern"),
            ("3", "object"),
        ] {
            let message = JsonSchema::new(Some(schema)).unwrap_err().to_string();
            assert!(message.contains(word), "{schema}: {message}");
        }
        assert!(JsonSchema::new(None).is_err());
    }

    #[test]
    fn nothing_written_runs_away() {
        let deep = "[".repeat(100_000);
        assert_eq!(score("true", &deep), 0.0);
        let many = "{".repeat(100_000);
        assert_eq!(score("true", &many), 0.0);
    }
}
