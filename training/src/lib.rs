//! GYM's training on burn: models, LoRA, rollouts, GSPO, rewards and data. It knows no network.

pub mod adapter;
pub mod data;
pub mod gspo;
pub mod lora;
pub mod model;
pub mod optim;
pub mod pretrain;
pub mod reward;
pub mod sampling;
pub mod tokenizer;
