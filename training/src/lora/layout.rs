//! How an adapter's leaves lie in PEFT's tensors.
//!
//! A plain layer has A [r, in] and B [out, r] of its own. PEFT adapts the fused parameters of E routed experts with one
//! A [E·r, in], expert-major (rows e·r.. are expert e's), and one B [out, r·E], rank-major (column j·E + e is rank j of
//! expert e). The parameter `gate_up_proj` [E, 2·I, H] has gate's rows before up's, which share A. Where both parameters
//! are adapted PEFT nests its wrappers: `experts.base_layer.*` is gate_up and `experts.*` is down.

use super::LoraError;
use super::overrides::{Lookup, Overrides};
use super::targets::{Mixture, Targets};
use crate::model::ModelConfig;
use gym_protocol::job::spec::LoraSpec;
use gym_protocol::tensor::{F32Tensor, TensorSet};

/// What PEFT puts before a module's path.
const PREFIX: &str = "base_model.model.";

/// Tensors, leaves and the layers they belong to.
#[derive(Debug, Default)]
pub(super) struct Layout {
    /// PEFT's tensors in name order.
    pub(super) slots: Vec<Slot>,
    /// How many leaves there are.
    pub(super) leaves: usize,
    pub(super) modules: Vec<Module>,
}

/// One tensor of PEFT's.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) name: String,
    pub(super) shape: [usize; 2],
    pub(super) pieces: Vec<Piece>,
}

/// A leaf's place in a tensor: row i and column j lie at row `row + i` and column `column + j·stride`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) leaf: usize,
    pub(super) shape: [usize; 2],
    row: usize,
    column: usize,
    stride: usize,
}

/// One adapted layer: the leaves that are its A and B, and alpha/r.
#[derive(Debug)]
pub(super) struct Module {
    pub(super) path: String,
    pub(super) a: usize,
    pub(super) b: usize,
    pub(super) scale: f64,
}

impl Layout {
    pub(super) fn new(
        config: &ModelConfig,
        spec: &LoraSpec,
        overrides: &Overrides,
    ) -> Result<Self, LoraError> {
        let targets = Targets::find(config, &spec.target_modules)?;
        let lookup = Lookup::new(spec, overrides)?;
        let mut layout = Self::default();
        for layer in targets.layers {
            layout.plain(layer.name, layer.shape, &lookup);
        }
        for mixture in &targets.mixtures {
            layout.mixture(mixture, &lookup);
        }
        layout.slots.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(layout)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.slots
            .binary_search_by(|slot| slot.name.as_str().cmp(name))
            .is_ok()
    }

    fn plain(&mut self, path: String, [output, input]: [usize; 2], lookup: &Lookup) {
        let (rank, scale) = lookup.of(&path);
        let (a, b) = (self.whole([rank, input]), self.whole([output, rank]));
        self.slot(tensor_name(&path, "lora_A"), [rank, input], vec![a]);
        self.slot(tensor_name(&path, "lora_B"), [output, rank], vec![b]);
        self.modules.push(Module {
            path,
            a: a.leaf,
            b: b.leaf,
            scale,
        });
    }

    fn mixture(&mut self, mixture: &Mixture, lookup: &Lookup) {
        let Mixture {
            path, hidden, width, ..
        } = mixture;
        if mixture.gate_up {
            let outer = if mixture.down { ".base_layer" } else { "" };
            let parts = ["gate_proj", "up_proj"];
            let fused = Fused {
                wrapper: format!("{path}{outer}"),
                parameter: format!("{path}.gate_up_proj"),
                parts: &parts,
                output: *width,
                input: *hidden,
            };
            self.fused(mixture, &fused, lookup);
        }
        if mixture.down {
            let fused = Fused {
                wrapper: path.clone(),
                parameter: format!("{path}.down_proj"),
                parts: &["down_proj"],
                output: *hidden,
                input: *width,
            };
            self.fused(mixture, &fused, lookup);
        }
    }

    fn fused(&mut self, mixture: &Mixture, fused: &Fused<'_>, lookup: &Lookup) {
        let (rank, scale) = lookup.of(&fused.parameter);
        let experts = mixture.experts;
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for expert in 0..experts {
            let shared = Piece {
                row: expert * rank,
                ..self.whole([rank, fused.input])
            };
            a.push(shared);
            for (part, name) in fused.parts.iter().enumerate() {
                let own = Piece {
                    row: part * fused.output,
                    column: expert,
                    stride: experts,
                    ..self.whole([fused.output, rank])
                };
                b.push(own);
                self.modules.push(Module {
                    path: format!("{}.{expert}.{name}", mixture.path),
                    a: shared.leaf,
                    b: own.leaf,
                    scale,
                });
            }
        }
        let output = fused.output * fused.parts.len();
        let wrapper = &fused.wrapper;
        self.slot(tensor_name(wrapper, "lora_A"), [experts * rank, fused.input], a);
        self.slot(tensor_name(wrapper, "lora_B"), [output, rank * experts], b);
    }

    fn whole(&mut self, shape: [usize; 2]) -> Piece {
        self.leaves += 1;
        Piece {
            leaf: self.leaves - 1,
            shape,
            row: 0,
            column: 0,
            stride: 1,
        }
    }

    fn slot(&mut self, name: String, shape: [usize; 2], pieces: Vec<Piece>) {
        self.slots.push(Slot { name, shape, pieces });
    }
}

/// A parameter of all experts.
struct Fused<'a> {
    /// PEFT's wrapper around it, whose name its tensors have.
    wrapper: String,
    /// Its own path, which `rank_pattern` is held against.
    parameter: String,
    /// What it holds one after another.
    parts: &'a [&'static str],
    /// Rows of one part.
    output: usize,
    input: usize,
}

impl Slot {
    /// The slot's tensor in `tensors`, of the slot's shape.
    pub(super) fn check<'a>(&self, tensors: &'a TensorSet) -> Result<&'a F32Tensor, LoraError> {
        let tensor = tensors.0.get(&self.name).ok_or_else(|| LoraError::Missing {
            name: self.name.clone(),
        })?;
        let values = self.shape[0] * self.shape[1];
        if tensor.shape == self.shape.map(|n| n as u64) && tensor.data.len() == values {
            Ok(tensor)
        } else {
            Err(LoraError::Shape {
                name: self.name.clone(),
                got: tensor.shape.clone(),
                want: self.shape,
            })
        }
    }
}

impl Piece {
    /// The piece's values out of a tensor of `columns` columns.
    pub(super) fn cut(&self, from: &[f32], columns: usize) -> Vec<f32> {
        let [rows, width] = self.shape;
        let mut out = Vec::with_capacity(rows * width);
        for i in 0..rows {
            let row = &from[(self.row + i) * columns..][..columns];
            out.extend(row[self.column..].iter().step_by(self.stride).take(width));
        }
        out
    }

    /// Puts `values` where [`Piece::cut`] takes them from.
    pub(super) fn paste(&self, values: &[f32], into: &mut [f32], columns: usize) {
        for (i, row) in values.chunks(self.shape[1].max(1)).enumerate() {
            let at = (self.row + i) * columns + self.column;
            let places = into[at..].iter_mut().step_by(self.stride);
            for (place, value) in places.zip(row) {
                *place = *value;
            }
        }
    }
}

/// The module path in a tensor's name, and whether it is its `lora_A` or `lora_B`.
pub(crate) fn module_of(tensor: &str) -> Option<(&str, &str)> {
    let path = tensor.strip_prefix(PREFIX)?.strip_suffix(".weight")?;
    path.rsplit_once('.')
        .filter(|(_, part)| ["lora_A", "lora_B"].contains(part))
}

/// The name of a module's `lora_A` or `lora_B`.
pub(crate) fn tensor_name(module: &str, part: &str) -> String {
    format!("{PREFIX}{module}.{part}.weight")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_experts_lie_rank_major_in_b() {
        // Two experts, rank 2, out 1: columns are (j, e) = (0,0) (0,1) (1,0) (1,1).
        let b = [1.0, 2.0, 3.0, 4.0];
        let piece = |expert| Piece {
            leaf: 0,
            shape: [1, 2],
            row: 0,
            column: expert,
            stride: 2,
        };
        assert_eq!(piece(0).cut(&b, 4), [1.0, 3.0]);
        assert_eq!(piece(1).cut(&b, 4), [2.0, 4.0]);
        let mut again = [0.0; 4];
        for expert in 0..2 {
            piece(expert).paste(&piece(expert).cut(&b, 4), &mut again, 4);
        }
        assert_eq!(again, b);
    }

    #[test]
    fn names_split_into_module_and_part() {
        let name = tensor_name("model.layers.0.mlp.experts.base_layer", "lora_A");
        assert_eq!(
            module_of(&name),
            Some(("model.layers.0.mlp.experts.base_layer", "lora_A"))
        );
        assert_eq!(
            module_of("base_model.model.model.layers.0.self_attn.q_proj.bias"),
            None
        );
    }
}
