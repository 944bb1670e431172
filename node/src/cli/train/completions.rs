//! A few completions of a step with their rewards: lines of a file, and a table for people.

use gym_training::trainer::{StepReport, Trainer};
use serde_json::{Value, json};

/// Widest cells of prompt and completion, in characters.
const WIDTH: usize = 44;
/// Most lines of a cell.
const LINES: usize = 8;

/// Some completions of one step.
pub(super) struct Sheet {
    step: u64,
    rewards: Vec<String>,
    rows: Vec<Row>,
}

struct Row {
    prompt: String,
    completion: String,
    rewards: Vec<Option<f64>>,
    advantage: f64,
}

impl Sheet {
    /// The first `count` completions after `step` steps, spread over the groups.
    pub(super) fn of(trainer: &Trainer, report: &StepReport, step: u64, count: usize) -> Self {
        let all = report.rollouts.len();
        let chosen = (0..count.min(all)).map(|i| i * all / count.min(all));
        let rows = chosen.map(|i| {
            let rollout = &report.rollouts[i];
            Row {
                prompt: trainer.prompt(rollout.row).unwrap_or_default().to_owned(),
                completion: rollout.text.clone(),
                rewards: report.scores[i].parts.iter().map(|part| part.ok()).collect(),
                advantage: report.advantages[i],
            }
        });
        Self {
            step,
            rows: rows.collect(),
            rewards: trainer.rewards().names().map(str::to_owned).collect(),
        }
    }

    /// One record a completion, with TRL's column names.
    pub(super) fn records(&self) -> Vec<Value> {
        let record = |row: &Row| {
            let mut record = json!({
                "step": self.step,
                "prompt": row.prompt,
                "completion": row.completion,
                "advantage": row.advantage,
            });
            for (name, reward) in self.rewards.iter().zip(&row.rewards) {
                record[name.as_str()] = json!(reward);
            }
            record
        };
        self.rows.iter().map(record).collect()
    }

    /// A box of columns: prompt, completion, each reward function's number, advantage.
    pub(super) fn table(&self) -> String {
        let number = |n: Option<f64>| n.map_or("-".to_owned(), |n| format!("{n:.2}"));
        let mut lines = vec![vec![vec!["Prompt".to_owned()], vec!["Completion".to_owned()]]];
        lines[0].extend(self.rewards.iter().map(|name| vec![name.clone()]));
        lines[0].push(vec!["Advantage".to_owned()]);
        for row in &self.rows {
            let mut cells = vec![wrapped(&row.prompt), wrapped(&row.completion)];
            cells.extend(row.rewards.iter().map(|r| vec![number(*r)]));
            cells.push(vec![number(Some(row.advantage))]);
            lines.push(cells);
        }
        format!("Completions after step {}\n{}", self.step, boxed(&lines))
    }
}

/// A text in lines of at most [`WIDTH`] characters, control characters made visible, long ones cut.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for line in text.split('\n') {
        let shown: Vec<char> = line.chars().flat_map(char::escape_debug).collect();
        lines.extend(shown.chunks(WIDTH).map(|chunk| chunk.iter().collect::<String>()));
        if shown.is_empty() {
            lines.push(String::new());
        }
    }
    if lines.len() > LINES {
        lines.truncate(LINES - 1);
        lines.push("…".to_owned());
    }
    lines
}

/// Rows of cells of lines, the first row a heading.
fn boxed(rows: &[Vec<Vec<String>>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| {
        let lines = rows.iter().flat_map(|row| &row[column]);
        lines.map(|line| line.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let rule = |left: &str, middle: &str, right: &str| {
        let parts: Vec<String> = widths.iter().map(|w| "─".repeat(w + 2)).collect();
        format!("{left}{}{right}\n", parts.join(middle))
    };
    let mut out = rule("┌", "┬", "┐");
    for (index, row) in rows.iter().enumerate() {
        if index > 0 {
            out.push_str(&rule("├", "┼", "┤"));
        }
        for line in 0..row.iter().map(Vec::len).max().unwrap_or(0) {
            let cell = |(cell, width): (&Vec<String>, &usize)| {
                let text = cell.get(line).map_or("", String::as_str);
                format!(" {text}{} ", " ".repeat(width - text.chars().count()))
            };
            let cells: Vec<String> = row.iter().zip(&widths).map(cell).collect();
            out.push_str(&format!("│{}│\n", cells.join("│")));
        }
    }
    out + rule("└", "┴", "┘").trim_end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sheet_is_a_table_and_records() {
        let row = |completion: &str, reward| Row {
            prompt: "1 + 1 =".into(),
            completion: completion.into(),
            rewards: vec![reward],
            advantage: 0.5,
        };
        let sheet = Sheet {
            step: 3,
            rewards: vec!["numeric".into()],
            rows: vec![row("2", Some(1.0)), row("so\nmany\u{7} words", None)],
        };
        let want = "Completions after step 3\n\
                    ┌─────────┬─────────────────┬─────────┬───────────┐\n\
                    │ Prompt  │ Completion      │ numeric │ Advantage │\n\
                    ├─────────┼─────────────────┼─────────┼───────────┤\n\
                    │ 1 + 1 = │ 2               │ 1.00    │ 0.50      │\n\
                    ├─────────┼─────────────────┼─────────┼───────────┤\n\
                    │ 1 + 1 = │ so              │ -       │ 0.50      │\n\
                    │         │ many\\u{7} words │         │           │\n\
                    └─────────┴─────────────────┴─────────┴───────────┘";
        assert_eq!(sheet.table(), want);
        assert_eq!(
            sheet.records()[1],
            json!({ "step": 3, "prompt": "1 + 1 =", "completion": "so\nmany\u{7} words", "numeric": null, "advantage": 0.5 })
        );
    }

    #[test]
    fn long_texts_are_cut() {
        let lines = wrapped(&"x".repeat(WIDTH * 20));
        assert_eq!(
            (lines.len(), lines[0].len(), lines[7].as_str()),
            (LINES, WIDTH, "…")
        );
    }
}
