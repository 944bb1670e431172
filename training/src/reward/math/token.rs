//! The cleaned line as tokens.

use super::super::number::Number;

/// One piece of an answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    /// A number; the text tells 2 from 2.0.
    Number(Number, String),
    /// A variable of one letter, or a named Greek one.
    Symbol(String),
    /// `\name`, or a function written plainly.
    Command(String),
    /// Words, and units.
    Word(String),
    /// Anything else.
    Sign(char),
    /// `\{` and `\}`.
    Brace(char),
    /// `\\`.
    NewRow,
}

/// Functions that are written without a backslash too.
const FUNCTIONS: [&str; 12] = [
    "sqrt", "sin", "cos", "tan", "cot", "sec", "csc", "ln", "log", "exp", "arcsin", "arctan",
];
/// Units of two letters; longer words are words anyway.
const UNITS: [&str; 14] = [
    "cm", "km", "mm", "kg", "mg", "ml", "ft", "in", "hr", "pm", "am", "lb", "oz", "mi",
];

/// Tokens of `text`; `None` when a number does not fit.
pub(super) fn tokens(text: &str) -> Option<Vec<Token>> {
    let mut all = Vec::new();
    let mut rest = text;
    let mut depth = 0_i32;
    while let Some(c) = rest.chars().next() {
        let (token, length) = match c {
            _ if c.is_whitespace() => (None, c.len_utf8()),
            '0'..='9' | '.' => number(rest, depth)?,
            '"' => quoted(rest),
            '\\' => command(rest),
            _ if c.is_alphabetic() => {
                let touching = text[..text.len() - rest.len()].ends_with(|c: char| c.is_ascii_digit());
                letters(rest, all.last(), touching)
            }
            _ => (Some(Token::Sign(c)), c.len_utf8()),
        };
        depth += match &token {
            Some(Token::Sign('(' | '[') | Token::Brace('{')) => 1,
            Some(Token::Sign(')' | ']') | Token::Brace('}')) => -1,
            _ => 0,
        };
        all.extend(token);
        rest = &rest[length..];
    }
    Some(all)
}

/// Digits, thousands separators outside brackets, decimals.
fn number(text: &str, depth: i32) -> Option<(Option<Token>, usize)> {
    let bytes = text.as_bytes();
    let digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let mut end = 0;
    while digit(end) {
        end += 1;
    }
    let grouped = |at: usize| bytes.get(at) == Some(&b',') && (1..4).all(|i| digit(at + i)) && !digit(at + 4);
    if depth <= 0 && (1..=3).contains(&end) {
        while grouped(end) {
            end += 4;
        }
    }
    if bytes.get(end) == Some(&b'.') && digit(end + 1) {
        end += 1;
        while digit(end) {
            end += 1;
        }
    }
    if end == 0 {
        return Some((Some(Token::Sign('.')), 1));
    }
    let written = text[..end].replace(',', "");
    let (whole, decimals) = written.split_once('.').unwrap_or((&written, ""));
    let decimals = decimals.trim_end_matches('0');
    let digits: i128 = format!("0{whole}{decimals}").parse().ok()?;
    let scale = 10_i128.checked_pow(u32::try_from(decimals.len()).ok()?)?;
    Some((Some(Token::Number(Number::new(digits, scale)?, written)), end))
}

fn quoted(text: &str) -> (Option<Token>, usize) {
    let inside = &text[1..];
    let end = inside.find('"').unwrap_or(inside.len());
    let length = (end + 2).min(text.len());
    let words = inside[..end].trim();
    // A choice: (C).
    let choice = words.strip_prefix('(').and_then(|w| w.strip_suffix(')'));
    let words = choice.filter(|c| c.chars().count() == 1).unwrap_or(words);
    let token = match words {
        "" => None,
        "or" | "and" => Some(Token::Sign(',')),
        _ if whole_number(words).is_some() => whole_number(words),
        _ if words.chars().count() == 1 && words.chars().all(char::is_alphabetic) => {
            Some(Token::Symbol(words.to_owned()))
        }
        _ => Some(Token::Word(words.to_owned())),
    };
    (token, length)
}

/// A number that was written as words: \text{12}.
fn whole_number(words: &str) -> Option<Token> {
    let digit = words.starts_with(|c: char| c.is_ascii_digit());
    let (token, length) = number(words, 0).filter(|_| digit)?;
    token.filter(|_| length == words.len())
}

fn command(text: &str) -> (Option<Token>, usize) {
    let name: &str = &text[1..];
    let end = name
        .find(|c: char| !c.is_ascii_alphabetic())
        .unwrap_or(name.len());
    let token = match (&name[..end], name.chars().next()) {
        ("", Some(c @ ('{' | '}'))) => return (Some(Token::Brace(c)), 2),
        ("", Some('\\')) => return (Some(Token::NewRow), 2),
        ("", _) => None,
        (
            greek @ ("pi" | "alpha" | "beta" | "gamma" | "delta" | "theta" | "lambda" | "mu" | "omega"
            | "phi" | "sigma" | "rho" | "tau" | "epsilon"),
            _,
        ) => Some(Token::Symbol(greek.to_owned())),
        (name, _) => Some(Token::Command(name.to_owned())),
    };
    (token, 1 + end)
}

/// A run of letters: a function, a word, a unit, or variables side by side.
///
/// `touching` a digit, letters are variables unless they are a unit: 2xyz.
fn letters(text: &str, before: Option<&Token>, touching: bool) -> (Option<Token>, usize) {
    let end = text.find(|c: char| !c.is_alphabetic()).unwrap_or(text.len());
    let run = &text[..end];
    let after_number = matches!(before, Some(Token::Number(..) | Token::Sign('°' | '}')));
    let token = match run {
        "or" | "and" => Token::Sign(','),
        "pi" => Token::Symbol("pi".into()),
        "infinity" | "inf" => Token::Sign('∞'),
        _ if FUNCTIONS.contains(&run) => Token::Command(run.to_owned()),
        _ if after_number && UNITS.contains(&run) => Token::Word(run.to_owned()),
        _ if run.chars().count() >= 3 && !touching => Token::Word(run.to_owned()),
        _ => {
            let first = run.chars().next().unwrap_or_default();
            return (Some(Token::Symbol(first.to_string())), first.len_utf8());
        }
    };
    (Some(token), end)
}
