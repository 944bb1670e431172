//! Matrix products of slices.

use gemm::Parallelism;

/// Products of fewer multiplications stay on one thread.
const PARALLEL: usize = 192 * 192 * 192;

/// A matrix that lies in a slice, element (i, j) at i·`row_stride` + j·`column_stride`.
#[derive(Clone, Copy, Debug)]
pub(in crate::ops) struct Matrix<'a> {
    data: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// Row after row.
    pub(in crate::ops) fn new(data: &'a [f32], rows: usize, columns: usize) -> Self {
        Self {
            data,
            rows,
            columns,
            row_stride: columns,
            column_stride: 1,
        }
    }

    /// Element (i, j) at i·`row_stride` + j·`column_stride`.
    pub(in crate::ops) fn strided(data: &'a [f32], [rows, columns]: [usize; 2], strides: [usize; 2]) -> Self {
        let [row_stride, column_stride] = strides;
        Self {
            data,
            rows,
            columns,
            row_stride,
            column_stride,
        }
    }

    /// Columns `first..first + count`.
    pub(in crate::ops) fn columns(self, first: usize, count: usize) -> Self {
        Self {
            data: &self.data[(first * self.column_stride).min(self.data.len())..],
            columns: count,
            ..self
        }
    }

    /// The transposed matrix, of the same numbers.
    pub(in crate::ops) fn transposed(self) -> Self {
        Self {
            data: self.data,
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
        }
    }

    /// One past the last element's place.
    fn end(&self) -> usize {
        match (self.rows, self.columns) {
            (0, _) | (_, 0) => 0,
            (rows, columns) => (rows - 1) * self.row_stride + (columns - 1) * self.column_stride + 1,
        }
    }
}

/// What a product does to what its place already holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::ops) enum Into {
    /// Replaces it.
    Set,
    /// Is added to it.
    Add,
}

/// out ← scale·a·b, or out ← out + scale·a·b; `out` row after row.
///
/// # Panics
/// When a slice is shorter than its matrix or the shapes do not fit: a mistake of the caller, never of its data.
pub(in crate::ops) fn product(out: &mut [f32], into: Into, scale: f32, a: Matrix<'_>, b: Matrix<'_>) {
    product_within(out, b.columns, into, scale, a, b);
}

/// The same where a row of `out` begins `row_stride` after the one before.
pub(in crate::ops) fn product_within(
    out: &mut [f32],
    row_stride: usize,
    into: Into,
    scale: f32,
    a: Matrix<'_>,
    b: Matrix<'_>,
) {
    let (m, n, k) = (a.rows, b.columns, a.columns);
    assert_eq!(k, b.rows, "inner dimensions");
    let end = match (m, n) {
        (0, _) | (_, 0) => 0,
        _ => (m - 1) * row_stride + n,
    };
    assert!(
        row_stride >= n && out.len() >= end && a.data.len() >= a.end() && b.data.len() >= b.end(),
        "slices hold their matrices"
    );
    if m == 0 || n == 0 {
        return;
    }
    let parallelism = if m * n * k >= PARALLEL && rayon::current_num_threads() > 1 {
        Parallelism::Rayon(0)
    } else {
        Parallelism::None
    };
    let stride = |s: usize| s as isize;
    #[allow(unsafe_code, reason = "the gemm crate takes pointers")]
    // SAFETY: all three matrices lie within their slices, as asserted above, and `out`'s rows do not overlap; `out` is borrowed mutably, so it
    // overlaps neither operand, and its elements are initialised.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            stride(row_stride),
            into == Into::Add,
            a.data.as_ptr(),
            stride(a.column_stride),
            stride(a.row_stride),
            b.data.as_ptr(),
            stride(b.column_stride),
            stride(b.row_stride),
            1.0,
            scale,
            false,
            false,
            false,
            parallelism,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_is_the_sum_over_the_inner_dimension() {
        let (m, n, k) = (3, 5, 4);
        let a: Vec<f32> = (0..m * k).map(|i| i as f32 - 5.0).collect();
        let b: Vec<f32> = (0..k * n).map(|i| 0.5 * i as f32).collect();
        let expected = |i: usize, j: usize| (0..k).map(|l| a[i * k + l] * b[l * n + j]).sum::<f32>();
        let mut out = vec![1.0; m * n];
        product(
            &mut out,
            Into::Add,
            2.0,
            Matrix::new(&a, m, k),
            Matrix::new(&b, k, n),
        );
        for i in 0..m {
            for j in 0..n {
                assert_eq!(out[i * n + j], 1.0 + 2.0 * expected(i, j));
            }
        }
        let mut turned = vec![7.0; m * n];
        let (at, bt) = (
            Matrix::new(&a, m, k).transposed(),
            Matrix::new(&b, k, n).transposed(),
        );
        product(&mut turned, Into::Set, 1.0, bt, at);
        assert_eq!(turned[2 * m + 1], expected(1, 2));
    }

    #[test]
    fn nothing_is_added_over_an_empty_inner_dimension() {
        let mut out = vec![3.0; 2];
        product(
            &mut out,
            Into::Add,
            1.0,
            Matrix::new(&[], 1, 0),
            Matrix::new(&[], 0, 2),
        );
        assert_eq!(out, [3.0, 3.0]);
        product(
            &mut out,
            Into::Set,
            1.0,
            Matrix::new(&[], 1, 0),
            Matrix::new(&[], 0, 2),
        );
        assert_eq!(out, [0.0, 0.0]);
    }
}
