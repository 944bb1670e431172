//! Whom to ask for what. Pure: events and the time go in, actions come out.
//!
//! A want is waiting, asked of one peer, or being stored. It goes to the provider whose window has the most room; a
//! provider that says no, stalls or vanishes gives it back; what one keeps for long is asked of another with nothing to
//! do. When no provider can be asked, connected peers are asked whether they have it and the owner of the swarm is asked
//! to look for more.

mod arrive;
mod assign;
mod late;
mod outpaced;
mod peer;
mod providers;
mod window;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cid::Cid;
use libp2p::PeerId;

use super::message::{Entry, Held};
use super::{Arrival, Config, Offence, SessionId, Wanted};
use crate::content::store::StoreError;
use assign::Scan;
pub(super) use peer::PROGRESS;
use peer::{Link, Peer};

/// How often wants that nobody can be asked for are looked at again.
const LOOK: Duration = Duration::from_millis(500);
/// While this many bytes wait for the disk nothing more is asked for.
const MAX_STORING: u64 = 64 << 20;

/// What happened.
#[derive(Debug)]
pub(super) enum Event {
    Open {
        session: SessionId,
        providers: Vec<PeerId>,
    },
    Want {
        session: SessionId,
        wanted: Vec<Wanted>,
    },
    Providers {
        session: SessionId,
        peers: Vec<PeerId>,
    },
    /// The answer to [`Action::Find`].
    Found {
        cid: Cid,
        peers: Vec<PeerId>,
    },
    Close {
        session: SessionId,
    },
    Connected(PeerId),
    Disconnected(PeerId),
    DialFailed(PeerId),
    /// Connected, but without bitswap.
    Mute(PeerId),
    /// One of several connections closed, with what was under way on it.
    Reset(PeerId),
    /// Wants could not be sent.
    Lost(PeerId),
    Presences {
        peer: PeerId,
        presences: Vec<(Cid, Held)>,
    },
    /// Blocks whose CIDs were computed from their bytes.
    Blocks {
        peer: PeerId,
        blocks: Vec<(Cid, Bytes)>,
    },
    Progress(PeerId),
    /// The answer to [`Action::Store`].
    Stored(Vec<(Cid, Result<u64, Arc<StoreError>>)>),
    /// The peer broke the protocol.
    Misconduct {
        peer: PeerId,
        offence: Offence,
    },
    Tick,
}

/// What to do.
#[derive(Debug)]
pub(super) enum Action {
    Tell {
        peer: PeerId,
        entries: Vec<Entry>,
    },
    Dial(PeerId),
    Find(Cid),
    Store {
        blocks: Vec<(Cid, Bytes)>,
    },
    Deliver {
        session: SessionId,
        arrival: Arrival,
    },
    Penalise {
        peer: PeerId,
        offence: Offence,
    },
    /// A block came twice.
    Duplicate,
    Stalled(PeerId),
}

/// The machine.
#[derive(Debug)]
pub(super) struct Client {
    config: Config,
    /// Breaks ties between peers differently on each node, so that newcomers do not all draw from one donor.
    salt: u64,
    sessions: BTreeMap<SessionId, Session>,
    wants: BTreeMap<Cid, Want>,
    /// Wants to assign, in order; those that are no longer waiting are skipped.
    waiting: VecDeque<Cid>,
    peers: BTreeMap<PeerId, Peer>,
    /// Bytes that have come and are not yet on disk.
    storing: u64,
}

/// One fetch.
#[derive(Debug, Default)]
struct Session {
    providers: BTreeSet<PeerId>,
    wants: BTreeSet<Cid>,
    searched: Option<Instant>,
    /// When peers were last asked whether they could help as well.
    widened: Option<Instant>,
}

/// One block that is wanted.
#[derive(Debug)]
struct Want {
    sessions: BTreeSet<SessionId>,
    /// Its bytes as they were declared.
    size: Option<u64>,
    stage: Stage,
    /// Who said that it does not have it, and when.
    refused: BTreeMap<PeerId, Instant>,
    /// Who may hold an entry of ours for it and must be told when it is over: it would send the block whenever it has it.
    told: BTreeSet<PeerId>,
    /// Who was asked whether it has it, since the last search.
    probed: BTreeSet<PeerId>,
    /// When to look for others again.
    look_at: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Waiting,
    Asked(PeerId),
    /// Its bytes have come and are being written.
    Storing(u64),
}

impl Client {
    pub(super) fn new(config: Config, salt: u64) -> Self {
        Self {
            config,
            salt,
            sessions: BTreeMap::new(),
            wants: BTreeMap::new(),
            waiting: VecDeque::new(),
            peers: BTreeMap::new(),
            storing: 0,
        }
    }

    pub(super) fn handle(&mut self, now: Instant, event: Event, out: &mut Vec<Action>) {
        // Arrivals are many and only make room; whatever else happens may leave a want with nobody to ask.
        let is_arrival = matches!(
            event,
            Event::Blocks { .. } | Event::Stored(_) | Event::Progress(_)
        );
        self.take_in(now, event, out);
        self.assign(
            now,
            if is_arrival {
                Scan::WhileRoom
            } else {
                Scan::Everything
            },
            out,
        );
    }

    fn take_in(&mut self, now: Instant, event: Event, out: &mut Vec<Action>) {
        match event {
            Event::Open { session, providers } => {
                self.sessions.insert(session, Session::default());
                self.add_providers(now, session, &providers, out);
            }
            Event::Want { session, wanted } => self.on_want(session, &wanted),
            Event::Providers { session, peers } => self.add_providers(now, session, &peers, out),
            Event::Found { cid, peers } => self.on_found(now, &cid, &peers, out),
            Event::Close { session } => self.on_close(now, session, out),
            Event::Connected(peer) => self.on_connected(now, peer),
            Event::Disconnected(peer) => self.on_disconnected(now, &peer),
            Event::DialFailed(peer) => self.on_dial_failed(now, &peer),
            Event::Mute(peer) => {
                self.peer(now, peer).link = Link::Mute;
                self.release(&peer);
                self.forget_told(&peer);
            }
            Event::Reset(peer) => self.on_reset(now, &peer),
            Event::Lost(peer) => {
                self.release(&peer);
                let config = self.config;
                self.peer(now, peer).rest(now, &config);
            }
            Event::Presences { peer, presences } => self.on_presences(now, peer, &presences),
            Event::Blocks { peer, blocks } => self.on_blocks(now, peer, blocks, out),
            Event::Progress(peer) => self.peer(now, peer).on_bytes(now),
            Event::Stored(results) => {
                results
                    .iter()
                    .for_each(|(cid, result)| self.on_stored(*cid, result, out));
            }
            Event::Misconduct { peer, offence } => self.penalise(now, peer, offence, out),
            Event::Tick => {
                self.release_late(now, out);
                self.forget_strangers(now);
            }
        }
    }

    /// When [`Event::Tick`] is due, and why.
    pub(super) fn deadline(&self, now: Instant) -> Option<(Instant, &'static str)> {
        let stall = self
            .peers
            .values()
            .filter_map(|peer| peer.stalls_at(&self.config))
            .min();
        let look = (!self.waiting.is_empty()).then(|| now + LOOK);
        let stall = stall.map(|at| (at, "a peer that was asked for blocks stalls"));
        let look = look.map(|at| (at, "look again for somebody who has what is wanted"));
        stall.into_iter().chain(look).min_by_key(|(at, _)| *at)
    }

    /// Whether the connection to a peer is needed.
    pub(super) fn needs(&self, peer: &PeerId) -> bool {
        self.peers.get(peer).is_some_and(Peer::owes_us)
            || self
                .sessions
                .values()
                .any(|session| session.providers.contains(peer))
    }

    /// Whether a peer was asked for blocks that have not come.
    pub(super) fn awaits_blocks(&self, peer: &PeerId) -> bool {
        self.peers.get(peer).is_some_and(Peer::owes_blocks)
    }

    /// Whether a peer that broke the protocol is still to be left alone.
    pub(super) fn is_banned(&self, now: Instant, peer: &PeerId) -> bool {
        self.peers.get(peer).is_some_and(|known| known.is_banned(now))
    }

    fn on_want(&mut self, session: SessionId, wanted: &[Wanted]) {
        let Some(fetch) = self.sessions.get_mut(&session) else {
            return;
        };
        for Wanted { cid, size } in wanted {
            fetch.wants.insert(*cid);
            let want = self.wants.entry(*cid).or_insert_with(|| {
                self.waiting.push_back(*cid);
                Want::default()
            });
            want.size = want.size.or(*size);
            want.sessions.insert(session);
        }
    }

    fn on_close(&mut self, now: Instant, session: SessionId, out: &mut Vec<Action>) {
        let Some(fetch) = self.sessions.remove(&session) else {
            return;
        };
        for cid in fetch.wants {
            let Some(want) = self.wants.get_mut(&cid) else {
                continue;
            };
            want.sessions.remove(&session);
            if want.sessions.is_empty() {
                self.end_want(&cid, out);
            }
        }
        self.forget_strangers(now);
    }

    /// Removes a want and tells everybody who holds an entry for it.
    fn end_want(&mut self, cid: &Cid, out: &mut Vec<Action>) -> Option<Want> {
        let want = self.wants.remove(cid)?;
        if let Stage::Storing(size) = want.stage {
            self.storing -= size;
        }
        for id in &want.told {
            if let Some(peer) = self.peers.get_mut(id) {
                peer.forget(cid);
            }
            out.push(Action::Tell {
                peer: *id,
                entries: vec![Entry::cancel(*cid)],
            });
        }
        Some(want)
    }

    fn on_connected(&mut self, now: Instant, id: PeerId) {
        self.peer(now, id).link = Link::Connected;
        for cid in &self.waiting {
            if let Some(want) = self.wants.get_mut(cid) {
                want.look_at = None;
            }
        }
    }

    /// Wants are sent again. Entries that the other side has from before stay there, and so does the time in which the peer
    /// has brought nothing.
    fn on_reset(&mut self, now: Instant, id: &PeerId) {
        if let Some(peer) = self.peers.get_mut(id) {
            peer.pause(now);
        }
        self.release(id);
    }

    fn on_disconnected(&mut self, now: Instant, id: &PeerId) {
        self.on_reset(now, id);
        self.forget_told(id);
        self.peer(now, *id).link = Link::Away;
        self.forget_strangers(now);
    }

    fn on_dial_failed(&mut self, now: Instant, id: &PeerId) {
        let config = self.config;
        if let Some(peer) = self.peers.get_mut(id)
            && matches!(peer.link, Link::Dialing(_))
        {
            peer.link = Link::Away;
            peer.rest(now, &config);
        }
    }

    fn penalise(&mut self, now: Instant, id: PeerId, offence: Offence, out: &mut Vec<Action>) {
        let config = self.config;
        self.release(&id);
        self.forget_told(&id);
        self.peer(now, id).ban(now, &config);
        self.sessions
            .values_mut()
            .for_each(|session| _ = session.providers.remove(&id));
        out.push(Action::Penalise { peer: id, offence });
    }

    fn peer(&mut self, now: Instant, id: PeerId) -> &mut Peer {
        self.peers.entry(id).or_insert_with(|| Peer::new(now))
    }

    /// Peers that are away and that no fetch names need not be remembered, bans aside while they last.
    fn forget_strangers(&mut self, now: Instant) {
        let sessions = &self.sessions;
        let named = |id: &PeerId| sessions.values().any(|session| session.providers.contains(id));
        self.peers
            .retain(|id, peer| peer.link != Link::Away || peer.is_banned(now) || named(id));
    }
}

impl Default for Want {
    fn default() -> Self {
        Self {
            sessions: BTreeSet::new(),
            size: None,
            stage: Stage::Waiting,
            refused: BTreeMap::new(),
            told: BTreeSet::new(),
            probed: BTreeSet::new(),
            look_at: None,
        }
    }
}

/// Dials a peer unless it is connected, being dialled, or to be left alone.
fn dial(now: Instant, id: PeerId, peer: &mut Peer, out: &mut Vec<Action>) {
    if peer.takes_dial(now) {
        peer.link = Link::Dialing(now);
        out.push(Action::Dial(id));
    }
}

#[cfg(test)]
mod tests;
