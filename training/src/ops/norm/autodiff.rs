//! The norm's backward pass.

use super::{NormGradients, NormOps};
use crate::ops::graph::{
    Autodiff, Backward, CheckpointStrategy, Checkpointer, FloatTensor, Gradients, Ops, OpsKind,
};

impl<B: NormGradients, C: CheckpointStrategy> NormOps for Autodiff<B, C> {
    fn root_mean_square(x: FloatTensor<Self>, weight: FloatTensor<Self>, eps: f64) -> FloatTensor<Self> {
        let nodes = [x.node(), weight.node()];
        let (x, weight) = (x.into_primitive(), weight.into_primitive());
        let y = B::root_mean_square(x.clone(), weight.clone(), eps);
        match NormBackward.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish((x, weight, eps), y),
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }
}

#[derive(Debug)]
struct NormBackward;

impl<B: NormGradients> Backward<B, 2> for NormBackward {
    type State = (FloatTensor<B>, FloatTensor<B>, f64);

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let (x, weight, eps) = ops.state;
        let gradient = grads.consume::<B>(&ops.node);
        let [x_node, weight_node] = ops.parents;
        if let Some(node) = weight_node {
            let by_weight = B::root_mean_square_by_weight(x.clone(), gradient.clone(), eps);
            grads.register::<B>(node.id, by_weight);
        }
        if let Some(node) = x_node {
            let by_input = B::root_mean_square_by_input(x, weight, gradient, eps);
            grads.register::<B>(node.id, by_input);
        }
    }
}
