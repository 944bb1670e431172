//! Held-out questions, with the adapter as it stands.

use super::{StepError, Trainer};
use crate::data::Question;
use crate::eval::{Answers, EvalConfig, Evaluation, Judge, evaluate};

impl Trainer {
    /// Answers and judges `questions` as the job does. `progress` is told how many are done.
    ///
    /// # Errors
    /// A question that cannot be encoded; logits that are not finite.
    pub fn evaluate(
        &self,
        questions: &[Question],
        answers: Answers,
        progress: &mut dyn FnMut(usize),
    ) -> Result<Evaluation, StepError> {
        let lora = self.learner.lora()?;
        let judge = Judge {
            model: &self.learner.decoder,
            lora: Some(&lora),
            tokenizer: &self.tokenizer,
            rewards: &self.rewards,
        };
        let config = EvalConfig {
            answers,
            max_completion_length: self.plan.rollout.max_completion_length as usize,
            stop: self.plan.rollout.stop.clone(),
            max_rows: self.learner.limits.rollout_rows,
        };
        Ok(evaluate(&judge, questions, &config, progress)?)
    }
}
