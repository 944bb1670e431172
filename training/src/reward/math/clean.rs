//! LaTeX to a line of plain symbols: spacing, sizes and aliases go; text becomes "quoted".

/// Spelled-out commands with the symbol they stand for.
const SYMBOLS: [(&str, &str); 31] = [
    ("cdot", "*"),
    ("times", "*"),
    ("ast", "*"),
    ("div", "/"),
    ("le", "≤"),
    ("leq", "≤"),
    ("leqslant", "≤"),
    ("ge", "≥"),
    ("geq", "≥"),
    ("geqslant", "≥"),
    ("lt", "<"),
    ("gt", ">"),
    ("ne", "≠"),
    ("neq", "≠"),
    ("infty", "∞"),
    ("circ", "°"),
    ("degree", "°"),
    ("cup", "∪"),
    ("in", "∈"),
    ("pm", "±"),
    ("emptyset", "∅"),
    ("varnothing", "∅"),
    ("lvert", "|"),
    ("rvert", "|"),
    ("vert", "|"),
    ("mid", "|"),
    ("lbrace", "\\{"),
    ("rbrace", "\\}"),
    ("dfrac", "\\frac "),
    ("tfrac", "\\frac "),
    ("cfrac", "\\frac "),
];

/// Commands whose argument is words.
const TEXT: [&str; 8] = [
    "text",
    "textrm",
    "textbf",
    "textit",
    "mbox",
    "mathrm",
    "operatorname",
    "textnormal",
];

/// Commands that change how things look.
const LOOKS: [&str; 21] = [
    "left",
    "right",
    "big",
    "Big",
    "bigl",
    "bigr",
    "Bigl",
    "Bigr",
    "bigg",
    "Bigg",
    "displaystyle",
    "textstyle",
    "limits",
    "mathbf",
    "mathit",
    "mathbb",
    "boldsymbol",
    "bf",
    "rm",
    "phantom",
    "boxed",
];

/// Characters that stand for others.
const CHARACTERS: [(char, &str); 14] = [
    ('−', "-"),
    ('–', "-"),
    ('×', "*"),
    ('·', "*"),
    ('⋅', "*"),
    ('÷', "/"),
    ('⁄', "/"),
    ('π', "\\pi "),
    ('√', "\\sqrt "),
    ('²', "^{2}"),
    ('³', "^{3}"),
    ('½', "\\frac{1}{2}"),
    ('¼', "\\frac{1}{4}"),
    ('¾', "\\frac{3}{4}"),
];

/// The cleaned text.
pub(super) fn clean(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text.trim().trim_end_matches(['.', ',', ';', ':', '!']).trim_end();
    // A factorial's mark is not a full stop.
    if text.trim().ends_with('!') && !rest.is_empty() {
        rest = text.trim();
    }
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        match c {
            '\\' => rest = command(rest, &mut out),
            '$' | '€' | '£' => {}
            '~' => out.push(' '),
            '{' if rest.starts_with(",}") => {
                out.push(',');
                rest = &rest[2..];
            }
            _ => match CHARACTERS.iter().find(|(from, _)| *from == c) {
                Some((_, to)) => out.push_str(to),
                None => out.push(c),
            },
        }
    }
    out.trim().to_owned()
}

/// Handles what follows a backslash; gives the rest.
fn command<'a>(text: &'a str, out: &mut String) -> &'a str {
    let end = text
        .find(|c: char| !c.is_ascii_alphabetic())
        .unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    if name.is_empty() {
        return control(text, out);
    }
    if let Some((_, symbol)) = SYMBOLS.iter().find(|(from, _)| *from == name) {
        out.push_str(symbol);
    } else if TEXT.contains(&name) {
        if let Some((words, rest)) = group(rest) {
            out.push_str(&format!(" \"{}\" ", clean(words).replace('"', "")));
            return rest;
        }
    } else if LOOKS.contains(&name) {
        let rest = rest.trim_start();
        return rest.strip_prefix('.').unwrap_or(rest);
    } else if matches!(name, "quad" | "qquad" | "space") {
        out.push(' ');
    } else {
        out.push('\\');
        out.push_str(name);
        out.push(' ');
    }
    rest
}

/// A backslash before something that is no letter: spacing, or the sign itself.
fn control<'a>(text: &'a str, out: &mut String) -> &'a str {
    let Some(c) = text.chars().next() else {
        return text;
    };
    match c {
        '{' | '}' | '\\' => {
            out.push('\\');
            out.push(c);
        }
        '%' | '#' | '&' | '_' => out.push(c),
        ' ' => out.push(' '),
        '|' => out.push('|'),
        _ => {}
    }
    &text[c.len_utf8()..]
}

/// The inside of a `{…}` at the start, and what follows it.
pub(super) fn group(text: &str) -> Option<(&str, &str)> {
    let inside = text.trim_start().strip_prefix('{')?;
    let mut depth = 1_u32;
    for (at, c) in inside.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some((&inside[..at], &inside[at + 1..]));
        }
    }
    None
}
