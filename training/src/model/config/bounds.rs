//! What a stranger's sizes may come to together: each alone may be large, their products may not.

use super::reader::Reader;
use super::{ConfigError, MlpKind, ModelConfig};

/// More features than any layer has; products of two fit into 64 bits.
const MOST_FEATURES: usize = 1 << 24;
/// More routed experts than all layers of any model have: each is three tensors to be looked up.
const MOST_EXPERTS: usize = 1 << 17;
/// More parameters than any model has: sums of their bytes fit into 64 bits.
const MOST_PARAMETERS: u64 = 1 << 48;

impl Reader {
    /// The configuration, if a machine can count what it asks for.
    pub(super) fn bounded(&self, config: ModelConfig) -> Result<ModelConfig, ConfigError> {
        let heads = config.num_attention_heads.max(config.num_key_value_heads);
        self.at_most("head_dim", "heads", heads, config.head_dim, MOST_FEATURES)?;
        if let Some(net) = config.delta_net() {
            let (keys, values) = ("linear_key_head_dim", "linear_value_head_dim");
            self.at_most(keys, "heads", net.key_heads, net.key_dim, MOST_FEATURES)?;
            self.at_most(values, "heads", net.value_heads, net.value_dim, MOST_FEATURES)?;
        }
        let sparse = config.layers.iter();
        let sparse = sparse.filter(|l| matches!(l.mlp, MlpKind::Experts(_))).count();
        let experts = config.experts().map_or(0, |e| e.count);
        self.at_most("num_hidden_layers", "experts", experts, sparse, MOST_EXPERTS)?;
        match config.size().parameters {
            n if n <= MOST_PARAMETERS => Ok(config),
            n => Err(self.key(
                "hidden_size",
                &format!("and the other sizes make {n} parameters; at most {MOST_PARAMETERS} are read"),
            )),
        }
    }

    fn at_most(
        &self,
        key: &str,
        things: &str,
        count: usize,
        each: usize,
        most: usize,
    ) -> Result<(), ConfigError> {
        match count.checked_mul(each) {
            Some(n) if n <= most => Ok(()),
            _ => Err(self.key(
                key,
                &format!("is {each} with {count} {things}; at most {most} in all are read"),
            )),
        }
    }
}
