//! `--dry-run`: what the run would need, said before anything is loaded.

use super::super::output::table;
use super::Args;
use super::setup::Setup;
use gym_training::device::Chosen;
use gym_training::memory::{self, Budget, DoesNotFit, Fit, Requirements, Work, size};
use gym_training::model::ModelConfig;
use gym_training::tokenizer::TextTokenizer;
use gym_training::trainer::{Limits, prompt_tokens};
use serde_json::{Value, json};

/// What the run may use; `None` where nothing says how much memory there is.
pub(super) fn budget(setup: &Setup, args: &Args, chosen: &Chosen) -> Option<Budget> {
    Some(Budget {
        place: chosen.place.into(),
        work: work(setup, args),
        bytes: args.memory_limit.bytes(chosen.place)?,
    })
}

fn work(setup: &Setup, args: &Args) -> Work {
    Work::Training {
        heldout: setup.heldout.len() as u64 * u64::from(args.eval_samples),
    }
}

/// The estimate, and whether it fits.
pub(super) fn report(
    setup: &Setup,
    args: &Args,
    chosen: &Chosen,
) -> anyhow::Result<(Value, Result<Fit, DoesNotFit>)> {
    let config = ModelConfig::load(&setup.model)?;
    let tokenizer = TextTokenizer::load(&setup.model)?;
    let mut longest = 0;
    for question in &setup.train {
        let tokens = prompt_tokens(&tokenizer, question, setup.plan.rollout.max_prompt_length)?;
        longest = longest.max(tokens.len());
    }
    let needs = Requirements::new(
        &config,
        &setup.plan,
        chosen.place.into(),
        work(setup, args),
        longest as u64,
    );
    let budget = args.memory_limit.bytes(chosen.place);
    let wanted = needs.under(Limits::default());
    let fit = needs.fit(Limits::default(), budget.unwrap_or(u64::MAX));
    let mut report = json!({
        "device": chosen.why,
        "steps": setup.steps,
        "questions": setup.train.len(),
        "longest_prompt": longest,
        "available": budget,
        "wanted": wanted,
        "fits": fit.is_ok(),
    });
    match &fit {
        Ok(fit) => {
            report["estimate"] = json!(fit.estimate);
            report["rollout_rows"] = json!(fit.limits.rollout_rows);
            report["micro_batch_tokens"] = json!(fit.limits.micro_batch_tokens);
            report["gradient_checkpointing"] = json!(fit.checkpointing);
        }
        Err(DoesNotFit { needed, .. }) => report["needed"] = json!(needed),
    }
    Ok((report, fit))
}

/// The estimate for people.
pub(super) fn plain(report: &Value) -> String {
    let estimate = report.get("estimate").unwrap_or(&report["wanted"]);
    let number = |key: &str| estimate[key].as_u64().unwrap_or(0);
    let parts = [
        ("weights", "weights"),
        ("weights with the adapter in them", "merged"),
        ("adapter", "adapter"),
        ("gradients", "gradients"),
        ("optimizer", "optimizer"),
        ("KV cache", "kv_cache"),
        ("activations", "activations"),
        ("logits", "logits"),
        ("program", "program"),
        ("peak", "peak"),
    ];
    let rows: Vec<Vec<String>> = parts
        .iter()
        .map(|(name, key)| vec![(*name).into(), size(number(key))])
        .collect();
    let available = report["available"].as_u64().map_or("not known".to_owned(), size);
    let verdict = match report["needed"].as_u64() {
        Some(needed) => format!("does not fit: {} with one sequence at a time", size(needed)),
        None => format!(
            "fits, with {} completions generated and {} tokens trained at a time{}",
            report["rollout_rows"],
            report["micro_batch_tokens"],
            if report["gradient_checkpointing"] == true {
                ", blocks run again in the backward pass"
            } else {
                ""
            }
        ),
    };
    format!(
        "device            {}\nparameters        {} ({} trainable)\ntokens per step   {} at most\nsteps             {}\n\n{}\n\navailable         {available}\n{verdict}",
        report["device"].as_str().unwrap_or_default(),
        number("parameters"),
        number("trainable"),
        number("tokens_per_step"),
        report["steps"],
        table(&["memory", "bytes"], &rows),
    )
}

/// The most memory that this run has held, for the report.
pub(super) fn peak_memory() -> Option<u64> {
    memory::peak()
}
