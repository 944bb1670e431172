//! What numbers travel at each wire precision.

use crate::job::spec::Wire;

/// What the sums of a wire precision are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Floats, added in ring order.
    Floats(Float),
    /// Exact integers under block scales that the members share; their mean travels as q8.
    Integers(Levels),
}

impl Form {
    /// The form of a precision.
    #[must_use]
    pub const fn of(wire: Wire) -> Self {
        match wire {
            Wire::F32 => Self::Floats(Float::F32),
            Wire::Bf16 => Self::Floats(Float::Bf16),
            Wire::Q8 => Self::Integers(Levels::Q8),
            Wire::Q4 => Self::Integers(Levels::Q4),
        }
    }
}

/// A float as it travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Float {
    /// 32 bits.
    F32,
    /// The upper 16 of them, rounded to nearest even.
    Bf16,
}

impl Float {
    /// Bytes of an element.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

/// How far the integers of one contribution reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Levels {
    /// ±127.
    Q8,
    /// ±7.
    Q4,
}

impl Levels {
    /// Largest magnitude of one contribution's integer.
    #[must_use]
    pub const fn max(self) -> i32 {
        match self {
            Self::Q8 => super::Q8_MAX,
            Self::Q4 => super::Q4_MAX,
        }
    }
}
