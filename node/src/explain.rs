//! Errors as people read them.

/// The error and its causes, each said once: many messages carry their cause already.
#[must_use]
pub fn explain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(|c| c.to_string()) {
        let cause = cause.trim_end();
        if text.is_empty() {
            cause.clone_into(&mut text);
        } else if !text.contains(cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}
