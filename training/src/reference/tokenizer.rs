//! Strings and chats with their ids.

use super::report::Tally;
use super::tensors::{Object, json};
use super::{ReferenceError, Set};
use crate::data::Message;
use crate::tokenizer::{Chat, ChatTemplate, load_tokenizer};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;

pub(super) fn compare(set: &Set<'_>, tally: &mut Tally) -> Result<(), ReferenceError> {
    let all = json(&set.path("cases.json"))?;
    let head = Object {
        what: "cases.json",
        value: &all,
    };
    compare_chats(head, tally)?;
    let tokenizer = load_tokenizer(&path(set, head)?).map_err(ReferenceError::ours)?;
    tally.exact(
        "vocab_size",
        "",
        &[tokenizer.get_vocab_size(true)],
        &[head.count("vocab_size")?],
    );
    for (i, value) in head.items("cases")?.iter().enumerate() {
        let case = Object {
            what: "a case",
            value,
        };
        let place = format!("string {i}");
        let encoding = tokenizer
            .encode_fast(case.text("text")?, false)
            .map_err(ReferenceError::ours)?;
        let want: Vec<u32> = case.numbers("ids")?.iter().map(|id| *id as u32).collect();
        tally.exact("ids", &place, encoding.get_ids(), &want);
        let decoded = tokenizer.decode(&want, false).map_err(ReferenceError::ours)?;
        tally.exact("decoded", &place, &[decoded.as_str()], &[case.text("decoded")?]);
    }
    Ok(())
}

fn path(set: &Set<'_>, head: Object<'_>) -> Result<PathBuf, ReferenceError> {
    let own = set.path("tokenizer.json");
    let given = set
        .options
        .tokenizer
        .clone()
        .or_else(|| own.is_file().then_some(own));
    given.ok_or_else(|| ReferenceError::NoTokenizer {
        source_of: head
            .text("source")
            .unwrap_or("the set does not say whose")
            .to_owned(),
    })
}

fn compare_chats(head: Object<'_>, tally: &mut Tally) -> Result<(), ReferenceError> {
    let template =
        ChatTemplate::compile(head.text("chat_template")?.to_owned()).map_err(ReferenceError::ours)?;
    for (i, value) in head.items("chat")?.iter().enumerate() {
        let chat = Object {
            what: "a chat",
            value,
        };
        let messages = chat.get("messages").cloned().unwrap_or_default();
        let messages: Vec<Message> = serde_json::from_value(messages).map_err(ReferenceError::ours)?;
        let known = ["messages", "add_generation_prompt", "text"];
        let others = value.as_object().into_iter().flatten();
        let variables: BTreeMap<String, Value> = others
            .filter(|(key, _)| !known.contains(&key.as_str()))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        let prompted = chat.get("add_generation_prompt").and_then(Value::as_bool);
        let rendered = template
            .render(&Chat {
                add_generation_prompt: prompted.unwrap_or(false),
                variables,
                ..Chat::new(&messages)
            })
            .map_err(ReferenceError::ours)?;
        tally.exact(
            "chat text",
            &format!("chat {i}"),
            &[rendered.as_str()],
            &[chat.text("text")?],
        );
    }
    Ok(())
}
