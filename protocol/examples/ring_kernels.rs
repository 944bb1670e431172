//! What a ring's arithmetic costs: the machines of all members in one thread, timed by what they do to a segment.
//!
//! `cargo run --release -p gym-protocol --example ring_kernels -- [WIRE… [MIB]]` prints processor seconds of all four members and
//! how many GB of f32 elements a stage goes through in a second: the best of seven rounds. No link, no cipher: what is left
//! of `testnet bench ring`'s stages "add" and "quantise".

#![allow(clippy::print_stdout, reason = "a program that prints")]

use gym_protocol::job::spec::Wire;
use gym_protocol::message::Phase;
use gym_protocol::quant::SEGMENT;
use gym_protocol::ring::{Config, Contribution, Ring, RingError, Schedule, Segment};
use rustix::time::{ClockId, clock_gettime};
use std::collections::{BTreeMap, VecDeque};

const MEMBERS: u32 = 4;
const ROUNDS: usize = 7;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let mib = match args.last().map(|last| last.parse::<usize>()) {
        Some(Ok(mib)) => {
            args.pop();
            mib
        }
        _ => 64,
    };
    let mut wires = args
        .iter()
        .map(|name| name.parse())
        .collect::<Result<Vec<Wire>, _>>()?;
    if wires.is_empty() {
        wires = Wire::ALL.to_vec();
    }
    let elements = mib * (1 << 20) / 4;
    let deltas: Vec<Vec<f32>> = (0..MEMBERS).map(|m| delta(m, elements)).collect();
    println!("{MEMBERS} members, {mib} MiB each, one thread\n");
    println!("| wire | stage | seconds | GB/s |\n| --- | --- | --- | --- |");
    for wire in wires {
        let mut rooms = Rooms::new();
        let rounds = (0..ROUNDS)
            .map(|_| round(wire, &deltas, &mut rooms))
            .collect::<Result<Vec<_>, _>>()?;
        print(wire, &rounds);
    }
    Ok(())
}

/// Numbers of which a few are large.
fn delta(member: u32, elements: usize) -> Vec<f32> {
    let mut state = u64::from(member) + 1;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    };
    (0..elements)
        .map(|_| {
            let x = next();
            x * x * x * 1e-3
        })
        .collect()
}

/// Vectors of an earlier round, two a member.
type Rooms = VecDeque<(Vec<f32>, Vec<f32>)>;

/// What is done to a segment, and to how many elements in how many seconds.
type Stages = BTreeMap<Stage, (usize, f64)>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// Block maxima, when the machine is made.
    Maxima,
    /// Joining maxima, and one's own first part (it follows the last of them).
    Scales,
    /// The first sum of a chunk, for floats.
    Begin,
    Add,
    /// The last sum and the mean.
    Close,
    /// A mean that passes.
    Read,
    /// Handing over the result.
    Take,
}

fn round(wire: Wire, deltas: &[Vec<f32>], rooms: &mut Rooms) -> Result<Stages, RingError> {
    let elements = deltas[0].len();
    let schedule = Schedule {
        slots: MEMBERS,
        elements,
        segment: SEGMENT,
    };
    let mut stages = Stages::new();
    let mut timed = |stage, elements: usize, began: f64| {
        let (n, s) = stages.entry(stage).or_insert((0, 0.0));
        *n += elements;
        *s += cpu() - began;
    };
    let (mut rings, mut travelling, mut out) = (Vec::new(), VecDeque::new(), Vec::new());
    for (slot, delta) in (0..).zip(deltas) {
        let (mut own, room) = rooms.pop_front().unwrap_or_default();
        own.clear();
        own.extend_from_slice(delta);
        let own = Contribution::new(own, 3 + u64::from(slot)).with_room(room);
        let config = Config {
            schedule,
            slot,
            wire,
            total_weight: 18,
        };
        let began = cpu();
        rings.push(Ring::new(config, own));
        timed(Stage::Maxima, elements, began);
    }
    for (slot, ring) in (0..).zip(&mut rings) {
        let began = cpu();
        ring.start(&mut out);
        timed(Stage::Begin, schedule.chunk(slot).len(), began);
        travelling.extend(out.drain(..).map(|s| ((slot + 1) % MEMBERS, s)));
    }
    while let Some((to, segment)) = travelling.pop_front() {
        let (stage, n) = stage(&schedule, &segment);
        let began = cpu();
        rings[to as usize].receive(segment, &mut out)?;
        timed(stage, n, began);
        travelling.extend(out.drain(..).map(|s| ((to + 1) % MEMBERS, s)));
    }
    for ring in &mut rings {
        let began = cpu();
        let result = ring.take_result();
        timed(Stage::Take, elements, began);
        rooms.extend(result.map(|r| (r.residual, r.mean)));
    }
    Ok(stages)
}

/// Processor seconds of this thread.
fn cpu() -> f64 {
    let t = clock_gettime(ClockId::ThreadCPUTime);
    t.tv_sec as f64 + t.tv_nsec as f64 / 1e9
}

fn stage(schedule: &Schedule, s: &Segment) -> (Stage, usize) {
    let elements = schedule.segment_range(s.phase, s.chunk, s.segment).len();
    match s.phase {
        Phase::ScatterReduce if s.step == schedule.last_step() => (Stage::Close, elements),
        Phase::ScatterReduce => (Stage::Add, elements),
        Phase::AllGather => (Stage::Read, elements),
        Phase::ScaleReduce
        | Phase::ScaleGather
        | Phase::ColumnScaleReduce
        | Phase::ColumnScaleGather
        | Phase::ColumnScatterReduce
        | Phase::ColumnAllGather => (Stage::Scales, elements * gym_protocol::quant::BLOCK),
    }
}

fn print(wire: Wire, rounds: &[Stages]) {
    let Some(first) = rounds.first() else { return };
    let mut total = 0.0;
    for (stage, (elements, _)) in first {
        let seconds = rounds.iter().filter_map(|r| r.get(stage)).map(|(_, s)| *s);
        let best = seconds.fold(f64::INFINITY, f64::min);
        total += best;
        let gb_s = *elements as f64 * 4e-9 / best;
        println!("| {} | {stage:?} | {best:.4} | {gb_s:.1} |", wire.name());
    }
    println!("| {} | all | {total:.4} | |", wire.name());
}
