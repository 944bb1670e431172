//! The `math` reward beside math-verify, on the cases of `scripts/math-cases`. Where the two differ, the list below says
//! why.
#![allow(clippy::unwrap_used, reason = "test helpers fail by panicking")]

mod common;

use common::fixture;
use gym_protocol::job::spec::RewardSpec;
use gym_training::reward::{Rewards, Sample};
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Deserialize)]
struct Cases {
    /// Kind, reference, completion, whether math-verify takes them for the same.
    cases: Vec<(String, String, String, bool)>,
}

/// Pairs of reference and completion on which math-verify answers otherwise.
struct Difference {
    why: &'static str,
    /// Our answer.
    ours: bool,
    pairs: &'static [(&'static str, &'static str)],
}

const DIFFERENCES: &[Difference] = &[
    Difference {
        why: r"a decimal is not a fraction that it only comes near to",
        ours: false,
        pairs: &[(r"\frac{1}{3}", r"\boxed{0.3333333333}")],
    },
    Difference {
        why: r"a full stop or comma after a number belongs to the sentence",
        ours: true,
        pairs: &[
            (r"-16.26", r"\boxed{-16.26.}"),
            (r"31.33", r"\boxed{31.33.}"),
            (r"37.11", r"\boxed{37.11.}"),
            (r"20.05", r"\boxed{20.05.}"),
            (r"1.46", r"\boxed{1.46.}"),
            (r"26.28", r"\boxed{26.28.}"),
            (r"45.93", r"\boxed{45.93.}"),
            (r"24.24", r"\boxed{24.24.}"),
            (r"12", r"\boxed{12.}"),
            (r"12", r"\boxed{12,}"),
        ],
    },
    Difference {
        why: r"12.5 % is 12.5, as 40 % is 40 to both",
        ours: true,
        pairs: &[
            (r"12.5\%", r"\boxed{12.5}"),
            (r"12.5\%", r"\boxed{12.5 \text{ percent}}"),
        ],
    },
    Difference {
        why: r"a thin space sets thousands apart",
        ours: true,
        pairs: &[
            (r"1234", r"\boxed{1\,234}"),
            (r"10000", r"\boxed{10\,000}"),
            (r"250000", r"\boxed{250\,000}"),
            (r"1000000", r"\boxed{1\,000\,000}"),
            (r"123456789", r"\boxed{123\,456\,789}"),
            (r"4200", r"\boxed{4\,200}"),
        ],
    },
    Difference {
        why: r"pi is π without a backslash too",
        ours: true,
        pairs: &[
            (r"\frac{1\pi}{2}", r"\boxed{1pi/2}"),
            (r"\frac{1\pi}{3}", r"\boxed{1pi/3}"),
            (r"\frac{2\pi}{3}", r"\boxed{2pi/3}"),
            (r"\frac{3\pi}{4}", r"\boxed{3pi/4}"),
            (r"\frac{5\pi}{6}", r"\boxed{5pi/6}"),
            (r"7\pi", r"\boxed{7pi/1}"),
        ],
    },
    Difference {
        why: r"brackets say whether order counts: a point is neither a set nor a list",
        ours: false,
        pairs: &[(r"\{1,2,3\}", r"\boxed{(1,2,3)}"), (r"(1,2)", r"\boxed{1,2}")],
    },
    Difference {
        why: r"two commands for one sign",
        ours: true,
        pairs: &[
            (r"\{1,2,3\}", r"\boxed{\lbrace 1, 2, 3 \rbrace}"),
            (r"\emptyset", r"\boxed{\varnothing}"),
            (r"(1,2)", r"\boxed{\big(1,2\big)}"),
        ],
    },
    Difference {
        why: r"infinity belongs to no interval",
        ours: false,
        pairs: &[
            (r"[2,\infty)", r"\boxed{[2,\infty]}"),
            (r"(-\infty,7)", r"\boxed{[-\infty,7)}"),
        ],
    },
    Difference {
        why: r"an inequality of one variable is its interval, whichever way round it is written",
        ours: true,
        pairs: &[
            (r"[2,\infty)", r"\boxed{x \ge 2}"),
            (r"[2,\infty)", r"\boxed{x\geq 2}"),
            (r"[2,\infty)", r"\boxed{2 \le x}"),
            (r"(1,3]", r"\boxed{1<x\le 3}"),
            (r"(1,3]", r"\boxed{1 < x \leq 3}"),
            (r"(1,3]", r"\boxed{3 \ge x > 1}"),
            (r"(-\infty,1)\cup(2,\infty)", r"\boxed{x<1 \text{ or } x>2}"),
            (r"-1\le x\le 1", r"\boxed{1\ge x\ge -1}"),
        ],
    },
    Difference {
        why: r"a unit or degree sign after a number, in whatever form",
        ours: true,
        pairs: &[
            (r"30^\circ", r"\boxed{30°}"),
            (r"24\text{ cm}^2", r"\boxed{24 cm^2}"),
        ],
    },
    Difference {
        why: r"LaTeX takes these spaces, and \frac its next two signs",
        ours: true,
        pairs: &[
            (r"\frac{a}{b}", r"\boxed{\frac { a } { b }}"),
            (r"\frac{a}{b}", r"\boxed{\frac ab}"),
            (r"x+y", r"\boxed{x~+~y}"),
        ],
    },
    Difference {
        why: r"a capital letter is another variable",
        ours: false,
        pairs: &[(r"2x+3", r"\boxed{2X+3}"), (r"A", r"\boxed{a}")],
    },
    Difference {
        why: r"identities of functions are not worked out",
        ours: false,
        pairs: &[
            (r"\sin^2 x", r"\boxed{1-\cos^2 x}"),
            (r"\log_2 8", r"\boxed{\frac{\ln 8}{\ln 2}}"),
        ],
    },
    Difference {
        why: r"\log without a base is the natural one",
        ours: true,
        pairs: &[(r"\ln 2", r"\boxed{\log 2}")],
    },
    Difference {
        why: r"a space before i",
        ours: true,
        pairs: &[(r"3+4i", r"\boxed{3 + 4 i}")],
    },
    Difference {
        why: r"the last box is the answer",
        ours: true,
        pairs: &[(r"18", r"\boxed{17} is wrong, so \boxed{18}")],
    },
    Difference {
        why: r"a correction after the answer is read with it",
        ours: false,
        pairs: &[(r"18", r"The answer is 18, not 19.")],
    },
    Difference {
        why: r"a box that never closes is no answer: the completion was cut",
        ours: false,
        pairs: &[(r"\frac{3}{4}", r"\boxed{\frac{3}{4}")],
    },
];

fn score(rewards: &Rewards, reference: &str, completion: &str) -> f64 {
    let sample = Sample {
        prompt: "",
        completion,
        completion_tokens: 1,
        answer: reference,
        row: &serde_json::Value::Null,
    };
    rewards.score(&sample).total.unwrap()
}

#[test]
fn math_agrees_with_math_verify_but_where_it_is_said() {
    let rewards = Rewards::from_specs(&[RewardSpec::named("math")]).unwrap();
    let text = std::fs::read_to_string(fixture("math/cases.json")).unwrap();
    let Cases { cases } = serde_json::from_str(&text).unwrap();
    assert!(cases.len() > 800, "{} cases", cases.len());
    let mut listed = BTreeMap::new();
    for Difference { why, ours, pairs } in DIFFERENCES {
        for pair in *pairs {
            assert!(listed.insert(*pair, (*ours, *why)).is_none(), "{pair:?} twice");
        }
    }
    let mut wrong = Vec::new();
    for (kind, reference, completion, theirs) in &cases {
        let ours = score(&rewards, reference, completion) == 1.0;
        let expected = match listed.remove(&(reference.as_str(), completion.as_str())) {
            // A difference that is none any more is to be struck off the list.
            Some((ours, _)) => (ours, ours != *theirs),
            None => (*theirs, true),
        };
        if expected != (ours, true) {
            wrong.push(format!(
                "{kind}: {reference}  |  {completion}  |  ours {ours}, theirs {theirs}"
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}",
        wrong.len(),
        cases.len(),
        wrong.join("\n")
    );
    assert!(listed.is_empty(), "not among the cases: {listed:?}");
}
