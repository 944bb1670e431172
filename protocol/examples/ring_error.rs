//! How far a ring's mean is from the exact mean, by precision and number of members: in one round, and in the sum over
//! rounds with error feedback on and off. `docs/results.md` has its figures.
//!
//! `cargo run --release -p gym-protocol --example ring_error -- [ROUNDS [MEMBERS…]]` runs the members' own machines, in a grid
//! where the network would take one, and prints a row a precision and number of members.

#![allow(clippy::print_stdout, reason = "a program that prints")]

use gym_protocol::job::spec::Wire;
use gym_protocol::quant::SEGMENT;
use gym_protocol::ring::{Contribution, Layout, Machine, Plan, Reduced, Segment};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::VecDeque;
use std::f64::consts::TAU;

/// 80 blocks; with a thousand members in a grid of 25 × 40, two of them a chunk.
const ELEMENTS: usize = 20_480;
/// As [`gym_protocol::genesis::Constants`] has it by default.
const FLAT_RING_MAX: u32 = 28;
const MEMBERS: &[u32] = &[3, 7, 30, 100, 300, 1000];
const SEED: u64 = 1;

/// A precision, and whether what rounding left over goes into the next round's delta.
const SETTINGS: &[(Wire, Feedback)] = &[
    (Wire::F32, Feedback::Off),
    (Wire::Bf16, Feedback::Off),
    (Wire::Q8, Feedback::Off),
    (Wire::Q8, Feedback::On),
    (Wire::Q4, Feedback::Off),
    (Wire::Q4, Feedback::On),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Feedback {
    On,
    Off,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let rounds: u32 = args.next().map_or(Ok(32), |n| n.parse())?;
    let members = args.map(|n| n.parse()).collect::<Result<Vec<u32>, _>>()?;
    println!("{ELEMENTS} elements, {rounds} rounds, seed {SEED}; errors relative to the exact mean (L2)\n");
    println!(
        "| members | wire | feedback | one round | sum over rounds | of it the sums' own | typical block |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    for n in if members.is_empty() { MEMBERS } else { &members } {
        table(*n, rounds)?;
    }
    Ok(())
}

/// The rows of one number of members; all precisions see the same deltas.
fn table(n: u32, rounds: u32) -> Result<(), Stuck> {
    let mut world = World::new(n);
    let mut exact_sum = vec![0.0; ELEMENTS];
    let mut runs: Vec<Run> = SETTINGS.iter().map(|s| Run::new(*s, n)).collect();
    for _ in 0..rounds {
        let deltas = world.round();
        let exact = weighted_mean(&deltas, &world.weights);
        add(&mut exact_sum, &exact);
        for run in &mut runs {
            run.round(&deltas, &world.weights, &exact)?;
        }
    }
    for run in &runs {
        run.print(n, rounds, &exact_sum);
    }
    Ok(())
}

/// One precision over the rounds.
struct Run {
    wire: Wire,
    feedback: Feedback,
    /// What rounding left over, by member.
    left: Vec<Vec<f32>>,
    /// Σ over rounds of the mean that members apply, and of the mean as its owners had it before it was encoded.
    sum: Vec<f64>,
    before: Vec<f64>,
    one_round: f64,
}

impl Run {
    fn new((wire, feedback): (Wire, Feedback), n: u32) -> Self {
        Self {
            wire,
            feedback,
            left: vec![vec![0.0; ELEMENTS]; n as usize],
            sum: vec![0.0; ELEMENTS],
            before: vec![0.0; ELEMENTS],
            one_round: 0.0,
        }
    }

    fn round(&mut self, deltas: &[Vec<f32>], weights: &[u64], exact: &[f64]) -> Result<(), Stuck> {
        let fed: Vec<Vec<f32>> = match self.feedback {
            Feedback::Off => deltas.to_vec(),
            Feedback::On => deltas.iter().zip(&self.left).map(|(d, r)| plus(d, r)).collect(),
        };
        let results = reduce(self.wire, &fed, weights)?;
        let mean: Vec<f64> = results[0].mean.iter().map(|v| f64::from(*v)).collect();
        // A contribution is what the delta had less what was left over.
        let contributed: Vec<Vec<f32>> = fed
            .iter()
            .zip(&results)
            .map(|(d, r)| minus(d, &r.residual))
            .collect();
        add(&mut self.before, &weighted_mean(&contributed, weights));
        // Without feedback, each round is a new first one.
        self.one_round += match self.feedback {
            Feedback::Off => relative(&mean, exact),
            Feedback::On => relative(&mean, &weighted_mean(&fed, weights)),
        };
        add(&mut self.sum, &mean);
        self.left = results.into_iter().map(|r| r.residual).collect();
        Ok(())
    }

    fn print(&self, n: u32, rounds: u32, exact: &[f64]) {
        let mut blocks: Vec<f64> = self
            .sum
            .chunks(256)
            .zip(exact.chunks(256))
            .map(|(a, b)| relative(a, b))
            .collect();
        blocks.sort_by(f64::total_cmp);
        let sums = format!("{:.1e}", relative(&self.before, exact));
        let (feedback, sums) = match (self.wire, self.feedback) {
            // Floats leave nothing over, and their sums are as inexact as their means.
            (Wire::F32 | Wire::Bf16, _) => ("none", ""),
            (Wire::Q8 | Wire::Q4, Feedback::On) => ("on", &*sums),
            (Wire::Q8 | Wire::Q4, Feedback::Off) => ("off", &*sums),
        };
        println!(
            "| {n} | {} | {feedback} | {:.1e} | {:.1e} | {sums} | {:.1e} |",
            self.wire.name(),
            self.one_round / f64::from(rounds),
            relative(&self.sum, exact),
            blocks[blocks.len() / 2],
        );
    }
}

/// Deltas as training makes them: tensors and rows of different scale, heavy tails, a direction that members share and that
/// turns slowly from round to round.
struct World {
    rng: StdRng,
    weights: Vec<u64>,
    /// Of an element, and of a member.
    scales: Vec<f64>,
    sizes: Vec<f64>,
    direction: Vec<f64>,
}

/// The shared direction beside a member's own, and how much of it stays for the next round.
const SHARED: f64 = 0.5;
const STAYS: f64 = 0.9;
/// Elements of a tensor and of a row of it.
const TENSOR: usize = 2048;
const ROW: usize = 64;

impl World {
    fn new(n: u32) -> Self {
        let mut rng = StdRng::seed_from_u64(SEED);
        let of = |rng: &mut StdRng, every: usize, sigma: f64| -> Vec<f64> {
            let groups = ELEMENTS.div_ceil(every);
            (0..groups).map(|_| (sigma * normal(rng)).exp()).collect()
        };
        let (tensors, rows) = (of(&mut rng, TENSOR, 1.5), of(&mut rng, ROW, 0.5));
        Self {
            scales: (0..ELEMENTS)
                .map(|e| 1e-4 * tensors[e / TENSOR] * rows[e / ROW])
                .collect(),
            weights: (0..n).map(|_| rng.random_range(64..=192)).collect(),
            sizes: (0..n).map(|_| (0.25 * normal(&mut rng)).exp()).collect(),
            direction: (0..ELEMENTS).map(|_| normal(&mut rng)).collect(),
            rng,
        }
    }

    /// Every member's Δ of the next round.
    fn round(&mut self) -> Vec<Vec<f32>> {
        let turn = (1.0 - STAYS * STAYS).sqrt();
        for d in &mut self.direction {
            *d = STAYS * *d + turn * normal(&mut self.rng);
        }
        let (rng, scales, direction) = (&mut self.rng, &self.scales, &self.direction);
        let mut delta = |size: f64| {
            let elements = scales.iter().zip(direction);
            elements
                .map(|(scale, d)| (size * scale * (SHARED * d + student4(rng))) as f32)
                .collect()
        };
        self.sizes.iter().map(|size| delta(*size)).collect()
    }
}

fn normal(rng: &mut StdRng) -> f64 {
    let (u, v): (f64, f64) = (1.0 - rng.random::<f64>(), rng.random());
    (-2.0 * u.ln()).sqrt() * (TAU * v).cos()
}

/// Student's t of 4 degrees of freedom over its standard deviation √2 (Bailey 1994, the polar method).
fn student4(rng: &mut StdRng) -> f64 {
    loop {
        let (u, v) = (
            rng.random::<f64>().mul_add(2.0, -1.0),
            rng.random::<f64>().mul_add(2.0, -1.0),
        );
        let w = u * u + v * v;
        if w > 0.0 && w <= 1.0 {
            return u * (4.0 * (1.0 / w.sqrt() - 1.0) / w).sqrt() / 2f64.sqrt();
        }
    }
}

/// A segment was refused, or the ring ended before its means were there.
#[derive(Debug, thiserror::Error)]
#[error("the ring did not end")]
struct Stuck;

/// What every contributor's machine ends in.
fn reduce(wire: Wire, deltas: &[Vec<f32>], weights: &[u64]) -> Result<Vec<Reduced>, Stuck> {
    let layout = Layout::for_members(weights.len() as u32, FLAT_RING_MAX);
    let plan = Plan {
        layout,
        wire,
        total_weight: weights.iter().sum(),
        elements: ELEMENTS,
        segment: SEGMENT,
    };
    let own = |entry: usize| Contribution::new(deltas[entry].clone(), weights[entry]);
    let mut machines: Vec<Machine> = (0..layout.slots())
        .map(|slot| {
            let entry = layout.entry(slot).map(|e| e as usize);
            Machine::new(
                plan,
                slot,
                entry.map_or_else(|| Contribution::nothing(ELEMENTS), own),
            )
        })
        .collect();
    deliver(layout, &mut machines)?;
    let contributors = (0..layout.slots()).zip(&mut machines);
    contributors
        .filter(|(slot, _)| layout.entry(*slot).is_some())
        .map(|(_, machine)| machine.take_result().ok_or(Stuck))
        .collect()
}

fn deliver(layout: Layout, machines: &mut [Machine]) -> Result<(), Stuck> {
    let mut travelling: VecDeque<(u32, Segment)> = VecDeque::new();
    let mut out = Vec::new();
    for (slot, machine) in (0u32..).zip(machines.iter_mut()) {
        machine.start(&mut out);
        travelling.extend(out.drain(..).map(|s| (layout.next(slot, s.phase.axis()), s)));
    }
    while let Some((to, segment)) = travelling.pop_front() {
        machines[to as usize]
            .receive(segment, &mut out)
            .map_err(|_| Stuck)?;
        travelling.extend(out.drain(..).map(|s| (layout.next(to, s.phase.axis()), s)));
    }
    Ok(())
}

/// Σ weight·Δ / Σ weight in f64.
fn weighted_mean(deltas: &[Vec<f32>], weights: &[u64]) -> Vec<f64> {
    let mut sum = vec![0.0; ELEMENTS];
    for (delta, weight) in deltas.iter().zip(weights) {
        for (s, d) in sum.iter_mut().zip(delta) {
            *s += f64::from(*d) * *weight as f64;
        }
    }
    let total: u64 = weights.iter().sum();
    sum.iter_mut().for_each(|s| *s /= total as f64);
    sum
}

/// ‖a − b‖ / ‖b‖
fn relative(a: &[f64], b: &[f64]) -> f64 {
    let error: f64 = a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum();
    let size: f64 = b.iter().map(|b| b * b).sum();
    (error / size).sqrt()
}

fn add(sum: &mut [f64], more: &[f64]) {
    sum.iter_mut().zip(more).for_each(|(s, m)| *s += m);
}

fn plus(a: &[f32], b: &[f32]) -> Vec<f32> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

fn minus(a: &[f32], b: &[f32]) -> Vec<f32> {
    a.iter().zip(b).map(|(a, b)| a - b).collect()
}
