//! `testnet sim`: a scenario file, played by the simulator.

use crate::args::SimArgs;
use crate::cpu;
use crate::output::{complain, line};
use anyhow::{Context, bail};
use gym_protocol::sim::{Invariant, Outcome, Scenario, parse, run};
use serde_json::{Value, json};
use std::path::Path;

/// Files are short.
const MAX_FILE: u64 = 64 << 10;

pub(crate) fn main(args: &SimArgs) -> anyhow::Result<()> {
    let (mut scenario, invariant) = load(&args.scenario)?;
    if let Some(seed) = args.seed {
        scenario.seed = seed;
    }
    let before = cpu::seconds(std::iter::empty());
    let outcome =
        run(&scenario).context("the scenario's job does not parse; this is a mistake of this program")?;
    let cpu_seconds = cpu::seconds(std::iter::empty()) - before;
    let broken = invariant.broken(&scenario, &outcome);
    if args.json {
        let report = report(&scenario, invariant, &outcome, &broken, cpu_seconds);
        line(&serde_json::to_string(&report)?);
    } else {
        describe(&scenario, &outcome, cpu_seconds);
    }
    if broken.is_empty() {
        if !args.json {
            line(&format!("{invariant:?} holds"));
        }
        return Ok(());
    }
    broken.iter().for_each(|what| complain(what));
    bail!(
        "{invariant:?} does not hold: seed {} shows it again",
        scenario.seed
    )
}

fn load(path: &Path) -> anyhow::Result<(Scenario, Invariant)> {
    let name = || path.display().to_string();
    let bytes = std::fs::metadata(path).with_context(name)?.len();
    if bytes > MAX_FILE {
        bail!(
            "{}: {bytes} bytes are too many for a scenario; at most {MAX_FILE} are read",
            name()
        );
    }
    let text = std::fs::read_to_string(path).with_context(name)?;
    parse(&text).with_context(name)
}

fn report(
    scenario: &Scenario,
    invariant: Invariant,
    o: &Outcome,
    broken: &[String],
    cpu_seconds: f64,
) -> Value {
    json!({
        "seed": scenario.seed,
        "members": scenario.members,
        "sum_exact": o.sum_exact(),
        "bytes_ratio": o.bytes_ratio,
        "virtual_seconds": o.virtual_us as f64 / 1e6,
        "trace_hash": o.trace.to_hex(),
        "invariant": format!("{invariant:?}"),
        "holds": broken.is_empty(),
        "broken": broken,
        "rounds_closed": o.closed,
        "rounds_tried": o.rounds.len(),
        "views_raised": o.rounds.iter().map(|r| r.views.saturating_sub(1)).sum::<u32>(),
        "grid": o.closes.last().and_then(|c| c.grid),
        "deaths": o.deaths,
        "events": o.events,
        "cpu_seconds": cpu_seconds,
        "peak_mib": peak_mib(),
    })
}

fn describe(scenario: &Scenario, o: &Outcome, cpu_seconds: f64) {
    let layout = match o.closes.last().and_then(|c| c.grid) {
        Some((rows, columns)) => format!("a grid of {rows} × {columns}"),
        None => "one ring".to_owned(),
    };
    line(&format!(
        "{} members in {layout}, seed {}: {} rounds closed in {} tries and {:.1} s of virtual time; {} members died",
        scenario.members,
        scenario.seed,
        o.closed,
        o.rounds.len(),
        o.virtual_us as f64 / 1e6,
        o.deaths,
    ));
    let bytes = o
        .bytes_ratio
        .map_or("no round to compare".to_owned(), |r| format!("{r:.4} of theory"));
    line(&format!(
        "sum {}; bytes of the farthest member: {bytes}",
        if o.sum_exact() { "exact" } else { "NOT exact" },
    ));
    let memory = peak_mib().map_or(String::new(), |mib| format!(", {mib} MiB"));
    line(&format!(
        "trace {}: {} events, {cpu_seconds:.1} s of processor{memory}",
        o.trace, o.events
    ));
}

/// The most memory this process has had, where the system says it.
fn peak_mib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    let kib: u64 = peak.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib / 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scenario(name: &str) -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios").join(name)
    }

    #[test]
    fn the_report_has_what_is_promised_and_the_same_again() {
        let (scenario, invariant) = load(&scenario("ring-3.toml")).unwrap();
        let play = || {
            let o = run(&scenario).unwrap();
            report(&scenario, invariant, &o, &[], 0.0)
        };
        let value = play();
        assert_eq!(value["members"], 3);
        assert_eq!(value["sum_exact"], true);
        assert!((value["bytes_ratio"].as_f64().unwrap() - 1.0).abs() < 0.02);
        assert!(value["virtual_seconds"].as_f64().unwrap() > 1.0);
        assert_eq!(value["trace_hash"].as_str().unwrap().len(), 64);
        assert_eq!(play()["trace_hash"], value["trace_hash"]);
    }

    #[test]
    fn what_is_wrong_with_a_file_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bad.toml");
        std::fs::write(&path, "invariant = \"sum_exact\"\nmembers = 0\nelements = 3\n").unwrap();
        let error = format!("{:#}", load(&path).unwrap_err());
        assert!(
            error.contains("bad.toml") && error.contains("members is 0"),
            "{error}"
        );
        std::fs::write(&path, "invariant = \"luck\"\n").unwrap();
        assert!(format!("{:#}", load(&path).unwrap_err()).contains("luck"));
        assert!(load(&dir.path().join("none.toml")).is_err());
    }
}
