//! Tokens to values, by recursive descent.

use super::super::number::Number;
use super::fraction::Fraction;
use super::token::{Token, tokens};
use super::value::Value;

/// Longer answers are compared as words.
const MAX_BYTES: usize = 2_000;
/// Deeper nesting is refused.
const MAX_DEPTH: u32 = 32;

/// The value of a cleaned answer; what is no mathematics is words.
pub(super) fn parse(text: &str) -> Value {
    let parsed = || {
        if text.len() > MAX_BYTES {
            return None;
        }
        let mut parser = Parser {
            tokens: tokens(text)?,
            at: 0,
            depth: 0,
            bars: 0,
        };
        let value = parser.list()?;
        (parser.at == parser.tokens.len()).then_some(value)
    };
    parsed().unwrap_or_else(|| Value::words(text))
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
    depth: u32,
    /// Open absolute values: a bar closes one.
    bars: u32,
}

impl Parser {
    /// Values between commas: one, or several in any order.
    fn list(&mut self) -> Option<Value> {
        let mut items = self.items()?;
        Some(if items.len() == 1 {
            items.remove(0)
        } else {
            Value::Set(items)
        })
    }

    fn items(&mut self) -> Option<Vec<Value>> {
        let mut items = Vec::new();
        loop {
            let start = self.at;
            let value = self.relation()?;
            let both = self.tokens[start..self.at].contains(&Token::Sign('±'));
            if let (true, Value::Set(several)) = (both, &value) {
                // 1 ± 2 is two answers.
                items.extend(several.iter().cloned());
            } else {
                items.push(value);
            }
            let mut separated = false;
            while self.take(',') || self.take(';') {
                separated = true;
            }
            if !separated {
                return Some(items);
            }
        }
    }

    fn relation(&mut self) -> Option<Value> {
        let mut sides = vec![self.union()?];
        let mut signs = Vec::new();
        while let Some(Token::Sign(sign @ ('=' | '<' | '>' | '≤' | '≥' | '≠' | '∈'))) = self.peek() {
            let sign = *sign;
            self.at += 1;
            signs.push(sign);
            sides.push(self.union()?);
        }
        Some(if signs.is_empty() {
            sides.remove(0)
        } else {
            Value::Relation { sides, signs }
        })
    }

    fn union(&mut self) -> Option<Value> {
        let first = self.sum()?;
        if self.peek() != Some(&Token::Sign('∪')) {
            return Some(first);
        }
        let mut parts = vec![first];
        while self.take('∪') {
            parts.push(self.sum()?);
        }
        Some(Value::Set(parts))
    }

    fn sum(&mut self) -> Option<Value> {
        let mut value = self.term()?;
        loop {
            value = if self.take('+') {
                expression(&value)?.plus(expression(&self.term()?)?)?.into()
            } else if self.take('-') {
                expression(&value)?.minus(expression(&self.term()?)?)?.into()
            } else if self.take('±') {
                let other = self.term()?;
                let (a, b) = (expression(&value)?, expression(&other)?);
                return Some(Value::Set(vec![a.plus(b)?.into(), a.minus(b)?.into()]));
            } else {
                return Some(value);
            };
        }
    }

    fn term(&mut self) -> Option<Value> {
        if self.take('-') {
            let value = self.term()?;
            return Some(if let Value::Infinite { negative } = value {
                Value::Infinite { negative: !negative }
            } else if let Value::Percent(value) = value {
                Value::Percent(value.negated())
            } else {
                expression(&value)?.negated().into()
            });
        }
        if self.take('+') {
            return self.term();
        }
        if self.take('±') {
            let value = self.term()?;
            let value = expression(&value)?;
            return Some(Value::Set(vec![value.clone().into(), value.negated().into()]));
        }
        let mut value = self.factor()?;
        loop {
            value = if self.take('*') {
                expression(&value)?.times(expression(&self.factor()?)?)?.into()
            } else if self.take('/') {
                expression(&value)?.over(expression(&self.factor()?)?)?.into()
            } else if self.starts_factor() {
                let (before, at) = (self.at.checked_sub(1), self.at);
                let next = self.factor()?;
                match before.and_then(|before| self.mixed(before, at)) {
                    Some(Mixed::Fraction) => expression(&value)?.plus(expression(&next)?)?.into(),
                    Some(Mixed::Slash) => {
                        self.at += 1;
                        let part = expression(&next)?.over(expression(&self.factor()?)?)?;
                        expression(&value)?.plus(&part)?.into()
                    }
                    // A row of numbers is no product.
                    None if self.is_row(at) => return None,
                    None => expression(&value)?.times(expression(&next)?)?.into(),
                }
            } else {
                return Some(value);
            };
        }
    }

    /// Whether an integer at `before` and what stands at `at` are a mixed number: 2\frac{3}{4}, 2 3/4.
    fn mixed(&self, before: usize, at: usize) -> Option<Mixed> {
        let integer = |at: usize| match self.tokens.get(at) {
            Some(Token::Number(n, written)) if !written.contains('.') => n.integer(),
            _ => None,
        };
        integer(before)?;
        // A power's exponent before it is no whole part: x^2\frac{1}{2}.
        if before > 0 && self.tokens.get(before - 1) == Some(&Token::Sign('^')) {
            return None;
        }
        if self.tokens.get(at) == Some(&Token::Command("frac".into())) {
            let parts: Vec<&Token> = self.tokens[at + 1..self.at]
                .iter()
                .filter(|t| !matches!(t, Token::Sign('{' | '}')))
                .collect();
            let whole = parts.len() == 2
                && parts
                    .iter()
                    .all(|t| matches!(t, Token::Number(_, w) if !w.contains('.')));
            return whole.then_some(Mixed::Fraction);
        }
        let slash = integer(at).is_some()
            && self.tokens.get(at + 1) == Some(&Token::Sign('/'))
            && integer(at + 2).is_some();
        (slash && self.at == at + 1).then_some(Mixed::Slash)
    }

    /// Whether two numbers stand side by side before and at `at`, the first of them no exponent or index.
    fn is_row(&self, at: usize) -> bool {
        let number = |at: usize| matches!(self.tokens.get(at), Some(Token::Number(..)));
        let before = at.checked_sub(2).and_then(|at| self.tokens.get(at));
        let marked = matches!(before, Some(Token::Sign('^' | '_')));
        at > 0 && number(at - 1) && number(at) && !marked
    }

    /// A primary with its powers and marks.
    fn factor(&mut self) -> Option<Value> {
        let mut value = self.primary()?;
        loop {
            if self.take('^') {
                if self.take_degree() {
                    continue;
                }
                let exponent = self.argument()?;
                value = expression(&value)?.to_power(&exponent)?.into();
            } else if self.take('!') {
                value = factorial(expression(&value)?)?.into();
            } else if self.take('%') || self.take_words(&["percent"]) {
                value = Value::Percent(expression(&value)?.clone());
            } else if self.take('°') {
            } else if self.take('_') {
                let base = self.argument()?;
                value = Fraction::function("subscript", &[expression(&value)?.clone(), base])?.into();
            } else if self.is_number(&value) && matches!(self.peek(), Some(Token::Word(_))) {
                self.skip_unit();
            } else {
                return Some(value);
            }
        }
    }

    /// Words after a number, with a power of their own: 5 cm², 5 square miles, 60 km/h.
    fn skip_unit(&mut self) {
        loop {
            match self.peek() {
                Some(Token::Word(_)) => self.at += 1,
                Some(Token::Sign('^')) => {
                    self.at += 1;
                    if self.argument().is_none() {
                        return;
                    }
                }
                Some(Token::Sign('/')) if matches!(self.tokens.get(self.at + 1), Some(Token::Word(_))) => {
                    self.at += 2;
                }
                _ => return,
            }
        }
    }

    fn primary(&mut self) -> Option<Value> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
        }
        let token = self.peek()?.clone();
        self.at += 1;
        let value = match token {
            Token::Number(number, _) => Fraction::number(number).into(),
            Token::Symbol(name) => Fraction::symbol(&name).into(),
            Token::Word(words) => self.sentence(words),
            Token::Sign('∞') => Value::Infinite { negative: false },
            Token::Sign('∅') => Value::Set(Vec::new()),
            Token::Sign(open @ ('(' | '[')) => self.bracketed(open)?,
            Token::Sign('{') => {
                let inside = self.list()?;
                self.expect('}')?;
                inside
            }
            Token::Sign('|') => {
                self.bars += 1;
                let inside = self.sum()?;
                self.expect('|')?;
                self.bars -= 1;
                absolute(expression(&inside)?)?.into()
            }
            Token::Brace('{') => {
                if self.take_brace() {
                    Value::Set(Vec::new())
                } else {
                    let items = Value::distinct(self.items()?);
                    self.take_brace().then_some(Value::Set(items))?
                }
            }
            Token::Command(name) => self.command(&name)?,
            Token::Sign(_) | Token::Brace(_) | Token::NewRow => return None,
        };
        self.depth -= 1;
        Some(value)
    }

    /// Words up to where they stop.
    fn sentence(&mut self, mut words: String) -> Value {
        while let Some(Token::Word(more)) = self.peek() {
            words.push_str(more);
            self.at += 1;
        }
        Value::words(&words)
    }

    fn bracketed(&mut self, open: char) -> Option<Value> {
        let mut items = self.items()?;
        let Some(Token::Sign(close @ (')' | ']'))) = self.peek() else {
            return None;
        };
        let close = *close;
        self.at += 1;
        let groups = matches!((open, close), ('(', ')') | ('[', ']'));
        Some(if items.len() == 1 && groups {
            items.remove(0)
        } else {
            Value::Tuple { open, close, items }
        })
    }

    fn command(&mut self, name: &str) -> Option<Value> {
        match name {
            "frac" => {
                let top = self.argument()?;
                Some(top.over(&self.argument()?)?.into())
            }
            "sqrt" => {
                let order = if self.take('[') {
                    let order = self.sum()?;
                    self.expect(']')?;
                    expression(&order)?.clone()
                } else {
                    Fraction::number(Number::whole(2))
                };
                let inside = self.argument()?;
                let power = Fraction::number(Number::ONE).over(&order)?;
                Some(inside.to_power(&power)?.into())
            }
            "binom" | "dbinom" | "tbinom" => {
                let n = self.argument()?;
                binomial(&n, &self.argument()?).map(Value::from)
            }
            "log" | "ln" | "exp" | "sin" | "cos" | "tan" | "cot" | "sec" | "csc" | "arcsin" | "arccos"
            | "arctan" => self.function(name),
            "begin" => self.matrix(),
            _ => None,
        }
    }

    /// sin x, sin(x), sin^2 x, log_2 x.
    fn function(&mut self, name: &str) -> Option<Value> {
        let mut arguments = Vec::new();
        let mut power = None;
        loop {
            if self.take('_') {
                arguments.push(self.argument()?);
            } else if self.take('^') {
                power = Some(self.argument()?);
            } else {
                break;
            }
        }
        let inside = self.factor()?;
        let mut inside = expression(&inside)?.clone();
        // sin 2x takes the whole product.
        while matches!(self.peek(), Some(Token::Symbol(_))) {
            inside = inside.times(expression(&self.factor()?)?)?;
        }
        arguments.push(inside);
        let value = match (name, arguments.as_slice()) {
            ("exp", [x]) => Fraction::symbol("e").to_power(x)?,
            ("log", [base, x]) => match whole_logarithm(base, x) {
                Some(value) => value,
                None => Fraction::function(name, &arguments)?,
            },
            _ => Fraction::function(name, &arguments)?,
        };
        Some(match power {
            Some(power) => value.to_power(&power)?.into(),
            None => value.into(),
        })
    }

    /// \begin{pmatrix} a & b \\ c & d \end{pmatrix}
    fn matrix(&mut self) -> Option<Value> {
        self.environment()?;
        let mut rows = vec![Vec::new()];
        loop {
            rows.last_mut()?.push(self.sum()?);
            if self.peek() == Some(&Token::NewRow) {
                self.at += 1;
                if self.peek() != Some(&Token::Command("end".into())) {
                    rows.push(Vec::new());
                }
            } else {
                self.take('&');
            }
            if self.peek() == Some(&Token::Command("end".into())) {
                self.at += 1;
                self.environment()?;
                return Some(Value::Matrix(rows));
            }
            if self.at == self.tokens.len() {
                return None;
            }
        }
    }

    /// `{pmatrix}`, also with column letters after it.
    fn environment(&mut self) -> Option<()> {
        self.expect('{')?;
        while !self.take('}') {
            self.peek()?;
            self.at += 1;
        }
        Some(())
    }

    /// `{…}`, or the one digit or symbol that stands there: \frac12, x^2.
    fn argument(&mut self) -> Option<Fraction> {
        if let Some(Token::Number(_, written)) = self.peek() {
            return self.digit(&written.clone());
        }
        let negative = self.take('-');
        let value = self.primary()?;
        let value = expression(&value)?;
        Some(if negative { value.negated() } else { value.clone() })
    }

    /// The first digit of a number after \frac, the rest left: \frac123 is 12/3 to nobody.
    fn digit(&mut self, written: &str) -> Option<Fraction> {
        let after_command = self.at > 0 && {
            let before = &self.tokens[..self.at];
            let fraction = |t: Option<&Token>| t == Some(&Token::Command("frac".into()));
            fraction(before.last()) || (before.len() > 1 && fraction(before.get(before.len() - 2)))
        };
        let (first, rest) = written.split_at(1);
        if after_command && !rest.is_empty() && written.bytes().all(|b| b.is_ascii_digit()) {
            self.tokens[self.at] = number_token(rest)?;
            self.tokens.insert(self.at, number_token(first)?);
        }
        let Token::Number(number, _) = self.peek()?.clone() else {
            return None;
        };
        self.at += 1;
        Some(Fraction::number(number))
    }

    fn starts_factor(&self) -> bool {
        match self.peek() {
            Some(Token::Number(..) | Token::Symbol(_) | Token::Command(_)) => {
                self.peek() != Some(&Token::Command("end".into()))
            }
            Some(Token::Sign('(' | '{' | '[')) => true,
            Some(Token::Sign('|')) => self.bars == 0,
            Some(Token::Word(_) | Token::Sign(_) | Token::Brace(_) | Token::NewRow) | None => false,
        }
    }

    fn is_number(&self, value: &Value) -> bool {
        matches!(value, Value::Expression(_) | Value::Percent(_))
    }

    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    fn take(&mut self, sign: char) -> bool {
        let is = self.peek() == Some(&Token::Sign(sign));
        self.at += usize::from(is);
        is
    }

    /// `°` or `{°}`.
    fn take_degree(&mut self) -> bool {
        let group = [Token::Sign('{'), Token::Sign('°'), Token::Sign('}')];
        if self.tokens[self.at..].starts_with(&group) {
            self.at += 3;
            return true;
        }
        self.take('°')
    }

    fn take_brace(&mut self) -> bool {
        let is = self.peek() == Some(&Token::Brace('}'));
        self.at += usize::from(is);
        is
    }

    fn take_words(&mut self, words: &[&str]) -> bool {
        let is = matches!(self.peek(), Some(Token::Word(w)) if words.contains(&w.as_str()));
        self.at += usize::from(is);
        is
    }

    fn expect(&mut self, sign: char) -> Option<()> {
        self.take(sign).then_some(())
    }
}

enum Mixed {
    Fraction,
    Slash,
}

impl From<Fraction> for Value {
    fn from(value: Fraction) -> Self {
        Self::Expression(value)
    }
}

fn expression(value: &Value) -> Option<&Fraction> {
    match value {
        Value::Expression(value) => Some(value),
        Value::Percent(_)
        | Value::Tuple { .. }
        | Value::Set(_)
        | Value::Matrix(_)
        | Value::Relation { .. }
        | Value::Words(_)
        | Value::Infinite { .. } => None,
    }
}

fn number_token(digits: &str) -> Option<Token> {
    Some(Token::Number(
        Number::whole(digits.parse().ok()?),
        digits.to_owned(),
    ))
}

fn absolute(value: &Fraction) -> Option<Fraction> {
    match value.as_number() {
        Some(number) if number.parts().0 < 0 => Some(Fraction::number(number.negated())),
        Some(number) => Some(Fraction::number(number)),
        None => Fraction::function("abs", std::slice::from_ref(value)),
    }
}

fn factorial(value: &Fraction) -> Option<Fraction> {
    match value.as_number().and_then(Number::integer) {
        Some(n) if (0..=30).contains(&n) => Some(Fraction::number(Number::whole((1..=n).product()))),
        _ => Fraction::function("factorial", std::slice::from_ref(value)),
    }
}

/// log of a whole base where it is a whole number.
fn whole_logarithm(base: &Fraction, x: &Fraction) -> Option<Fraction> {
    const MOST: i128 = 64;
    let (base, x) = (base.as_number()?, x.as_number()?);
    if base.integer()? < 2 {
        return None;
    }
    let (mut up, mut down) = (Number::ONE, Number::ONE);
    for exponent in 0..=MOST {
        if x == up {
            return Some(Fraction::number(Number::whole(exponent)));
        }
        if x == down {
            return Some(Fraction::number(Number::whole(-exponent)));
        }
        (up, down) = (up.times(base)?, down.over(base)?);
    }
    None
}

fn binomial(n: &Fraction, k: &Fraction) -> Option<Fraction> {
    let whole = |f: &Fraction| f.as_number().and_then(Number::integer);
    let (Some(n), Some(k)) = (whole(n), whole(k)) else {
        return Fraction::function("binom", &[n.clone(), k.clone()]);
    };
    if !(0..=100).contains(&n) || !(0..=n).contains(&k) {
        return None;
    }
    let mut value = Number::ONE;
    for i in 0..k.min(n - k) {
        value = value.times(Number::new(n - i, i + 1)?)?;
    }
    Some(Fraction::number(value))
}
