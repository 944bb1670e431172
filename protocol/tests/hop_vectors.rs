//! Hops as they stand behind a chunk's last segment, and what they sign (`tests/vectors/hops.json`): of a ring of three at
//! f32 and q8, and of a grid of two by two. The signatures are SHA3-256 of the signed bytes, twice: what is frozen is the form. A
//! change is a change of the wire; `GYM_WRITE_VECTORS=1 cargo test --test hop_vectors` writes it anew.

#![allow(clippy::unwrap_used, reason = "a test")]

#[allow(dead_code, reason = "other tests use the rest")]
mod messages;

use gym_protocol::cbor::sha3_256;
use gym_protocol::ids::{CidBytes, Hash32, PeerBytes, Round, View};
use gym_protocol::job::spec::Wire;
use gym_protocol::message::{Entry, Manifest};
use gym_protocol::ring::{
    Chained, Contribution, Grid, Hop, HopKeys, Place, Scope, placed_from_bytes, placed_to_bytes,
};
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

const ELEMENTS: usize = 1000;
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors/hops.json");

/// Signs by hash, and notes what it signs.
#[derive(Debug, Default)]
struct Notes(Mutex<Vec<Vec<u8>>>);

fn signature(body: &[u8]) -> [u8; 64] {
    let hash = sha3_256(&[body]).0;
    let mut out = [0; 64];
    out[..32].copy_from_slice(&hash);
    out[32..].copy_from_slice(&hash);
    out
}

impl HopKeys for Notes {
    fn sign(&self, body: &[u8]) -> [u8; 64] {
        self.0.lock().unwrap().push(body.to_vec());
        signature(body)
    }

    fn verify(&self, _: &PeerBytes, body: &[u8], given: &[u8; 64]) -> bool {
        signature(body) == *given
    }
}

fn delta(slot: u32) -> Vec<f32> {
    let value = |i: usize| ((i * 37 + slot as usize * 101) % 211) as f32 - 105.0;
    (0..ELEMENTS)
        .map(|i| value(i) / (3.0 + slot as f32 * 4.0) * 1e-3)
        .collect()
}

/// Every hop of a ring, and what the first signs.
fn hops(wire: Wire, members: u32, grid: Option<Grid>) -> Value {
    let entry = |i: u32| Entry {
        member: messages::peer(i as u8 + 2),
        cid: CidBytes::new(vec![i as u8 + 1; 36]).unwrap(),
        weight: u64::from(i) + 3,
        server: messages::peer(i as u8 + 2),
    };
    let manifest = Manifest {
        job: CidBytes::new(vec![9; 36]).unwrap(),
        round: Round(4),
        view: View(1),
        roster: Hash32([4; 32]),
        parent: Hash32([6; 32]),
        entries: (0..members).map(entry).collect(),
        grid,
        kept: Vec::new(),
        left_out: Vec::new(),
    };
    let scope = Scope::new(Arc::new(manifest), Hash32([5; 32]), wire, ELEMENTS, 256).unwrap();
    let (scope, notes) = (Arc::new(scope), Arc::new(Notes::default()));
    let machine = |slot: u32| {
        let own = Contribution::new(delta(slot), u64::from(slot) + 3);
        Chained::new(scope.clone(), notes.clone(), slot, own)
    };
    let mut machines: Vec<Chained> = (0..members).map(machine).collect();
    let (mut travelling, mut out) = (VecDeque::new(), Vec::new());
    for (slot, machine) in (0u32..).zip(&mut machines) {
        machine.start(&mut out);
        travelling.extend(out.drain(..).map(|s| (slot, s)));
    }
    while let Some((from, segment)) = travelling.pop_front() {
        let to = scope.plan.layout.next(from, segment.phase.axis());
        machines[to as usize].receive(segment, &mut out).unwrap();
        travelling.extend(out.drain(..).map(|s| (to, s)));
    }
    let mut all: BTreeMap<Place, Hop> = BTreeMap::new();
    machines.iter().for_each(|m| all.extend(m.hops()));
    let bytes: Vec<u8> = all
        .iter()
        .flat_map(|(place, hop)| placed_to_bytes(*place, hop))
        .collect();
    assert_eq!(
        placed_from_bytes(&bytes).unwrap(),
        all.into_iter().collect::<Vec<_>>()
    );
    assert_eq!(placed_from_bytes(&bytes[1..]), None);
    json!({ "first_signs": hex::encode(&notes.0.lock().unwrap()[0]), "hops": hex::encode(bytes) })
}

#[test]
fn the_hops_keep_their_bytes() {
    let grid = Some(Grid { rows: 2, columns: 2 });
    let current = json!({
        "ring_f32": hops(Wire::F32, 3, None),
        "ring_q8": hops(Wire::Q8, 3, None),
        "grid_f32": hops(Wire::F32, 4, grid),
        "grid_q8": hops(Wire::Q8, 4, grid),
    });
    if std::env::var_os("GYM_WRITE_VECTORS").is_some() {
        std::fs::write(FILE, serde_json::to_string_pretty(&current).unwrap() + "\n").unwrap();
    }
    let frozen: Value = serde_json::from_str(&std::fs::read_to_string(FILE).unwrap()).unwrap();
    assert!(current == frozen, "the hops have changed");
}
