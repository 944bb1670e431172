//! Partial sums of a grid, and the plain forms of what travels.

use crate::job::spec::Wire;
use crate::pack::{self, PackError};
use crate::quant;
use crate::ring::RingError;
use crate::ring::Segment;
use std::ops::Range;

/// A partial sum.
#[derive(Clone, Debug)]
pub(super) enum Sum {
    Float(Vec<f32>),
    Int(Vec<i32>),
}

impl Sum {
    /// Zeros.
    pub(super) fn zeros(wire: Wire, len: usize) -> Self {
        match wire {
            Wire::F32 => Self::Float(vec![0.0; len]),
            Wire::Q8 => Self::Int(vec![0; len]),
        }
    }

    /// Reads `units` elements that sum `contributions`.
    pub(super) fn read(wire: Wire, s: &Segment, contributions: u32, units: usize) -> Result<Self, RingError> {
        match wire {
            Wire::F32 => finite(s, read_f32(&s.payload)).map(Self::Float),
            Wire::Q8 => pack::unpack(&s.payload, contributions, units)
                .map(Self::Int)
                .map_err(|e| match e {
                    PackError::Range { element, .. } => bad_value(s, element),
                    PackError::Length { .. } | PackError::Padding => bad_value(s, units),
                }),
        }
    }

    /// As it travels, a sum of `contributions`.
    pub(super) fn payload(&self, contributions: u32) -> Vec<u8> {
        match self {
            Self::Float(v) => f32_bytes(v),
            Self::Int(v) => pack::pack(v, contributions),
        }
    }

    /// Incoming + own, in this order.
    pub(super) fn plus(self, own: &Self) -> Self {
        match (self, own) {
            (Self::Float(mut a), Self::Float(b)) => {
                quant::add_in_place(&mut a, b);
                Self::Float(a)
            }
            (Self::Int(mut a), Self::Int(b)) => {
                a.iter_mut().zip(b).for_each(|(x, y)| *x += *y);
                Self::Int(a)
            }
            (other, _) => other,
        }
    }

    /// Part of it.
    pub(super) fn slice(&self, range: Range<usize>) -> Self {
        match self {
            Self::Float(v) => Self::Float(v[range].to_vec()),
            Self::Int(v) => Self::Int(v[range].to_vec()),
        }
    }

    /// Puts a part in its place.
    pub(super) fn put(&mut self, start: usize, part: &Self) {
        match (self, part) {
            (Self::Float(v), Self::Float(p)) => v[start..start + p.len()].copy_from_slice(p),
            (Self::Int(v), Self::Int(p)) => v[start..start + p.len()].copy_from_slice(p),
            (_, _) => {}
        }
    }
}

/// Block maxima: finite, and not negative.
pub(super) fn read_maxima(s: &Segment) -> Result<Vec<f32>, RingError> {
    let values = finite(s, read_f32(&s.payload))?;
    match values.iter().position(|v| *v < 0.0) {
        Some(element) => Err(bad_value(s, element)),
        None => Ok(values),
    }
}

/// The values, if all are finite.
pub(super) fn finite(s: &Segment, values: Vec<f32>) -> Result<Vec<f32>, RingError> {
    match values.iter().position(|v| !v.is_finite()) {
        Some(element) => Err(bad_value(s, element)),
        None => Ok(values),
    }
}

pub(super) fn bad_value(s: &Segment, element: usize) -> RingError {
    RingError::Value {
        phase: s.phase,
        step: s.step,
        segment: s.segment,
        element,
    }
}

pub(super) fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

pub(super) fn read_f32(bytes: &[u8]) -> Vec<f32> {
    let values = bytes.as_chunks::<4>().0.iter();
    values.map(|b| f32::from_le_bytes(*b)).collect()
}
