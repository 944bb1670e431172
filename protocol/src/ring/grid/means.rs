//! The mean of a piece, made once by its owner, on its way along the column, then along the row.

use super::GridRing;
use super::sum::{Sum, bad_value, finite, read_floats};
use crate::message::Phase;
use crate::quant::{self, BLOCK, Form, Q8};
use crate::ring::hop::float;
use crate::ring::{RingError, Segment};
use std::ops::Range;

impl GridRing {
    /// The owner of a piece divides once, keeps the mean as the others will read it, and gives what travels.
    pub(super) fn divide(&mut self, range: &Range<usize>, sum: Sum) -> Vec<u8> {
        let total = quant::weight_f32(self.total_weight);
        let owned = self.shape.owned;
        match sum {
            Sum::Float(form, mut mean) => {
                quant::divide_in_place(&mut mean, total);
                let payload = float::encode(form, &mean);
                // Not finite at worst, and then refused by the next.
                let _ = float::read(form, &payload, &mut mean);
                self.put_mean(owned, range, &mean);
                payload
            }
            Sum::Int(_, sum) => {
                let q8 = Q8::encode(&quant::mean(&sum, self.block_scales(owned, range), total));
                self.put_mean(owned, range, &q8.decode());
                self.keep_encoded(range, &q8);
                q8.to_bytes()
            }
        }
    }

    fn keep_encoded(&mut self, range: &Range<usize>, q8: &Q8) {
        self.encoded.integers[range.clone()].copy_from_slice(&q8.integers);
        let blocks = range.start / BLOCK..range.end.div_ceil(BLOCK);
        self.encoded.scales[blocks].copy_from_slice(&q8.scales);
    }

    pub(super) fn take_mean(&mut self, s: Segment, out: &mut Vec<Segment>) -> Result<(), RingError> {
        let (phase, step, segment) = (s.phase, s.step, s.segment);
        let range = self.shape.range(phase, s.chunk, segment);
        let in_column = phase == Phase::ColumnAllGather;
        let chunk = if in_column { self.shape.owned } else { s.chunk };
        let values = match Form::of(self.wire) {
            Form::Floats(float) => read_floats(float, &s, range.len())?,
            Form::Integers(_) => {
                let q8 = Q8::from_bytes(&s.payload, range.len()).map_err(|_| bad_value(&s, 0))?;
                if in_column {
                    self.keep_encoded(&range, &q8);
                }
                finite(&s, q8.decode())?
            }
        };
        self.put_mean(chunk, &range, &values);
        if step < self.shape.last_step(phase) {
            out.push(Segment { step: step + 1, ..s });
        }
        if in_column {
            self.count_column_mean(out);
        }
        Ok(())
    }

    /// Once the column has finished the owned chunk, its mean goes around the row.
    pub(super) fn count_column_mean(&mut self, out: &mut Vec<Segment>) {
        self.left.column_mean -= 1;
        if self.left.column_mean > 0 {
            return;
        }
        let chunk = self.shape.owned;
        let start = self.shape.row.chunk(chunk).start;
        for g in 0..self.shape.segments(Phase::AllGather, chunk) {
            let range = self.shape.range(Phase::AllGather, chunk, g);
            let payload = match Form::of(self.wire) {
                Form::Floats(float) => {
                    float::encode(float, &self.mean[start + range.start..start + range.end])
                }
                Form::Integers(_) => Q8 {
                    integers: self.encoded.integers[range.clone()].to_vec(),
                    scales: self.encoded.scales[range.start / BLOCK..range.end.div_ceil(BLOCK)].to_vec(),
                }
                .to_bytes(),
            };
            out.push(Segment {
                phase: Phase::AllGather,
                step: 0,
                chunk,
                segment: g,
                payload,
            });
        }
    }

    fn put_mean(&mut self, chunk: u32, range: &Range<usize>, values: &[f32]) {
        let start = self.shape.row.chunk(chunk).start;
        self.mean[start + range.start..start + range.end].copy_from_slice(values);
    }
}
