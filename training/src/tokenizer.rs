//! The tokenizer of a Hugging Face directory: `tokenizer.json`, `tokenizer_config.json` and the end-of-sequence
//! ids of `generation_config.json` (TRAINING "Models", "Data").

use crate::data::{Message, Prompt};
use minijinja::{Environment, context};
use serde_json::Value;
use std::fmt;
use std::path::{Path, PathBuf};
use tokenizers::Tokenizer;

/// A loaded tokenizer with the ids that generation needs.
pub struct TextTokenizer {
    inner: Tokenizer,
    eos: Vec<u32>,
    pad: u32,
    bos: Option<String>,
    eos_text: String,
    template: Option<Environment<'static>>,
}

/// Why a tokenizer cannot be used. Messages name the file and what to do.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// A file is missing or unreadable.
    #[error("{path}: {source}; a model directory needs tokenizer.json")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// `tokenizer.json` is not one.
    #[error("{path} is no tokenizer: {reason}; fetch the model again")]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// The tokenizers crate's reason.
        reason: String,
    },
    /// A configuration file is not JSON.
    #[error("{path} is not JSON: {source}; fetch the model again")]
    Json {
        /// The file.
        path: PathBuf,
        /// The parser's reason.
        source: serde_json::Error,
    },
    /// No end-of-sequence id anywhere.
    #[error(
        "{dir} names no end-of-sequence token; set eos_token_id in generation_config.json or config.json, \
         or eos_token in tokenizer_config.json"
    )]
    NoEos {
        /// The model directory.
        dir: PathBuf,
    },
    /// A special token that is not in the vocabulary.
    #[error(
        "{dir}: {token:?} is named as a special token but is not in the vocabulary; mend tokenizer_config.json"
    )]
    UnknownSpecial {
        /// The model directory.
        dir: PathBuf,
        /// The token.
        token: String,
    },
    /// The chat template does not compile.
    #[error(
        "{dir}: the chat template does not compile: {source}; mend chat_template in tokenizer_config.json"
    )]
    Template {
        /// The model directory.
        dir: PathBuf,
        /// The template engine's reason.
        source: minijinja::Error,
    },
}

/// Why one text cannot be turned into ids, or back.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    /// The tokenizer refused the text.
    #[error("the tokenizer cannot encode or decode this text: {0}")]
    Tokenizer(String),
    /// The chat template failed on these messages.
    #[error("the chat template fails on these messages: {0}")]
    Template(#[from] minijinja::Error),
    /// Messages without a template to render them.
    #[error("the question is a list of messages but the model has no chat template; use a plain text column")]
    NoTemplate,
}

impl TextTokenizer {
    /// Loads the tokenizer of a model directory.
    ///
    /// # Errors
    /// A missing or broken file, a special token outside the vocabulary, no end-of-sequence id.
    pub fn load(dir: &Path) -> Result<Self, TokenizerError> {
        let inner = load_tokenizer(&dir.join("tokenizer.json"))?;
        let config = optional_json(&dir.join("tokenizer_config.json"))?;
        let special = |key: &str| config.as_ref().and_then(|c| special_text(c, key));
        let eos = eos_ids(dir, &inner, special("eos_token").as_deref())?;
        let pad = match special("pad_token") {
            Some(token) => id_of(dir, &inner, &token)?,
            None => eos[0],
        };
        let eos_text = special("eos_token").or_else(|| inner.id_to_token(eos[0]));
        Ok(Self {
            eos_text: eos_text.unwrap_or_default(),
            bos: special("bos_token"),
            template: template(dir, config.as_ref())?,
            inner,
            eos,
            pad,
        })
    }

    /// Ids of a prompt: the chat template's rendering when there is one, else the text with the tokenizer's own
    /// special tokens. Exactly one BOS where the model has one, never two.
    ///
    /// # Errors
    /// A text the tokenizer refuses, or messages that cannot be rendered.
    pub fn encode_prompt(&self, prompt: &Prompt) -> Result<Vec<u32>, EncodeError> {
        let mut ids = match (&self.template, prompt) {
            (Some(_), Prompt::Text(text)) => self.encode_chat(&[user(text)])?,
            (Some(_), Prompt::Messages(turns)) => self.encode_chat(turns)?,
            (None, Prompt::Text(text)) => self.encode_with(text, Special::Add)?,
            (None, Prompt::Messages(_)) => return Err(EncodeError::NoTemplate),
        };
        self.drop_second_bos(&mut ids);
        Ok(ids)
    }

    /// Ids of a text as it stands, no special token added.
    ///
    /// # Errors
    /// A text the tokenizer refuses.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, EncodeError> {
        self.encode_with(text, Special::Leave)
    }

    /// The text of `ids`, special tokens left out.
    ///
    /// # Errors
    /// Ids that the tokenizer's decoder refuses.
    pub fn decode(&self, ids: &[u32]) -> Result<String, EncodeError> {
        self.inner
            .decode(ids, true)
            .map_err(|e| EncodeError::Tokenizer(e.to_string()))
    }

    /// The ids that end a completion, at least one.
    #[must_use]
    pub fn eos_ids(&self) -> &[u32] {
        &self.eos
    }

    /// The id that fills a batch's unused places.
    #[must_use]
    pub fn pad_id(&self) -> u32 {
        self.pad
    }

    /// Ids in the vocabulary, added tokens included.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// Whether conversations can be rendered.
    #[must_use]
    pub fn has_chat_template(&self) -> bool {
        self.template.is_some()
    }

    fn encode_with(&self, text: &str, special: Special) -> Result<Vec<u32>, EncodeError> {
        let encoding = self
            .inner
            .encode_fast(text, special == Special::Add)
            .map_err(|e| EncodeError::Tokenizer(e.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The rendered conversation's ids; the template writes the special tokens itself.
    fn encode_chat(&self, turns: &[Message]) -> Result<Vec<u32>, EncodeError> {
        let rendered = self.render(turns)?;
        self.encode_with(&rendered, Special::Leave)
    }

    fn render(&self, turns: &[Message]) -> Result<String, EncodeError> {
        let environment = self.template.as_ref().ok_or(EncodeError::NoTemplate)?;
        let rendered = environment.get_template(TEMPLATE)?.render(context! {
            messages => turns,
            add_generation_prompt => true,
            bos_token => self.bos.as_deref().unwrap_or_default(),
            eos_token => self.eos_text,
        })?;
        Ok(rendered)
    }

    /// Some templates write a BOS and some tokenizers add one: keep the first.
    fn drop_second_bos(&self, ids: &mut Vec<u32>) {
        let bos = self
            .bos
            .as_deref()
            .and_then(|token| self.inner.token_to_id(token));
        while bos.is_some() && ids.len() > 1 && ids.first().copied() == bos && ids.get(1).copied() == bos {
            ids.remove(1);
        }
    }
}

impl fmt::Debug for TextTokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TextTokenizer")
            .field("vocab_size", &self.vocab_size())
            .field("eos", &self.eos)
            .field("pad", &self.pad)
            .field("bos", &self.bos)
            .field("chat_template", &self.template.is_some())
            .finish_non_exhaustive()
    }
}

const TEMPLATE: &str = "chat";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Special {
    Add,
    Leave,
}

fn user(text: &str) -> Message {
    Message {
        role: "user".into(),
        content: text.to_owned(),
    }
}

fn load_tokenizer(path: &Path) -> Result<Tokenizer, TokenizerError> {
    let bytes = std::fs::read(path).map_err(|source| TokenizerError::Io {
        path: path.to_owned(),
        source,
    })?;
    let mut inner = Tokenizer::from_bytes(bytes).map_err(|e| TokenizerError::Tokenizer {
        path: path.to_owned(),
        reason: e.to_string(),
    })?;
    // Padding and truncation are ours to do: a file that carries them must not change ids.
    inner.with_padding(None);
    inner
        .with_truncation(None)
        .map_err(|e| TokenizerError::Tokenizer {
            path: path.to_owned(),
            reason: e.to_string(),
        })?;
    Ok(inner)
}

fn optional_json(path: &Path) -> Result<Option<Value>, TokenizerError> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => {
            return Err(TokenizerError::Io {
                path: path.to_owned(),
                source,
            });
        }
    };
    let value = serde_json::from_slice(&bytes).map_err(|source| TokenizerError::Json {
        path: path.to_owned(),
        source,
    })?;
    Ok(Some(value))
}

/// A special token is written as its text or as an object with `content`.
fn special_text(config: &Value, key: &str) -> Option<String> {
    let value = config.get(key)?;
    let text = value.as_str().or_else(|| value.get("content")?.as_str())?;
    Some(text.to_owned())
}

fn id_of(dir: &Path, tokenizer: &Tokenizer, token: &str) -> Result<u32, TokenizerError> {
    tokenizer
        .token_to_id(token)
        .ok_or_else(|| TokenizerError::UnknownSpecial {
            dir: dir.to_owned(),
            token: token.to_owned(),
        })
}

/// `generation_config.json` first, then the tokenizer's own, then `config.json`, as transformers generates.
fn eos_ids(dir: &Path, tokenizer: &Tokenizer, named: Option<&str>) -> Result<Vec<u32>, TokenizerError> {
    let from_file = |name: &str| -> Result<Vec<u32>, TokenizerError> {
        let config = optional_json(&dir.join(name))?;
        Ok(config.map(|c| ids_in(&c["eos_token_id"])).unwrap_or_default())
    };
    let generation = from_file("generation_config.json")?;
    if !generation.is_empty() {
        return Ok(generation);
    }
    if let Some(token) = named {
        return Ok(vec![id_of(dir, tokenizer, token)?]);
    }
    let model = from_file("config.json")?;
    if model.is_empty() {
        return Err(TokenizerError::NoEos { dir: dir.to_owned() });
    }
    Ok(model)
}

/// One id or a list of them; anything else counts as none.
fn ids_in(value: &Value) -> Vec<u32> {
    let one = |v: &Value| v.as_u64().and_then(|id| u32::try_from(id).ok());
    match value.as_array() {
        Some(list) => list.iter().filter_map(one).collect(),
        None => one(value).into_iter().collect(),
    }
}

/// The template stands in `tokenizer_config.json` or, newer, in a file of its own.
fn template(dir: &Path, config: Option<&Value>) -> Result<Option<Environment<'static>>, TokenizerError> {
    let inline = config
        .and_then(|c| c["chat_template"].as_str())
        .map(str::to_owned);
    let source = match inline {
        Some(source) => source,
        None => match std::fs::read_to_string(dir.join("chat_template.jinja")) {
            Ok(source) => source,
            Err(_) => return Ok(None),
        },
    };
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_unknown_method_callback(python_method);
    environment.add_function("raise_exception", raise_exception);
    environment
        .add_template_owned(TEMPLATE, source)
        .map_err(|source| TokenizerError::Template {
            dir: dir.to_owned(),
            source,
        })?;
    Ok(Some(environment))
}

fn raise_exception(message: String) -> Result<String, minijinja::Error> {
    Err(minijinja::Error::new(
        minijinja::ErrorKind::InvalidOperation,
        message,
    ))
}

/// The methods of Python's strings that published chat templates call.
fn python_method(
    _: &minijinja::State<'_, '_>,
    value: &minijinja::Value,
    method: &str,
    args: &[minijinja::Value],
) -> Result<minijinja::Value, minijinja::Error> {
    let unknown = || minijinja::Error::from(minijinja::ErrorKind::UnknownMethod);
    let text = value.as_str().ok_or_else(unknown)?;
    let first = args.first().and_then(minijinja::Value::as_str);
    let chars: Vec<char> = first.unwrap_or(" \t\r\n").chars().collect();
    let result = match (method, first) {
        ("strip", _) => text.trim_matches(&chars[..]).into(),
        ("lstrip", _) => text.trim_start_matches(&chars[..]).into(),
        ("rstrip", _) => text.trim_end_matches(&chars[..]).into(),
        ("startswith", Some(prefix)) => text.starts_with(prefix).into(),
        ("endswith", Some(suffix)) => text.ends_with(suffix).into(),
        ("split", Some(separator)) => text.split(separator).map(minijinja::Value::from).collect(),
        ("upper", _) => text.to_uppercase().into(),
        ("lower", _) => text.to_lowercase().into(),
        _ => return Err(unknown()),
    };
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pretrain::write_tokenizer;
    use serde_json::json;

    /// A directory with the character tokenizer and this `tokenizer_config.json`.
    fn directory(config: &Value) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        write_tokenizer(dir.path()).unwrap();
        std::fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
        dir
    }

    fn load(config: &Value) -> Result<TextTokenizer, TokenizerError> {
        TextTokenizer::load(directory(config).path())
    }

    fn turns() -> Prompt {
        let turn = |role: &str, content: &str| Message {
            role: role.into(),
            content: content.into(),
        };
        Prompt::Messages(vec![turn("system", "a"), turn("user", " b ")])
    }

    const TURNS: &str = "{{ bos_token }}{% for m in messages %}{{ m.role }}:{{ m['content'].strip() }};{% endfor %}\
                            {% if add_generation_prompt %}?{% endif %}";

    #[test]
    fn a_chat_template_renders_with_exactly_one_bos() {
        for bos in ["{{ bos_token }}", ""] {
            let config = json!({"eos_token": "<|end|>", "bos_token": "<|unknown|>",
                                "chat_template": format!("{bos}{TURNS}")});
            let tokenizer = load(&config).unwrap();
            let ids = tokenizer.encode_prompt(&turns()).unwrap();
            assert_eq!(ids.iter().filter(|id| **id == 2).count(), 1, "{ids:?}");
            assert_eq!(tokenizer.decode(&ids).unwrap(), "system:a;user:b;?");
            let text = tokenizer.encode_prompt(&Prompt::Text("b".into())).unwrap();
            assert_eq!(tokenizer.decode(&text).unwrap(), "user:b;?");
        }
    }

    #[test]
    fn messages_need_a_template_and_a_template_may_refuse() {
        let plain = load(&json!({"eos_token": "<|end|>"})).unwrap();
        assert!(matches!(
            plain.encode_prompt(&turns()),
            Err(EncodeError::NoTemplate)
        ));
        let strict =
            json!({"eos_token": "<|end|>", "chat_template": "{{ raise_exception('no system role') }}"});
        let error = load(&strict).unwrap().encode_prompt(&turns()).unwrap_err();
        assert!(error.to_string().contains("no system role"), "{error}");
        let broken = load(&json!({"eos_token": "<|end|>", "chat_template": "{% if %}"}));
        assert!(matches!(broken, Err(TokenizerError::Template { .. })));
    }

    #[test]
    fn the_end_is_what_generation_config_says() {
        let dir = directory(&json!({"eos_token": {"content": "<|end|>"}, "pad_token": "<|pad|>"}));
        assert_eq!(TextTokenizer::load(dir.path()).unwrap().eos_ids(), [1]);
        std::fs::write(
            dir.path().join("generation_config.json"),
            r#"{"eos_token_id": [5, 1]}"#,
        )
        .unwrap();
        let tokenizer = TextTokenizer::load(dir.path()).unwrap();
        assert_eq!((tokenizer.eos_ids(), tokenizer.pad_id()), (&[5, 1][..], 0));
    }

    #[test]
    fn what_is_missing_or_broken_is_named() {
        assert!(matches!(load(&json!({})), Err(TokenizerError::NoEos { .. })));
        let unknown = load(&json!({"eos_token": "</s>"})).unwrap_err();
        assert!(unknown.to_string().contains("</s>"), "{unknown}");
        let empty = tempfile::tempdir().unwrap();
        let absent = TextTokenizer::load(empty.path()).unwrap_err();
        assert!(absent.to_string().contains("tokenizer.json"), "{absent}");
        std::fs::write(empty.path().join("tokenizer.json"), "{}").unwrap();
        assert!(matches!(
            TextTokenizer::load(empty.path()),
            Err(TokenizerError::Tokenizer { .. })
        ));
    }
}
