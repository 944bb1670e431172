//! Counters and gauges by name, shown in `status` and, as Prometheus text, at `GET /metrics`.
//!
//! Machines know nothing of these: the drivers count the events and actions that pass them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// The node's counters; clones share them.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    series: Arc<RwLock<BTreeMap<String, Series>>>,
}

/// A handle to one counter or gauge: cheap to clone and to add to.
#[derive(Clone, Debug, Default)]
pub struct Series(Arc<AtomicU64>);

impl Series {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Replaces the value, for gauges.
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    /// The value.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Metrics {
    /// The series `name{labels}`, created at 0 when it is new. Names follow Prometheus: counters end in `_total`.
    #[must_use]
    pub fn series(&self, name: &str, labels: &[(&str, &str)]) -> Series {
        let key = series_key(name, labels);
        if let Some(found) = self
            .series
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&key)
        {
            return found.clone();
        }
        let mut series = self.series.write().unwrap_or_else(PoisonError::into_inner);
        series.entry(key).or_default().clone()
    }

    /// Adds `n` to a counter.
    pub fn add(&self, name: &str, labels: &[(&str, &str)], n: u64) {
        self.series(name, labels).add(n);
    }

    /// Sets a gauge.
    pub fn set(&self, name: &str, labels: &[(&str, &str)], n: u64) {
        self.series(name, labels).set(n);
    }

    /// Counts one offence of a peer, by kind.
    pub fn offence(&self, kind: &str) {
        self.add("gym_offences_total", &[("kind", kind)], 1);
    }

    /// The value of a series; 0 when it does not exist.
    #[must_use]
    pub fn get(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        let series = self.series.read().unwrap_or_else(PoisonError::into_inner);
        series.get(&series_key(name, labels)).map_or(0, Series::get)
    }

    /// Every series and its value, by name.
    #[must_use]
    pub fn snapshot(&self) -> BTreeMap<String, u64> {
        let series = self.series.read().unwrap_or_else(PoisonError::into_inner);
        series
            .iter()
            .map(|(key, value)| (key.clone(), value.get()))
            .collect()
    }

    /// The Prometheus text form, version 0.0.4.
    #[must_use]
    pub fn prometheus(&self) -> String {
        let mut text = String::new();
        let mut described = String::new();
        for (key, value) in self.snapshot() {
            let name = key.split('{').next().unwrap_or(&key);
            if name != described {
                let kind = if name.ends_with("_total") {
                    "counter"
                } else {
                    "gauge"
                };
                let _ = writeln!(text, "# TYPE {name} {kind}");
                name.clone_into(&mut described);
            }
            let _ = writeln!(text, "{key} {value}");
        }
        text
    }
}

fn series_key(name: &str, labels: &[(&str, &str)]) -> String {
    if labels.is_empty() {
        return name.to_owned();
    }
    let pairs: Vec<String> = labels
        .iter()
        .map(|(k, v)| format!("{k}=\"{}\"", escape(v)))
        .collect();
    format!("{name}{{{}}}", pairs.join(","))
}

fn escape(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_share_their_counters() {
        let metrics = Metrics::default();
        let clone = metrics.clone();
        clone.add("gym_x_total", &[("kind", "a")], 2);
        metrics.add("gym_x_total", &[("kind", "a")], 3);
        assert_eq!(metrics.get("gym_x_total", &[("kind", "a")]), 5);
        assert_eq!(metrics.get("gym_x_total", &[("kind", "b")]), 0);
    }

    #[test]
    fn prometheus_text_names_each_type_once() {
        let metrics = Metrics::default();
        metrics.offence("bad_tag");
        metrics.offence("truncated");
        metrics.set("gym_peers", &[], 4);
        assert_eq!(
            metrics.prometheus(),
            "# TYPE gym_offences_total counter\ngym_offences_total{kind=\"bad_tag\"} 1\n\
             gym_offences_total{kind=\"truncated\"} 1\n# TYPE gym_peers gauge\ngym_peers 4\n"
        );
    }

    #[test]
    fn labels_are_escaped() {
        assert_eq!(series_key("n", &[("k", "a\"b\\\n")]), "n{k=\"a\\\"b\\\\\\n\"}");
    }
}
