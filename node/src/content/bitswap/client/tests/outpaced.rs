//! Providers that send, each at its pace.

use super::*;
use crate::content::bitswap::message::EntryKind;

const SIZE: usize = 256 << 10;
const STEP: Duration = Duration::from_millis(50);
/// What keeps a peer alive that brings nothing else: 64 KiB in every 4.9 s.
const DRIP: f64 = 13_375.0;

/// A provider that sends what it is asked for in order, so many bytes a second.
struct Sender {
    peer: PeerId,
    rate: f64,
    queue: VecDeque<Cid>,
    /// Bytes of the first in the queue that have been sent.
    sent: f64,
    told: f64,
    lost: u32,
    /// Everything that it was asked for.
    asked: Vec<Cid>,
}

/// A block of the usual size.
fn large(number: u32) -> Bytes {
    Bytes::from(number.to_le_bytes().repeat(SIZE / 4))
}

/// A fetch of many blocks from several senders.
struct Pull {
    bench: Bench,
    /// What is wanted, by the number that a block is made of.
    blocks: BTreeMap<Cid, u32>,
    senders: Vec<Sender>,
    left: usize,
}

impl Pull {
    fn new(rates: &[f64], count: u32) -> Self {
        let (mut bench, peers) = Bench::with_peers(rates.len());
        let blocks: BTreeMap<Cid, u32> = (0..count)
            .map(|number| (cid_of(RAW, &large(number)), number))
            .collect();
        let sender = |(peer, rate): (&PeerId, &f64)| Sender {
            peer: *peer,
            rate: *rate,
            queue: VecDeque::new(),
            sent: 0.0,
            told: 0.0,
            lost: 0,
            asked: Vec::new(),
        };
        let wanted = blocks.keys().map(|cid| Wanted {
            cid: *cid,
            size: Some(SIZE as u64),
        });
        let wanted = wanted.collect();
        let session = SESSION;
        let out = bench.handle(Event::Want { session, wanted });
        let mut pull = Self {
            senders: peers.iter().zip(rates).map(sender).collect(),
            left: blocks.len(),
            bench,
            blocks,
        };
        pull.hear(&out);
        pull
    }

    fn hear(&mut self, out: &[Action]) {
        for sender in &mut self.senders {
            let cancelled = told(out, &sender.peer, EntryKind::Cancel);
            // What is under way goes on.
            let first = sender.queue.front().copied().filter(|_| sender.sent > 0.0);
            sender
                .queue
                .retain(|cid| Some(*cid) == first || !cancelled.contains(cid));
            let asked = told(out, &sender.peer, EntryKind::Block);
            sender.asked.extend(&asked);
            sender.queue.extend(asked);
            sender.lost += out
                .iter()
                .filter(|action| matches!(action, Action::Stalled(peer) if *peer == sender.peer))
                .count() as u32;
        }
    }

    fn step(&mut self) {
        for index in 0..self.senders.len() {
            let sender = &mut self.senders[index];
            if sender.queue.is_empty() {
                continue;
            }
            let bytes = sender.rate * STEP.as_secs_f64();
            (sender.sent, sender.told) = (sender.sent + bytes, sender.told + bytes);
            let peer = sender.peer;
            let progress = 65_536.0;
            while self.senders[index].told >= progress {
                self.senders[index].told -= progress;
                let out = self.bench.handle(Event::Progress(peer));
                self.hear(&out);
            }
            while self.senders[index].sent >= SIZE as f64 {
                let Some(cid) = self.senders[index].queue.pop_front() else {
                    break;
                };
                self.senders[index].sent -= SIZE as f64;
                let blocks = vec![(cid, large(self.blocks[&cid]))];
                let out = self.bench.handle(Event::Blocks { peer, blocks });
                let is_new = out.iter().any(|action| matches!(action, Action::Store { .. }));
                self.hear(&out);
                if is_new {
                    self.left -= 1;
                    let out = self.bench.handle(Event::Stored(vec![(cid, Ok(SIZE as u64))]));
                    self.hear(&out);
                }
            }
        }
        let out = self.bench.after(STEP);
        self.hear(&out);
    }

    fn run(&mut self, time: Duration) {
        for _ in 0..time.div_duration_f64(STEP).ceil() as u32 {
            self.step();
        }
    }
}

/// Whoever reads in order waits for the blocks that it keeps, while the others have enough to do.
#[test]
fn one_that_drips_loses_its_share_to_those_that_are_busy() {
    let mut pull = Pull::new(&[DRIP, 4e6, 4e6], 1000);
    let kept = pull.senders[0].asked.clone();
    assert!(kept.len() > 4, "it is asked for its window");
    let stall = pull.bench.config.stall;
    pull.run(3 * stall);
    assert!(pull.left > 100, "the others are busy still");
    assert!(pull.senders[0].lost > 0);
    let others: Vec<Cid> = pull.senders[1..].iter().flat_map(|s| s.asked.clone()).collect();
    assert!(kept.iter().all(|cid| others.contains(cid)));
    assert_eq!((pull.senders[1].lost, pull.senders[2].lost), (0, 0));
}

/// A small block that comes at once says nothing of a rate.
#[test]
fn one_that_was_overtaken_is_asked_after_the_others() {
    let (mut bench, peers) = Bench::with_peers(2);
    let want = |bench: &mut Bench, number: u32| {
        bench.handle(Event::Want {
            session: SESSION,
            wanted: vec![block(number).0.into()],
        })
    };
    let out = want(&mut bench, 0);
    let slow = asked(&out, &peers);
    let other = *peers.iter().find(|peer| **peer != slow).unwrap();
    // It drips, and the other has nothing to do.
    for _ in 0..2 {
        bench.now += bench.config.stall / 2;
        bench.handle(Event::Progress(slow));
    }
    let out = bench.after(Duration::ZERO);
    assert_eq!(told(&out, &other, EntryKind::Block), [block(0).0]);
    bench.bring(other, 0);
    for number in 1..5 {
        let out = want(&mut bench, number);
        assert_eq!(asked(&out, &peers), other, "block {number}");
        bench.bring(other, number);
    }
    // Until it answers: alone it is asked, and then as any other.
    bench.handle(Event::Disconnected(other));
    let out = want(&mut bench, 5);
    assert_eq!(asked(&out, &peers), slow);
    bench.bring(slow, 5);
    bench.handle(Event::Connected(other));
    let out = want(&mut bench, 6);
    assert_eq!(asked(&out, &peers), slow);
}

#[test]
fn a_slow_one_that_is_alone_or_among_its_equals_keeps_what_it_was_asked() {
    for rates in [&[2.0 * DRIP][..], &[2.0 * DRIP; 3], &[2.0 * DRIP, 8.0 * DRIP]] {
        let mut pull = Pull::new(rates, 100);
        pull.run(Duration::from_secs(60));
        assert!(pull.senders.iter().all(|sender| sender.lost == 0), "{rates:?}");
    }
}

/// What is fast enough for its window keeps it, however fast another is.
#[test]
fn those_that_answer_in_time_are_asked_on() {
    let mut pull = Pull::new(&[1e6, 9e6], 1500);
    pull.run(Duration::from_secs(30));
    assert_eq!((pull.senders[0].lost, pull.senders[1].lost), (0, 0));
    assert!(
        pull.senders[0].asked.len() > 80,
        "{}",
        pull.senders[0].asked.len()
    );
}

#[test]
fn one_that_has_said_no_takes_nothing_from_a_slow_one() {
    let mut pull = Pull::new(&[2.0 * DRIP, 4e6], 400);
    let (slow, fast) = (pull.senders[0].peer, pull.senders[1].peer);
    pull.run(Duration::from_secs(2));
    let refuse = |pull: &mut Pull| {
        let presences = pull.blocks.keys().map(|cid| (*cid, Held::No)).collect();
        let out = pull.bench.handle(Event::Presences {
            peer: fast,
            presences,
        });
        pull.hear(&out);
        pull.senders[1].queue.clear();
    };
    for _ in 0..30 {
        refuse(&mut pull);
        pull.run(Duration::from_secs(1));
    }
    assert_eq!(pull.senders[0].lost, 0, "{slow}");
}
