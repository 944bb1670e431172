//! Kernels of the CPU backend: f32 slices in, f32 slices out.
//!
//! Work is cut by rows into pieces whose bounds do not depend on how many threads there are, and every sum has one
//! order: results are the same to the bit on one thread and on many.

mod gemm;
mod math;
mod pieces;
mod tensor;

pub(super) use gemm::{Into, Matrix, product, product_within};
pub(super) use math::{dot, exp, largest, sigmoid, sum, sum_of_squares};
pub(super) use pieces::{by_rows, by_rows_of_two, is_large, sum_over_rows, wide};
pub(super) use tensor::{Values, is_f32, tensor, with_matrix};
