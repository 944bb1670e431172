//! Entries at other peers: none is left behind, and what still comes for one is no offence.

use super::*;
use crate::content::bitswap::message::EntryKind;

/// What a peer holds of ours, by what it was told and what it sent.
#[derive(Default)]
struct Ledgers(BTreeMap<PeerId, BTreeSet<Cid>>);

impl Ledgers {
    fn take(&mut self, actions: &[Action]) {
        for action in actions {
            let Action::Tell { peer, entries } = action else {
                continue;
            };
            let ledger = self.0.entry(*peer).or_default();
            for entry in entries {
                match entry.kind {
                    EntryKind::Cancel => ledger.remove(&entry.cid),
                    EntryKind::Block | EntryKind::Have => ledger.insert(entry.cid),
                };
            }
        }
    }
}

/// One thing that happens to the peers while 30 blocks are wanted, chosen by `draw`.
fn step(bench: &mut Bench, peers: &[PeerId], ledgers: &mut Ledgers, mut draw: impl FnMut(usize) -> usize) {
    let peer = peers[draw(peers.len())];
    let held: Vec<Cid> = ledgers.0.get(&peer).into_iter().flatten().copied().collect();
    let presence = |held| {
        move |cid: Cid| Event::Presences {
            peer,
            presences: vec![(cid, held)],
        }
    };
    let some = (!held.is_empty()).then(|| held[draw(held.len())]);
    let out = match (draw(8), some) {
        (0, _) => bench.handle(Event::Reset(peer)),
        (1, _) => {
            ledgers.0.remove(&peer);
            let mut out = bench.handle(Event::Disconnected(peer));
            out.extend(bench.handle(Event::Connected(peer)));
            out
        }
        (2, Some(cid)) => bench.handle(presence(Held::No)(cid)),
        (3, Some(cid)) => bench.handle(presence(Held::Yes)(cid)),
        (4, Some(cid)) => {
            let number = (0..30).find(|n| block(*n).0 == cid).unwrap();
            ledgers.0.get_mut(&peer).unwrap().remove(&cid);
            let mut out = bench.handle(Event::Blocks {
                peer,
                blocks: vec![block(number)],
            });
            assert!(!out.iter().any(|action| matches!(action, Action::Penalise { .. })));
            out.extend(bench.handle(Event::Stored(vec![(cid, Ok(4))])));
            out
        }
        (5, _) => bench.after(bench.config.search),
        (6, _) => bench.handle(Event::Lost(peer)),
        _ => bench.after(Duration::from_secs(1)),
    };
    ledgers.take(&out);
}

/// Every want that was sent is cancelled, answered with its block, or lost with the peer.
#[test]
fn no_entry_is_left_behind() {
    for seed in 0..200_u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut draw = |bound: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 33) as usize % bound
        };
        let (mut bench, peers) = Bench::with_peers(3);
        let stranger = PeerId::random();
        bench.handle(Event::Connected(stranger));
        let all: Vec<PeerId> = peers.iter().copied().chain([stranger]).collect();
        let mut ledgers = Ledgers::default();
        ledgers.take(&bench.want(30));
        for _ in 0..100 {
            step(&mut bench, &all, &mut ledgers, &mut draw);
        }
        ledgers.take(&bench.handle(Event::Close { session: SESSION }));
        let left: usize = ledgers.0.values().map(BTreeSet::len).sum();
        assert_eq!(left, 0, "seed {seed}");
    }
}

/// A peer that was asked for more blocks than are remembered, and cut off meanwhile, may send any of them.
#[test]
fn a_peer_that_wakes_up_late_is_not_banned() {
    let (mut bench, peers) = Bench::with_peers(1);
    let peer = peers[0];
    let mut asked = Vec::new();
    for wave in 0..6 {
        let wanted = (0..1000).map(|n| Wanted {
            cid: block(wave * 1000 + n).0,
            size: Some(4),
        });
        let out = bench.handle(Event::Want {
            session: SESSION,
            wanted: wanted.collect(),
        });
        asked.extend(told(&out, &peer, EntryKind::Block));
        // Somebody else brings them, or nobody wants them any longer.
        bench.handle(Event::Close { session: SESSION });
        bench.handle(Event::Open {
            session: SESSION,
            providers: vec![peer],
        });
    }
    assert_eq!(asked.len(), 6000);
    let numbers: BTreeMap<Cid, u32> = (0..6000).map(|n| (block(n).0, n)).collect();
    for cid in asked {
        let blocks = vec![block(numbers[&cid])];
        let out = bench.handle(Event::Blocks { peer, blocks });
        assert!(matches!(out[..], [Action::Duplicate]), "{out:?}");
    }
    // So many it was asked for, and no more.
    let out = bench.handle(Event::Blocks {
        peer,
        blocks: vec![block(9999)],
    });
    assert!(matches!(out[..], [Action::Penalise { .. }]), "{out:?}");
}
