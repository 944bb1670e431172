//! Look-ups in the DHT: providers of content, addresses of peers. Content is found under its CID's multihash.

use super::super::command::Done;
use super::Driver;
use crate::content::Cid;
use crate::content::bitswap::{self, Announcement};
use libp2p::kad::store::RecordStore;
use libp2p::kad::{self, GetClosestPeersError, GetProvidersOk, InboundRequest, QueryId, QueryResult};
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::{Multiaddr, PeerId};
use rand::seq::SliceRandom;
use std::collections::{BTreeSet, HashMap};

/// Look-ups under way.
#[derive(Default)]
pub(super) struct Dht {
    providers: HashMap<QueryId, ProviderQuery>,
    peers: HashMap<QueryId, PeerId>,
}

struct ProviderQuery {
    found: Vec<PeerId>,
    /// Who is asked already: others come first.
    known: BTreeSet<PeerId>,
    limit: usize,
    asker: Asker,
}

/// Who wants to know.
enum Asker {
    Command(Done<Vec<PeerId>>),
    Content(Cid),
}

/// Providers looked for when the content exchange asks.
const CONTENT_PROVIDERS: usize = 8;

impl Dht {
    /// Whether a peer's addresses are being looked up.
    pub(super) fn seeks(&self, peer: &PeerId) -> bool {
        self.peers.values().any(|wanted| wanted == peer)
    }

    pub(super) fn forget_abandoned(&mut self) {
        self.providers.retain(|_, query| match &query.asker {
            Asker::Command(done) => !done.is_closed(),
            Asker::Content(_) => true,
        });
    }
}

impl ProviderQuery {
    /// Adds providers as far as more are looked for, in no order that they could choose; returns those.
    fn take(&mut self, providers: impl Iterator<Item = PeerId>) -> Vec<PeerId> {
        let mut fresh: Vec<PeerId> = providers.filter(|peer| !self.found.contains(peer)).collect();
        fresh.shuffle(&mut rand::rng());
        fresh.sort_by_key(|peer| self.known.contains(peer));
        fresh.truncate(self.limit.saturating_sub(self.found.len()));
        self.found.extend(&fresh);
        fresh
    }
}

impl Driver {
    pub(super) fn find_providers(&mut self, key: &[u8], limit: usize, done: Done<Vec<PeerId>>) {
        self.look_up(key, limit, Asker::Command(done));
    }

    fn look_up(&mut self, key: &[u8], limit: usize, asker: Asker) {
        let query = self
            .swarm
            .behaviour_mut()
            .kad
            .get_providers(kad::RecordKey::new(&key));
        let known = match &asker {
            Asker::Content(cid) => self.swarm.behaviour().content.providers_of(cid),
            Asker::Command(_) => BTreeSet::new(),
        };
        self.dht.providers.insert(
            query,
            ProviderQuery {
                found: Vec::new(),
                known,
                limit,
                asker,
            },
        );
    }

    pub(super) fn on_content(&mut self, event: bitswap::Event) {
        match event {
            bitswap::Event::FindProviders { cid } => {
                self.look_up(&cid.hash().to_bytes(), CONTENT_PROVIDERS, Asker::Content(cid));
            }
            bitswap::Event::Provide { cid, done } => {
                let announcement = self.provide(&cid.hash().to_bytes());
                if let Announcement::Refused { reason } = &announcement {
                    tracing::warn!(%cid, "{reason}");
                }
                // Who stopped waiting misses nothing.
                let _ = done.send(announcement);
            }
            bitswap::Event::StopProviding { cid } => self.stop_providing(&cid.hash().to_bytes()),
            bitswap::Event::Offence { .. } => self.metrics.offence("bitswap"),
        }
    }

    pub(super) fn count_content(&self) {
        let counters = self.swarm.behaviour().content.counters();
        let figures = [
            ("gym_bitswap_received_bytes_total", counters.bytes_received),
            ("gym_bitswap_received_blocks_total", counters.blocks_received),
            ("gym_bitswap_sent_bytes_total", counters.bytes_sent),
            ("gym_bitswap_sent_blocks_total", counters.blocks_sent),
            ("gym_bitswap_duplicate_blocks_total", counters.duplicates),
            ("gym_bitswap_stalls_total", counters.stalls),
            ("gym_bitswap_slow_messages_total", counters.slow),
            ("gym_bitswap_dropped_wants_total", counters.dropped_wants),
            ("gym_bitswap_uncalled_messages_total", counters.uncalled),
            ("gym_bitswap_unread_replies_total", counters.unread),
            ("gym_bitswap_receiving_bytes", counters.receiving),
        ];
        for (name, value) in figures {
            self.metrics.set(name, &[], value);
        }
    }

    pub(super) fn find_peer(&mut self, peer: PeerId) {
        if self.dht.seeks(&peer) {
            return;
        }
        let query = self.swarm.behaviour_mut().kad.get_closest_peers(peer);
        self.dht.peers.insert(query, peer);
    }

    /// Somebody announces content here. Its record is kept for those who ask, as far as the store's bounds allow; values,
    /// which pass the same filter, are not.
    fn keep_provider(&mut self, record: Option<kad::ProviderRecord>) {
        let Some(record) = record else { return };
        if let Err(error) = self.swarm.behaviour_mut().kad.store_mut().add_provider(record) {
            tracing::debug!(%error, "a provider record is not kept");
        }
    }

    #[allow(clippy::wildcard_enum_match_arm)] // libp2p adds events that ask nothing of us
    pub(super) fn on_kad(&mut self, event: kad::Event) {
        let (id, result, step) = match event {
            kad::Event::OutboundQueryProgressed { id, result, step, .. } => (id, result, step),
            kad::Event::InboundRequest {
                request: InboundRequest::AddProvider { record },
            } => return self.keep_provider(record),
            // Everything else is the DHT's own business.
            _ => return,
        };
        #[allow(clippy::wildcard_enum_match_arm)]
        match result {
            QueryResult::GetProviders(result) => self.on_providers(id, result.ok(), step.last),
            QueryResult::GetClosestPeers(Ok(found)) => self.on_closest(id, found.peers, step.last),
            QueryResult::GetClosestPeers(Err(GetClosestPeersError::Timeout { peers, .. })) => {
                self.on_closest(id, peers, step.last);
            }
            QueryResult::StartProviding(Err(error)) => {
                tracing::debug!(%error, "content could not be announced; it is tried again in a while");
            }
            _ => {}
        }
    }

    fn on_providers(&mut self, id: QueryId, found: Option<GetProvidersOk>, last: bool) {
        let local = *self.swarm.local_peer_id();
        let Some(query) = self.dht.providers.get_mut(&id) else {
            return;
        };
        let mut fresh = Vec::new();
        if let Some(GetProvidersOk::FoundProviders { providers, .. }) = found {
            fresh = query.take(providers.into_iter().filter(|peer| *peer != local));
        }
        let is_done = last || query.found.len() >= query.limit;
        if matches!(query.asker, Asker::Content(_)) {
            self.dial_found(fresh);
        }
        if !is_done {
            return;
        }
        let Some(query) = self.dht.providers.remove(&id) else {
            return;
        };
        if let Some(mut under_way) = self.swarm.behaviour_mut().kad.query_mut(&id) {
            under_way.finish();
        }
        match query.asker {
            Asker::Command(done) => {
                let _ = done.send(Ok(query.found));
            }
            Asker::Content(cid) => {
                let content = &mut self.swarm.behaviour_mut().content;
                content.providers_found(cid, query.found);
            }
        }
    }

    /// Dials at once: the addresses that came with a provider are known only as long as the look-up is under way.
    fn dial_found(&mut self, providers: Vec<PeerId>) {
        for peer in providers {
            let options = DialOpts::peer_id(peer)
                .condition(PeerCondition::DisconnectedAndNotDialing)
                .build();
            if let Err(error) = self.swarm.dial(options) {
                tracing::trace!(%peer, %error, "a provider is not dialled");
            }
        }
    }

    fn on_closest(&mut self, id: QueryId, found: Vec<kad::PeerInfo>, last: bool) {
        let Some(wanted) = self.dht.peers.get(&id).copied() else {
            return;
        };
        let addresses: Vec<Multiaddr> = found
            .into_iter()
            .filter(|info| info.peer_id == wanted)
            .flat_map(|info| info.addrs)
            .collect();
        if !addresses.is_empty() {
            self.dht.peers.remove(&id);
            self.reach(wanted, addresses);
        } else if last {
            self.dht.peers.remove(&id);
            if !self.try_relays(wanted) {
                self.unreachable(&wanted, "nobody in the DHT knows its address");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_providers_some_are_taken_by_chance_and_new_ones_first() {
        let mut peers: Vec<PeerId> = (0..40).map(|_| PeerId::random()).collect();
        peers.sort_unstable();
        let taken = |known: &[PeerId]| {
            let mut query = ProviderQuery {
                found: Vec::new(),
                known: known.iter().copied().collect(),
                limit: 8,
                asker: Asker::Content(crate::content::block::cid_of(0x55, b"sought")),
            };
            assert_eq!(query.take(peers.iter().copied()).len(), 8);
            assert!(query.take(peers.iter().copied()).is_empty());
            query.found
        };
        // Low ids win no place: in 64 draws of 8 from 40 the highest comes up.
        assert!((0..64).any(|_| taken(&[]).contains(&peers[39])));
        let fresh: BTreeSet<PeerId> = taken(&peers[..35]).into_iter().collect();
        assert!(peers[35..].iter().all(|peer| fresh.contains(peer)));
    }
}
