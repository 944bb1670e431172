//! Four-bit weights: NF4 with doubly quantised scales (Dettmers et al. 2023, "QLoRA"), to the code what bitsandbytes
//! makes (TRAINING "Quantisation").

mod bitsandbytes;
mod dynamic;
mod matrix;
mod nf4;
mod tensor;

pub use bitsandbytes::{BitsAndBytesError, read};
pub(crate) use bitsandbytes::{state_name, weight_of_part};
pub(crate) use dynamic::code as scale_code;
pub use matrix::{Nf4Matrix, QuantError, Scales};
pub(crate) use nf4::quantise as block_scales;
pub use nf4::{BLOCK, CODE};
pub(crate) use tensor::Nf4Slices;
pub use tensor::Nf4Tensor;

/// How frozen linear weights are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantisation {
    /// As loaded.
    None,
    /// NF4 (`use_4bit`).
    Nf4,
}
