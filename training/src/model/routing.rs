//! Which experts a pass uses: chosen by the router, recorded, or replayed.
//!
//! A small change of the weights can send a token to another expert, and its probability then jumps. Replaying the
//! experts of the old policy's pass in the new one's keeps the two comparable (GSPO, Zheng et al. 2025, section 5.3).

use super::packed::Packed;
use super::{MlpKind, ModelConfig};

/// The experts of every token and layer of one pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routes {
    /// By layer [N·k], likeliest first; empty where the layer has no experts.
    layers: Vec<Vec<u32>>,
}

/// Who chooses the experts of a pass.
#[derive(Debug, Default)]
pub enum Routing<'a> {
    /// The router.
    #[default]
    Router,
    /// The router, and its choice is kept. What was there before is dropped.
    Record(&'a mut Routes),
    /// An earlier pass over the same tokens.
    Replay(&'a Routes),
}

/// Why recorded routes cannot be replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "routes were recorded for {recorded} choices of experts where this pass has {wanted}; record them in a pass \
         over the same tokens and model"
)]
pub struct RoutesError {
    /// Choices in the routes.
    pub recorded: usize,
    /// Choices that the pass makes.
    pub wanted: usize,
}

impl Routes {
    /// Experts chosen in `layer`, [N·k].
    #[must_use]
    pub fn layer(&self, layer: usize) -> &[u32] {
        self.layers.get(layer).map_or(&[], Vec::as_slice)
    }

    /// Share of (token, layer) places whose set of experts differs between two passes over the same tokens; `None`
    /// when they are not the same tokens, or there are no experts.
    #[must_use]
    pub fn differing(&self, other: &Self, per_token: usize) -> Option<f64> {
        let (mut places, mut differ) = (0usize, 0usize);
        for (a, b) in self.layers.iter().zip(&other.layers) {
            if a.len() != b.len() {
                return None;
            }
            for (a, b) in a.chunks(per_token.max(1)).zip(b.chunks(per_token.max(1))) {
                places += 1;
                differ += usize::from(!a.iter().all(|e| b.contains(e)));
            }
        }
        (places > 0).then(|| differ as f64 / places as f64)
    }
}

impl Routing<'_> {
    /// Makes ready for a pass over `packed`.
    pub(crate) fn open(&mut self, packed: &Packed, config: &ModelConfig) -> Result<(), RoutesError> {
        match self {
            Self::Router => Ok(()),
            Self::Record(routes) => {
                routes.layers = vec![Vec::new(); config.num_hidden_layers];
                Ok(())
            }
            Self::Replay(routes) => {
                for (index, layer) in config.layers.iter().enumerate() {
                    let wanted = match layer.mlp {
                        MlpKind::Dense => 0,
                        MlpKind::Experts(experts) => packed.len() * experts.per_token,
                    };
                    let recorded = routes.layer(index).len();
                    if recorded != wanted {
                        return Err(RoutesError { recorded, wanted });
                    }
                }
                Ok(())
            }
        }
    }

    pub(crate) fn layer(&mut self, layer: usize) -> LayerRouting<'_> {
        match self {
            Self::Router => LayerRouting::Router,
            Self::Record(routes) => LayerRouting::Record(&mut routes.layers[layer]),
            Self::Replay(routes) => LayerRouting::Replay(routes.layer(layer)),
        }
    }
}

/// The same, for one layer.
#[derive(Debug)]
pub(crate) enum LayerRouting<'a> {
    Router,
    Record(&'a mut Vec<u32>),
    Replay(&'a [u32]),
}

impl LayerRouting<'_> {
    pub(crate) fn replayed(&self) -> Option<&[u32]> {
        match self {
            Self::Replay(chosen) => Some(chosen),
            Self::Router | Self::Record(_) => None,
        }
    }

    pub(crate) fn record(&mut self, chosen: &[u32]) {
        if let Self::Record(routes) = self {
            routes.clear();
            routes.extend_from_slice(chosen);
        }
    }
}
