//! Peers that keep what they are asked for, or fill the places of those who would give it.

use super::*;
use crate::content::bitswap::message::EntryKind;

/// What a peer may do instead of answering.
#[derive(Debug, Clone, Copy)]
enum Noise {
    /// It says that it has a block nobody asked for.
    Presence,
    /// It says again that it has what it was asked for.
    Have,
    /// A block that came long ago.
    Duplicate,
    /// Bytes of a message that does not end.
    Bytes,
    /// Another connection.
    Reconnects,
    /// The only connection breaks and another is made.
    Returns,
}

impl Bench {
    fn noise(&mut self, peer: PeerId, noise: Noise, asked: Cid) -> Vec<Action> {
        match noise {
            Noise::Presence => self.handle(Event::Presences {
                peer,
                presences: vec![(block(999).0, Held::Yes)],
            }),
            Noise::Have => self.handle(Event::Presences {
                peer,
                presences: vec![(asked, Held::Yes)],
            }),
            Noise::Duplicate => self.handle(Event::Blocks {
                peer,
                blocks: vec![block(0)],
            }),
            Noise::Bytes => self.handle(Event::Progress(peer)),
            Noise::Reconnects => self.handle(Event::Reset(peer)),
            Noise::Returns => {
                let mut out = self.handle(Event::Disconnected(peer));
                out.extend(self.handle(Event::Connected(peer)));
                out
            }
        }
    }

    /// A peer that has given block 0 and was then asked for others, alone.
    fn with_asked() -> (Self, PeerId, Vec<Cid>) {
        let (mut bench, peers) = Self::with_peers(1);
        bench.want(1);
        bench.bring(peers[0], 0);
        let wanted: Vec<Wanted> = (1..3).map(|n| block(n).0.into()).collect();
        let out = bench.handle(Event::Want {
            session: SESSION,
            wanted,
        });
        let asked = told(&out, &peers[0], EntryKind::Block);
        assert_eq!(asked.len(), 2);
        (bench, peers[0], asked)
    }
}

/// The peer is the only one, so nobody takes anything from it: it must count as stalled by itself.
#[test]
fn a_peer_that_is_busy_with_something_else_stalls() {
    let table = [
        (Noise::Presence, 2),
        (Noise::Have, 2),
        (Noise::Duplicate, 2),
        (Noise::Reconnects, 2),
        (Noise::Returns, 2),
        // As many as the answer may have.
        (Noise::Bytes, 20),
    ];
    for (noise, stalls) in table {
        let (mut bench, peer, asked) = Bench::with_asked();
        let step = bench.config.stall / 2;
        let stalled = (0..2 * stalls).any(|_| {
            bench.noise(peer, noise, asked[0]);
            bench
                .after(step)
                .iter()
                .any(|action| matches!(action, Action::Stalled(_)))
        });
        assert!(stalled, "{noise:?}");
    }
}

#[test]
fn what_a_busy_peer_keeps_goes_to_the_others() {
    let table = [
        Noise::Presence,
        Noise::Have,
        Noise::Duplicate,
        Noise::Reconnects,
        Noise::Returns,
        Noise::Bytes,
    ];
    for noise in table {
        let (mut bench, peer, asked) = Bench::with_asked();
        let other = PeerId::random();
        bench.handle(Event::Connected(other));
        bench.handle(Event::Providers {
            session: SESSION,
            peers: vec![other],
        });
        let step = bench.config.stall / 2;
        let mut moved = Vec::new();
        for _ in 0..6 {
            let mut out = bench.noise(peer, noise, asked[0]);
            out.extend(bench.after(step));
            // The other gives whatever it is asked for.
            let mut given: VecDeque<Cid> = told(&out, &other, EntryKind::Block).into();
            while let Some(cid) = given.pop_front() {
                let number = (1..3).find(|n| block(*n).0 == cid).unwrap();
                given.extend(told(&bench.bring(other, number), &other, EntryKind::Block));
                moved.push(cid);
            }
        }
        assert!(
            asked.iter().all(|cid| moved.contains(cid)),
            "{noise:?}: {moved:?}"
        );
    }
}

/// A peer that serves everything but one block does not keep that for ever, with no other that is idle.
#[test]
fn one_block_that_is_withheld_is_asked_of_another() {
    let (mut bench, peers) = Bench::with_peers(1);
    let giver = peers[0];
    // Small ones, which leave its window open.
    let out = bench.handle(Event::Want {
        session: SESSION,
        wanted: (0..200)
            .map(|n| Wanted {
                cid: block(n).0,
                size: Some(4),
            })
            .collect(),
    });
    let withheld = told(&out, &giver, EntryKind::Block)[0];
    let numbers: BTreeMap<Cid, u32> = (0..200).map(|n| (block(n).0, n)).collect();
    let mut asked: VecDeque<Cid> = told(&out, &giver, EntryKind::Block).into();
    let mut brought = BTreeSet::from([withheld]);
    for _ in 0..100 {
        let next = asked.pop_front();
        if let Some(cid) = next.filter(|cid| brought.insert(*cid)) {
            let out = bench.bring(giver, numbers[&cid]);
            asked.extend(told(&out, &giver, EntryKind::Block));
        }
        let out = bench.after(bench.config.stall / 2);
        asked.extend(told(&out, &giver, EntryKind::Block));
        if told(&out, &giver, EntryKind::Cancel).contains(&withheld) {
            assert_eq!(bench.client.wants[&withheld].stage, Stage::Waiting);
            return;
        }
    }
    panic!("it keeps the block");
}

#[test]
fn an_honest_peer_on_a_slow_line_is_left_alone() {
    let (mut bench, peers) = Bench::with_peers(1);
    let out = bench.want(2);
    assert_eq!(told(&out, &peers[0], EntryKind::Block).len(), 2);
    // 64 KiB in just less than the time that counts as a stall, until a block of 1 MiB is here.
    for _ in 0..15 {
        let out = bench.after(bench.config.stall - Duration::from_millis(1));
        assert!(out.is_empty(), "{out:?}");
        bench.handle(Event::Progress(peers[0]));
    }
    let out = bench.bring(peers[0], 0);
    assert!(!out.iter().any(|action| matches!(action, Action::Stalled(_))));
}

/// The first who brings it ends it for both.
#[test]
fn at_the_end_an_idle_provider_is_asked_too() {
    let (mut bench, peers) = Bench::with_peers(2);
    let out = bench.want(1);
    let slow = asked(&out, &peers);
    let idle = *peers.iter().find(|peer| **peer != slow).unwrap();
    // Its bytes come, but slowly.
    bench.now += bench.config.stall - Duration::from_secs(1);
    bench.handle(Event::Progress(slow));
    let out = bench.after(Duration::from_secs(1));
    assert_eq!(told(&out, &idle, EntryKind::Block), [block(0).0]);
    assert!(told(&out, &slow, EntryKind::Cancel).is_empty());
    assert!(bench.after(Duration::from_millis(1)).is_empty(), "once");
    let out = bench.bring(idle, 0);
    assert_eq!(told(&out, &slow, EntryKind::Cancel), [block(0).0]);
    assert!(!bench.client.peers[&slow].owes_us());
}

/// Whatever the places of a fetch are filled with, one who has the block gets one.
#[test]
fn providers_that_bring_nothing_make_room() {
    /// What the first providers turn out to be.
    #[derive(Debug, Clone, Copy)]
    enum Useless {
        Unreachable,
        Silent,
        Refusing,
        Mute,
    }
    for useless in [
        Useless::Unreachable,
        Useless::Silent,
        Useless::Refusing,
        Useless::Mute,
    ] {
        let mut bench = Bench::new();
        let peers: Vec<PeerId> = (0..bench.config.providers).map(|_| PeerId::random()).collect();
        bench.handle(Event::Open {
            session: SESSION,
            providers: peers.clone(),
        });
        let mut out = bench.want(1);
        for peer in &peers {
            match useless {
                Useless::Unreachable => _ = bench.handle(Event::DialFailed(*peer)),
                Useless::Mute => _ = bench.handle(Event::Mute(*peer)),
                Useless::Silent | Useless::Refusing => {
                    out.extend(bench.handle(Event::Connected(*peer)));
                }
            }
        }
        let honest = PeerId::random();
        bench.handle(Event::Connected(honest));
        let wanted = block(0).0;
        let mut is_asked = false;
        for _ in 0..2000 {
            let out = bench.after(Duration::from_millis(500));
            if matches!(useless, Useless::Refusing) {
                for peer in &peers {
                    bench.handle(Event::Presences {
                        peer: *peer,
                        presences: vec![(wanted, Held::No)],
                    });
                }
            }
            if told(&out, &honest, EntryKind::Have).contains(&wanted) {
                let out = bench.handle(Event::Presences {
                    peer: honest,
                    presences: vec![(wanted, Held::Yes)],
                });
                is_asked |= !told(&out, &honest, EntryKind::Block).is_empty();
            }
            is_asked |= !told(&out, &honest, EntryKind::Block).is_empty();
            if is_asked {
                break;
            }
        }
        assert!(is_asked, "{useless:?}");
        assert!(bench.client.sessions[&SESSION].providers.len() <= bench.config.providers);
    }
}

#[test]
fn who_is_found_takes_the_place_of_who_cannot_be_reached() {
    let mut bench = Bench::new();
    let peers: Vec<PeerId> = (0..bench.config.providers).map(|_| PeerId::random()).collect();
    bench.handle(Event::Open {
        session: SESSION,
        providers: peers.clone(),
    });
    bench.want(1);
    let found = PeerId::random();
    let event = || Event::Found {
        cid: block(0).0,
        peers: vec![found],
    };
    assert!(bench.handle(event()).is_empty(), "all may yet be reached");
    bench.handle(Event::DialFailed(peers[7]));
    let out = bench.handle(event());
    assert!(
        matches!(out[..], [Action::Dial(peer)] if peer == found),
        "{out:?}"
    );
    assert!(!bench.client.sessions[&SESSION].providers.contains(&peers[7]));
}

#[test]
fn a_ban_is_forgotten_when_it_is_over() {
    let (mut bench, peers) = Bench::with_peers(1);
    bench.want(1);
    bench.handle(Event::Blocks {
        peer: peers[0],
        blocks: vec![block(99)],
    });
    bench.handle(Event::Disconnected(peers[0]));
    bench.after(bench.config.ban / 2);
    assert!(bench.client.is_banned(bench.now, &peers[0]));
    bench.after(bench.config.ban);
    assert!(bench.client.peers.is_empty());
}
