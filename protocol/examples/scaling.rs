//! What a round's sum costs from three members to a thousand: one ring against a grid, in any order and in the measured
//! one, without and with members that are lost. `docs/scaling.md` has its figures.
//!
//! `cargo run --release -p gym-protocol --features sim --example scaling -- DIR [WHICH [WIRE [LEAST [MOST]]]]` prints a row a
//! setting and writes DIR/scaling.csv and a CSV a chart, which `hanzod plot` draws. WHICH is all, kept (no member is lost) or
//! lost [all], WIRE f32 or q8 [f32], LEAST and MOST bound the number of members.

#![allow(clippy::print_stdout, reason = "a program that prints")]

use gym_protocol::sim::{Churn, LinkModel, Order, Outcome, Scenario, run};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Instant;

/// 16,384 simulated elements stand for 10.5 million: a LoRA adapter of rank 16 for a model of 0.6 billion parameters.
/// A segment is one block of them.
const ELEMENTS: usize = 16_384;
const SCALE: u64 = 640;

const MEMBERS: &[u32] = &[
    3, 8, 12, 16, 17, 20, 23, 24, 28, 31, 32, 40, 50, 64, 100, 200, 300, 500, 1000,
];
/// Sizes that are played with members lost.
const WITH_LOSSES: &[u32] = &[3, 12, 32, 64, 100, 300, 1000];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Shape {
    Flat,
    Grid,
}

#[derive(Clone, Copy, Debug)]
struct Setting {
    members: u32,
    shape: Shape,
    order: Order,
    churn: Option<Churn>,
    rounds: u64,
    /// Worlds, by seed, that the figures are means of.
    worlds: u64,
}

/// The figures of one setting.
#[derive(Clone, Copy, Debug)]
struct Cost {
    closed: usize,
    tries: usize,
    /// Views beyond each try's first.
    raised: u32,
    /// From the manifest to the last member's mean, and to the close: seconds, mean over closed rounds.
    ring_s: f64,
    close_s: f64,
    /// Ring payload sent over the theory of one sum, mean over members and closed rounds.
    bytes: f64,
    deaths: u64,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let dir = args.next().ok_or("usage: scaling DIR [MOST]")?;
    let churns: &[Option<Churn>] = match args.next().as_deref() {
        None | Some("all") => &[None, Some(CHURN)],
        Some("kept") => &[None],
        Some("lost") => &[Some(CHURN)],
        Some(other) => return Err(format!("{other} is not all, kept or lost").into()),
    };
    let wire = args.next().unwrap_or_else(|| "f32".into());
    let least: u32 = args.next().map_or(Ok(0), |n| n.parse())?;
    let most: u32 = args.next().map_or(Ok(u32::MAX), |n| n.parse())?;
    let mut table = String::from(HEADING);
    let mut charts = Charts::default();
    println!("{}", HEADING.trim_end());
    for setting in settings(least..=most, churns) {
        let began = Instant::now();
        let mut costs = Vec::new();
        for seed in 1..=setting.worlds {
            let outcome = run(&setting.scenario(seed, &wire)).ok_or("the job does not parse")?;
            let broken = &outcome.broken;
            if !broken.sum.is_empty() || !broken.state.is_empty() || !broken.lost.is_empty() {
                return Err(format!("{setting:?}: {broken:?}").into());
            }
            costs.push(Cost::of(&setting, &outcome));
        }
        let cost = Cost::mean(&costs);
        let row = setting.row(&cost);
        println!("{row} # {} s", began.elapsed().as_secs());
        let _ = writeln!(table, "{row}");
        charts.add(&setting, &cost);
        std::fs::write(Path::new(&dir).join("scaling.csv"), &table)?;
    }
    charts.write(Path::new(&dir))?;
    Ok(())
}

const HEADING: &str =
    "members,shape,order,lost,rounds_closed,tries,views_raised,ring_s,close_s,bytes,deaths\n";

fn settings(sizes: RangeInclusive<u32>, churns: &[Option<Churn>]) -> Vec<Setting> {
    let mut all = Vec::new();
    for churn in churns.iter().copied() {
        for members in MEMBERS.iter().copied().filter(|n| sizes.contains(n)) {
            for shape in [Shape::Flat, Shape::Grid] {
                for order in [Order::Roster, Order::Measured] {
                    // A grid has at least four; members that are lost are played in the measured order alone.
                    let skip = order == Order::Roster || !WITH_LOSSES.contains(&members);
                    if (shape == Shape::Grid && members < 4) || (churn.is_some() && skip) {
                        continue;
                    }
                    let rounds = match churn {
                        None => 1,
                        // About as much work for every size; at a thousand a member is lost every 36 seconds.
                        Some(_) => u64::from((4_000 / members).clamp(3, 150)),
                    };
                    all.push(Setting {
                        members,
                        shape,
                        order,
                        churn,
                        rounds,
                        worlds: if churn.is_none() && members <= 100 { 5 } else { 1 },
                    });
                }
            }
        }
    }
    all
}

const CHURN: Churn = Churn {
    life_ms: 10 * 3_600_000,
    return_after_ms: Some(300_000),
    noticed_after_ms: 10_000,
};

impl Setting {
    fn scenario(&self, seed: u64, wire: &str) -> Scenario {
        let (members, rounds) = (self.members, self.rounds);
        let least = (members * 2).div_ceil(3).max(2);
        Scenario {
            seed,
            members,
            elements: ELEMENTS,
            segment: gym_protocol::quant::BLOCK,
            scale: SCALE,
            job: format!(
                "name = \"scaling\"\nmodel = \"m\"\ntrain = \"t\"\nheldout = \"h\"\nrewards = [{{ name = \"numeric\" }}]\nwire = \"{wire}\"\n\
                 [schedule]\nrounds = {rounds}\nmin_workers = {least}\nmax_workers = {members}\naggregate_interval = 1\n\
                 [schedule.deadlines]\nrecruit_ms = 30000\ntrain_ms = 600000\ncommit_ms = 60000\nattest_ms = 600000\n"
            ),
            // 100 ms one way on average, in five regions; 100 Mbit/s.
            links: LinkModel {
                latency_ms: 20,
                jitter_ms: 10,
                bytes_per_ms: 12_500,
                loss_ppm: 0,
                regions: 5,
                spread_ms: 75,
            },
            flat_ring_max: match self.shape {
                Shape::Flat => u32::MAX,
                Shape::Grid => 1,
            },
            order: self.order,
            train_ms: 60_000,
            churn: self.churn,
            limit_ms: 30 * 24 * 3_600_000,
            ..Scenario::default()
        }
    }

    fn name(&self) -> String {
        let shape = match self.shape {
            Shape::Flat => "ring",
            Shape::Grid => "grid",
        };
        match self.order {
            Order::Roster => format!("{shape} in any order"),
            Order::Measured => format!("{shape} in measured order"),
        }
    }

    fn row(&self, c: &Cost) -> String {
        format!(
            "{},{:?},{:?},{},{},{},{},{:.2},{:.2},{:.4},{}",
            self.members,
            self.shape,
            self.order,
            u8::from(self.churn.is_some()),
            c.closed,
            c.tries,
            c.raised,
            c.ring_s,
            c.close_s,
            c.bytes,
            c.deaths
        )
    }
}

impl Cost {
    fn mean(costs: &[Self]) -> Self {
        let mean = |of: &dyn Fn(&Self) -> f64| costs.iter().map(of).sum::<f64>() / costs.len() as f64;
        Self {
            closed: costs.iter().map(|c| c.closed).sum(),
            tries: costs.iter().map(|c| c.tries).sum(),
            raised: costs.iter().map(|c| c.raised).sum(),
            ring_s: mean(&|c| c.ring_s),
            close_s: mean(&|c| c.close_s),
            bytes: mean(&|c| c.bytes),
            deaths: costs.iter().map(|c| c.deaths).sum(),
        }
    }

    fn of(setting: &Setting, o: &Outcome) -> Self {
        let closed: Vec<_> = o.rounds.iter().filter(|r| r.closed.is_some()).collect();
        let mean = |of: &dyn Fn(&gym_protocol::sim::RoundRecord) -> Option<u64>| {
            let seconds = closed
                .iter()
                .filter_map(|r| Some((of(r)? - r.manifest?) as f64 / 1e6));
            seconds.sum::<f64>() / closed.len() as f64
        };
        let sent: u64 = o.ring_bytes.iter().sum();
        Self {
            closed: closed.len(),
            tries: o.rounds.len(),
            raised: o.rounds.iter().map(|r| r.views.saturating_sub(1)).sum(),
            ring_s: mean(&|r| r.reduced),
            close_s: mean(&|r| r.closed),
            bytes: sent as f64 / f64::from(setting.members) / theory(setting.members) / closed.len() as f64,
            deaths: o.deaths,
        }
    }
}

/// Simulated bytes that a member sends in one sum at f32.
fn theory(members: u32) -> f64 {
    let n = f64::from(members);
    2.0 * (n - 1.0) / n * ELEMENTS as f64 * 4.0
}

/// Lines over members, by chart.
#[derive(Debug, Default)]
struct Charts(BTreeMap<&'static str, BTreeMap<u32, BTreeMap<String, f64>>>);

impl Charts {
    fn add(&mut self, s: &Setting, c: &Cost) {
        let tries = c.tries as f64;
        let points = match s.churn {
            None => vec![
                ("time", c.ring_s),
                ("bytes", c.bytes * theory(s.members) * SCALE as f64 / 1e6),
            ],
            Some(_) => vec![
                ("lost-time", c.close_s),
                ("lost-bytes", c.bytes),
                ("lost-rounds", (tries - c.closed as f64) / tries),
                ("lost-views", f64::from(c.raised) / tries),
            ],
        };
        for (chart, value) in points {
            let lines = self.0.entry(chart).or_default();
            lines.entry(s.members).or_default().insert(s.name(), value);
        }
    }

    fn write(&self, dir: &Path) -> std::io::Result<()> {
        for (chart, rows) in &self.0 {
            let mut names: Vec<&String> = rows.values().flat_map(BTreeMap::keys).collect();
            names.sort();
            names.dedup();
            let mut text = format!(
                "members,{}\n",
                names.iter().map(|n| n.as_str()).collect::<Vec<_>>().join(",")
            );
            for (members, values) in rows {
                let cells = names
                    .iter()
                    .map(|n| values.get(*n).map_or(String::new(), |v| format!("{v:.4}")));
                let _ = writeln!(text, "{members},{}", cells.collect::<Vec<_>>().join(","));
            }
            std::fs::write(dir.join(format!("scaling-{chart}.csv")), text)?;
        }
        Ok(())
    }
}
