use super::{CachedRows, attend_cached, compose};
use crate::ops::AttentionShape;
use crate::ops::testing::{assert_close, assert_thread_independent, host, random};
use burn::tensor::Tensor;

fn caches(rows: usize, capacity: usize, shape: &AttentionShape) -> [Tensor<4>; 2] {
    ["k", "v"].map(|name| random(name, [rows, shape.kv_heads, capacity, shape.head_dim]))
}

#[test]
fn paddings_and_windows_agree_with_the_composition() {
    for (heads, kv_heads, head_dim) in [(1, 1, 1), (6, 2, 5), (4, 4, 32)] {
        for window in [None, Some(1), Some(4), Some(100)] {
            let shape = AttentionShape {
                heads,
                kv_heads,
                head_dim,
                window,
            };
            let q = random("q", [3, heads * head_dim]).mul_scalar(4.0);
            let [k, v] = caches(3, 40, &shape);
            for filled in [9, 40] {
                let rows = CachedRows {
                    starts: &[0, 3, 8],
                    filled,
                };
                let mine = attend_cached(q.clone(), &k, &v, rows, &shape);
                assert_close(
                    "o",
                    mine,
                    compose::attend_cached(q.clone(), &k, &v, rows, &shape),
                    1e-5,
                );
            }
        }
    }
}

#[test]
fn threads_do_not_matter() {
    let shape = AttentionShape {
        heads: 64,
        kv_heads: 8,
        head_dim: 64,
        window: None,
    };
    assert_thread_independent(|| {
        let [k, v] = caches(40, 12, &shape);
        let rows = CachedRows {
            starts: &[0; 40],
            filled: 11,
        };
        host(attend_cached(random("q", [40, 64 * 64]), &k, &v, rows, &shape))
    });
}
