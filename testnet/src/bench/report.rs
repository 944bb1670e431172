//! What came of it: medians over rounds.

use super::RingArgs;
use super::ring::elements;
use super::words::Measured;
use gym_protocol::ids::Rank;
use gym_protocol::job::spec::Wire;
use gym_protocol::quant::ring_payload_bytes;
use serde::Serialize;
use std::collections::BTreeMap;

/// The result; one JSON object.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    members: u32,
    mib: usize,
    wire: String,
    rounds: usize,
    /// Every member's mean equals the replay's to the bit in every round; otherwise there is no report.
    exact: Exactness,
    /// Median over rounds of the slowest member's time, seconds.
    seconds: f64,
    seconds_best: f64,
    /// As gloo's script defines it: bytes of one member's vector over the call's time.
    algbw_gb_s: f64,
    algbw_gb_s_best: f64,
    /// 2(n−1)/n of it.
    busbw_gb_s: f64,
    /// Ring payload with its sealing, at the stream, over theory: the largest member's.
    bytes_ratio: f64,
    /// The same with frame headers and lengths.
    bytes_ratio_with_headers: f64,
    theory_bytes: u64,
    sealed_bytes: u64,
    header_bytes: u64,
    /// Of both links of a member, once.
    handshake_bytes: u64,
    /// Processor seconds of all members together, median over rounds.
    cpu_seconds: f64,
    /// The same by stage; `wait` is the members' wall time less their processor time.
    stages: BTreeMap<&'static str, f64>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Exactness {
    EqualToReplay,
}

impl Report {
    pub(super) fn new(args: &RingArgs, wire: Wire, rounds: &[Vec<Measured>]) -> Self {
        let bytes = elements(args) * 4;
        let slowest: Vec<f64> = rounds.iter().map(|r| max(r.iter().map(|m| m.wall_s))).collect();
        let (seconds, best) = (
            median(slowest.clone()),
            slowest.iter().copied().fold(f64::INFINITY, f64::min),
        );
        let gb_s = |s: f64| bytes as f64 / s / 1e9;
        let n = f64::from(args.members);
        let theory: Vec<u64> = (0..args.members)
            .map(|i| ring_payload_bytes(wire, args.members, elements(args), Rank(i)))
            .collect();
        let ratio = |of: fn(&Measured) -> u64| {
            let members = rounds.iter().flat_map(|r| r.iter().zip(&theory));
            max(members.map(|(m, t)| of(m) as f64 / (*t).max(1) as f64))
        };
        let last = rounds.last().and_then(|r| r.first());
        Self {
            members: args.members,
            mib: args.mib,
            wire: args.wire.clone(),
            rounds: rounds.len(),
            exact: Exactness::EqualToReplay,
            seconds,
            seconds_best: best,
            algbw_gb_s: gb_s(seconds),
            algbw_gb_s_best: gb_s(best),
            busbw_gb_s: gb_s(seconds) * 2.0 * (n - 1.0) / n,
            bytes_ratio: ratio(|m| m.sealed_bytes),
            bytes_ratio_with_headers: ratio(|m| m.sealed_bytes + m.header_bytes),
            theory_bytes: theory.first().copied().unwrap_or(0),
            sealed_bytes: last.map_or(0, |m| m.sealed_bytes),
            header_bytes: last.map_or(0, |m| m.header_bytes),
            handshake_bytes: last.map_or(0, |m| m.handshake_bytes),
            cpu_seconds: median(rounds.iter().map(|r| r.iter().map(|m| m.cpu_s).sum()).collect()),
            stages: stages(rounds),
        }
    }

    /// For people.
    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines = vec![
            format!(
                "{} members, {} MiB each, {}: {:.3} s (best {:.3}), algorithm bandwidth {:.3} GB/s (best {:.3}); every \
                 member's mean equals the replay's to the bit",
                self.members,
                self.mib,
                self.wire,
                self.seconds,
                self.seconds_best,
                self.algbw_gb_s,
                self.algbw_gb_s_best
            ),
            format!(
                "bytes: {} sealed, {:.5} of theory ({:.5} with headers); handshakes {}",
                self.sealed_bytes, self.bytes_ratio, self.bytes_ratio_with_headers, self.handshake_bytes
            ),
            format!("processor time of all members: {:.3} s", self.cpu_seconds),
        ];
        lines.extend(
            self.stages
                .iter()
                .map(|(name, s)| format!("  {name:<10} {s:.3} s")),
        );
        lines
    }
}

fn stages(rounds: &[Vec<Measured>]) -> BTreeMap<&'static str, f64> {
    let mut all: BTreeMap<&'static str, Vec<f64>> = BTreeMap::new();
    for round in rounds {
        let mut sums: BTreeMap<&'static str, f64> = BTreeMap::new();
        for (name, s) in round.iter().flat_map(|m| m.stages.named()) {
            *sums.entry(name).or_default() += s;
        }
        sums.into_iter()
            .for_each(|(name, s)| all.entry(name).or_default().push(s));
    }
    all.into_iter().map(|(name, s)| (name, median(s))).collect()
}

fn max(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(0.0, f64::max)
}

/// The middle value, of two middle ones their mean; 0 of none.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    match (values.get(n.saturating_sub(1) / 2), values.get(n / 2)) {
        (Some(a), Some(b)) => (a + b) / 2.0,
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn medians() {
        assert_eq!(median(vec![]), 0.0);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0]), 2.5);
    }
}
