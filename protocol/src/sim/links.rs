//! Links of the virtual network: delay by place, bandwidth, loss; gossip in waves.

use super::clock::Micros;
use super::peer;
use crate::message::{Link, Verified};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;

/// How links behave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkModel {
    /// Least one-way delay.
    pub latency_ms: u64,
    /// Added at random, uniformly.
    pub jitter_ms: u64,
    /// Bytes a millisecond that a member can send.
    pub bytes_per_ms: u64,
    /// Packets lost, of a million; each loss costs a round trip.
    pub loss_ppm: u32,
    /// Clusters that members stand in, on a unit square; 0 puts all in one place.
    pub regions: u32,
    /// One-way delay added to `latency_ms` by distance: so much on average over all pairs.
    pub spread_ms: u64,
}

impl Default for LinkModel {
    fn default() -> Self {
        Self {
            latency_ms: 20,
            jitter_ms: 10,
            bytes_per_ms: 12_500,
            loss_ppm: 0,
            regions: 0,
            spread_ms: 0,
        }
    }
}

/// Payload of a packet.
const PACKET: u64 = 1_200;
/// Peers that one gossips to: a message reaches `8^h` members in h hops.
const MESH: u32 = 8;
/// Peers whose links a member measures: the nearest of them are said.
const MEASURED: usize = 128;

/// The links between members; the orchestrator is number `members`.
#[derive(Debug)]
pub(super) struct Wires {
    model: LinkModel,
    /// Every simulated byte stands for so many.
    scale: u64,
    places: Vec<(f64, f64)>,
    /// Microseconds a unit of length.
    slowness: f64,
    /// When each member's uplink is free again.
    uplinks: Vec<Micros>,
    /// When the last message on a (from, to) link arrives: links are FIFO.
    arrivals: BTreeMap<(u32, u32), Micros>,
    rng: StdRng,
}

/// A gossiped message on its way to everyone: those still to be reached, the next one last.
#[derive(Debug)]
pub(super) struct Wave {
    pub(super) message: Arc<Verified>,
    pub(super) left: Vec<(Micros, u32)>,
}

/// Over all pairs.
fn mean_distance(places: &[(f64, f64)]) -> f64 {
    let mut sum = 0.0;
    let mut pairs = 0.0;
    for (i, a) in places.iter().enumerate() {
        for b in &places[..i] {
            sum += (a.0 - b.0).hypot(a.1 - b.1);
            pairs += 1.0;
        }
    }
    if pairs > 0.0 { sum / pairs } else { 0.0 }
}

impl Wires {
    pub(super) fn new(model: LinkModel, members: u32, scale: u64, seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed ^ 0x6c69_6e6b);
        let centres: Vec<(f64, f64)> = (0..model.regions).map(|_| (rng.random(), rng.random())).collect();
        let places: Vec<(f64, f64)> = (0..=members)
            .map(|_| match centres.len() {
                0 => (0.0, 0.0),
                n => {
                    let (x, y) = centres[rng.random_range(0..n)];
                    (
                        x + rng.random_range(-0.05..0.05),
                        y + rng.random_range(-0.05..0.05),
                    )
                }
            })
            .collect();
        let far = mean_distance(&places);
        let slowness = if far > 0.0 {
            model.spread_ms as f64 * 1000.0 / far
        } else {
            0.0
        };
        Self {
            model,
            scale: scale.max(1),
            places,
            slowness,
            uplinks: vec![0; members as usize + 1],
            arrivals: BTreeMap::new(),
            rng,
        }
    }

    /// One way without jitter or loss.
    pub(super) fn distance(&self, a: u32, b: u32) -> Micros {
        let place = |i: u32| self.places.get(i as usize).copied().unwrap_or_default();
        let ((x, y), (u, v)) = (place(a), place(b));
        let away = (x - u).hypot(y - v) * self.slowness;
        self.model.latency_ms * 1000 + away as Micros
    }

    pub(super) fn delay(&mut self, a: u32, b: u32) -> Micros {
        self.distance(a, b) + self.rng.random_range(0..=self.model.jitter_ms * 1000)
    }

    /// Sends over a sealed link: FIFO, at the uplink's bandwidth, with lost packets sent again. When it arrives.
    pub(super) fn send(&mut self, now: Micros, from: u32, to: u32, bytes: u64) -> Micros {
        let bytes = bytes.saturating_mul(self.scale);
        let carried = bytes.saturating_mul(1000) / self.model.bytes_per_ms.max(1);
        let again = self.again(bytes) * 2 * self.distance(from, to);
        let delay = self.delay(from, to);
        let free = self.uplinks.get_mut(from as usize);
        let sent = free.map_or(now, |free| {
            *free = (*free).max(now) + carried;
            *free
        });
        let last = self.arrivals.entry((from, to)).or_default();
        *last = (sent + delay + again).max(*last);
        *last
    }

    /// Rounds of sending lost packets again: some packet of the message is lost r times with chance 1 − (1 − pʳ)^packets.
    fn again(&mut self, bytes: u64) -> u64 {
        if self.model.loss_ppm == 0 {
            return 0;
        }
        let packets = bytes.div_ceil(PACKET).max(1) as f64;
        let lost = f64::from(self.model.loss_ppm.min(900_000)) / 1e6;
        let draw: f64 = self.rng.random();
        let mut rounds = 0;
        let mut still = lost;
        while draw < 1.0 - (1.0 - still).powf(packets) {
            rounds += 1;
            still *= lost;
        }
        rounds
    }

    /// When each member, and the orchestrator, hears a gossiped message: in hops of a mesh; the sender at once.
    pub(super) fn gossip(&mut self, now: Micros, from: u32, message: Verified) -> Wave {
        let readers = self.places.len() as u32;
        let mut left: Vec<(Micros, u32)> = (0..readers)
            .map(|to| (self.heard(now, from, to, readers), to))
            .collect();
        left.sort_unstable_by(|a, b| b.cmp(a));
        Wave {
            message: Arc::new(message),
            left,
        }
    }

    fn heard(&mut self, now: Micros, from: u32, to: u32, readers: u32) -> Micros {
        if from == to {
            return now;
        }
        let nth = self.rng.random_range(1..readers.max(2));
        let mut hops = 1;
        let mut reached = MESH;
        while reached < nth {
            hops += 1;
            reached = reached.saturating_mul(MESH);
        }
        let lost = self.again(1);
        let on_the_way: Micros = (1..hops)
            .map(|_| {
                let (a, b) = (
                    self.rng.random_range(0..readers),
                    self.rng.random_range(0..readers),
                );
                self.delay(a, b)
            })
            .sum();
        now + on_the_way + self.delay(from, to) * (1 + 2 * lost)
    }

    /// What a member measures of its links: a few random ones, and of those the nearest.
    pub(super) fn measure(&mut self, from: u32) -> Vec<Link> {
        let members = self.places.len() as u32 - 1;
        let mut to: Vec<u32> = (0..members).filter(|i| *i != from).collect();
        while to.len() > 4 * MEASURED {
            let at = self.rng.random_range(0..to.len());
            to.swap_remove(at);
        }
        to.sort_by_key(|i| (self.distance(from, *i), *i));
        to.truncate(MEASURED);
        to.into_iter()
            .map(|i| Link {
                peer: peer(i),
                delay_us: u32::try_from(self.delay(from, i)).unwrap_or(u32::MAX),
                bytes_per_ms: u32::try_from(self.model.bytes_per_ms).unwrap_or(u32::MAX),
            })
            .collect()
    }
}
