//! Sums of terms with exact coefficients: what an expression becomes so that equal ones look alike.

use super::super::number::Number;
use std::collections::BTreeMap;

/// More terms than this are not worth comparing.
const MAX_TERMS: usize = 256;
/// Powers of sums are multiplied out up to this exponent.
const MAX_EXPANSION: i128 = 12;
/// Numbers under roots are factored up to this prime.
const MAX_PRIME: i128 = 1_000_000;

/// What a term is a product of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Atom {
    /// A prime under a root: 2^(1/2) is √2. Its exponent lies between 0 and 1.
    Root(i128),
    /// i, with i² = −1.
    Imaginary,
    /// A variable or constant by its name.
    Symbol(String),
    /// Anything that is compared as written: sin of something, a power with a variable exponent, a root of a sum.
    Opaque(String, Vec<Poly>),
}

type Factors = BTreeMap<Atom, Number>;

/// Σ coefficient · Π atom^exponent, no coefficient zero.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Poly(BTreeMap<Factors, Number>);

impl Poly {
    pub(super) fn number(value: Number) -> Self {
        let mut terms = BTreeMap::new();
        if value != Number::ZERO {
            terms.insert(Factors::new(), value);
        }
        Self(terms)
    }

    pub(super) fn atom(atom: Atom) -> Self {
        Self(BTreeMap::from([(
            Factors::from([(atom, Number::ONE)]),
            Number::ONE,
        )]))
    }

    /// The value of a number; `None` when anything but a number is in it.
    pub(super) fn as_number(&self) -> Option<Number> {
        match self.0.iter().next() {
            None => Some(Number::ZERO),
            Some((factors, value)) => (self.0.len() == 1 && factors.is_empty()).then_some(*value),
        }
    }

    pub(super) fn is_zero(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn plus(&self, other: &Self) -> Option<Self> {
        let mut sum = self.clone();
        for (factors, value) in &other.0 {
            sum.add_term(factors.clone(), *value)?;
        }
        Some(sum)
    }

    pub(super) fn negated(&self) -> Self {
        Self(self.0.iter().map(|(f, v)| (f.clone(), v.negated())).collect())
    }

    pub(super) fn times(&self, other: &Self) -> Option<Self> {
        let mut product = Self::default();
        for (a, x) in &self.0 {
            for (b, y) in &other.0 {
                let mut factors = a.clone();
                for (atom, exponent) in b {
                    let sum = factors.get(atom).copied().unwrap_or(Number::ZERO);
                    factors.insert(atom.clone(), sum.plus(*exponent)?);
                }
                let (factors, extra) = reduce(factors)?;
                product.add_term(factors, x.times(*y)?.times(extra)?)?;
            }
        }
        Some(product)
    }

    /// This to a power; what cannot be multiplied out stays as written.
    pub(super) fn to_power(&self, exponent: &Self) -> Option<Self> {
        let Some(power) = exponent.as_number() else {
            return self.to_open_power(exponent);
        };
        if self.is_zero() && power.parts().0 <= 0 {
            return None;
        }
        if let (1, Some((factors, value))) = (self.0.len(), self.0.iter().next())
            && let Some(done) = term_to_power(factors, *value, power)
        {
            return Some(done);
        }
        match power.integer() {
            Some(n) if (0..=MAX_EXPANSION).contains(&n) => {
                let mut product = Self::number(Number::ONE);
                for _ in 0..n {
                    product = product.times(self)?;
                }
                Some(product)
            }
            _ => Some(Self::opaque("power", vec![self.clone(), exponent.clone()])),
        }
    }

    /// This to a power with a variable in it: b^(c·x) is (b^x)^c, so that e^(2x) and (e^x)² look alike.
    fn to_open_power(&self, exponent: &Self) -> Option<Self> {
        let factor = exponent.leading_coefficient()?;
        let rest = exponent.times(&Self::number(Number::ONE.over(factor)?))?;
        let power = Self::opaque("power", vec![self.clone(), rest]);
        power.to_power(&Self::number(factor))
    }

    /// The name of a variable that stands alone.
    pub(super) fn as_symbol(&self) -> Option<&str> {
        let (factors, value) = self.0.iter().next()?;
        match factors.iter().next()? {
            (Atom::Symbol(name), exponent) if *exponent == Number::ONE => {
                (self.0.len() == 1 && factors.len() == 1 && *value == Number::ONE).then_some(name.as_str())
            }
            _ => None,
        }
    }

    pub(super) fn opaque(name: &str, arguments: Vec<Self>) -> Self {
        Self::atom(Atom::Opaque(name.to_owned(), arguments))
    }

    /// The coefficient of the last term in the terms' order.
    pub(super) fn leading_coefficient(&self) -> Option<Number> {
        self.0.values().next_back().copied()
    }

    /// The value in floating point; `None` with a variable or an unknown function in it.
    pub(super) fn approximate(&self) -> Option<f64> {
        self.0.iter().try_fold(0.0, |sum, (factors, value)| {
            let product = factors
                .iter()
                .try_fold(value.approximate(), |product, (atom, exponent)| {
                    Some(product * atom.approximate()?.powf(exponent.approximate()))
                })?;
            Some(sum + product)
        })
    }

    fn add_term(&mut self, factors: Factors, value: Number) -> Option<()> {
        let sum = self
            .0
            .get(&factors)
            .copied()
            .unwrap_or(Number::ZERO)
            .plus(value)?;
        if sum == Number::ZERO {
            self.0.remove(&factors);
        } else {
            self.0.insert(factors, sum);
        }
        (self.0.len() <= MAX_TERMS).then_some(())
    }
}

impl Atom {
    fn approximate(&self) -> Option<f64> {
        match self {
            Self::Root(prime) => Some(*prime as f64),
            Self::Imaginary => None,
            Self::Symbol(name) => match name.as_str() {
                "pi" => Some(std::f64::consts::PI),
                "e" => Some(std::f64::consts::E),
                _ => None,
            },
            Self::Opaque(name, arguments) => function(name, arguments),
        }
    }
}

fn function(name: &str, arguments: &[Poly]) -> Option<f64> {
    let values: Vec<f64> = arguments.iter().map(Poly::approximate).collect::<Option<_>>()?;
    let value = match (name, values.as_slice()) {
        ("sin", [x]) => x.sin(),
        ("cos", [x]) => x.cos(),
        ("tan", [x]) => x.tan(),
        ("cot", [x]) => 1.0 / x.tan(),
        ("sec", [x]) => 1.0 / x.cos(),
        ("csc", [x]) => 1.0 / x.sin(),
        ("arcsin", [x]) => x.asin(),
        ("arccos", [x]) => x.acos(),
        ("arctan", [x]) => x.atan(),
        ("ln" | "log", [x]) => x.ln(),
        ("log", [base, x]) => x.ln() / base.ln(),
        ("exp", [x]) => x.exp(),
        ("abs", [x]) => x.abs(),
        ("power", [x, y]) => x.powf(*y),
        _ => return None,
    };
    value.is_finite().then_some(value)
}

/// Whole powers of primes and of i leave the factors for the coefficient; exponents of zero go.
fn reduce(factors: Factors) -> Option<(Factors, Number)> {
    let mut kept = Factors::new();
    let mut extra = Number::ONE;
    for (atom, exponent) in factors {
        let rest = match &atom {
            Atom::Root(prime) => {
                let (whole, rest) = split(exponent)?;
                extra = extra.times(integer_power(Number::whole(*prime), whole)?)?;
                rest
            }
            Atom::Imaginary => {
                let n = exponent.integer()?.rem_euclid(4);
                if n >= 2 {
                    extra = extra.negated();
                }
                Number::whole(n % 2)
            }
            Atom::Symbol(_) | Atom::Opaque(..) => exponent,
        };
        if rest != Number::ZERO {
            kept.insert(atom, rest);
        }
    }
    Some((kept, extra))
}

/// Floor and remainder.
fn split(exponent: Number) -> Option<(i128, Number)> {
    let (numerator, denominator) = exponent.parts();
    let whole = numerator.div_euclid(denominator);
    Some((whole, exponent.plus(Number::whole(whole).negated())?))
}

/// One term to a rational power: √12 is 2·√3. `None` when it has no such form.
fn term_to_power(factors: &Factors, value: Number, power: Number) -> Option<Poly> {
    let scaled: Factors = factors
        .iter()
        .map(|(atom, exponent)| Some((atom.clone(), exponent.times(power)?)))
        .collect::<Option<_>>()?;
    let (kept, extra) = reduce(scaled)?;
    let outside = Poly(BTreeMap::from([(kept, extra)]));
    number_to_power(value, power)?.times(&outside)
}

fn number_to_power(value: Number, power: Number) -> Option<Poly> {
    if let Some(n) = power.integer() {
        return Some(Poly::number(integer_power(value, n)?));
    }
    let (numerator, denominator) = value.parts();
    let sign = match (numerator < 0, power.parts()) {
        (false, _) => Poly::number(Number::ONE),
        // The real root of odd order; i for square roots.
        (true, (n, 3)) => Poly::number(Number::whole(if n % 2 == 0 { 1 } else { -1 })),
        (true, (n, 2)) => {
            let i = Poly(BTreeMap::from([(
                Factors::from([(Atom::Imaginary, Number::ONE)]),
                Number::ONE,
            )]));
            i.to_power(&Poly::number(Number::whole(n)))?
        }
        (true, _) => return None,
    };
    let above = roots(numerator.checked_abs()?, power)?;
    let below = roots(denominator, power.negated())?;
    sign.times(&above)?.times(&below)
}

/// n^power as a product of primes under roots.
fn roots(n: i128, power: Number) -> Option<Poly> {
    let mut factors = Factors::new();
    let mut rest = n;
    let mut prime = 2;
    while rest > 1 {
        if prime > MAX_PRIME {
            return None;
        }
        if prime * prime > rest {
            prime = rest;
        }
        let mut count = 0;
        while rest % prime == 0 {
            rest /= prime;
            count += 1;
        }
        if count > 0 {
            factors.insert(Atom::Root(prime), Number::whole(count).times(power)?);
        }
        prime += if prime == 2 { 1 } else { 2 };
    }
    let (kept, extra) = reduce(factors)?;
    Some(Poly(BTreeMap::from([(kept, extra)])))
}

fn integer_power(base: Number, exponent: i128) -> Option<Number> {
    if exponent.unsigned_abs() > 256 {
        return None;
    }
    let mut product = Number::ONE;
    for _ in 0..exponent.unsigned_abs() {
        product = product.times(base)?;
    }
    if exponent < 0 {
        Number::ONE.over(product)
    } else {
        Some(product)
    }
}
