//! The operation's backward pass.

use super::{PlaceGradients, PlaceOps, PlacedState, RotatedState};
use crate::ops::graph::{
    Autodiff, Backward, CheckpointStrategy, Checkpointer, FloatTensor, Gradients, Ops, OpsKind,
};

impl<B: PlaceGradients, C: CheckpointStrategy> PlaceOps for Autodiff<B, C> {
    fn rotated(
        x: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        head_dim: usize,
    ) -> FloatTensor<Self> {
        let node = x.node();
        let (cos, sin) = (cos.into_primitive(), sin.into_primitive());
        let y = B::rotated(x.into_primitive(), cos.clone(), sin.clone(), head_dim);
        match RotatedBackward.prepare::<C>([node]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish(RotatedState { cos, sin, head_dim }, y),
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }

    fn normed_rotated(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        head_dim: usize,
        eps: f64,
    ) -> FloatTensor<Self> {
        let nodes = [x.node(), weight.node()];
        let (x, weight) = (x.into_primitive(), weight.into_primitive());
        let (cos, sin) = (cos.into_primitive(), sin.into_primitive());
        let y = B::normed_rotated(x.clone(), weight.clone(), cos.clone(), sin.clone(), head_dim, eps);
        let rotation = RotatedState { cos, sin, head_dim };
        match PlacedBackward.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish(
                PlacedState {
                    x,
                    weight,
                    rotation,
                    eps,
                },
                y,
            ),
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }
}

#[derive(Debug)]
struct RotatedBackward;

impl<B: PlaceGradients> Backward<B, 1> for RotatedBackward {
    type State = RotatedState<B>;

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let gradient = grads.consume::<B>(&ops.node);
        if let [Some(node)] = ops.parents {
            grads.register::<B>(node.id, B::turned_back(ops.state, gradient));
        }
    }
}

#[derive(Debug)]
struct PlacedBackward;

impl<B: PlaceGradients> Backward<B, 2> for PlacedBackward {
    type State = PlacedState<B>;

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let gradient = grads.consume::<B>(&ops.node);
        let [x_node, weight_node] = ops.parents;
        if let Some(node) = weight_node {
            grads.register::<B>(node.id, B::by_weight(ops.state.clone(), gradient.clone()));
        }
        if let Some(node) = x_node {
            grads.register::<B>(node.id, B::by_input(ops.state, gradient));
        }
    }
}
