//! What happened in a job, for those who watch it: numbered, bounded, waited for.

use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// Events kept for one job.
const KEPT: usize = 16_384;
/// Events in one answer.
const BATCH: usize = 512;

/// A job's events; clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Events {
    inner: Arc<Mutex<Inner>>,
    news: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Inner {
    first: u64,
    events: VecDeque<Value>,
    ended: bool,
}

impl Default for Events {
    fn default() -> Self {
        Self {
            inner: Arc::default(),
            news: watch::Sender::new(0),
        }
    }
}

impl Events {
    /// Adds an event: an object with `kind`; its number and time are added.
    pub(crate) fn push(&self, kind: &str, mut event: Value) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let n = inner.first + inner.events.len() as u64;
        if let Some(map) = event.as_object_mut() {
            map.insert("n".into(), json!(n));
            map.insert("at".into(), json!(super::unix_ms()));
            map.insert("kind".into(), json!(kind));
        }
        if inner.events.len() == KEPT {
            inner.events.pop_front();
            inner.first += 1;
        }
        inner.events.push_back(event);
        drop(inner);
        self.news.send_replace(n + 1);
    }

    /// Nothing more will happen.
    pub(crate) fn end(&self) {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).ended = true;
        self.news.send_modify(|n| *n += 1);
    }

    /// Events from number `after` on, waiting up to `wait` for the first.
    pub(crate) async fn after(&self, after: u64, wait: Duration) -> Value {
        let mut news = self.news.subscribe();
        let deadline = tokio::time::Instant::now() + wait;
        loop {
            if let Some(batch) = self.batch(after) {
                return batch;
            }
            if tokio::time::timeout_at(deadline, news.changed()).await.is_err() {
                return json!({ "events": [], "next": after, "ended": false });
            }
        }
    }

    fn batch(&self, after: u64) -> Option<Value> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let skip = usize::try_from(after.saturating_sub(inner.first)).unwrap_or(usize::MAX);
        let events: Vec<&Value> = inner.events.iter().skip(skip).take(BATCH).collect();
        if events.is_empty() && !inner.ended {
            return None;
        }
        let start = after.max(inner.first);
        let next = start + events.len() as u64;
        let ended = inner.ended && next >= inner.first + inner.events.len() as u64;
        Some(json!({ "events": events, "next": next, "ended": ended }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn watchers_get_each_event_once_and_the_end() {
        let events = Events::default();
        events.push("a", json!({}));
        events.push("b", json!({ "x": 1 }));
        let first = events.after(0, Duration::ZERO).await;
        assert_eq!(first["events"].as_array().unwrap().len(), 2);
        assert_eq!(first["next"], 2);
        let none = events.after(2, Duration::from_millis(5)).await;
        assert_eq!(
            (none["events"].as_array().unwrap().len(), none["ended"].as_bool()),
            (0, Some(false))
        );
        events.end();
        assert_eq!(events.after(2, Duration::from_secs(5)).await["ended"], true);
    }
}
