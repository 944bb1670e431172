//! Partial sums of a grid, and the plain forms of what travels.

use crate::pack::{self, PackError};
use crate::quant::{self, Float, Form, Levels};
use crate::ring::RingError;
use crate::ring::Segment;
use crate::ring::hop::{BadElement, float};
use std::ops::Range;

/// A partial sum. What stays with a slot is not rounded: only what travels is.
#[derive(Clone, Debug)]
pub(super) enum Sum {
    Float(Float, Vec<f32>),
    Int(Levels, Vec<i32>),
}

impl Sum {
    /// Zeros.
    pub(super) fn zeros(form: Form, len: usize) -> Self {
        match form {
            Form::Floats(float) => Self::Float(float, vec![0.0; len]),
            Form::Integers(levels) => Self::Int(levels, vec![0; len]),
        }
    }

    /// Δ × weight, or its integers under the shared scales.
    pub(super) fn own(form: Form, delta: &[f32], weight: f32, scales: &[f32]) -> Self {
        match form {
            Form::Floats(float) => Self::Float(float, quant::weigh(delta, weight)),
            Form::Integers(levels) => {
                let integers = quant::quantise(delta, weight, scales, levels);
                Self::Int(levels, quant::widen(&integers))
            }
        }
    }

    /// Reads `units` elements that sum `contributions`.
    pub(super) fn read(form: Form, s: &Segment, contributions: u32, units: usize) -> Result<Self, RingError> {
        match form {
            Form::Floats(float) => {
                let mut sum = vec![0.0; units];
                float::read_sum(float, &s.payload, contributions, &mut sum)
                    .map_err(|BadElement(element)| bad_value(s, element))?;
                Ok(Self::Float(float, sum))
            }
            Form::Integers(levels) => pack::unpack(&s.payload, levels, contributions, units)
                .map(|sums| Self::Int(levels, sums))
                .map_err(|e| match e {
                    PackError::Range { element, .. } => bad_value(s, element),
                    PackError::Length { .. } | PackError::Padding => bad_value(s, units),
                }),
        }
    }

    /// As it travels, a sum of `contributions`.
    pub(super) fn payload(&self, contributions: u32) -> Vec<u8> {
        match self {
            Self::Float(form, v) => float::encode(*form, v),
            Self::Int(levels, v) => pack::pack(v, *levels, contributions),
        }
    }

    /// Incoming + own, in this order.
    pub(super) fn plus(self, own: &Self) -> Self {
        match (self, own) {
            (Self::Float(form, mut a), Self::Float(_, b)) => {
                quant::add_in_place(&mut a, b);
                Self::Float(form, a)
            }
            (Self::Int(levels, mut a), Self::Int(_, b)) => {
                a.iter_mut().zip(b).for_each(|(x, y)| *x += *y);
                Self::Int(levels, a)
            }
            (other, _) => other,
        }
    }

    /// Part of it.
    pub(super) fn slice(&self, range: Range<usize>) -> Self {
        match self {
            Self::Float(form, v) => Self::Float(*form, v[range].to_vec()),
            Self::Int(levels, v) => Self::Int(*levels, v[range].to_vec()),
        }
    }

    /// Puts a part in its place.
    pub(super) fn put(&mut self, start: usize, part: &Self) {
        match (self, part) {
            (Self::Float(_, v), Self::Float(_, p)) => v[start..start + p.len()].copy_from_slice(p),
            (Self::Int(_, v), Self::Int(_, p)) => v[start..start + p.len()].copy_from_slice(p),
            (_, _) => {}
        }
    }
}

/// A segment's floats, all finite.
pub(super) fn read_floats(form: Float, s: &Segment, units: usize) -> Result<Vec<f32>, RingError> {
    let mut values = vec![0.0; units];
    float::read(form, &s.payload, &mut values).map_err(|BadElement(element)| bad_value(s, element))?;
    Ok(values)
}

/// Block maxima: not negative, and of what a member may add.
pub(super) fn read_maxima(s: &Segment) -> Result<Vec<f32>, RingError> {
    let values = read_floats(Float::F32, s, s.payload.len() / Float::F32.bytes())?;
    match values.iter().position(|v| !(0.0..=quant::MAX_SHARE).contains(v)) {
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
