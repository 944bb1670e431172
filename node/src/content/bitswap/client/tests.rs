mod bad_peers;
mod outpaced;
mod told;

use super::*;
use crate::content::bitswap::message::EntryKind;
use crate::content::block::{RAW, cid_of};

const SESSION: SessionId = SessionId(1);

struct Bench {
    client: Client,
    now: Instant,
    config: Config,
}

impl Bench {
    fn new() -> Self {
        let config = Config::default();
        Self {
            client: Client::new(config, 7),
            now: Instant::now(),
            config,
        }
    }

    fn with_peers(count: usize) -> (Self, Vec<PeerId>) {
        let mut bench = Self::new();
        let peers: Vec<PeerId> = (0..count).map(|_| PeerId::random()).collect();
        peers
            .iter()
            .for_each(|peer| _ = bench.handle(Event::Connected(*peer)));
        bench.handle(Event::Open {
            session: SESSION,
            providers: peers.clone(),
        });
        (bench, peers)
    }

    fn handle(&mut self, event: Event) -> Vec<Action> {
        let mut out = Vec::new();
        self.client.handle(self.now, event, &mut out);
        out
    }

    fn want(&mut self, count: u32) -> Vec<Action> {
        self.handle(Event::Want {
            session: SESSION,
            wanted: (0..count).map(|n| block(n).0.into()).collect(),
        })
    }

    fn after(&mut self, time: Duration) -> Vec<Action> {
        self.now += time;
        self.handle(Event::Tick)
    }

    /// Brings one block and reports it stored; returns what followed.
    fn bring(&mut self, peer: PeerId, number: u32) -> Vec<Action> {
        let (cid, data) = block(number);
        let mut out = self.handle(Event::Blocks {
            peer,
            blocks: vec![(cid, data)],
        });
        assert!(
            out.iter().any(|action| matches!(action, Action::Store { .. })),
            "{out:?}"
        );
        out.extend(self.handle(Event::Stored(vec![(cid, Ok(4))])));
        out
    }
}

fn block(number: u32) -> (Cid, Bytes) {
    let data = Bytes::copy_from_slice(&number.to_le_bytes());
    (cid_of(RAW, &data), data)
}

/// The first peer that is asked for a block.
fn asked(actions: &[Action], peers: &[PeerId]) -> PeerId {
    let is_asked = |peer: &&PeerId| !told(actions, peer, EntryKind::Block).is_empty();
    *peers.iter().find(is_asked).unwrap()
}

fn told(actions: &[Action], to: &PeerId, what: EntryKind) -> Vec<Cid> {
    let mut cids = Vec::new();
    for action in actions {
        if let Action::Tell { peer, entries } = action
            && peer == to
        {
            cids.extend(
                entries
                    .iter()
                    .filter(|entry| entry.kind == what)
                    .map(|entry| entry.cid),
            );
        }
    }
    cids
}

fn is_find(action: &Action) -> bool {
    matches!(action, Action::Find(_))
}

#[test]
fn wants_are_shared_between_providers_within_their_windows() {
    let (mut bench, peers) = Bench::with_peers(2);
    let out = bench.want(100);
    let shares: Vec<usize> = peers
        .iter()
        .map(|peer| told(&out, peer, EntryKind::Block).len())
        .collect();
    assert_eq!(shares, [2, 2], "2 MiB each, in blocks that may have 1 MiB");
    let first = told(&out, &peers[0], EntryKind::Block)[0];
    let number = (0..100).find(|n| block(*n).0 == first).unwrap();
    let next = bench.bring(peers[0], number);
    assert!(!told(&next, &peers[0], EntryKind::Block).is_empty());
    assert!(next.iter().any(|action| matches!(action, Action::Deliver { .. })));
}

#[test]
fn a_provider_that_says_no_is_passed_over_for_a_while() {
    let (mut bench, peers) = Bench::with_peers(2);
    let out = bench.want(1);
    let asked = asked(&out, &peers);
    let other = *peers.iter().find(|peer| **peer != asked).unwrap();
    let no = |peer| Event::Presences {
        peer,
        presences: vec![(block(0).0, Held::No)],
    };
    let out = bench.handle(no(asked));
    assert_eq!(told(&out, &other, EntryKind::Block), [block(0).0]);
    let out = bench.handle(no(other));
    assert!(out.iter().any(is_find));
    let out = bench.after(bench.config.refusal);
    assert_eq!(
        told(&out, &asked, EntryKind::Block).len() + told(&out, &other, EntryKind::Block).len(),
        1
    );
}

#[test]
fn a_provider_that_stalls_loses_its_share_at_once() {
    let (mut bench, peers) = Bench::with_peers(2);
    let out = bench.want(2);
    let mine = told(&out, &peers[0], EntryKind::Block);
    let (at, why) = bench.client.deadline(bench.now).unwrap();
    assert_eq!(
        (at, why),
        (
            bench.now + bench.config.stall,
            "a peer that was asked for blocks stalls"
        )
    );
    bench.now += Duration::from_secs(1);
    bench.handle(Event::Progress(peers[1]));
    let out = bench.after(bench.config.stall - Duration::from_secs(1));
    let sorted = |mut cids: Vec<Cid>| {
        cids.sort();
        cids
    };
    assert_eq!(
        sorted(told(&out, &peers[0], EntryKind::Cancel)),
        sorted(mine.clone())
    );
    assert_eq!(sorted(told(&out, &peers[1], EntryKind::Block)), sorted(mine));
}

#[test]
fn wants_are_sent_again_after_a_reconnect() {
    let (mut bench, peers) = Bench::with_peers(1);
    bench.want(2);
    let out = bench.handle(Event::Disconnected(peers[0]));
    assert!(
        out.iter().any(|action| matches!(action, Action::Dial(_))),
        "{out:?}"
    );
    let out = bench.handle(Event::Connected(peers[0]));
    assert_eq!(told(&out, &peers[0], EntryKind::Block).len(), 2);
}

#[test]
fn a_provider_that_cannot_be_reached_is_dialled_again_later() {
    let mut bench = Bench::new();
    let peer = PeerId::random();
    let out = bench.handle(Event::Open {
        session: SESSION,
        providers: vec![peer],
    });
    assert!(matches!(out[..], [Action::Dial(_)]));
    assert!(
        bench.want(1).is_empty(),
        "nothing else is tried while the dial is fresh"
    );
    let out = bench.handle(Event::DialFailed(peer));
    assert!(matches!(out[..], [Action::Find(_)]), "{out:?}");
    let out = bench.after(bench.config.rest);
    assert!(matches!(out[..], [Action::Dial(_)]), "{out:?}");
}

#[test]
fn without_providers_neighbours_are_asked_and_the_network_searched() {
    let mut bench = Bench::new();
    let neighbour = PeerId::random();
    bench.handle(Event::Connected(neighbour));
    bench.handle(Event::Open {
        session: SESSION,
        providers: Vec::new(),
    });
    let out = bench.want(2);
    assert_eq!(told(&out, &neighbour, EntryKind::Have).len(), 2);
    assert_eq!(
        out.iter().filter(|action| is_find(action)).count(),
        1,
        "one search for a fetch"
    );
    let out = bench.handle(Event::Presences {
        peer: neighbour,
        presences: vec![(block(0).0, Held::Yes)],
    });
    assert_eq!(
        told(&out, &neighbour, EntryKind::Block).len(),
        2,
        "who has one block is a provider"
    );
    let found = PeerId::random();
    let out = bench.handle(Event::Found {
        cid: block(1).0,
        peers: vec![found],
    });
    assert!(matches!(out[..], [Action::Dial(peer)] if peer == found));
}

#[test]
fn a_newly_connected_peer_is_asked_for_what_nobody_had() {
    let mut bench = Bench::new();
    bench.handle(Event::Open {
        session: SESSION,
        providers: Vec::new(),
    });
    bench.want(1);
    let peer = PeerId::random();
    let out = bench.handle(Event::Connected(peer));
    assert_eq!(told(&out, &peer, EntryKind::Have), [block(0).0]);
}

#[test]
fn a_block_that_was_not_asked_for_ends_the_acquaintance() {
    let (mut bench, peers) = Bench::with_peers(2);
    let out = bench.want(1);
    let liar = asked(&out, &peers);
    let (cid, data) = block(99);
    let out = bench.handle(Event::Blocks {
        peer: liar,
        blocks: vec![(cid, data)],
    });
    assert!(out.iter().any(|action| matches!(
        action,
        Action::Penalise { peer, offence: Offence::UnwantedBlock { cid: named } } if *peer == liar && *named == cid
    )));
    assert!(bench.client.is_banned(bench.now, &liar));
    let other = *peers.iter().find(|peer| **peer != liar).unwrap();
    assert_eq!(told(&out, &other, EntryKind::Block), [block(0).0]);
    bench.handle(Event::Providers {
        session: SESSION,
        peers: vec![liar],
    });
    assert!(!bench.client.needs(&liar));
}

#[test]
fn a_late_block_is_a_duplicate_and_no_offence() {
    let (mut bench, peers) = Bench::with_peers(2);
    let out = bench.want(1);
    let slow = asked(&out, &peers);
    let quick = *peers.iter().find(|peer| **peer != slow).unwrap();
    bench.after(bench.config.stall);
    bench.bring(quick, 0);
    let (cid, data) = block(0);
    let out = bench.handle(Event::Blocks {
        peer: slow,
        blocks: vec![(cid, data)],
    });
    assert!(matches!(out[..], [Action::Duplicate]), "{out:?}");
}

#[test]
fn closing_a_fetch_cancels_what_only_it_wanted() {
    let (mut bench, peers) = Bench::with_peers(1);
    bench.want(2);
    let second = SessionId(2);
    bench.handle(Event::Open {
        session: second,
        providers: peers.clone(),
    });
    bench.handle(Event::Want {
        session: second,
        wanted: vec![block(1).0.into()],
    });
    let out = bench.handle(Event::Close { session: SESSION });
    assert_eq!(told(&out, &peers[0], EntryKind::Cancel), [block(0).0]);
    let out = bench.bring(peers[0], 1);
    assert!(
        out.iter()
            .any(|action| matches!(action, Action::Deliver { session, .. } if *session == second))
    );
    bench.handle(Event::Close { session: second });
    assert!(!bench.client.needs(&peers[0]));
    assert!(bench.client.deadline(bench.now).is_none());
}

#[test]
fn a_slow_disk_holds_back_the_asking() {
    let (mut bench, peers) = Bench::with_peers(1);
    let block_of = |number: u8| {
        let data = Bytes::from(vec![number; 2 << 20]);
        (cid_of(RAW, &data), data)
    };
    let large: Vec<(Cid, Bytes)> = (0..32).map(block_of).collect();
    bench.handle(Event::Want {
        session: SESSION,
        wanted: large.iter().map(|(cid, _)| (*cid).into()).collect(),
    });
    let first = large[0].0;
    bench.handle(Event::Blocks {
        peer: peers[0],
        blocks: large,
    });
    let more = |from: u32| (from..from + 8).map(|n| block(n).0.into()).collect();
    assert!(
        bench
            .handle(Event::Want {
                session: SESSION,
                wanted: more(10)
            })
            .is_empty()
    );
    let out = bench.handle(Event::Stored(vec![(first, Ok(2 << 20))]));
    assert!(!told(&out, &peers[0], EntryKind::Block).is_empty());
}

#[test]
fn a_full_disk_is_told_to_whoever_waits() {
    let (mut bench, peers) = Bench::with_peers(1);
    bench.want(1);
    let (cid, data) = block(0);
    bench.handle(Event::Blocks {
        peer: peers[0],
        blocks: vec![(cid, data)],
    });
    let error = Arc::new(StoreError::DiskFull {
        path: "/somewhere".into(),
    });
    let out = bench.handle(Event::Stored(vec![(cid, Err(error))]));
    assert!(out.iter().any(|action| matches!(
        action,
        Action::Deliver {
            arrival: Arrival::Failed { .. },
            ..
        }
    )));
}

#[test]
fn a_busy_provider_is_not_left_alone_with_a_fetch() {
    let mut bench = Bench::new();
    let peers: Vec<PeerId> = (0..3).map(|_| PeerId::random()).collect();
    peers
        .iter()
        .for_each(|peer| _ = bench.handle(Event::Connected(*peer)));
    bench.handle(Event::Open {
        session: SESSION,
        providers: vec![peers[0]],
    });
    let out = bench.want(100);
    assert!(!told(&out, &peers[0], EntryKind::Block).is_empty());
    assert!(told(&out, &peers[0], EntryKind::Have).is_empty());
    let probed = told(&out, &peers[1], EntryKind::Have);
    assert_eq!(probed.len(), 1);
    assert_eq!(probed, told(&out, &peers[2], EntryKind::Have));
    assert!(
        bench.after(Duration::from_millis(1)).is_empty(),
        "one look at a time"
    );
    let out = bench.handle(Event::Presences {
        peer: peers[1],
        presences: vec![(probed[0], Held::Yes)],
    });
    assert!(!told(&out, &peers[1], EntryKind::Block).is_empty());
}
