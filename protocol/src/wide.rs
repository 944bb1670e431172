//! Loops over numbers, compiled for the machine's vector instructions. The bits do not depend on them: every operation is
//! an IEEE one, in the order written, without fused multiply-add.

/// Runs `f` compiled for the widest vectors that this machine has. `f` and what it calls must be inlined into it: a closure
/// has to be marked `#[inline(always)]`, or it is compiled once, for the smallest machine.
#[inline(always)]
pub(crate) fn wide<R>(f: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        use pulp::x86::{V3, V4};
        if let Some(simd) = V4::try_new() {
            return simd.vectorize(f);
        }
        if let Some(simd) = V3::try_new() {
            return simd.vectorize(f);
        }
    }
    pulp::Arch::new().dispatch(f)
}
