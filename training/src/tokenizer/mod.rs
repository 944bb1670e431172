//! The tokenizer of a Hugging Face directory: `tokenizer.json`, `tokenizer_config.json` and the end-of-sequence
//! ids of `generation_config.json` (TRAINING "Models", "Data").

mod template;
#[cfg(test)]
mod tests;

pub use template::{Chat, ChatTemplate};

use crate::data::{Message, Prompt};
use crate::generate::StopStrings;
use serde_json::Value;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokenizers::Tokenizer;

/// A loaded tokenizer with the ids that generation needs.
pub struct TextTokenizer {
    inner: Arc<Tokenizer>,
    eos: Vec<u32>,
    pad: u32,
    bos: Option<String>,
    eos_text: String,
    template: Option<ChatTemplate>,
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
            inner: Arc::new(inner),
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

    /// Texts that end a completion; `None` when there are none.
    #[must_use]
    pub fn stop_strings(&self, strings: &[String]) -> Option<StopStrings> {
        StopStrings::new(strings, Arc::clone(&self.inner))
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

    /// One more than the largest id: no token has this id or one above, though a model's embedding may have rows for
    /// them.
    #[must_use]
    pub fn id_limit(&self) -> usize {
        let largest = self.inner.get_vocab(true).into_values().max();
        largest.map_or(0, |id| id as usize + 1)
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
        let template = self.template.as_ref().ok_or(EncodeError::NoTemplate)?;
        Ok(template.render(&Chat {
            bos: self.bos.as_deref().unwrap_or_default(),
            eos: &self.eos_text,
            ..Chat::new(turns)
        })?)
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

pub(crate) fn load_tokenizer(path: &Path) -> Result<Tokenizer, TokenizerError> {
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
fn template(dir: &Path, config: Option<&Value>) -> Result<Option<ChatTemplate>, TokenizerError> {
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
    let compiled = ChatTemplate::compile(source).map_err(|source| TokenizerError::Template {
        dir: dir.to_owned(),
        source,
    })?;
    Ok(Some(compiled))
}
