//! A quotient of two sums: equal when the cross products are.

use super::super::number::Number;
use super::poly::{Atom, Poly};

/// Two irrational numbers in floating point are one number within this share of their size.
const SAME: f64 = 1e-12;

/// top / bottom, bottom not zero.
#[derive(Clone, Debug)]
pub(super) struct Fraction {
    pub(super) top: Poly,
    bottom: Poly,
}

impl Fraction {
    pub(super) fn number(value: Number) -> Self {
        Self::from(Poly::number(value))
    }

    pub(super) fn symbol(name: &str) -> Self {
        let atom = match name {
            "i" => Atom::Imaginary,
            _ => Atom::Symbol(name.to_owned()),
        };
        Self::from(Poly::atom(atom))
    }

    /// A function of arguments, compared by its name and them.
    pub(super) fn function(name: &str, arguments: &[Self]) -> Option<Self> {
        let arguments = arguments.iter().map(Self::to_poly).collect::<Option<_>>()?;
        Some(Self::from(Poly::opaque(name, arguments)))
    }

    pub(super) fn as_number(&self) -> Option<Number> {
        self.top.as_number()?.over(self.bottom.as_number()?)
    }

    /// The name of a variable that stands alone.
    pub(super) fn as_symbol(&self) -> Option<&str> {
        (self.bottom.as_number() == Some(Number::ONE)).then(|| self.top.as_symbol())?
    }

    pub(super) fn plus(&self, other: &Self) -> Option<Self> {
        if self.bottom == other.bottom {
            return Some(Self {
                top: self.top.plus(&other.top)?,
                bottom: self.bottom.clone(),
            });
        }
        let left = self.top.times(&other.bottom)?;
        let right = other.top.times(&self.bottom)?;
        Self::new(left.plus(&right)?, self.bottom.times(&other.bottom)?)
    }

    pub(super) fn minus(&self, other: &Self) -> Option<Self> {
        self.plus(&other.negated())
    }

    pub(super) fn negated(&self) -> Self {
        Self {
            top: self.top.negated(),
            bottom: self.bottom.clone(),
        }
    }

    pub(super) fn times(&self, other: &Self) -> Option<Self> {
        Self::new(self.top.times(&other.top)?, self.bottom.times(&other.bottom)?)
    }

    pub(super) fn over(&self, other: &Self) -> Option<Self> {
        Self::new(self.top.times(&other.bottom)?, self.bottom.times(&other.top)?)
    }

    pub(super) fn to_power(&self, exponent: &Self) -> Option<Self> {
        let exponent = exponent.to_poly()?;
        let negative = exponent.as_number().is_some_and(|n| n.parts().0 < 0);
        let (top, bottom, exponent) = if negative {
            (&self.bottom, &self.top, exponent.negated())
        } else {
            (&self.top, &self.bottom, exponent)
        };
        Self::new(top.to_power(&exponent)?, bottom.to_power(&exponent)?)
    }

    /// Exact equality; irrational numbers that no common form was found for also by value.
    pub(super) fn equals(&self, other: &Self) -> bool {
        let exact = || {
            let left = self.top.times(&other.bottom)?;
            let right = other.top.times(&self.bottom)?;
            Some(left.plus(&right.negated())?.is_zero())
        };
        exact() == Some(true) || self.is_near(other)
    }

    /// Whether this is other · c for a number c above 0 (any number but 0 when `sign` is free).
    pub(super) fn is_multiple_of(&self, other: &Self, sign: Sign) -> bool {
        let Some(quotient) = self.over(other) else {
            return false;
        };
        // c is a number exactly if top = c · bottom, and then their leading coefficients say which.
        let Some(c) = quotient.leading() else {
            return false;
        };
        let scaled = Self::number(c).times(other);
        c != Number::ZERO
            && (sign == Sign::Free || c.parts().0 > 0)
            && scaled.is_some_and(|scaled| self.equals(&scaled))
    }

    fn leading(&self) -> Option<Number> {
        self.top
            .leading_coefficient()?
            .over(self.bottom.leading_coefficient()?)
    }

    fn is_near(&self, other: &Self) -> bool {
        if self.as_number().is_some() || other.as_number().is_some() {
            return false;
        }
        let (Some(a), Some(b)) = (self.approximate(), other.approximate()) else {
            return false;
        };
        (a - b).abs() <= SAME * a.abs().max(b.abs()) && a != 0.0
    }

    fn approximate(&self) -> Option<f64> {
        let value = self.top.approximate()? / self.bottom.approximate()?;
        value.is_finite().then_some(value)
    }

    fn new(top: Poly, bottom: Poly) -> Option<Self> {
        (!bottom.is_zero()).then_some(Self { top, bottom })
    }

    fn to_poly(&self) -> Option<Poly> {
        let inverse = self.bottom.to_power(&Poly::number(Number::whole(-1)))?;
        self.top.times(&inverse)
    }
}

impl From<Poly> for Fraction {
    fn from(top: Poly) -> Self {
        Self {
            top,
            bottom: Poly::number(Number::ONE),
        }
    }
}

/// Whether a factor may turn the sides of a relation round.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Sign {
    Free,
    Positive,
}
