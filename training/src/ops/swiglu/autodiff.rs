//! SwiGLU's backward pass.

use super::{SwigluGradients, SwigluOps};
use crate::ops::graph::{
    Autodiff, Backward, CheckpointStrategy, Checkpointer, FloatTensor, Gradients, Ops, OpsKind,
};

impl<B: SwigluGradients, C: CheckpointStrategy> SwigluOps for Autodiff<B, C> {
    fn gated(gate: FloatTensor<Self>, up: FloatTensor<Self>) -> FloatTensor<Self> {
        let nodes = [gate.node(), up.node()];
        let (gate, up) = (gate.into_primitive(), up.into_primitive());
        let y = B::gated(gate.clone(), up.clone());
        match SwigluBackward.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish((gate, up), y),
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }
}

#[derive(Debug)]
struct SwigluBackward;

impl<B: SwigluGradients> Backward<B, 2> for SwigluBackward {
    type State = (FloatTensor<B>, FloatTensor<B>);

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let (gate, up) = ops.state;
        let gradient = grads.consume::<B>(&ops.node);
        let gradients = B::gated_backward(gate, up, gradient);
        for (node, gradient) in ops.parents.into_iter().zip(gradients) {
            if let Some(node) = node {
                grads.register::<B>(node.id, gradient);
            }
        }
    }
}
