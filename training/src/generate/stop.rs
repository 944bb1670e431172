//! Texts that end a completion.

use std::fmt;
use std::sync::Arc;
use tokenizers::Tokenizer;

/// Strings of which any ends a completion, as TRL's rollouts have it.
///
/// The completion ends with the token that completes a string in its own text (special tokens written out, the prompt
/// left out). That token is kept, sampled and trained like any other, so the text may run a little past the string;
/// rewards see it as it is.
#[derive(Clone)]
pub struct StopStrings {
    strings: Vec<String>,
    /// Tokens at the end that are looked at: every token but a few writes at least a byte.
    window: usize,
    tokenizer: Arc<Tokenizer>,
}

/// Tokens in a window that may write nothing.
const SILENT: usize = 16;

impl StopStrings {
    /// `None` when there is no string.
    pub(crate) fn new(strings: &[String], tokenizer: Arc<Tokenizer>) -> Option<Self> {
        let strings: Vec<String> = strings.iter().filter(|s| !s.is_empty()).cloned().collect();
        let longest = strings.iter().map(String::len).max()?;
        Some(Self {
            strings,
            window: longest + SILENT,
            tokenizer,
        })
    }

    /// Whether the last of `tokens` completes a string; the earlier ones did not.
    pub(super) fn is_reached(&self, tokens: &[u32]) -> bool {
        let end = &tokens[tokens.len().saturating_sub(self.window)..];
        // Tokens that no decoder accepts complete nothing.
        self.tokenizer
            .decode(end, false)
            .is_ok_and(|text| self.strings.iter().any(|s| text.contains(s.as_str())))
    }
}

impl PartialEq for StopStrings {
    fn eq(&self, other: &Self) -> bool {
        self.strings == other.strings && Arc::ptr_eq(&self.tokenizer, &other.tokenizer)
    }
}

impl fmt::Debug for StopStrings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StopStrings").field(&self.strings).finish()
    }
}
