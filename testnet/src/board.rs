//! What is known of a running job, from the events of its nodes.

use crate::event::{Closed, Event, Kind};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// A job as its nodes tell it.
#[derive(Clone, Debug, Default)]
pub struct Board {
    /// Rounds of the job, as its file says.
    pub rounds: u64,
    /// Steps of a round.
    pub interval: u32,
    /// Workers by name.
    pub workers: BTreeMap<String, Worker>,
    /// What the orchestrator does.
    pub doing: String,
    /// Closed rounds.
    pub closed: BTreeMap<u64, Closed>,
    /// Rewards of steps, for the plot.
    pub points: Vec<Point>,
    /// The validator's word on the last checkpoint.
    pub evaluation: Option<Evaluation>,
    /// How the job ended, and why.
    pub finished: Option<(String, String)>,
}

/// One worker.
#[derive(Clone, Debug, Default)]
pub struct Worker {
    /// What it does.
    pub doing: String,
    /// The round.
    pub round: u64,
    /// Steps done in the round.
    pub step: u32,
    /// Mean reward of its last step.
    pub reward: Option<f64>,
    /// Tokens of all its steps.
    pub tokens: u64,
    /// Tokens a second of its last step.
    pub tokens_per_second: f64,
    /// Its last words for people.
    pub notice: String,
}

/// The reward of one step.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// Whose.
    pub worker: String,
    /// Steps since the job began.
    pub step: u64,
    /// The mean reward.
    pub reward: f64,
}

/// Right answers on held-out questions by greedy decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evaluation {
    /// Questions asked.
    pub questions: u64,
    /// Right answers of the base.
    pub before: u64,
    /// Right answers of the checkpoint.
    pub after: u64,
}

impl Board {
    /// A job that begins.
    #[must_use]
    pub fn new(rounds: u64, interval: u32, workers: impl Iterator<Item = String>) -> Self {
        let workers = workers.map(|name| (name, Worker::default())).collect();
        Self {
            rounds,
            interval,
            workers,
            ..Self::default()
        }
    }

    /// Takes an event of `node`.
    pub fn take(&mut self, node: &str, event: &Event) {
        match &event.kind {
            Kind::Doing { role, doing, round } => self.on_doing(node, role, doing, *round),
            Kind::Step {
                round, step, metrics, ..
            } => self.on_step(node, *round, *step + 1, metrics),
            Kind::Closed(closed) => {
                let known = self.closed.entry(closed.round).or_insert_with(|| closed.clone());
                // A node that has not the manifest knows no members.
                if known.members.len() < closed.members.len() {
                    *known = closed.clone();
                }
            }
            Kind::Report {
                subject,
                questions,
                correct_before,
                correct_after,
                ..
            } if subject == "checkpoint" => {
                self.evaluation = Some(Evaluation {
                    questions: *questions,
                    before: *correct_before,
                    after: *correct_after,
                });
            }
            Kind::Finished { standing, why } => {
                self.finished
                    .get_or_insert_with(|| (standing.clone(), why.clone().unwrap_or_default()));
            }
            Kind::Notice { text } => {
                if let Some(worker) = self.workers.get_mut(node) {
                    worker.notice.clone_from(text);
                }
            }
            Kind::Round { .. } | Kind::Report { .. } | Kind::Offence { .. } | Kind::Other => {}
        }
    }

    /// The last closed round.
    #[must_use]
    pub fn last(&self) -> Option<&Closed> {
        self.closed.values().next_back()
    }

    /// Local steps done by all workers, and how many there will be if nobody is missing.
    #[must_use]
    pub fn steps(&self) -> (u64, u64) {
        let interval = u64::from(self.interval);
        let count = self.workers.len() as u64;
        let closed = self.closed.len() as u64;
        let running: u64 = self
            .workers
            .values()
            .filter(|w| w.round >= closed)
            .map(|w| u64::from(w.step).min(interval))
            .sum();
        (
            closed * interval * count + running,
            self.rounds * interval * count,
        )
    }

    /// The mean of the workers' last rewards.
    #[must_use]
    pub fn reward(&self) -> Option<f64> {
        let rewards: Vec<f64> = self.workers.values().filter_map(|w| w.reward).collect();
        (!rewards.is_empty()).then(|| rewards.iter().sum::<f64>() / rewards.len() as f64)
    }

    fn on_doing(&mut self, node: &str, role: &str, doing: &str, round: u64) {
        if role == "orchestrator" {
            doing.clone_into(&mut self.doing);
        }
        let Some(worker) = self.workers.get_mut(node).filter(|_| role == "worker") else {
            return;
        };
        doing.clone_into(&mut worker.doing);
        // At the end the round is one that there will not be.
        if worker.round != round && (self.rounds == 0 || round < self.rounds) {
            (worker.round, worker.step) = (round, 0);
        }
    }

    fn on_step(&mut self, node: &str, round: u64, step: u32, metrics: &Map<String, Value>) {
        let Some(worker) = self.workers.get_mut(node) else {
            return;
        };
        let number = |key: &str| metrics.get(key).and_then(Value::as_f64).filter(|v| v.is_finite());
        (worker.round, worker.step) = (round, step);
        let tokens = number("num_tokens").unwrap_or(0.0);
        worker.tokens += tokens as u64;
        if let Some(seconds) = number("step_time").filter(|s| *s > 0.0) {
            worker.tokens_per_second = tokens / seconds;
        }
        if let Some(reward) = number("reward") {
            worker.reward = Some(reward);
            let step = round * u64::from(self.interval) + u64::from(step);
            self.points.push(Point {
                worker: node.to_owned(),
                step,
                reward,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn event(value: Value) -> Event {
        let mut value = value;
        value["n"] = json!(0);
        value["at"] = json!(0);
        serde_json::from_value(value).unwrap()
    }

    fn step(round: u64, step: u32) -> Event {
        let metrics = json!({ "reward": 0.5, "num_tokens": 100, "step_time": 2.0 });
        event(json!({ "kind": "step", "round": round, "step": step, "steps": 4, "metrics": metrics }))
    }

    fn closed(round: u64, members: &[&str]) -> Event {
        event(json!({
            "kind": "closed", "round": round, "view": 0, "state_hash": "s", "checkpoint": "c",
            "signers": members, "members": members, "left_out": []
        }))
    }

    #[test]
    fn steps_add_up_over_rounds() {
        let mut board = Board::new(2, 4, ["a".to_owned(), "b".to_owned()].into_iter());
        board.take("a", &step(0, 2));
        assert_eq!(board.steps(), (3, 16));
        assert_eq!(board.workers["a"].tokens_per_second, 50.0);
        board.take("a", &closed(0, &[]));
        board.take("b", &closed(0, &["a", "b"]));
        assert_eq!((board.steps(), board.last().unwrap().members.len()), ((8, 16), 2));
        board.take("b", &step(1, 0));
        assert_eq!((board.steps().0, board.points[1].step), (9, 5));
        assert_eq!(board.reward(), Some(0.5));
    }

    #[test]
    fn the_first_end_counts_and_only_checkpoints_are_the_evaluation() {
        let mut board = Board::new(1, 1, std::iter::empty());
        board.take(
            "o",
            &event(json!({ "kind": "finished", "standing": "done", "why": null })),
        );
        board.take(
            "w",
            &event(json!({ "kind": "finished", "standing": "failed", "why": "x" })),
        );
        assert_eq!(board.finished, Some(("done".into(), String::new())));
        let report = |subject: &str| {
            event(json!({
                "kind": "report", "round": 1, "subject": subject, "member": null,
                "questions": 500, "correct_before": 100, "correct_after": 300
            }))
        };
        board.take("v", &report("delta"));
        assert_eq!(board.evaluation, None);
        board.take("v", &report("checkpoint"));
        assert_eq!(
            board.evaluation,
            Some(Evaluation {
                questions: 500,
                before: 100,
                after: 300
            })
        );
    }
}
