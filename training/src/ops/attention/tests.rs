use super::{AttentionShape, attention, compose};
use crate::model::Packed;
use crate::ops::testing::{assert_close, assert_thread_independent, host, leaf, random};
use burn::tensor::Tensor;

const GROUPED: AttentionShape = AttentionShape {
    heads: 4,
    kv_heads: 2,
    head_dim: 8,
    window: None,
};

/// Segments of some lengths; `prefix` names an earlier one.
fn packed(segments: &[(usize, Option<usize>)]) -> Packed {
    let mut packed = Packed::default();
    for (length, prefix) in segments {
        let tokens = vec![0; *length];
        match prefix {
            Some(prefix) => packed.push_after(*prefix, &tokens),
            None => packed.push(&tokens),
        };
    }
    packed
}

fn inputs(tokens: usize, shape: &AttentionShape) -> [Tensor<2>; 3] {
    let of = |name, heads| leaf(name, [tokens, heads * shape.head_dim]).mul_scalar(3.0);
    [
        of("q", shape.heads),
        of("k", shape.kv_heads),
        of("v", shape.kv_heads),
    ]
}

#[track_caller]
fn assert_agree(segments: &[(usize, Option<usize>)], shape: &AttentionShape) {
    let layout = packed(segments).layout();
    let tokens = segments.iter().map(|(length, _)| length).sum();
    let weigh = random("g", [tokens, shape.heads * shape.head_dim]);
    let run = |composed: bool| {
        let leaves = inputs(tokens, shape).map(|t| t.inner().autodiff().require_grad());
        let [q, k, v] = leaves.clone();
        let y = match composed {
            true => compose::attention(q, k, v, &layout, shape),
            false => attention(q, k, v, &layout, shape),
        };
        let gradients = (y.clone() * weigh.clone()).sum().backward();
        (y.inner(), leaves.map(|t| t.grad(&gradients).unwrap()))
    };
    let (mine, theirs) = (run(false), run(true));
    assert_close("o", mine.0, theirs.0, 1e-5);
    for ((name, mine), theirs) in ["q", "k", "v"].into_iter().zip(mine.1).zip(theirs.1) {
        assert_close(name, mine, theirs, 5e-5);
    }
}

#[test]
fn segments_of_any_length_agree_with_the_composition() {
    assert_agree(&[(1, None)], &GROUPED);
    assert_agree(&[(5, None), (9, None), (1, None)], &GROUPED);
    // Several blocks of queries.
    assert_agree(&[(150, None), (64, None), (65, None)], &GROUPED);
    let single = AttentionShape {
        heads: 3,
        kv_heads: 3,
        head_dim: 5,
        window: None,
    };
    assert_agree(&[(7, None), (20, None)], &single);
}

#[test]
fn a_shared_prefix_agrees_with_the_composition() {
    assert_agree(
        &[(6, None), (4, Some(0)), (70, Some(0)), (3, None), (5, Some(3))],
        &GROUPED,
    );
}

#[test]
fn windows_agree_with_the_composition() {
    for window in [1, 3, 40, 1000] {
        let shape = AttentionShape {
            window: Some(window),
            ..GROUPED
        };
        assert_agree(&[(6, None), (4, Some(0)), (130, Some(0)), (9, None)], &shape);
    }
}

#[test]
fn an_empty_segment_changes_nothing() {
    let shape = GROUPED;
    let [q, k, v] = inputs(9, &shape).map(Tensor::inner);
    let with = packed(&[(5, None), (0, None), (0, Some(0)), (4, Some(0))]).layout();
    let without = packed(&[(5, None), (4, Some(0))]).layout();
    let of = |layout| attention(q.clone(), k.clone(), v.clone(), layout, &shape);
    assert_close("o", of(&with), of(&without), 0.0);
}

#[test]
fn threads_do_not_matter() {
    assert_thread_independent(|| {
        let layout = packed(&[(30, None), (90, Some(0)), (64, Some(0)), (40, None)]).layout();
        let [q, k, v] = inputs(224, &GROUPED).map(|t| t.inner().autodiff().require_grad());
        let y = attention(q.clone(), k.clone(), v.clone(), &layout, &GROUPED);
        let gradients = (y.clone() * random("g", y.dims())).sum().backward();
        let of = |t: &Tensor<2>| host(t.grad(&gradients).unwrap());
        [host(y.inner()), of(&q), of(&k), of(&v)].concat()
    });
}
