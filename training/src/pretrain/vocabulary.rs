//! The tokenizer of a pretrained model: one token a character, and one for each fixed phrase of chain_sum.

use crate::model::{SaveError, write_json};
use serde_json::{Map, Value, json};
use std::path::Path;

/// The words before every sum of reasoning-gym's chain_sum; with the space after them one token.
pub const INSTRUCTION: &str = "State the final answer to the following arithmetic problem:";

const PAD: &str = "<|pad|>";
const END: &str = "<|end|>";
const UNKNOWN: &str = "<|unknown|>";
const SPECIAL: [&str; 3] = [PAD, END, UNKNOWN];
const OPERATORS: [&str; 3] = [" + ", " - ", " ="];
const CHARACTERS: &str = "0123456789+-= \n.,:;?!'\"()*/ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Writes `tokenizer.json` and `tokenizer_config.json`, which `PreTrainedTokenizerFast` loads too.
///
/// # Errors
/// When a file cannot be written.
pub fn write_tokenizer(dir: &Path) -> Result<(), SaveError> {
    std::fs::create_dir_all(dir).map_err(|source| SaveError::Write {
        path: dir.to_owned(),
        source,
    })?;
    write_json(&dir.join("tokenizer.json"), &tokenizer())?;
    write_json(&dir.join("tokenizer_config.json"), &config())
}

/// Longest phrases first, then any single character; every piece is looked up as a word.
fn tokenizer() -> Value {
    let pieces = pieces();
    let phrases: Vec<String> = pieces[SPECIAL.len()..=SPECIAL.len() + OPERATORS.len()]
        .iter()
        .map(|phrase| phrase.replace('+', "\\+"))
        .collect();
    let vocabulary: Map<String, Value> = pieces
        .iter()
        .enumerate()
        .map(|(id, piece)| (piece.clone(), json!(id)))
        .collect();
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": SPECIAL.iter().enumerate().map(added).collect::<Vec<_>>(),
        "normalizer": null,
        "pre_tokenizer": {
            "type": "Split",
            "pattern": { "Regex": format!("{}|[\\s\\S]", phrases.join("|")) },
            "behavior": "Isolated",
            "invert": false,
        },
        "post_processor": null,
        "decoder": { "type": "Fuse" },
        "model": { "type": "WordLevel", "vocab": vocabulary, "unk_token": UNKNOWN },
    })
}

/// All tokens in the order of their ids.
fn pieces() -> Vec<String> {
    let special = SPECIAL.iter().map(|s| (*s).to_owned());
    let phrases = std::iter::once(format!("{INSTRUCTION} ")).chain(OPERATORS.iter().map(|s| (*s).to_owned()));
    special
        .chain(phrases)
        .chain(CHARACTERS.chars().map(String::from))
        .collect()
}

fn added((id, content): (usize, &&str)) -> Value {
    json!({
        "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true,
    })
}

fn config() -> Value {
    json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": PAD,
        "eos_token": END,
        "unk_token": UNKNOWN,
        "clean_up_tokenization_spaces": false,
        "model_max_length": 128,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::TextTokenizer;

    fn tokenizer() -> TextTokenizer {
        let dir = tempfile::tempdir().unwrap();
        write_tokenizer(dir.path()).unwrap();
        TextTokenizer::load(dir.path()).unwrap()
    }

    #[test]
    fn a_prompt_is_short_and_comes_back() {
        let text = format!("{INSTRUCTION} 33 - 66 + 16 =");
        let ids = tokenizer().encode(&text).unwrap();
        assert_eq!(ids.len(), 10);
        assert_eq!(tokenizer().decode(&ids).unwrap(), text);
    }

    #[test]
    fn completions_come_back_and_join_without_seams() {
        let (t, question) = (tokenizer(), format!("{INSTRUCTION} 5 - 7 ="));
        for completion in [" -2", "\n5-7=-2"] {
            let prompt = t.encode(&question).unwrap();
            let parts = [prompt.clone(), t.encode(completion).unwrap()].concat();
            assert_eq!(parts, t.encode(&format!("{question}{completion}")).unwrap());
            assert_eq!(t.decode(&parts[prompt.len()..]).unwrap(), completion);
        }
    }

    #[test]
    fn special_tokens_and_the_unknown() {
        let t = tokenizer();
        assert_eq!((t.pad_id(), t.eos_ids()), (0, &[1][..]));
        assert_eq!(t.encode("é").unwrap(), [2]);
        assert_eq!(t.decode(&[0, 1, 2]).unwrap(), "");
        assert_eq!(t.vocab_size(), pieces().len());
    }
}
