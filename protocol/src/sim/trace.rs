//! A running hash of everything that happens, in order: one seed, one hash.

use super::clock::Micros;
use super::index_of;
use crate::ids::{Hash32, PeerBytes};
use crate::member::Event;
use sha3::{Digest, Sha3_256};

#[derive(Debug, Default)]
pub(super) struct Trace {
    hash: Sha3_256,
    line: Vec<u8>,
    events: u64,
}

impl Trace {
    /// Notes an event at a member.
    pub(super) fn event(&mut self, now: Micros, at: u32, event: &Event) {
        self.begin(now, at);
        match event {
            Event::Message(m) => self
                .put(b"message")
                .number(m.body.kind().number())
                .from(&m.sender),
            Event::Segment {
                from,
                header,
                payload,
            } => self
                .put(b"segment")
                .from(from)
                .number(header.phase)
                .numbers(&[
                    header.step,
                    header.chunk,
                    header.segment,
                    header.slot,
                    header.view,
                ])
                .put(&payload.len().to_le_bytes()),
            Event::Synced(held) => self.put(b"synced").put(&held.state.0),
            Event::FetchFailed(_) => self.put(b"fetch failed"),
            Event::Trained { roster, .. } => self.put(b"trained").put(&roster.0),
            Event::TrainFailed { .. } => self.put(b"training failed"),
            Event::CommitBuilt { cid, .. } => self.put(b"commit built").put(cid.as_bytes()),
            Event::Replica { from, .. } => self.put(b"replica").from(from),
            Event::LinkOffence { from, offence } => {
                self.put(b"link offence").from(from).number(offence.number())
            }
            Event::PeerLost(peer) => self.put(b"lost").from(peer),
            Event::Applied { state, .. } => self.put(b"applied").put(&state.0),
            Event::Measured(links) => self.put(b"measured").put(&links.len().to_le_bytes()),
            Event::Tick => self.put(b"tick"),
        };
        self.end();
    }

    /// Notes something else.
    pub(super) fn note(&mut self, now: Micros, at: u32, what: &[u8]) {
        self.begin(now, at);
        self.put(what);
        self.end();
    }

    /// Events noted.
    pub(super) fn events(&self) -> u64 {
        self.events
    }

    pub(super) fn hash(&self) -> Hash32 {
        Hash32(self.hash.clone().finalize().into())
    }

    fn begin(&mut self, now: Micros, at: u32) {
        self.line.clear();
        self.put(&now.to_le_bytes()).numbers(&[at]);
    }

    fn end(&mut self) {
        self.events += 1;
        self.hash.update((self.line.len() as u64).to_le_bytes());
        self.hash.update(&self.line);
    }

    fn put(&mut self, bytes: &[u8]) -> &mut Self {
        self.line.extend_from_slice(bytes);
        self
    }

    fn number(&mut self, n: u8) -> &mut Self {
        self.put(&[n])
    }

    fn numbers(&mut self, all: &[u32]) -> &mut Self {
        all.iter()
            .for_each(|n| self.line.extend_from_slice(&n.to_le_bytes()));
        self
    }

    fn from(&mut self, peer: &PeerBytes) -> &mut Self {
        self.numbers(&[index_of(peer).unwrap_or(u32::MAX)])
    }
}
