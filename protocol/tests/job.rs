//! A job's announcement comes from a stranger: each of its bounds holds over the wire, not in the job file alone.

#[allow(dead_code, reason = "other tests use the rest")]
mod messages;

use gym_protocol::job::spec::{JobSpec, OuterSpec, RewardSpec};
use gym_protocol::message::{Body, MessageError, Verified, Verifier, VerifyError};
use messages::{bodies, peer};

/// Signs and believes everything.
struct Gullible;

impl Verifier for Gullible {
    fn verify(
        &self,
        _: &gym_protocol::ids::PeerBytes,
        _: &'static str,
        _: &[u8],
        _: &[u8],
        _: Option<&[u8]>,
    ) -> Result<(), VerifyError> {
        Ok(())
    }
}

/// What a node that hears of the job makes of it.
fn heard(change: impl FnOnce(&mut JobSpec)) -> Result<Verified, MessageError> {
    let job = bodies()
        .into_iter()
        .find_map(|b| if let Body::Job(job) = b { Some(job) } else { None });
    let mut job = job.expect("there is one");
    change(&mut job.spec);
    let body = Body::Job(job);
    let encoded = body.encode().expect("it encodes");
    let own = Verified::own(peer(1), body, encoded, vec![1; 64], vec![2; 64], Vec::new());
    Verified::open(&own.expect("it encodes").envelope, &Gullible)
}

macro_rules! refused {
    ($($key:literal: |$s:ident| $change:expr;)*) => {
        [$(($key, Box::new(|$s: &mut JobSpec| { $change; }) as Box<dyn FnOnce(&mut JobSpec)>),)*]
    };
}

#[test]
fn every_bound_of_a_job_holds_over_the_wire() {
    heard(|_| ()).expect("the job itself is taken");
    let text = |n| "x".repeat(n);
    let nesterov = |learning_rate, momentum| OuterSpec::Nesterov {
        learning_rate,
        momentum,
    };
    for (key, change) in refused! {
        "name": |s| s.name = text(129);
        "name": |s| s.name = String::new();
        "columns.prompt": |s| s.columns.prompt = String::new();
        "columns.answer": |s| s.columns.answer = text(257);
        "schedule.rounds / schedule.epochs": |s| s.schedule.rounds = None;
        "schedule.rounds / schedule.epochs": |s| s.schedule.epochs = Some(1.0);
        "schedule.rounds": |s| s.schedule.rounds = Some(0);
        "schedule.rounds": |s| s.schedule.rounds = Some(u64::MAX);
        "schedule.epochs": |s| { s.schedule.rounds = None; s.schedule.epochs = Some(-1.0) };
        "schedule.epochs": |s| { s.schedule.rounds = None; s.schedule.epochs = Some(1e300) };
        "schedule.min_workers": |s| s.schedule.min_workers = 0;
        "schedule.max_workers": |s| s.schedule.max_workers = 4097;
        "schedule.max_workers": |s| { s.schedule.min_workers = 5; s.schedule.max_workers = 4 };
        "schedule.aggregate_interval": |s| s.schedule.aggregate_interval = 0;
        "schedule.aggregate_interval": |s| s.schedule.aggregate_interval = u32::MAX;
        "schedule.redundancy": |s| s.schedule.redundancy = 9;
        "schedule.validator_sampling": |s| s.schedule.validator_sampling = 1.5;
        "schedule.eval_questions": |s| s.schedule.eval_questions = u32::MAX;
        "schedule.deadlines.recruit_ms": |s| s.schedule.deadlines.recruit_ms = u64::MAX;
        "schedule.deadlines.train_ms": |s| s.schedule.deadlines.train_ms = u64::MAX;
        "schedule.deadlines.commit_ms": |s| s.schedule.deadlines.commit_ms = u64::MAX;
        "schedule.deadlines.attest_ms": |s| s.schedule.deadlines.attest_ms = u64::MAX;
        "schedule.deadlines.ring_cap_ms": |s| s.schedule.deadlines.ring_cap_ms = u64::MAX;
        "schedule.deadlines.ring_floor_ms": |s| s.schedule.deadlines.ring_floor_ms = u64::MAX;
        "gspo.group_size": |s| s.gspo.group_size = 1;
        "gspo.group_size": |s| s.gspo.group_size = u32::MAX;
        "gspo.prompts_per_step": |s| s.gspo.prompts_per_step = u32::MAX;
        "gspo.num_iterations": |s| s.gspo.num_iterations = u32::MAX;
        "gspo.minibatches": |s| s.gspo.minibatches = 0;
        "gspo.gradient_accumulation_steps": |s| s.gspo.gradient_accumulation_steps = 0;
        "gspo.minibatches × gspo.gradient_accumulation_steps": |s| s.gspo.minibatches = u32::MAX;
        "gspo.learning_rate": |s| s.gspo.learning_rate = 0.0;
        "gspo.max_grad_norm": |s| s.gspo.max_grad_norm = -1.0;
        "gspo.adam_epsilon": |s| s.gspo.adam_epsilon = 0.0;
        "gspo.beta": |s| s.gspo.beta = -1.0;
        "gspo.weight_decay": |s| s.gspo.weight_decay = -1.0;
        "gspo.epsilon_low": |s| s.gspo.epsilon_low = Some(-1.0);
        "gspo.epsilon_high": |s| s.gspo.epsilon_high = Some(-1.0);
        "gspo.adam_beta1": |s| s.gspo.adam_beta1 = 1.0;
        "gspo.adam_beta2": |s| s.gspo.adam_beta2 = -0.1;
        "rollout.temperature": |s| s.rollout.temperature = 0.0;
        "rollout.repetition_penalty": |s| s.rollout.repetition_penalty = 0.0;
        "rollout.top_p": |s| s.rollout.top_p = 1.5;
        "rollout.min_p": |s| s.rollout.min_p = -0.5;
        "rollout.stop": |s| s.rollout.stop = vec!["a".into(); 65];
        "rollout.stop": |s| s.rollout.stop = vec![String::new()];
        "rollout.max_prompt_length": |s| s.rollout.max_prompt_length = u32::MAX;
        "rollout.max_completion_length": |s| s.rollout.max_completion_length = 0;
        "rollout.max_completion_length": |s| s.rollout.max_completion_length = u32::MAX;
        "lora.rank": |s| s.lora.rank = u32::MAX;
        "lora.alpha": |s| s.lora.alpha = 0.0;
        "lora.target_modules": |s| s.lora.target_modules = Vec::new();
        "lora.target_modules": |s| s.lora.target_modules = vec!["m".into(); 4097];
        "rewards": |s| s.rewards = Vec::new();
        "rewards": |s| s.rewards = vec![RewardSpec::named("exact"); 65];
        "rewards.name": |s| s.rewards[0].name = text(257);
        "rewards.pattern / schema / program": |s| s.rewards[0].pattern = Some(text(65_537));
        "rewards.pattern / schema / program": |s| s.rewards[0].program = Some(vec![String::new(); 65]);
        "outer.learning_rate": |s| s.outer = nesterov(0.0, 0.5);
        "outer.momentum": |s| s.outer = nesterov(1.0, 1.0);
    } {
        match heard(change) {
            Err(MessageError::Job { source, .. }) => assert_eq!(source.key, key),
            other => panic!("{key}: {other:?}"),
        }
    }
}
