//! GYM's training on burn: models, LoRA, rollouts, GSPO, rewards and data. It knows no network.

pub mod adapter;
pub mod data;
pub mod device;
pub mod eval;
pub mod generate;
pub mod gspo;
pub mod inspect;
pub mod lora;
pub mod memory;
pub mod merge;
pub mod metrics;
pub mod model;
mod ops;
pub mod optim;
pub mod plot;
pub mod pretrain;
pub mod quant;
pub mod reference;
pub mod reward;
pub mod sampling;
pub mod tensorboard;
pub mod threads;
pub mod tokenizer;
pub mod trainer;

pub use burn::tensor::Device;
