//! Chat templates as transformers renders them: Jinja with blocks trimmed, Python's string methods, `tojson` in Python's
//! spacing, `raise_exception` and `strftime_now`.

use crate::data::Message;
use minijinja::value::Kwargs;
use minijinja::{Environment, Error, ErrorKind, Value, context};
use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use time::{Date, Month};

/// The day that `strftime_now` tells: the one Llama 3's template falls back on. A prompt is a function of public
/// numbers, so it must not depend on when it is rendered.
const TODAY: (i32, Month, u8) = (2024, Month::July, 26);

/// A compiled chat template.
pub struct ChatTemplate {
    environment: Environment<'static>,
}

/// What a template is given.
#[derive(Clone, Debug)]
pub struct Chat<'a> {
    /// The conversation.
    pub messages: &'a [Message],
    /// End with the opening of the assistant's turn.
    pub add_generation_prompt: bool,
    /// `bos_token`; empty when there is none.
    pub bos: &'a str,
    /// `eos_token`; empty when there is none.
    pub eos: &'a str,
    /// Further variables, as `enable_thinking`. What is absent is undefined in the template.
    pub variables: BTreeMap<String, serde_json::Value>,
}

impl<'a> Chat<'a> {
    /// A conversation that the assistant is to continue, without special tokens and variables.
    #[must_use]
    pub fn new(messages: &'a [Message]) -> Self {
        Self {
            messages,
            add_generation_prompt: true,
            bos: "",
            eos: "",
            variables: BTreeMap::new(),
        }
    }
}

impl ChatTemplate {
    /// Compiles a template's source.
    ///
    /// # Errors
    /// Where and why it is no Jinja.
    pub fn compile(source: String) -> Result<Self, Error> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        environment.add_filter("tojson", tojson);
        environment.add_template_owned(NAME, source)?;
        Ok(Self { environment })
    }

    /// The conversation as text.
    ///
    /// # Errors
    /// What the template refuses, or where it fails.
    pub fn render(&self, chat: &Chat<'_>) -> Result<String, Error> {
        let given = context! {
            messages => chat.messages,
            add_generation_prompt => chat.add_generation_prompt,
            bos_token => chat.bos,
            eos_token => chat.eos,
        };
        let variables = Value::from_serialize(&chat.variables);
        self.environment
            .get_template(NAME)?
            .render(context! { ..given, ..variables })
    }
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate").finish_non_exhaustive()
    }
}

const NAME: &str = "chat";

fn raise_exception(message: String) -> Result<String, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// Python's `strftime` of a fixed day, midnight: see [`TODAY`].
fn strftime_now(format: &str) -> Result<String, Error> {
    let (year, month, day) = TODAY;
    let date = Date::from_calendar_date(year, month, day)
        .map_err(|e| Error::new(ErrorKind::InvalidOperation, e.to_string()))?;
    let mut out = String::new();
    let mut rest = format.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let code = rest.next().unwrap_or('%');
        let (month, weekday) = (date.month().to_string(), date.weekday().to_string());
        match code {
            'Y' => out.push_str(&date.year().to_string()),
            'y' => out.push_str(&format!("{:02}", date.year() % 100)),
            'm' => out.push_str(&format!("{:02}", u8::from(date.month()))),
            'B' => out.push_str(&month),
            'b' => out.push_str(&month[..3]),
            'd' => out.push_str(&format!("{:02}", date.day())),
            'A' => out.push_str(&weekday),
            'a' => out.push_str(&weekday[..3]),
            'H' | 'M' | 'S' => out.push_str("00"),
            '%' => out.push('%'),
            _ => {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    format!("strftime_now knows no %{code}"),
                ));
            }
        }
    }
    Ok(out)
}

/// `json.dumps(value, ensure_ascii=False)`; with `indent`, in lines.
fn tojson(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    // transformers' filter takes these too; they change nothing that a template's values need.
    for ignored in ["ensure_ascii", "sort_keys", "separators"] {
        let _: Option<Value> = options.get(ignored)?;
    }
    options.assert_all_used()?;
    let wrong = |e: serde_json::Error| Error::new(ErrorKind::BadSerialization, e.to_string());
    let mut out = Vec::new();
    match indent {
        Some(width) => {
            let spaces = " ".repeat(width.min(16));
            let pretty = serde_json::ser::PrettyFormatter::with_indent(spaces.as_bytes());
            value
                .serialize(&mut Serializer::with_formatter(&mut out, pretty))
                .map_err(wrong)?;
        }
        None => value
            .serialize(&mut Serializer::with_formatter(&mut out, Python))
            .map_err(wrong)?,
    }
    Ok(Value::from_safe_string(
        String::from_utf8_lossy(&out).into_owned(),
    ))
}

/// `, ` and `: ` between things.
struct Python;

impl Formatter for Python {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}
