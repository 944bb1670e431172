//! The trainer on a model of a few thousand random weights: it learns, it repeats, it survives bad numbers.
#![allow(clippy::unwrap_used, reason = "test helpers fail by panicking")]

use burn::tensor::Device;
use gym_protocol::job::spec::{GspoSpec, JobFile, LrScheduler, RewardSpec};
use gym_training::data::Question;
use gym_training::eval::Answers;
use gym_training::generate::{Draw, Finish, GenerateConfig, Request, generate};
use gym_training::memory::{Budget, Place, Work};
use gym_training::model::{
    Architecture, Decoder, HeadKind, LayerConfig, ModelConfig, Parts, RopeConfig, Weight,
};
use gym_training::pretrain::write_tokenizer;
use gym_training::reward::Programs;
use gym_training::sampling::{Filters, RolloutKey};
use gym_training::tokenizer::TextTokenizer;
use gym_training::trainer::{Outcome, Plan, Quantisation, StepError, StepInput, Trainer};
use std::path::Path;

const JOB: &str = r#"
name = "t"
model = "m"
train = "a"
heldout = "b"
seed = 5
use_4bit = false
rewards = [{ name = "format", pattern = "^[0-4]" }]
[gspo]
beta = 0.0
learning_rate = 2e-2
group_size = 8
prompts_per_step = 4
[lora]
rank = 4
alpha = 8.0
[rollout]
max_completion_length = 6
[schedule]
rounds = 1
"#;

fn write_model(dir: &Path) {
    write_tokenizer(dir).unwrap();
    let tokenizer = TextTokenizer::load(dir).unwrap();
    let config = ModelConfig {
        architecture: Architecture::Qwen3,
        vocab_size: tokenizer.vocab_size(),
        hidden_size: 32,
        intermediate_size: 64,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        head_dim: 8,
        rms_norm_eps: 1e-6,
        rope: RopeConfig::plain(10_000.0, 8),
        head: HeadKind::Tied,
        parts: Parts::QWEN3,
        layers: vec![LayerConfig::DENSE; 2],
        max_position_embeddings: 64,
        // Large enough for the tied head to make one token of 80 all but certain.
        initializer_range: 0.3,
        bos_token_id: None,
        eos_token_ids: tokenizer.eos_ids().to_vec(),
        pad_token_id: Some(tokenizer.pad_id()),
    };
    Decoder::init(config, 1, &Device::flex())
        .unwrap()
        .save(dir)
        .unwrap();
}

fn questions() -> Vec<Question> {
    (0..12u64)
        .map(|row| {
            let line = serde_json::json!({ "question": format!("{} + {} =", row, row + 1), "answer": "1" });
            Question {
                row,
                prompt: gym_training::data::Prompt::Text(format!("{row} + {} =", row + 1)),
                answer: (2 * row + 1).to_string(),
                raw: line,
            }
        })
        .collect()
}

struct Bench {
    dir: tempfile::TempDir,
    plan: Plan,
}

impl Bench {
    fn new(change: impl FnOnce(&mut Plan)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        write_model(dir.path());
        let mut plan = Plan::from(&JobFile::parse(JOB).unwrap());
        change(&mut plan);
        Self { dir, plan }
    }

    fn trainer(&self) -> Trainer {
        Trainer::new(self.plan.clone(), self.dir.path(), &Device::flex(), questions()).unwrap()
    }
}

/// Steps `from..to`, four rows each; the mean reward of each.
fn run(trainer: &mut Trainer, seed: u64, from: u32, to: u32) -> Vec<f64> {
    let key = RolloutKey::offline(seed);
    (from..to)
        .map(|step| {
            let rows: Vec<u64> = (0..4).map(|i| (u64::from(step) * 4 + i) % 12).collect();
            let report = trainer
                .step(&StepInput {
                    rows: &rows,
                    key: &key,
                    step,
                })
                .unwrap();
            assert_eq!(report.outcome, Outcome::Updated);
            assert_eq!(report.rollouts.len(), 32);
            assert!(
                report.metrics.values().all(|v| v.is_finite()),
                "{:?}",
                report.metrics
            );
            report.metrics["reward"]
        })
        .collect()
}

#[test]
fn rewarded_completions_become_likelier() {
    let mut trainer = Bench::new(|_| ()).trainer();
    let rewards = run(&mut trainer, 1, 0, 40);
    let mean = |r: &[f64]| r.iter().sum::<f64>() / r.len() as f64;
    let (before, after) = (mean(&rewards[..3]), mean(&rewards[37..]));
    println!("reward {before:.3} to {after:.3}");
    assert!(before < 0.6 && after > 0.9, "{rewards:?}");
}

#[test]
fn a_base_in_four_bits_trains() {
    let bench = Bench::new(|plan| plan.quantisation = Quantisation::Nf4);
    let mut trainer = bench.trainer();
    let weights = trainer.decoder().weights();
    let packed = weights.0.values().filter(|w| matches!(w, Weight::Nf4(_))).count();
    assert_eq!(packed, 14);
    let rewards = run(&mut trainer, 1, 0, 40);
    let mean = |r: &[f64]| r.iter().sum::<f64>() / r.len() as f64;
    let (before, after) = (mean(&rewards[..3]), mean(&rewards[37..]));
    println!("reward {before:.3} to {after:.3}");
    assert!(before < 0.6 && after > 0.9, "{rewards:?}");
}

#[test]
fn a_seed_gives_one_adapter_and_another_seed_another() {
    let bench = Bench::new(|_| ());
    let after = |seed: u64| {
        let mut trainer = bench.trainer();
        run(&mut trainer, seed, 0, 3);
        trainer.adapter()
    };
    let first = after(1);
    assert_eq!(first, after(1));
    assert_ne!(first, after(2));
    let other = Bench::new(|plan| plan.seed = 6);
    assert_ne!(other.trainer().adapter(), bench.trainer().adapter());
}

#[test]
fn a_resumed_run_is_the_uninterrupted_one() {
    let bench = Bench::new(|plan| plan.gspo.warmup_steps = 3);
    let mut whole = bench.trainer();
    run(&mut whole, 1, 0, 4);
    let mut first = bench.trainer();
    run(&mut first, 1, 0, 2);
    let (adapter, moments) = (first.adapter(), first.moments().clone());
    let mut second = bench.trainer();
    second.set_adapter(&adapter).unwrap();
    second.set_moments(moments).unwrap();
    run(&mut second, 1, 2, 4);
    assert_eq!(second.flat_adapter(), whole.flat_adapter());
    assert_eq!(second.moments(), whole.moments());
}

#[test]
fn the_order_of_rows_moves_the_adapter_by_rounding_only() {
    let bench = Bench::new(|_| ());
    let after = |rows: [u64; 4]| {
        let mut trainer = bench.trainer();
        let key = RolloutKey::offline(1);
        let report = trainer
            .step(&StepInput {
                rows: &rows,
                key: &key,
                step: 0,
            })
            .unwrap();
        let mut rollouts = report.rollouts;
        rollouts.sort_by_key(|r| (r.row, r.sample));
        (
            rollouts.into_iter().map(|r| r.tokens).collect::<Vec<_>>(),
            trainer.moments().clone(),
        )
    };
    let (a, b) = (after([0, 3, 9, 11]), after([11, 9, 3, 0]));
    assert_eq!(a.0, b.0, "completions do not depend on their place in the batch");
    for (x, y) in a.1.m.iter().zip(&b.1.m) {
        assert!((x - y).abs() < 1e-6, "{x} {y}");
    }
}

#[test]
fn several_updates_with_kl_and_masking_stay_finite_and_clip() {
    let bench = Bench::new(|plan| {
        plan.gspo = GspoSpec {
            beta: 0.05,
            num_iterations: 2,
            minibatches: 2,
            mask_truncated: true,
            ..plan.gspo.clone()
        };
    });
    let mut trainer = bench.trainer();
    let key = RolloutKey::offline(1);
    let rows = [0, 1, 2, 3];
    let report = trainer
        .step(&StepInput {
            rows: &rows,
            key: &key,
            step: 0,
        })
        .unwrap();
    assert_eq!(trainer.moments().updates, 4);
    assert!(report.metrics["kl"] > 0.0);
    assert!(
        report.metrics["clip_ratio/region_mean"] > 0.0,
        "{:?}",
        report.metrics
    );
    // The forward pass agrees with the sampler's cached one.
    let ratio = report.metrics["sampling/importance_sampling_ratio/mean"];
    assert!((ratio - 1.0).abs() < 1e-3, "{ratio}");
}

#[test]
fn bad_numbers_are_skipped_counted_and_then_stop_the_worker() {
    let bench = Bench::new(|plan| plan.gspo.max_bad_steps = 2);
    let mut trainer = bench.trainer();
    let broken = vec![f32::NAN; trainer.flat_adapter().len()];
    trainer.set_flat_adapter(&broken).unwrap();
    let key = RolloutKey::offline(1);
    let input = StepInput {
        rows: &[0],
        key: &key,
        step: 0,
    };
    let report = trainer.step(&input).unwrap();
    assert_eq!(
        report.outcome,
        Outcome::Skipped {
            what: "logits",
            in_a_row: 1
        }
    );
    assert_eq!(trainer.moments().updates, 0);
    let error = trainer.step(&input).unwrap_err();
    assert!(
        matches!(error, StepError::TooManyBadSteps { count: 2, .. }),
        "{error}"
    );
    assert!(trainer.set_flat_adapter(&[0.0]).is_err());
    let unknown = StepInput { rows: &[99], ..input };
    assert!(matches!(
        trainer.step(&unknown).unwrap_err(),
        StepError::Row { row: 99, .. }
    ));
}

/// A step that does not fit is cut up: the same completions, and the same gradient but for rounding.
#[test]
fn a_batch_that_does_not_fit_is_split() {
    let bench = Bench::new(|plan| plan.gspo.beta = 0.05);
    let key = RolloutKey::offline(1);
    let input = StepInput {
        rows: &[0, 3, 9, 11],
        key: &key,
        step: 0,
    };
    let step = |trainer: &mut Trainer| {
        (
            trainer.step(&input).unwrap().rollouts,
            trainer.moments().m.clone(),
        )
    };
    let within = |bytes| Budget {
        place: Place::Cpu,
        work: Work::Training { heldout: 0 },
        bytes,
    };
    let mut wide = bench.trainer();
    let fit = wide.fit(within(u64::MAX)).unwrap();
    let want = step(&mut wide);
    let mut narrow = bench.trainer();
    let mut budget = fit.estimate.peak;
    while let Ok(fit) = narrow.fit(within(budget)) {
        budget = fit.estimate.peak - 1;
    }
    assert!(budget < fit.estimate.peak - 10_000);
    let error = narrow.fit(within(budget)).unwrap_err();
    assert!(error.to_string().contains("one sequence at a time"), "{error}");
    let got = step(&mut narrow);
    for (a, b) in want.0.iter().zip(&got.0) {
        assert_eq!((a.row, a.sample, &a.tokens), (b.row, b.sample, &b.tokens));
    }
    let size = want.1.iter().map(|m| m.abs()).fold(0.0, f32::max);
    let apart = want
        .1
        .iter()
        .zip(&got.1)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max);
    assert!(apart < 1e-4 * size, "{apart} of {size}");
}

/// Whatever was remembered of the old adapter (a prompt's keys and values, say) is not used with the new one.
#[test]
fn weights_swapped_after_a_synchronisation_are_the_weights_used() {
    let bench = Bench::new(|_| ());
    let mut trainer = bench.trainer();
    let key = RolloutKey::offline(1);
    let input = |step| StepInput {
        rows: &[0, 3, 9, 11],
        key: &key,
        step,
    };
    let before = trainer.step(&input(0)).unwrap().rollouts;
    let answers = trainer
        .evaluate(&questions(), Answers::Greedy, &mut |_| ())
        .unwrap();
    let synchronised: Vec<f32> = trainer.flat_adapter().iter().map(|v| v * -3.0 + 0.02).collect();
    trainer.set_flat_adapter(&synchronised).unwrap();
    let mut fresh = bench.trainer();
    fresh.set_flat_adapter(&synchronised).unwrap();
    let judged = trainer
        .evaluate(&questions(), Answers::Greedy, &mut |_| ())
        .unwrap();
    let after = trainer.step(&input(0)).unwrap().rollouts;
    assert_eq!(
        judged,
        fresh
            .evaluate(&questions(), Answers::Greedy, &mut |_| ())
            .unwrap()
    );
    assert_eq!(after, fresh.step(&input(0)).unwrap().rollouts);
    assert_ne!(before, after, "the swap must show");
    assert_ne!(answers, judged, "the swap must show");
}

/// Not at the step that would have drawn it.
#[test]
fn a_question_without_a_prompt_is_refused_before_a_weight_is_read() {
    let bench = Bench::new(|_| ());
    let mut asked = questions();
    asked[7].prompt = gym_training::data::Prompt::Text(String::new());
    let made = Trainer::new(bench.plan.clone(), bench.dir.path(), &Device::flex(), asked);
    let error = made.err().unwrap().to_string();
    assert!(error.contains("question 7 has an empty prompt"), "{error}");
}

/// Questions whose reference answer cannot be compared with: their samples train nothing and are counted.
#[test]
fn a_reward_that_cannot_be_had_costs_its_own_samples() {
    let numeric = r#"[{"name":"numeric"},{"name":"format","pattern":"^[0-4]"}]"#;
    for beta in [0.0, 0.1] {
        let bench = Bench::new(|plan| {
            plan.rewards = serde_json::from_str(numeric).unwrap();
            plan.gspo.beta = beta;
            // Gradients are compared: none is clipped.
            plan.gspo.max_grad_norm = 1e6;
        });
        let mut asked = questions();
        for row in [0, 3] {
            asked[row].answer = "none".into();
        }
        let trainer = || {
            Trainer::new(
                bench.plan.clone(),
                bench.dir.path(),
                &Device::flex(),
                asked.clone(),
            )
            .unwrap()
        };
        let key = RolloutKey::offline(1);
        let step = |trainer: &mut Trainer, rows: &[u64]| {
            let input = StepInput {
                rows,
                key: &key,
                step: 0,
            };
            trainer.step(&input).unwrap()
        };
        let mut lost = trainer();
        let start = lost.flat_adapter().to_vec();
        let report = step(&mut lost, &[0, 3]);
        assert_eq!(report.outcome, Outcome::Updated);
        assert_eq!(
            report.metrics["rewards/unscored/the reference answer holds no number"],
            16.0
        );
        assert_eq!((report.metrics["loss"], report.metrics["grad_norm"]), (0.0, 0.0));
        assert_eq!(
            lost.flat_adapter(),
            start,
            "nothing is learnt from what could not be judged"
        );

        let mut mixed = trainer();
        let report = step(&mut mixed, &[0, 1]);
        assert!(report.rollouts[..8].iter().all(|r| r.reward.is_none()));
        assert!(report.advantages[..8].iter().all(|a| *a == 0.0));
        let known: Vec<f64> = report.rollouts[8..].iter().map(|r| r.reward.unwrap()).collect();
        let mean = known.iter().sum::<f64>() / 8.0;
        assert!((report.metrics["reward"] - mean).abs() < 1e-12);
        let mut alone = trainer();
        step(&mut alone, &[1]);
        // Half the rows count in the mean over rows: half the gradient, which AdamW's first step does not see.
        let apart = mixed
            .moments()
            .m
            .iter()
            .zip(&alone.moments().m)
            .map(|(a, b)| (2.0 * a - b).abs());
        assert!(
            apart.fold(0.0, f32::max) < 1e-5,
            "{}",
            report.metrics["grad_norm"]
        );
    }
}

/// A reward program that fails, hangs or says nothing for some completions: those leave their group, counted by reason.
#[test]
#[cfg(unix)]
fn a_reward_program_that_breaks_costs_its_own_samples() {
    let script = r#"while read -r line; do case "$line" in
        *'"completion":"0'*) exit 3;; *'"completion":"1'*) sleep 60;; *'"completion":"2'*) exit 0;;
        *'"completion":"'[3-6]*) echo 1;; *) echo 0;; esac; done"#;
    let bench = Bench::new(|plan| {
        plan.programs = Programs::Allowed;
        plan.rewards = vec![RewardSpec {
            program: Some(vec!["/bin/sh".into(), "-c".into(), script.into()]),
            sample_timeout_ms: Some(3_000),
            batch_timeout_ms: Some(240_000),
            ..RewardSpec::named("command")
        }];
    });
    let mut trainer = bench.trainer();
    let key = RolloutKey::offline(1);
    let input = StepInput {
        rows: &[0, 3, 9, 11],
        key: &key,
        step: 0,
    };
    let report = trainer.step(&input).unwrap();
    assert_eq!(report.outcome, Outcome::Updated);
    let breaks = |text: &str| text.starts_with(['0', '1', '2']);
    let reasons = report
        .metrics
        .iter()
        .filter(|(name, _)| name.starts_with("rewards/unscored/"));
    let counted: f64 = reasons.map(|(_, count)| count).sum();
    let broken = report.rollouts.iter().filter(|r| breaks(&r.text)).count();
    println!("{broken} of 32 broken");
    assert!(broken > 0 && counted == broken as f64, "{broken} {counted}");
    for (group, advantages) in report.rollouts.chunks(8).zip(report.advantages.chunks(8)) {
        let known: Vec<f64> = group.iter().filter_map(|r| r.reward).collect();
        let mean = known.iter().sum::<f64>() / known.len().max(1) as f64;
        for (rollout, advantage) in group.iter().zip(advantages) {
            assert_eq!(
                rollout.reward.is_none(),
                breaks(&rollout.text),
                "{:?}",
                rollout.text
            );
            let side = rollout.reward.map_or(0.0, |r| r - mean);
            assert!(side * advantage >= 0.0 && (side != 0.0 || *advantage == 0.0));
        }
    }
}

#[test]
fn a_falling_rate_needs_an_end_and_a_group_a_second_member() {
    let bench = Bench::new(|plan| {
        plan.gspo.lr_scheduler = LrScheduler::Linear;
        plan.total_updates = None;
    });
    let start = |plan: Plan| Trainer::new(plan, bench.dir.path(), &Device::flex(), questions());
    let error = start(bench.plan.clone()).unwrap_err();
    assert!(error.to_string().contains("schedule.rounds"), "{error}");
    let mut plan = bench.plan.clone();
    plan.total_updates = Some(4);
    let mut trainer = start(plan.clone()).unwrap();
    let key = RolloutKey::offline(1);
    let rates: Vec<f64> = (0..5)
        .map(|step| {
            let input = StepInput {
                rows: &[0, 1],
                key: &key,
                step,
            };
            trainer.step(&input).unwrap().metrics["learning_rate"]
        })
        .collect();
    assert_eq!(rates, [2e-2, 1.5e-2, 1e-2, 5e-3, 0.0]);
    plan.gspo.group_size = 1;
    let error = start(plan).unwrap_err();
    assert!(error.to_string().contains("group_size is 1"), "{error}");
}

#[test]
fn a_job_that_cannot_run_here_is_refused() {
    let bench = Bench::new(|plan| plan.rollout.max_prompt_length = 3);
    let error = Trainer::new(bench.plan.clone(), bench.dir.path(), &Device::flex(), questions()).unwrap_err();
    assert!(error.to_string().contains("max_prompt_length is 3"), "{error}");
}

#[test]
fn evaluation_counts_what_the_reward_calls_right() {
    let bench = Bench::new(|_| ());
    let mut trainer = bench.trainer();
    run(&mut trainer, 1, 0, 20);
    let mut seen = 0;
    let report = trainer
        .evaluate(&questions(), Answers::Greedy, &mut |done| seen = done)
        .unwrap();
    let starts = report
        .answers
        .iter()
        .flatten()
        .filter(|a| a.text.starts_with(['0', '1', '2', '3', '4']))
        .count();
    assert_eq!((report.answers.len(), report.correct(), seen), (12, starts, 12));
    assert!(report.accuracy() > 0.8, "{report:?}");
}

#[test]
fn a_completion_is_the_same_alone_and_in_company() {
    let dir = tempfile::tempdir().unwrap();
    write_model(dir.path());
    let decoder = Decoder::load(dir.path(), &Device::flex()).unwrap();
    let config = GenerateConfig {
        filters: Filters::default(),
        max_new_tokens: 12,
        eos: decoder.config().eos_token_ids.clone(),
        pad: 0,
        stop: None,
        max_rows: 64,
    };
    let prompts: Vec<Vec<u32>> = (1..7u32)
        .map(|n| (0..n * 2).map(|t| t % 9 + 2).collect())
        .collect();
    let key = RolloutKey::offline(4);
    let request = |row: usize| Request {
        prompt: &prompts[row],
        draws: (0..4)
            .map(|s| Draw::Noise(key.noise(0, row as u64, s)))
            .chain([Draw::Greedy])
            .collect(),
    };
    let all: Vec<Request<'_>> = (0..prompts.len()).map(request).collect();
    let together = generate(&decoder, None, &all, &config).unwrap();
    let mut lengths = Vec::new();
    for (row, company) in together.iter().enumerate() {
        let alone = generate(&decoder, None, &[request(row)], &config).unwrap();
        for (a, b) in alone[0].iter().zip(company) {
            assert_eq!((&a.tokens, a.finish), (&b.tokens, b.finish), "row {row}");
            for (x, y) in a.log_probs.iter().zip(&b.log_probs) {
                assert!((x - y).abs() < 1e-4);
            }
            let ended = a.tokens.last().is_some_and(|t| config.eos.contains(t));
            assert_eq!(ended, a.finish == Finish::Eos);
            assert!(a.tokens.len() == 12 || ended);
            lengths.push(a.tokens.len());
        }
    }
    assert!(
        lengths.iter().any(|l| *l < 12),
        "some completion ends early: {lengths:?}"
    );
}
