//! What a job's values may be: one check for the file a person writes and the specification a stranger signs.

use super::{
    ColumnsSpec, DeadlinesSpec, GspoSpec, LoraSpec, OuterSpec, RewardSpec, RolloutSpec, ScheduleSpec,
};

/// The longest deadline of a phase: a week, in milliseconds.
const MAX_PHASE_MS: u64 = 7 * 24 * 3_600_000;
/// The longest wait for one ring step: an hour, in milliseconds.
const MAX_RING_MS: u64 = 3_600_000;
/// Bytes of a name: of a column, a reward, a module.
const MAX_NAME: usize = 256;
/// Bytes of a pattern, a schema or a program's argument.
const MAX_TEXT: usize = 64 * 1024;
/// Entries of a list: rewards, stops, a program's arguments.
const MAX_LIST: usize = 64;
/// Names of modules; a model has a few hundred.
const MAX_MODULES: usize = 4_096;

/// A value out of its range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} is {got}; it must be {must}")]
pub struct RangeError {
    /// The key, dotted, as the job file has it.
    pub key: &'static str,
    /// What was given.
    pub got: String,
    /// What is allowed.
    pub must: &'static str,
}

/// What file and specification have in common.
pub(super) struct Ranged<'a> {
    pub(super) name: &'a str,
    pub(super) columns: &'a ColumnsSpec,
    pub(super) rewards: &'a [RewardSpec],
    pub(super) gspo: &'a GspoSpec,
    pub(super) lora: &'a LoraSpec,
    pub(super) rollout: &'a RolloutSpec,
    pub(super) schedule: &'a ScheduleSpec,
    pub(super) outer: &'a OuterSpec,
}

pub(super) fn check(job: &Ranged<'_>) -> Result<(), RangeError> {
    within(
        !job.name.is_empty() && job.name.len() <= 128,
        "name",
        shown(job.name),
        "1 to 128 bytes",
    )?;
    schedule(job.schedule)?;
    deadlines(&job.schedule.deadlines)?;
    gspo(job.gspo)?;
    optimizer(job.gspo)?;
    rollout(job.rollout)?;
    lora(job.lora)?;
    rewards(job.rewards)?;
    outer(job.outer)?;
    for (key, column) in [
        ("columns.prompt", &job.columns.prompt),
        ("columns.answer", &job.columns.answer),
    ] {
        within(is_name(column), key, shown(column), "1 to 256 bytes")?;
    }
    Ok(())
}

fn schedule(s: &ScheduleSpec) -> Result<(), RangeError> {
    within(
        s.rounds.is_some() != s.epochs.is_some(),
        "schedule.rounds / schedule.epochs",
        format!("{:?} / {:?}", s.rounds, s.epochs),
        "exactly one of the two",
    )?;
    within(
        s.rounds.is_none_or(|r| (1..=1_000_000_000).contains(&r)),
        "schedule.rounds",
        format!("{:?}", s.rounds),
        "1 to 1,000,000,000",
    )?;
    within(
        s.epochs.is_none_or(|e| positive(e) && e <= 1e6),
        "schedule.epochs",
        format!("{:?}", s.epochs),
        "above 0, at most 1,000,000",
    )?;
    number(s.min_workers, 1..=4096, "schedule.min_workers", "1 to 4096")?;
    within(
        s.max_workers >= s.min_workers && s.max_workers <= 4096,
        "schedule.max_workers",
        s.max_workers.to_string(),
        "at least min_workers and at most 4096",
    )?;
    number(
        s.aggregate_interval,
        1..=100_000,
        "schedule.aggregate_interval",
        "1 to 100,000",
    )?;
    number(s.redundancy, 0..=8, "schedule.redundancy", "at most 8")?;
    within(
        (0.0..=1.0).contains(&s.validator_sampling),
        "schedule.validator_sampling",
        s.validator_sampling.to_string(),
        "0 to 1",
    )?;
    number(
        s.eval_questions,
        0..=10_000_000,
        "schedule.eval_questions",
        "at most 10,000,000",
    )
}

/// A node waits for each of these: none is longer than anybody would wait.
fn deadlines(d: &DeadlinesSpec) -> Result<(), RangeError> {
    for (key, ms) in [
        ("schedule.deadlines.recruit_ms", d.recruit_ms),
        ("schedule.deadlines.train_ms", d.train_ms),
        ("schedule.deadlines.commit_ms", d.commit_ms),
        ("schedule.deadlines.attest_ms", d.attest_ms),
    ] {
        within(
            ms <= MAX_PHASE_MS,
            key,
            ms.to_string(),
            "at most 604,800,000 (a week)",
        )?;
    }
    within(
        d.ring_cap_ms <= MAX_RING_MS,
        "schedule.deadlines.ring_cap_ms",
        d.ring_cap_ms.to_string(),
        "at most 3,600,000 (an hour)",
    )?;
    within(
        d.ring_floor_ms <= d.ring_cap_ms,
        "schedule.deadlines.ring_floor_ms",
        d.ring_floor_ms.to_string(),
        "at most ring_cap_ms",
    )
}

fn gspo(g: &GspoSpec) -> Result<(), RangeError> {
    number(
        g.group_size,
        2..=1024,
        "gspo.group_size",
        "2 to 1024: one completion has nothing to be compared with",
    )?;
    number(g.prompts_per_step, 1..=4096, "gspo.prompts_per_step", "1 to 4096")?;
    number(g.num_iterations, 1..=1024, "gspo.num_iterations", "1 to 1024")?;
    within(g.minibatches >= 1, "gspo.minibatches", "0".into(), "at least 1")?;
    within(
        g.gradient_accumulation_steps >= 1,
        "gspo.gradient_accumulation_steps",
        "0".into(),
        "at least 1",
    )?;
    // A divisor of what is bounded above is bounded too.
    let parts = u64::from(g.minibatches) * u64::from(g.gradient_accumulation_steps);
    within(
        g.rollout_rows().is_multiple_of(parts),
        "gspo.minibatches × gspo.gradient_accumulation_steps",
        parts.to_string(),
        "a divisor of group_size × prompts_per_step, so that all parts are equal",
    )
}

fn optimizer(g: &GspoSpec) -> Result<(), RangeError> {
    for (key, v) in [
        ("gspo.learning_rate", g.learning_rate),
        ("gspo.max_grad_norm", g.max_grad_norm),
        ("gspo.adam_epsilon", g.adam_epsilon),
    ] {
        within(positive(v), key, v.to_string(), "above 0")?;
    }
    for (key, v) in [
        ("gspo.beta", g.beta),
        ("gspo.weight_decay", g.weight_decay),
        ("gspo.epsilon_low", g.epsilons().0),
        ("gspo.epsilon_high", g.epsilons().1),
    ] {
        within(v.is_finite() && v >= 0.0, key, v.to_string(), "0 or above")?;
    }
    for (key, v) in [
        ("gspo.adam_beta1", g.adam_beta1),
        ("gspo.adam_beta2", g.adam_beta2),
    ] {
        within((0.0..1.0).contains(&v), key, v.to_string(), "0 or above, below 1")?;
    }
    Ok(())
}

fn rollout(r: &RolloutSpec) -> Result<(), RangeError> {
    for (key, v) in [
        ("rollout.temperature", r.temperature),
        ("rollout.repetition_penalty", r.repetition_penalty),
    ] {
        within(positive(v), key, v.to_string(), "above 0")?;
    }
    within(
        r.top_p > 0.0 && r.top_p <= 1.0,
        "rollout.top_p",
        r.top_p.to_string(),
        "above 0, at most 1",
    )?;
    within(
        (0.0..=1.0).contains(&r.min_p),
        "rollout.min_p",
        r.min_p.to_string(),
        "0 to 1",
    )?;
    within(
        r.stop.len() <= MAX_LIST && r.stop.iter().all(|s| is_name(s)),
        "rollout.stop",
        format!("{} texts", r.stop.len()),
        "at most 64 texts of 1 to 256 bytes",
    )?;
    number(
        r.max_prompt_length,
        1..=1 << 20,
        "rollout.max_prompt_length",
        "1 to 1,048,576",
    )?;
    number(
        r.max_completion_length,
        1..=1 << 20,
        "rollout.max_completion_length",
        "1 to 1,048,576",
    )
}

fn lora(l: &LoraSpec) -> Result<(), RangeError> {
    number(l.rank, 1..=1024, "lora.rank", "1 to 1024")?;
    within(positive(l.alpha), "lora.alpha", l.alpha.to_string(), "above 0")?;
    let names = &l.target_modules;
    within(
        !names.is_empty() && names.len() <= MAX_MODULES && names.iter().all(|n| is_name(n)),
        "lora.target_modules",
        format!("{} names", names.len()),
        "1 to 4096 names of 1 to 256 bytes, or [\"all-linear\"]",
    )
}

fn rewards(all: &[RewardSpec]) -> Result<(), RangeError> {
    within(
        (1..=MAX_LIST).contains(&all.len()),
        "rewards",
        format!("{} functions", all.len()),
        "1 to 64 reward functions",
    )?;
    for reward in all {
        within(
            is_name(&reward.name),
            "rewards.name",
            shown(&reward.name),
            "1 to 256 bytes",
        )?;
        within(
            reward.weight.is_finite(),
            "rewards.weight",
            reward.weight.to_string(),
            "a finite number",
        )?;
        let program = reward.program.as_deref().unwrap_or_default();
        let mut texts = reward.pattern.iter().chain(&reward.schema).chain(program);
        within(
            program.len() <= MAX_LIST && texts.all(|t| t.len() <= MAX_TEXT),
            "rewards.pattern / schema / program",
            shown(&reward.name),
            "at most 65,536 bytes each, and a program of at most 64 arguments",
        )?;
    }
    Ok(())
}

fn outer(step: &OuterSpec) -> Result<(), RangeError> {
    let OuterSpec::Nesterov {
        learning_rate,
        momentum,
    } = step
    else {
        return Ok(());
    };
    within(
        positive(*learning_rate),
        "outer.learning_rate",
        learning_rate.to_string(),
        "above 0",
    )?;
    within(
        (0.0..1.0).contains(momentum),
        "outer.momentum",
        momentum.to_string(),
        "0 or above, below 1",
    )
}

fn within(ok: bool, key: &'static str, got: String, must: &'static str) -> Result<(), RangeError> {
    if ok {
        Ok(())
    } else {
        Err(RangeError { key, got, must })
    }
}

fn number(
    v: u32,
    range: std::ops::RangeInclusive<u32>,
    key: &'static str,
    must: &'static str,
) -> Result<(), RangeError> {
    within(range.contains(&v), key, v.to_string(), must)
}

fn positive(v: f64) -> bool {
    v.is_finite() && v > 0.0
}

fn is_name(text: &str) -> bool {
    (1..=MAX_NAME).contains(&text.len())
}

/// Foreign text, short enough for one line of a log.
fn shown(text: &str) -> String {
    let head: String = text.chars().take(40).collect();
    if head.len() < text.len() {
        format!("{head:?}… ({} bytes)", text.len())
    } else {
        format!("{head:?}")
    }
}
