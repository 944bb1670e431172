//! Four-bit weights: NF4 with doubly quantised scales (Dettmers et al. 2023, "QLoRA"), to the code what bitsandbytes
//! makes (TRAINING "Quantisation").

mod bitsandbytes;
mod dynamic;
mod matrix;
mod nf4;

pub use bitsandbytes::{BitsAndBytesError, is_part, read, weight_name};
pub use matrix::{Nf4Matrix, QuantError, Scales};
pub use nf4::{BLOCK, CODE};
