//! The layer's backward pass.

use super::compose::as_held;
use super::{LinearOps, Weight};
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, TensorMetadata};
use burn::tensor::DType;

impl<B: LinearOps, C: CheckpointStrategy> LinearOps for Autodiff<B, C> {
    fn plain_linear(x: FloatTensor<Self>, weight: Weight<Self>) -> FloatTensor<Self> {
        let (weight, weight_node) = apart::<B, C>(weight);
        let nodes = [x.node(), weight_node.node()];
        let (x_tracked, weight_tracked) = (x.is_tracked(), weight_node.is_tracked());
        let x = x.into_primitive();
        match LinearBackward.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(prep) => {
                let state = LinearState {
                    x: weight_tracked.then(|| x.clone()),
                    weight: x_tracked.then(|| weight.clone()),
                    held: weight.dtype(),
                };
                prep.finish(state, B::plain_linear(x, weight))
            }
            OpsKind::UnTracked(prep) => prep.finish(B::plain_linear(x, weight)),
        }
    }

    fn lora_linear(
        x: FloatTensor<Self>,
        weight: Weight<Self>,
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        scale: f64,
    ) -> FloatTensor<Self> {
        let (weight, weight_node) = apart::<B, C>(weight);
        let nodes = [x.node(), weight_node.node(), a.node(), b.node()];
        let (x, a, b) = (x.into_primitive(), a.into_primitive(), b.into_primitive());
        match LoraBackward.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(prep) => {
                let (y, h) = B::lora_parts(x.clone(), weight.clone(), a.clone(), b.clone(), scale);
                let state = LoraState {
                    x,
                    weight,
                    a,
                    b,
                    h,
                    scale,
                };
                prep.finish(state, y)
            }
            OpsKind::UnTracked(prep) => prep.finish(B::lora_parts(x, weight, a, b, scale).0),
        }
    }
}

#[derive(Debug)]
struct LinearBackward;

#[derive(Clone, Debug)]
struct LinearState<B: LinearOps> {
    x: Option<FloatTensor<B>>,
    weight: Option<Weight<B>>,
    /// What the weight is held in.
    held: DType,
}

impl<B: LinearOps> Backward<B, 2> for LinearBackward {
    type State = LinearState<B>;

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let gradient = grads.consume::<B>(&ops.node);
        let [x_node, weight_node] = ops.parents;
        if let (Some(node), Some(x)) = (weight_node, ops.state.x) {
            let by_weight = B::scaled_product_over_rows(gradient.clone(), x, 1.0);
            grads.register::<B>(node.id, as_held::<B>(by_weight, ops.state.held));
        }
        if let (Some(node), Some(weight)) = (x_node, ops.state.weight) {
            grads.register::<B>(node.id, B::linear_by_input(gradient, weight));
        }
    }
}

#[derive(Debug)]
struct LoraBackward;

#[derive(Clone, Debug)]
struct LoraState<B: LinearOps> {
    x: FloatTensor<B>,
    weight: Weight<B>,
    a: FloatTensor<B>,
    b: FloatTensor<B>,
    h: FloatTensor<B>,
    scale: f64,
}

impl<B: LinearOps> Backward<B, 4> for LoraBackward {
    type State = LoraState<B>;

    fn backward(self, ops: Ops<Self::State, 4>, grads: &mut Gradients, _: &mut Checkpointer) {
        let LoraState {
            x,
            weight,
            a,
            b,
            h,
            scale,
        } = ops.state;
        let gradient = grads.consume::<B>(&ops.node);
        let [x_node, weight_node, a_node, b_node] = ops.parents;
        let (a_dtype, b_dtype) = (a.dtype(), b.dtype());
        let u = B::scaled_product(gradient.clone(), b, scale);
        if let Some(node) = weight_node {
            let by_weight = B::scaled_product_over_rows(gradient.clone(), x.clone(), 1.0);
            grads.register::<B>(node.id, as_held::<B>(by_weight, weight.dtype()));
        }
        if let Some(node) = a_node {
            let by_a = B::scaled_product_over_rows(u.clone(), x, 1.0);
            grads.register::<B>(node.id, as_held::<B>(by_a, a_dtype));
        }
        if let Some(node) = b_node {
            let by_b = B::scaled_product_over_rows(gradient.clone(), h, scale);
            grads.register::<B>(node.id, as_held::<B>(by_b, b_dtype));
        }
        if let Some(node) = x_node {
            grads.register::<B>(node.id, B::lora_by_input(gradient, weight, u, a));
        }
    }
}

/// The weight on the inner backend, and the tensor whose gradient it has.
fn apart<B: LinearOps, C: CheckpointStrategy>(
    weight: Weight<Autodiff<B, C>>,
) -> (Weight<B>, FloatTensor<Autodiff<B, C>>) {
    match weight {
        Weight::Dense(w) => (Weight::Dense(w.primitive().clone()), w),
        // Nothing of it is ever tracked; its one float tensor stands in for a weight without a gradient.
        Weight::Nf4 {
            codes,
            scales,
            nested,
            shape,
            group,
            offset,
        } => {
            let inner = Weight::Nf4 {
                codes,
                scales,
                nested: nested.primitive().clone(),
                shape,
                group,
                offset,
            };
            (inner, nested)
        }
    }
}
