//! What a forward pass shares between its layers.

use super::cache::KvCache;
use super::delta_net::Sequences;
use super::packed::Segment;
use crate::ops::Rotation;
use burn::tensor::DType;
use std::sync::Arc;

/// The tokens' layout and places, one for all layers.
#[derive(Debug)]
pub(crate) struct Pass {
    /// What linear layers compute in; the residual stream is in f32. On the CPU a model with delta-nets has both in f64.
    pub(crate) dtype: DType,
    pub(crate) layout: Arc<[Segment]>,
    pub(crate) rotation: Rotation,
    /// The layout as a delta-net reads it, in a model that has one.
    pub(crate) sequences: Option<Sequences>,
}

/// What a pass remembers for the next.
#[derive(Debug)]
pub(crate) enum Memory<'a> {
    /// Nothing: a whole pass.
    None,
    /// The prompts' pass, which fills an empty cache.
    Prefill(&'a mut KvCache),
    /// One new token a row.
    Decode(&'a mut KvCache),
}

/// The same, for one layer.
#[derive(Debug)]
pub(crate) enum State<'a> {
    /// Nothing: a whole pass.
    None,
    /// The prompts' pass, which fills an empty cache.
    Prefill { cache: &'a mut KvCache, layer: usize },
    /// One new token a row.
    Decode { cache: &'a mut KvCache, layer: usize },
}

impl Memory<'_> {
    pub(crate) fn layer(&mut self, layer: usize) -> State<'_> {
        match self {
            Self::None => State::None,
            Self::Prefill(cache) => State::Prefill { cache, layer },
            Self::Decode(cache) => State::Decode { cache, layer },
        }
    }
}
