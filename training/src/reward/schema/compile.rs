//! A schema as checks, each made once when the job is read.

use regex::Regex;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Everything must hold.
#[derive(Debug)]
pub(super) struct Schema {
    checks: Vec<Check>,
}

#[derive(Debug)]
enum Check {
    Never,
    Type(Vec<Kind>),
    OneOf(Vec<Value>),
    Number {
        bound: Bound,
        value: f64,
    },
    Count {
        of: Countable,
        bound: Bound,
        value: u64,
    },
    Pattern(Regex),
    Required(Vec<String>),
    Object {
        known: BTreeMap<String, Schema>,
        others: Schema,
    },
    Items(Schema),
    Unique,
    Several {
        want: Want,
        of: Vec<Schema>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Null,
    Boolean,
    Integer,
    Number,
    String,
    Array,
    Object,
}

#[derive(Clone, Copy, Debug)]
enum Bound {
    AtLeast,
    AtMost,
    Above,
    Below,
    MultipleOf,
}

#[derive(Clone, Copy, Debug)]
enum Countable {
    Characters,
    Items,
    Properties,
}

#[derive(Clone, Copy, Debug)]
enum Want {
    All,
    Any,
    One,
    None,
}

/// Keywords that say something to people alone.
const ANNOTATIONS: [&str; 7] = [
    "title",
    "description",
    "$schema",
    "$id",
    "$comment",
    "default",
    "examples",
];

impl Schema {
    /// Compiles a schema; the error says which keyword at which place is wrong.
    pub(super) fn compile(schema: &Value, at: &str) -> Result<Self, String> {
        match schema {
            Value::Bool(true) => Ok(Self { checks: Vec::new() }),
            Value::Bool(false) => Ok(Self {
                checks: vec![Check::Never],
            }),
            Value::Object(keywords) => {
                let mut checks = Vec::new();
                for (keyword, value) in keywords {
                    let what = format!("{at}/{keyword}");
                    checks.extend(check(keyword, value, keywords, &what)?);
                }
                Ok(Self { checks })
            }
            Value::Null | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                Err(format!("{at} must be an object, true or false"))
            }
        }
    }

    /// Whether `value` passes every check.
    pub(super) fn accepts(&self, value: &Value) -> bool {
        self.checks.iter().all(|check| check.accepts(value))
    }
}

fn check(keyword: &str, value: &Value, all: &Map<String, Value>, at: &str) -> Result<Option<Check>, String> {
    let number = |bound| {
        let value = value.as_f64().ok_or(format!("{at} must be a number"))?;
        Ok(Some(Check::Number { bound, value }))
    };
    let count = |of, bound| {
        let value = value.as_u64().ok_or(format!("{at} must be a number from 0"))?;
        Ok(Some(Check::Count { of, bound, value }))
    };
    let several = |want| {
        let list = value
            .as_array()
            .filter(|l| !l.is_empty())
            .ok_or(format!("{at} must be a list of schemas"))?;
        let of = list
            .iter()
            .enumerate()
            .map(|(i, schema)| Schema::compile(schema, &format!("{at}/{i}")))
            .collect::<Result<_, _>>()?;
        Ok(Some(Check::Several { want, of }))
    };
    match keyword {
        "type" => types(value, at).map(|kinds| Some(Check::Type(kinds))),
        "enum" => {
            let values = value.as_array().ok_or(format!("{at} must be a list"))?;
            Ok(Some(Check::OneOf(values.clone())))
        }
        "const" => Ok(Some(Check::OneOf(vec![value.clone()]))),
        "minimum" => number(Bound::AtLeast),
        "maximum" => number(Bound::AtMost),
        "exclusiveMinimum" => number(Bound::Above),
        "exclusiveMaximum" => number(Bound::Below),
        "multipleOf" => number(Bound::MultipleOf),
        "minLength" => count(Countable::Characters, Bound::AtLeast),
        "maxLength" => count(Countable::Characters, Bound::AtMost),
        "minItems" => count(Countable::Items, Bound::AtLeast),
        "maxItems" => count(Countable::Items, Bound::AtMost),
        "minProperties" => count(Countable::Properties, Bound::AtLeast),
        "maxProperties" => count(Countable::Properties, Bound::AtMost),
        "pattern" => {
            let text = value.as_str().ok_or(format!("{at} must be text"))?;
            let regex = Regex::new(text).map_err(|e| format!("{at} does not compile: {e}"))?;
            Ok(Some(Check::Pattern(regex)))
        }
        "required" => names(value, at).map(|names| Some(Check::Required(names))),
        "properties" => object(Some(value), all.get("additionalProperties"), at).map(Some),
        // With `properties` beside it, it is part of that check.
        "additionalProperties" if all.contains_key("properties") => Ok(None),
        "additionalProperties" => object(None, Some(value), at).map(Some),
        "items" => Ok(Some(Check::Items(Schema::compile(value, at)?))),
        "uniqueItems" => {
            let unique = value.as_bool().ok_or(format!("{at} must be true or false"))?;
            Ok(unique.then_some(Check::Unique))
        }
        "allOf" => several(Want::All),
        "anyOf" => several(Want::Any),
        "oneOf" => several(Want::One),
        "not" => Ok(Some(Check::Several {
            want: Want::None,
            of: vec![Schema::compile(value, at)?],
        })),
        _ if ANNOTATIONS.contains(&keyword) => Ok(None),
        _ => Err(format!("{at}: this keyword is not supported")),
    }
}

fn types(value: &Value, at: &str) -> Result<Vec<Kind>, String> {
    let named = match value.as_str() {
        Some(name) => vec![name.to_owned()],
        None => names(value, at)?,
    };
    named
        .iter()
        .map(|name| match name.as_str() {
            "null" => Ok(Kind::Null),
            "boolean" => Ok(Kind::Boolean),
            "integer" => Ok(Kind::Integer),
            "number" => Ok(Kind::Number),
            "string" => Ok(Kind::String),
            "array" => Ok(Kind::Array),
            "object" => Ok(Kind::Object),
            other => Err(format!("{at}: there is no type {other:?}")),
        })
        .collect()
}

fn names(value: &Value, at: &str) -> Result<Vec<String>, String> {
    let list = value.as_array().ok_or(format!("{at} must be a list of names"))?;
    list.iter()
        .map(|name| {
            name.as_str()
                .map(str::to_owned)
                .ok_or(format!("{at} must hold names"))
        })
        .collect()
}

fn object(properties: Option<&Value>, others: Option<&Value>, at: &str) -> Result<Check, String> {
    let mut known = BTreeMap::new();
    if let Some(properties) = properties {
        let map = properties
            .as_object()
            .ok_or(format!("{at} must be an object of schemas"))?;
        for (name, schema) in map {
            known.insert(name.clone(), Schema::compile(schema, &format!("{at}/{name}"))?);
        }
    }
    let others = Schema::compile(others.unwrap_or(&Value::Bool(true)), at)?;
    Ok(Check::Object { known, others })
}

impl Check {
    /// A check of one kind of value accepts every other kind.
    fn accepts(&self, value: &Value) -> bool {
        match self {
            Self::Never => false,
            Self::Type(kinds) => kinds.iter().any(|kind| kind.is(value)),
            Self::OneOf(values) => values.iter().any(|v| same(v, value)),
            Self::Number { bound, value: limit } => value.as_f64().is_none_or(|v| bound.holds(v, *limit)),
            Self::Count {
                of,
                bound,
                value: limit,
            } => of
                .count(value)
                .is_none_or(|n| bound.holds(n as f64, *limit as f64)),
            Self::Pattern(regex) => value.as_str().is_none_or(|text| regex.is_match(text)),
            Self::Required(names) => value
                .as_object()
                .is_none_or(|o| names.iter().all(|name| o.contains_key(name))),
            Self::Object { known, others } => value.as_object().is_none_or(|o| {
                o.iter()
                    .all(|(name, value)| known.get(name).unwrap_or(others).accepts(value))
            }),
            Self::Items(schema) => value
                .as_array()
                .is_none_or(|l| l.iter().all(|v| schema.accepts(v))),
            Self::Unique => value
                .as_array()
                .is_none_or(|l| (1..l.len()).all(|i| l[..i].iter().all(|v| !same(v, &l[i])))),
            Self::Several { want, of } => {
                let passed = of.iter().filter(|schema| schema.accepts(value)).count();
                match want {
                    Want::All => passed == of.len(),
                    Want::Any => passed > 0,
                    Want::One => passed == 1,
                    Want::None => passed == 0,
                }
            }
        }
    }
}

impl Kind {
    fn is(self, value: &Value) -> bool {
        match self {
            Self::Null => value.is_null(),
            Self::Boolean => value.is_boolean(),
            Self::Integer => value.as_f64().is_some_and(|v| v.fract() == 0.0),
            Self::Number => value.is_number(),
            Self::String => value.is_string(),
            Self::Array => value.is_array(),
            Self::Object => value.is_object(),
        }
    }
}

impl Bound {
    fn holds(self, value: f64, limit: f64) -> bool {
        match self {
            Self::AtLeast => value >= limit,
            Self::AtMost => value <= limit,
            Self::Above => value > limit,
            Self::Below => value < limit,
            Self::MultipleOf => {
                let quotient = value / limit;
                (quotient - quotient.round()).abs() < 1e-9
            }
        }
    }
}

impl Countable {
    fn count(self, value: &Value) -> Option<usize> {
        match self {
            Self::Characters => value.as_str().map(|s| s.chars().count()),
            Self::Items => value.as_array().map(Vec::len),
            Self::Properties => value.as_object().map(Map::len),
        }
    }
}

/// 1 and 1.0 are one number.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => x.as_f64() == y.as_f64(),
        _ => a == b,
    }
}
