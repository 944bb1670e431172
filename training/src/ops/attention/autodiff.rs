//! Attention's backward pass.

use super::{AttentionGradients, AttentionOps, AttentionShape, Kept};
use crate::model::Segment;
use crate::ops::graph::{
    Autodiff, Backward, CheckpointStrategy, Checkpointer, FloatTensor, Gradients, Ops, OpsKind,
};
use std::sync::Arc;

impl<B: AttentionGradients, C: CheckpointStrategy> AttentionOps for Autodiff<B, C> {
    fn attend(
        q: FloatTensor<Self>,
        k: FloatTensor<Self>,
        v: FloatTensor<Self>,
        layout: Arc<[Segment]>,
        shape: AttentionShape,
    ) -> FloatTensor<Self> {
        let nodes = [q.node(), k.node(), v.node()];
        let (q, k, v) = (q.into_primitive(), k.into_primitive(), v.into_primitive());
        match AttentionBackward.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(prep) => {
                let (o, kept) = B::attend_keeping(q, k, v, layout, shape);
                prep.finish(kept, o)
            }
            OpsKind::UnTracked(prep) => prep.finish(B::attend(q, k, v, layout, shape)),
        }
    }
}

#[derive(Debug)]
struct AttentionBackward;

impl<B: AttentionGradients> Backward<B, 3> for AttentionBackward {
    type State = Kept<B>;

    fn backward(self, ops: Ops<Self::State, 3>, grads: &mut Gradients, _: &mut Checkpointer) {
        let gradient = grads.consume::<B>(&ops.node);
        let gradients = B::attend_backward(ops.state, gradient);
        for (node, gradient) in ops.parents.into_iter().zip(gradients) {
            if let Some(node) = node {
                grads.register::<B>(node.id, gradient);
            }
        }
    }
}
