//! `hanzod plot`: metrics of runs as a picture.

use super::Context;
use anyhow::Context as _;
use gym_training::metrics::read_metrics;
use gym_training::plot::{Band, Labels, Panel, Scale, Series, write_panels};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Draws a panel a metric and a line a group of runs. A group of several runs (seeds) is their mean, with a band of one
/// standard deviation around it.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Runs: [LABEL=]PATH[,PATH...], each a metrics.jsonl, a directory that holds one, or a CSV file with a heading
    #[arg(required = true, value_name = "RUNS")]
    groups: Vec<Group>,
    /// The picture; one that is there is replaced
    #[arg(long, value_name = "FILE.png")]
    out: PathBuf,
    /// What to draw (repeatable) [default: reward; of a CSV file every column but x, in one panel]
    #[arg(long = "metric", value_name = "NAME")]
    metrics: Vec<String>,
    /// What it is drawn over [default: step; a CSV file's first column]
    #[arg(long, value_name = "NAME")]
    x: Option<String>,
    /// Means over N points in a row
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    smooth: u32,
    /// A logarithmic y axis
    #[arg(long)]
    log_y: bool,
    /// Above the picture
    #[arg(long, default_value = "", value_name = "TEXT")]
    title: String,
    /// Left of it [default: the metric's name]
    #[arg(long, value_name = "TEXT")]
    y_label: Option<String>,
}

/// Runs that are one line.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Group {
    label: String,
    paths: Vec<PathBuf>,
}

impl std::str::FromStr for Group {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (label, paths) = text.split_once('=').unwrap_or((text, text));
        let paths: Vec<PathBuf> = paths
            .split(',')
            .filter(|p| !p.is_empty())
            .map(PathBuf::from)
            .collect();
        if paths.is_empty() {
            return Err(format!("{text:?} names no run"));
        }
        Ok(Self {
            label: label.to_owned(),
            paths,
        })
    }
}

/// Rows of named numbers.
struct Table {
    /// A CSV file's columns, in order.
    columns: Vec<String>,
    rows: Vec<BTreeMap<String, f64>>,
}

pub(super) fn main(context: &Context, args: &Args) -> anyhow::Result<()> {
    let groups = args
        .groups
        .iter()
        .map(|group| {
            Ok((
                group.label.as_str(),
                group.paths.iter().map(|p| read(p)).collect::<Result<_, _>>()?,
            ))
        })
        .collect::<anyhow::Result<Vec<(&str, Vec<Table>)>>>()?;
    let columns = groups
        .iter()
        .flat_map(|(_, runs)| runs)
        .map(|run| &run.columns)
        .find(|c| !c.is_empty());
    let x = match (&args.x, columns) {
        (Some(x), _) => x.clone(),
        (None, Some(columns)) => columns[0].clone(),
        (None, None) => "step".to_owned(),
    };
    known(&args.metrics, &groups)?;
    let panels = match columns {
        Some(columns) if args.metrics.is_empty() => {
            let ys: Vec<&str> = columns.iter().map(String::as_str).filter(|c| *c != x).collect();
            vec![panel(args, &groups, &x, &ys)]
        }
        Some(_) | None if !args.metrics.is_empty() => args
            .metrics
            .iter()
            .map(|y| panel(args, &groups, &x, &[y.as_str()]))
            .collect(),
        Some(_) | None => vec![panel(args, &groups, &x, &["reward"])],
    };
    write_panels(&args.out, &panels)?;
    let lines: usize = panels.iter().map(|panel| panel.series.len()).sum();
    context.output.show(
        &json!({ "picture": args.out, "panels": panels.len(), "lines": lines }),
        |_| args.out.display().to_string(),
    );
    Ok(())
}

/// Fails where a metric is asked for that no run has, with those there are.
fn known(metrics: &[String], groups: &[(&str, Vec<Table>)]) -> anyhow::Result<()> {
    let rows = groups.iter().flat_map(|(_, runs)| runs).flat_map(|run| &run.rows);
    let found: BTreeSet<&str> = rows.flat_map(BTreeMap::keys).map(String::as_str).collect();
    let unknown = metrics.iter().find(|metric| !found.contains(metric.as_str()));
    if let Some(metric) = unknown {
        let found: Vec<&str> = found.into_iter().collect();
        anyhow::bail!("--metric {metric}: no run has it; there are {}", found.join(", "));
    }
    Ok(())
}

fn panel<'a>(args: &'a Args, groups: &[(&str, Vec<Table>)], x: &'a str, ys: &[&'a str]) -> Panel<'a> {
    let (mut series, mut bands) = (Vec::new(), Vec::new());
    for (label, runs) in groups {
        for y in ys {
            let lines: Vec<Vec<(f64, f64)>> = runs
                .iter()
                .map(|run| smoothed(&line(run, x, y), args.smooth))
                .collect();
            let merged = merge(&lines);
            if lines.len() > 1 {
                bands.push(Band {
                    series: series.len(),
                    edges: merged
                        .iter()
                        .map(|(x, mean, std)| (*x, mean - std, mean + std))
                        .collect(),
                });
            }
            let name = match (ys.len(), groups.len()) {
                (1, _) => (*label).to_owned(),
                (_, 1) => (*y).to_owned(),
                _ => format!("{label} {y}"),
            };
            series.push(Series {
                name,
                points: merged.iter().map(|(x, mean, _)| (*x, *mean)).collect(),
            });
        }
    }
    Panel {
        labels: Labels {
            title: &args.title,
            x,
            y: args
                .y_label
                .as_deref()
                .unwrap_or(if ys.len() == 1 { ys[0] } else { "" }),
        },
        series,
        bands,
        scale: if args.log_y { Scale::Log } else { Scale::Linear },
    }
}

fn line(run: &Table, x: &str, y: &str) -> Vec<(f64, f64)> {
    run.rows
        .iter()
        .filter_map(|row| Some((*row.get(x)?, *row.get(y)?)))
        .collect()
}

/// Means over up to `window` points in a row, each at its last point's x.
fn smoothed(points: &[(f64, f64)], window: u32) -> Vec<(f64, f64)> {
    let window = window as usize;
    let mean = |end: usize| {
        let part = &points[(end + 1).saturating_sub(window)..=end];
        part.iter().map(|p| p.1).sum::<f64>() / part.len() as f64
    };
    (0..points.len()).map(|i| (points[i].0, mean(i))).collect()
}

/// (x, mean, sample standard deviation) over the lines at every x that all of them have.
fn merge(lines: &[Vec<(f64, f64)>]) -> Vec<(f64, f64, f64)> {
    let Some((first, rest)) = lines.split_first() else {
        return Vec::new();
    };
    let at = |line: &[(f64, f64)], x: f64| line.iter().find(|p| p.0 == x).map(|p| p.1);
    let point = |(x, y): &(f64, f64)| {
        let others: Option<Vec<f64>> = rest.iter().map(|line| at(line, *x)).collect();
        let values: Vec<f64> = std::iter::once(*y).chain(others?).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
        Some((*x, mean, (squares / (values.len() - 1).max(1) as f64).sqrt()))
    };
    first.iter().filter_map(point).collect()
}

fn read(path: &Path) -> anyhow::Result<Table> {
    if path.extension().is_some_and(|e| e == "csv") {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        return csv(&text).with_context(|| path.display().to_string());
    }
    let path = if path.is_dir() {
        path.join("metrics.jsonl")
    } else {
        path.to_owned()
    };
    let records: Vec<BTreeMap<String, Value>> = read_metrics(&path)?;
    let row = |record: BTreeMap<String, Value>| {
        let numbers = record
            .into_iter()
            .filter_map(|(name, value)| Some((name, value.as_f64()?)));
        numbers.collect()
    };
    Ok(Table {
        columns: Vec::new(),
        rows: records.into_iter().map(row).collect(),
    })
}

/// A heading of names and lines of numbers, without quotes; an empty cell is no point. Lines that start with # are
/// left out.
fn csv(text: &str) -> anyhow::Result<Table> {
    let mut lines = text
        .lines()
        .enumerate()
        .filter(|(_, l)| !l.trim().is_empty() && !l.starts_with('#'));
    let heading = lines.next().map(|(_, line)| line).context("the file is empty")?;
    let columns: Vec<String> = heading.split(',').map(|name| name.trim().to_owned()).collect();
    let mut rows = Vec::new();
    for (index, line) in lines {
        let mut row = BTreeMap::new();
        for (name, cell) in columns
            .iter()
            .zip(line.split(',').map(str::trim))
            .filter(|(_, cell)| !cell.is_empty())
        {
            let value = cell
                .parse()
                .with_context(|| format!("line {}: {cell:?} is no number", index + 1))?;
            row.insert(name.clone(), value);
        }
        rows.push(row);
    }
    Ok(Table { columns, rows })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_labels_and_paths() {
        let group: Group = "gspo=a/,b.jsonl".parse().unwrap();
        assert_eq!((group.label.as_str(), group.paths.len()), ("gspo", 2));
        assert_eq!("run".parse::<Group>().unwrap().label, "run");
        assert!("x=".parse::<Group>().is_err());
    }

    #[test]
    fn seeds_are_a_mean_and_a_spread_where_all_have_a_point() {
        let lines = [
            vec![(1.0, 1.0), (2.0, 5.0), (3.0, 0.0)],
            vec![(1.0, 3.0), (3.0, 0.0)],
        ];
        let root = 2f64.sqrt();
        assert_eq!(merge(&lines), [(1.0, 2.0, root), (3.0, 0.0, 0.0)]);
        assert_eq!(merge(&lines[..1])[1], (2.0, 5.0, 0.0));
    }

    #[test]
    fn a_metric_that_no_run_has_is_answered_with_those_there_are() {
        let groups = [("a", vec![csv("step,reward\n1,2\n").unwrap()])];
        assert!(known(&["reward".to_owned()], &groups).is_ok());
        let error = known(&["nope".to_owned()], &groups).unwrap_err().to_string();
        assert!(
            error.contains("nope") && error.contains("reward, step"),
            "{error}"
        );
    }

    #[test]
    fn means_run_over_the_last_points() {
        let points = [(1.0, 2.0), (2.0, 4.0), (3.0, 0.0)];
        assert_eq!(smoothed(&points, 2), [(1.0, 2.0), (2.0, 3.0), (3.0, 2.0)]);
    }

    #[test]
    fn a_table_is_read_and_a_word_in_it_is_named() {
        let table = csv("# sizes\ntokens, ours,trl\n1,2.5,\n2,5,9\n").unwrap();
        assert_eq!(table.columns, ["tokens", "ours", "trl"]);
        assert_eq!(line(&table, "tokens", "ours"), [(1.0, 2.5), (2.0, 5.0)]);
        assert_eq!(line(&table, "tokens", "trl"), [(2.0, 9.0)]);
        let error = format!("{:#}", csv("a,b\n1,two\n").err().unwrap());
        assert!(error.contains("line 2") && error.contains("two"), "{error}");
    }
}
