//! What an answer can be, and when two are the same.

use super::fraction::{Fraction, Sign};

/// An answer.
#[derive(Clone, Debug)]
pub(super) enum Value {
    /// A number or expression.
    Expression(Fraction),
    /// A number of hundredths: 50 %.
    Percent(Fraction),
    /// An ordered list in brackets: a point, or an interval, whose brackets say which ends belong to it.
    Tuple {
        open: char,
        close: char,
        items: Vec<Self>,
    },
    /// Items in any order: a set, several answers, a union of intervals.
    Set(Vec<Self>),
    /// Rows of a matrix.
    Matrix(Vec<Vec<Self>>),
    /// Sides with the signs between them.
    Relation { sides: Vec<Self>, signs: Vec<char> },
    /// Words, in lower case, without spaces but between digits.
    Words(String),
    /// ∞ or −∞.
    Infinite { negative: bool },
}

impl Value {
    /// Words to compare as they stand, but for case and spaces; a space between two digits counts.
    pub(super) fn words(text: &str) -> Self {
        let mut kept = String::with_capacity(text.len());
        let mut apart = false;
        for c in text.chars().filter(|c| *c != '"') {
            if c.is_whitespace() {
                apart = true;
                continue;
            }
            let digits = kept.ends_with(|c: char| c.is_ascii_digit()) && c.is_ascii_digit();
            if apart && digits {
                kept.push(' ');
            }
            kept.extend(c.to_lowercase());
            apart = false;
        }
        Self::Words(kept)
    }

    /// A set's items, each once.
    pub(super) fn distinct(items: Vec<Self>) -> Vec<Self> {
        let mut kept: Vec<Self> = Vec::with_capacity(items.len());
        for item in items {
            if !kept.iter().any(|other| other.equals(&item)) {
                kept.push(item);
            }
        }
        kept
    }

    /// Whether both say the same. x = 5 is 5, x > 5 is (5, ∞), and {5} is 5.
    pub(super) fn equals(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Expression(a), Self::Expression(b)) | (Self::Percent(a), Self::Percent(b)) => a.equals(b),
            (Self::Expression(a), Self::Percent(b)) | (Self::Percent(b), Self::Expression(a)) => {
                a.equals(b) || hundredth(b).is_some_and(|b| a.equals(&b))
            }
            (Self::Infinite { negative: a }, Self::Infinite { negative: b }) => a == b,
            (Self::Words(a), Self::Words(b)) => a == b,
            (
                Self::Tuple { open, close, items },
                Self::Tuple {
                    open: other_open,
                    close: other_close,
                    items: others,
                },
            ) => open == other_open && close == other_close && in_order(items, others),
            (Self::Set(a), Self::Set(b)) => a.len() == b.len() && in_any_order(a, b),
            (Self::Matrix(a), Self::Matrix(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| in_order(a, b))
            }
            (Self::Relation { .. }, Self::Relation { .. }) if self.is_same_relation(other) => true,
            (Self::Relation { sides: a, .. }, Self::Relation { sides: b, .. }) if of_two_variables(a, b) => {
                false
            }
            (Self::Set(one), alone) | (alone, Self::Set(one)) if one.len() == 1 => one[0].equals(alone),
            (a @ Self::Relation { .. }, b) | (b, a @ Self::Relation { .. }) => {
                let plain = a.without_subject();
                plain.is_some_and(|plain| !matches!(plain, Self::Relation { .. }) && b.equals(&plain))
            }
            (
                Self::Expression(_)
                | Self::Percent(_)
                | Self::Infinite { .. }
                | Self::Words(_)
                | Self::Tuple { .. }
                | Self::Set(_)
                | Self::Matrix(_),
                _,
            ) => false,
        }
    }

    /// x = 5 and x ∈ S without their x; an inequality of a lone x as the interval it stands for.
    fn without_subject(&self) -> Option<Self> {
        let Self::Relation { sides, signs } = self else {
            return None;
        };
        match (sides.as_slice(), signs.as_slice()) {
            ([subject, value], ['=' | '∈']) if subject.is_subject() => Some(value.clone()),
            ([subject, value], [sign]) if subject.is_subject() => interval(value, *sign, Side::Left),
            ([value, subject], [sign]) if subject.is_subject() => interval(value, *sign, Side::Right),
            ([low, subject, high], [a, b]) if subject.is_subject() => {
                let (low, open, high, close) = match (*a, *b) {
                    ('<' | '≤', '<' | '≤') => (low, bracket(*a, '(', '['), high, bracket(*b, ')', ']')),
                    ('>' | '≥', '>' | '≥') => (high, bracket(*b, '(', '['), low, bracket(*a, ')', ']')),
                    _ => return None,
                };
                Some(Self::Tuple {
                    open,
                    close,
                    items: vec![low.clone(), high.clone()],
                })
            }
            _ => None,
        }
    }

    /// A variable, f(x), words, or a point of these.
    fn is_subject(&self) -> bool {
        match self {
            Self::Expression(e) => e.as_number().is_none(),
            Self::Words(_) => true,
            Self::Tuple { items, .. } => items.iter().all(Self::is_subject),
            Self::Percent(_)
            | Self::Set(_)
            | Self::Matrix(_)
            | Self::Relation { .. }
            | Self::Infinite { .. } => false,
        }
    }

    /// The same line or half plane: the differences of the sides are multiples of each other.
    fn is_same_relation(&self, other: &Self) -> bool {
        if let (Some((a, sign)), Some((b, other_sign))) = (self.difference(), other.difference()) {
            let free = matches!(sign, '=' | '≠');
            return sign == other_sign
                && a.is_multiple_of(&b, if free { Sign::Free } else { Sign::Positive });
        }
        match (self, other) {
            (
                Self::Relation { sides, signs },
                Self::Relation {
                    sides: others,
                    signs: other_signs,
                },
            ) => signs == other_signs && in_order(sides, others),
            _ => false,
        }
    }

    /// Left − right of a relation of two expressions, turned so that its sign is =, ≠, < or ≤.
    fn difference(&self) -> Option<(Fraction, char)> {
        let Self::Relation { sides, signs } = self else {
            return None;
        };
        let ([Self::Expression(left), Self::Expression(right)], [sign]) =
            (sides.as_slice(), signs.as_slice())
        else {
            return None;
        };
        match sign {
            '>' => Some((right.minus(left)?, '<')),
            '≥' => Some((right.minus(left)?, '≤')),
            _ => Some((left.minus(right)?, *sign)),
        }
    }
}

/// Whether each relation is of one variable, and not of the same: x = 5 is not y = 5.
fn of_two_variables(a: &[Value], b: &[Value]) -> bool {
    fn subject(sides: &[Value]) -> Option<&str> {
        sides.iter().find_map(|side| {
            let Value::Expression(e) = side else { return None };
            e.as_symbol()
        })
    }
    matches!((subject(a), subject(b)), (Some(a), Some(b)) if a != b)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Left,
    Right,
}

/// The interval of x for `x sign value`, or `value sign x`.
fn interval(value: &Value, sign: char, subject: Side) -> Option<Value> {
    let above = match sign {
        '>' | '≥' => subject == Side::Left,
        '<' | '≤' => subject == Side::Right,
        _ => return None,
    };
    let value = value.clone();
    Some(if above {
        Value::Tuple {
            open: bracket(sign, '(', '['),
            close: ')',
            items: vec![value, Value::Infinite { negative: false }],
        }
    } else {
        Value::Tuple {
            open: '(',
            close: bracket(sign, ')', ']'),
            items: vec![Value::Infinite { negative: true }, value],
        }
    })
}

fn bracket(sign: char, open: char, closed: char) -> char {
    if matches!(sign, '≤' | '≥') {
        closed
    } else {
        open
    }
}

fn hundredth(value: &Fraction) -> Option<Fraction> {
    value.over(&Fraction::number(super::super::number::Number::whole(100)))
}

fn in_order(a: &[Value], b: &[Value]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.equals(b))
}

/// Every item of `a` has a partner of its own in `b`.
fn in_any_order(a: &[Value], b: &[Value]) -> bool {
    let mut left: Vec<&Value> = b.iter().collect();
    a.iter()
        .all(|item| match left.iter().position(|other| item.equals(other)) {
            Some(place) => {
                left.swap_remove(place);
                true
            }
            None => false,
        })
}
