//! Templates, special tokens, and what is refused.

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
    let strict = json!({"eos_token": "<|end|>", "chat_template": "{{ raise_exception('no system role') }}"});
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

#[test]
fn a_template_has_pythons_methods_and_transformers_functions() {
    let render = |source: &str| {
        let turn = Message {
            role: "user".into(),
            content: "<think>a</think>b ".into(),
        };
        ChatTemplate::compile(source.into())
            .unwrap()
            .render(&Chat::new(&[turn]))
            .map_err(|e| e.to_string())
    };
    let cases = [
        ("{{ messages[0].content.split('</think>')[-1].rstrip() }}", "b"),
        ("{{ messages[::-1][0].role }}", "user"),
        ("{{ strftime_now('%d %b %Y') }}", "26 Jul 2024"),
        (
            "{{ messages | tojson }}",
            r#"[{"role": "user", "content": "<think>a</think>b "}]"#,
        ),
        ("{{ 'x' if enable_thinking is defined else 'y' }}", "y"),
        (
            "{% for k, v in messages[0].items() %}{{ k }};{% endfor %}",
            "role;content;",
        ),
        (
            "{%- set ns = namespace(a=1) %}{% set ns.a = 2 %}\n{{- ns.a }}",
            "2",
        ),
    ];
    for (source, text) in cases {
        assert_eq!(render(source).as_deref(), Ok(text), "{source}");
    }
    assert!(render("{{ strftime_now('%Q') }}").unwrap_err().contains("%Q"));
    assert!(render("{{ raise_exception('roles must alternate') }}").is_err());
}

#[test]
fn a_bos_that_the_tokenizer_adds_too_stays_one() {
    let dir = directory(&json!({"eos_token": "<|end|>", "bos_token": "<|unknown|>"}));
    let path = dir.path().join("tokenizer.json");
    let mut file: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    file["post_processor"] = json!({
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|unknown|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|unknown|>": {"id": "<|unknown|>", "ids": [2], "tokens": ["<|unknown|>"]}},
    });
    std::fs::write(&path, file.to_string()).unwrap();
    let tokenizer = TextTokenizer::load(dir.path()).unwrap();
    let starts = |text: &str| {
        let ids = tokenizer.encode_prompt(&Prompt::Text(text.into())).unwrap();
        ids.iter().take_while(|id| **id == 2).count()
    };
    assert_eq!((starts("a"), starts("<|unknown|>a")), (1, 1));
    let template = json!({"eos_token": "<|end|>", "bos_token": "<|unknown|>", "chat_template": TURNS});
    std::fs::write(dir.path().join("tokenizer_config.json"), template.to_string()).unwrap();
    let ids = TextTokenizer::load(dir.path())
        .unwrap()
        .encode_prompt(&turns())
        .unwrap();
    assert_eq!(ids.iter().filter(|id| **id == 2).count(), 1, "{ids:?}");
}
