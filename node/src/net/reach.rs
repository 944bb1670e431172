//! Whether others can reach this node. Pure: what peers report and the time go in, a verdict comes out.
//!
//! A node whose peers all have private addresses is in a laboratory: it counts as reachable and nothing is tested. Once a
//! peer with a public address has seen it under a public one, what others see is tested by AutoNAT, and until an address
//! is confirmed the node is a client of the DHT that announces nothing.

use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

/// Addresses that peers report, remembered at most.
const MAX_CANDIDATES: usize = 64;
/// Peers whose view of this node's address is remembered.
const MAX_VIEWS: usize = 1024;
/// Peers that must see this node at other addresses, and none at a confirmed one, before that counts as gone.
const MOVED: usize = 3;
/// After a first failure, how long other addresses may still turn out to be reachable.
const OTHERS: Duration = Duration::from_secs(30);
/// After this long without a verdict relays are asked: a node should not be found by nobody meanwhile.
const UNDECIDED: Duration = Duration::from_secs(10);
/// After this long without anybody who tests, the node counts as unreachable.
const NO_VERDICT: Duration = Duration::from_secs(60);

/// What the configuration says of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Reachability {
    /// Found out: in a network of private addresses taken for granted, else tested.
    #[default]
    Auto,
    /// Tested whatever the addresses are.
    Tested,
    /// Others reach this node: nothing is tested.
    Public,
    /// They do not: relays are used at once.
    Private,
}

/// What is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reach {
    /// A network of private addresses; reachable for all that is known.
    Local,
    /// Being tested.
    Unknown,
    /// Confirmed.
    Public,
    /// Not directly, but through a relay.
    Relayed,
    /// By nobody.
    Private,
}

impl Reach {
    /// Whether others may rely on this node in the DHT.
    #[must_use]
    pub fn serves(self) -> bool {
        matches!(self, Self::Local | Self::Public)
    }

    /// Whether it announces what it has.
    #[must_use]
    pub fn provides(self) -> bool {
        matches!(self, Self::Local | Self::Public | Self::Relayed)
    }

    /// Whether it needs a relay.
    #[must_use]
    pub fn needs_relay(self) -> bool {
        matches!(self, Self::Relayed | Self::Private)
    }

    /// Its name, as the API has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Unknown => "unknown",
            Self::Public => "public",
            Self::Relayed => "relayed",
            Self::Private => "private",
        }
    }

    /// What its operator should know or do; nothing when all is well.
    #[must_use]
    pub fn advice(self) -> Option<&'static str> {
        match self {
            Self::Local | Self::Public => None,
            Self::Unknown => {
                Some("whether others can reach this node is being tested; it announces nothing until then")
            }
            Self::Relayed => Some(
                "others cannot reach this node directly: bootstrap nodes relay to it (2 minutes and 128 KiB a connection) \
                 until a direct connection is made. Forward its port, TCP and UDP, and start it with --external ADDRESS to \
                 do better",
            ),
            Self::Private => Some(
                "others cannot reach this node: it is a client of the DHT and does not announce its content. Forward its \
                 port, TCP and UDP, and start it with --external ADDRESS, or join through a bootstrap node that relays",
            ),
        }
    }
}

/// The verdict and what follows from it, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReachInfo {
    /// The verdict.
    pub reach: Reach,
    /// The node's part in the DHT: `server` or `client`.
    pub dht: &'static str,
    /// Addresses that others were found to reach, or were given as such; those through relays too.
    pub addresses: Vec<Multiaddr>,
    /// Those through relays.
    pub relays: Vec<Multiaddr>,
    /// Announcements that wait.
    pub waiting: usize,
}

impl ReachInfo {
    /// The form shown by the API.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "standing": self.reach,
            "dht": self.dht,
            "provides": self.reach.provides(),
            "addresses": self.addresses,
            "relays": self.relays,
            "waiting": self.waiting,
            "advice": self.reach.advice(),
        })
    }
}

/// What others said of this node's addresses.
#[derive(Debug)]
pub(crate) struct Observations {
    config: Reachability,
    /// A public peer has seen this node at a public address.
    is_open: bool,
    candidates: BTreeMap<Multiaddr, Outcome>,
    /// Addresses through relays that reserved a place.
    relayed: BTreeSet<Multiaddr>,
    /// The public address at which each connected peer sees this node; those whom nobody sees at theirs have moved.
    views: BTreeMap<PeerId, IpAddr>,
    /// When there was first something to test.
    since: Option<Instant>,
    first_failure: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Untested,
    Confirmed,
    Failed,
}

impl Observations {
    pub(crate) fn new(config: Reachability) -> Self {
        Self {
            config,
            is_open: false,
            candidates: BTreeMap::new(),
            relayed: BTreeSet::new(),
            views: BTreeMap::new(),
            since: None,
            first_failure: None,
        }
    }

    /// A peer at `theirs` sees this node at `ours`.
    pub(crate) fn on_observed(&mut self, now: Instant, peer: PeerId, theirs: &Multiaddr, ours: &Multiaddr) {
        if is_public(theirs) && is_public(ours) {
            self.is_open = true;
            let known = self.views.len() < MAX_VIEWS || self.views.contains_key(&peer);
            if let Some(ip) = canonical_ip_of(ours).filter(|_| known) {
                self.views.insert(peer, ip);
            }
        }
        if self.is_tested() {
            self.since.get_or_insert(now);
        }
    }

    /// A peer is gone, and its view with it.
    pub(crate) fn on_gone(&mut self, peer: &PeerId) {
        self.views.remove(peer);
    }

    /// Confirmed addresses at which no connected peer sees this node any longer, while several see it at one other: its
    /// address has changed. One view of the old address is enough to keep it.
    pub(crate) fn moved(&self) -> Vec<Multiaddr> {
        let seen = |ip: &IpAddr| self.views.values().any(|view| view == ip);
        let has_moved_from = |ip: &IpAddr| {
            let same_kind = self.views.values().filter(|view| view.is_ipv4() == ip.is_ipv4());
            !seen(ip) && same_kind.count() >= MOVED
        };
        self.candidates
            .iter()
            .filter(|(_, outcome)| **outcome == Outcome::Confirmed)
            .filter(|(address, _)| canonical_ip_of(address).is_some_and(|ip| has_moved_from(&ip)))
            .map(|(address, _)| address.clone())
            .collect()
    }

    /// An address that may be tested.
    pub(crate) fn on_candidate(&mut self, address: Multiaddr) {
        if self.matters(&address) && self.candidates.len() < MAX_CANDIDATES {
            self.candidates.entry(address).or_insert(Outcome::Untested);
        }
    }

    /// A peer could not reach an address.
    pub(crate) fn on_failed(&mut self, now: Instant, address: &Multiaddr) {
        if self.set(address, Outcome::Failed) {
            self.first_failure.get_or_insert(now);
        }
    }

    /// An address leads here: a peer reached it, or a relay reserved it.
    pub(crate) fn on_confirmed(&mut self, address: Multiaddr) {
        if is_circuit(&address) {
            self.relayed.insert(address);
        } else {
            self.set(&address, Outcome::Confirmed);
        }
    }

    /// It leads here no longer.
    pub(crate) fn on_expired(&mut self, address: &Multiaddr) {
        self.relayed.remove(address);
        self.candidates.remove(address);
    }

    /// The addresses through relays.
    pub(crate) fn relayed(&self) -> impl Iterator<Item = &Multiaddr> {
        self.relayed.iter()
    }

    /// What could not be reached, where that is why nobody reaches the node directly.
    pub(crate) fn failed(&self, now: Instant) -> Vec<Multiaddr> {
        let is_asked = matches!(self.config, Reachability::Auto | Reachability::Tested);
        if !is_asked || !self.reach(now).needs_relay() {
            return Vec::new();
        }
        let failed = self.candidates.iter();
        let failed = failed.filter(|(_, outcome)| **outcome == Outcome::Failed);
        failed.map(|(address, _)| address.clone()).collect()
    }

    pub(crate) fn reach(&self, now: Instant) -> Reach {
        match self.config {
            Reachability::Public => return Reach::Public,
            Reachability::Private => return self.without_direct(),
            Reachability::Auto if !self.is_open => return Reach::Local,
            Reachability::Auto | Reachability::Tested => {}
        }
        let has = |wanted| self.candidates.values().any(|outcome| *outcome == wanted);
        let passed = |since: Option<Instant>, time| since.is_some_and(|at| now >= at + time);
        if has(Outcome::Confirmed) {
            Reach::Public
        } else if (has(Outcome::Failed) && (!has(Outcome::Untested) || passed(self.first_failure, OTHERS)))
            || passed(self.since, NO_VERDICT)
        {
            self.without_direct()
        } else if self.relayed.is_empty() {
            Reach::Unknown
        } else {
            Reach::Relayed
        }
    }

    /// Whether places at relays are to be asked for.
    pub(crate) fn wants_relay(&self, now: Instant) -> bool {
        let is_undecided = self.since.is_some_and(|at| now >= at + UNDECIDED);
        match self.reach(now) {
            Reach::Relayed | Reach::Private => true,
            Reach::Unknown => is_undecided,
            Reach::Local | Reach::Public => false,
        }
    }

    fn without_direct(&self) -> Reach {
        if self.relayed.is_empty() {
            Reach::Private
        } else {
            Reach::Relayed
        }
    }

    fn is_tested(&self) -> bool {
        self.is_open || self.config == Reachability::Tested
    }

    fn matters(&self, address: &Multiaddr) -> bool {
        !is_circuit(address) && (self.config == Reachability::Tested || is_public(address))
    }

    /// Notes an outcome; whether the address counts.
    fn set(&mut self, address: &Multiaddr, outcome: Outcome) -> bool {
        let matters = self.matters(address);
        if !matters {
            return false;
        }
        let has_place = self.candidates.len() < MAX_CANDIDATES || self.candidates.contains_key(address);
        if has_place || (outcome == Outcome::Confirmed && self.make_place()) {
            self.candidates.insert(address.clone(), outcome);
        }
        true
    }

    /// Peers invent addresses as they like: one that is not confirmed gives its place up.
    fn make_place(&mut self) -> bool {
        let mut others = self.candidates.iter();
        let other = others.find(|(_, outcome)| **outcome != Outcome::Confirmed);
        let other = other.map(|(address, _)| address.clone());
        other.is_some_and(|other| self.candidates.remove(&other).is_some())
    }
}

/// The IP address that an address begins with.
#[allow(clippy::wildcard_enum_match_arm)] // names have none
pub(crate) fn ip_of(address: &Multiaddr) -> Option<IpAddr> {
    match address.iter().next()? {
        Protocol::Ip4(ip) => Some(ip.into()),
        Protocol::Ip6(ip) => Some(ip.into()),
        _ => None,
    }
}

/// The same; IPv4 in IPv6 as IPv4.
fn canonical_ip_of(address: &Multiaddr) -> Option<IpAddr> {
    ip_of(address).map(|ip| ip.to_canonical())
}

/// Whether an address goes through a relay.
pub(crate) fn is_circuit(address: &Multiaddr) -> bool {
    address.iter().any(|part| part == Protocol::P2pCircuit)
}

/// Whether an address can be dialled from anywhere: a public IP address, or a name.
pub(crate) fn is_public(address: &Multiaddr) -> bool {
    let is_name = |part| {
        matches!(
            part,
            Protocol::Dns(_) | Protocol::Dns4(_) | Protocol::Dns6(_) | Protocol::Dnsaddr(_)
        )
    };
    match ip_of(address) {
        Some(ip) => is_public_ip(ip),
        None => address.iter().next().is_some_and(is_name),
    }
}

fn is_public_ip(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => ip.to_ipv4_mapped().map_or_else(|| is_public_v6(ip), is_public_v4),
    }
}

/// Not private (RFC 1918), shared (RFC 6598), for benchmarks (RFC 2544), for examples (RFC 5737), nor special otherwise.
fn is_public_v4(ip: Ipv4Addr) -> bool {
    let [a, b, ..] = ip.octets();
    let is_special = ip.is_private()
        || ip.is_loopback()
        || ip.is_link_local()
        || ip.is_unspecified()
        || ip.is_broadcast()
        || ip.is_documentation()
        || ip.is_multicast();
    let is_shared = a == 100 && (64..128).contains(&b);
    let is_benchmark = a == 198 && (18..20).contains(&b);
    !is_special && !is_shared && !is_benchmark && a != 0 && a < 240
}

/// A global unicast address (RFC 4291) that is not for examples (RFC 3849).
fn is_public_v6(ip: Ipv6Addr) -> bool {
    let [first, second, ..] = ip.segments();
    first & 0xe000 == 0x2000 && !(first == 0x2001 && second == 0x0db8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Multiaddr {
        text.parse().unwrap()
    }

    fn at(seconds: u64) -> Instant {
        static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        *START.get_or_init(Instant::now) + Duration::from_secs(seconds)
    }

    const SERVER: &str = "/ip4/9.9.9.9/tcp/4011";
    const OURS: &str = "/ip4/8.8.8.8/tcp/4011";

    fn open() -> Observations {
        let mut seen = Observations::new(Reachability::Auto);
        seen.on_observed(
            at(0),
            PeerId::random(),
            &address(SERVER),
            &address("/ip4/8.8.8.8/tcp/50123"),
        );
        seen.on_candidate(address(OURS));
        seen
    }

    #[test]
    fn a_laboratory_is_taken_for_granted() {
        let mut seen = Observations::new(Reachability::Auto);
        assert_eq!(seen.reach(at(0)), Reach::Local);
        for theirs in [
            "/ip4/127.0.0.1/tcp/1",
            "/ip4/10.77.0.1/tcp/1",
            "/ip6/fd00::1/tcp/1",
            "/ip4/192.168.1.9/tcp/1",
        ] {
            // A liar among them changes nothing.
            seen.on_observed(at(0), PeerId::random(), &address(theirs), &address(OURS));
            seen.on_candidate(address("/ip4/192.168.1.7/tcp/4011"));
            seen.on_failed(at(1), &address("/ip4/192.168.1.7/tcp/4011"));
        }
        assert_eq!(seen.reach(at(1000)), Reach::Local);
    }

    #[test]
    fn in_the_open_nothing_is_announced_before_an_address_is_confirmed() {
        let mut seen = open();
        assert_eq!(seen.reach(at(1)), Reach::Unknown);
        assert!(!Reach::Unknown.provides() && !Reach::Unknown.serves());
        seen.on_candidate(address("/ip4/192.168.1.7/tcp/4011"));
        seen.on_confirmed(address("/ip4/192.168.1.7/tcp/4011"));
        assert_eq!(
            seen.reach(at(2)),
            Reach::Unknown,
            "a neighbour's word is not the world's"
        );
        seen.on_confirmed(address(OURS));
        assert_eq!(seen.reach(at(3)), Reach::Public);
        seen.on_expired(&address(OURS));
        assert_eq!(seen.reach(at(4)), Reach::Unknown);
    }

    #[test]
    fn what_nobody_reaches_is_private_until_a_relay_has_room() {
        let mut seen = open();
        let quic = address("/ip4/8.8.8.8/udp/4011/quic-v1");
        seen.on_candidate(quic.clone());
        seen.on_failed(at(5), &address(OURS));
        assert_eq!(seen.reach(at(6)), Reach::Unknown, "the other may be reachable");
        assert_eq!(seen.reach(at(36)), Reach::Private);
        seen.on_failed(at(10), &quic);
        assert_eq!(seen.reach(at(11)), Reach::Private);
        let circuit = address("/ip4/9.9.9.9/tcp/4011/p2p-circuit");
        seen.on_confirmed(circuit.clone());
        assert_eq!(seen.reach(at(12)), Reach::Relayed);
        assert!(Reach::Relayed.provides() && !Reach::Relayed.serves());
        seen.on_expired(&circuit);
        assert_eq!(seen.reach(at(13)), Reach::Private);
        seen.on_confirmed(quic);
        assert_eq!(seen.reach(at(14)), Reach::Public);
    }

    /// They are what is tested again.
    #[test]
    fn what_failed_counts_while_nobody_reaches_the_node_and_the_operator_has_not_spoken() {
        let mut seen = open();
        let quic = address("/ip4/8.8.8.8/udp/4011/quic-v1");
        seen.on_failed(at(5), &address(OURS));
        seen.on_failed(at(5), &quic);
        seen.on_confirmed(address("/ip4/9.9.9.9/tcp/4011/p2p-circuit"));
        assert_eq!(seen.failed(at(6)), [address(OURS), quic.clone()]);
        seen.on_confirmed(quic.clone());
        assert_eq!(seen.failed(at(7)), []);
        seen.on_expired(&quic);
        assert_eq!(seen.failed(at(8)), [address(OURS)]);
        let mut seen = Observations::new(Reachability::Private);
        seen.on_failed(at(1), &address(OURS));
        assert_eq!((seen.reach(at(2)), seen.failed(at(2))), (Reach::Private, vec![]));
    }

    #[test]
    fn without_anybody_who_tests_a_node_does_not_claim_to_be_reachable() {
        let seen = open();
        assert_eq!(seen.reach(at(59)), Reach::Unknown);
        assert_eq!(seen.reach(at(60)), Reach::Private);
    }

    #[test]
    fn relays_are_asked_while_there_is_no_verdict() {
        let mut seen = open();
        assert!(!seen.wants_relay(at(9)));
        assert!(seen.wants_relay(at(10)));
        let circuit = address("/ip4/9.9.9.9/tcp/4011/p2p-circuit");
        seen.on_confirmed(circuit);
        assert_eq!(seen.reach(at(11)), Reach::Relayed);
        seen.on_confirmed(address(OURS));
        assert_eq!(seen.reach(at(12)), Reach::Public);
        assert!(!seen.wants_relay(at(12)));
    }

    #[test]
    fn the_operators_word_counts() {
        let mut seen = Observations::new(Reachability::Public);
        seen.on_failed(at(0), &address(OURS));
        assert_eq!(seen.reach(at(100)), Reach::Public);
        assert_eq!(
            Observations::new(Reachability::Private).reach(at(0)),
            Reach::Private
        );
        let mut seen = Observations::new(Reachability::Tested);
        let loopback = address("/ip4/127.0.0.1/tcp/1");
        seen.on_observed(at(0), PeerId::random(), &loopback, &loopback);
        seen.on_candidate(loopback.clone());
        assert_eq!(seen.reach(at(0)), Reach::Unknown);
        seen.on_failed(at(1), &loopback);
        assert_eq!(seen.reach(at(1)), Reach::Private);
    }

    #[test]
    fn foreign_reports_take_bounded_memory() {
        let mut seen = open();
        for port in 0..10_000 {
            let reported = address(&format!("/ip4/8.8.8.8/tcp/{port}"));
            seen.on_candidate(reported.clone());
            seen.on_failed(at(0), &reported);
        }
        assert!(seen.candidates.len() <= MAX_CANDIDATES);
    }

    #[test]
    fn invented_addresses_do_not_keep_a_confirmed_one_out() {
        let mut seen = open();
        for port in 1..=64 {
            seen.on_candidate(address(&format!("/ip4/8.8.8.8/tcp/{port}")));
        }
        seen.on_failed(at(1), &address("/ip4/8.8.8.8/tcp/1"));
        let real = address("/ip4/8.8.4.4/tcp/4011");
        seen.on_confirmed(real.clone());
        assert_eq!(seen.reach(at(2)), Reach::Public);
        assert!(seen.candidates.len() <= MAX_CANDIDATES);
        for port in 100..200 {
            seen.on_confirmed(address(&format!("/ip4/8.8.8.8/tcp/{port}")));
        }
        assert!(seen.candidates.len() <= MAX_CANDIDATES && seen.candidates.contains_key(&real));
    }

    #[test]
    fn a_confirmed_address_goes_when_the_nodes_address_has_changed() {
        let mut seen = Observations::new(Reachability::Auto);
        let peers: Vec<PeerId> = (0..5).map(|_| PeerId::random()).collect();
        let observed = |port| address(&format!("/ip4/8.8.8.8/tcp/{port}"));
        seen.on_observed(at(0), peers[0], &address(SERVER), &observed(50123));
        seen.on_confirmed(address(OURS));
        // Liars, as long as one sees it where it was.
        let moved = address("/ip4/8.8.4.4/tcp/50124");
        for peer in &peers[1..] {
            seen.on_observed(at(1), *peer, &address(SERVER), &moved);
        }
        assert!(seen.moved().is_empty());
        seen.on_gone(&peers[0]);
        assert_eq!(seen.moved(), [address(OURS)]);
        seen.on_gone(&peers[1]);
        seen.on_gone(&peers[2]);
        assert!(seen.moved().is_empty(), "two are not enough");
        // Seen over IPv6 it may be where it was over IPv4.
        for peer in &peers {
            seen.on_observed(at(2), *peer, &address(SERVER), &address("/ip6/2a00::1/tcp/1"));
        }
        assert!(seen.moved().is_empty());
    }

    #[test]
    fn public_addresses_are_told_from_others() {
        for text in [
            "/ip4/8.8.8.8/tcp/1",
            "/ip6/2a00::1/udp/1/quic-v1",
            "/dns4/example.org/tcp/1",
        ] {
            assert!(is_public(&address(text)), "{text}");
        }
        for text in [
            "/ip4/10.0.0.1/tcp/1",
            "/ip4/100.64.0.1/tcp/1",
            "/ip4/172.16.0.1/tcp/1",
            "/ip4/169.254.1.1/tcp/1",
            "/ip4/203.0.113.7/tcp/1",
            "/ip4/0.0.0.0/tcp/1",
            "/ip6/::1/tcp/1",
            "/ip6/fe80::1/tcp/1",
            "/ip6/::ffff:10.0.0.1/tcp/1",
            "/ip6/2001:db8::1/tcp/1",
            "/memory/1",
        ] {
            assert!(!is_public(&address(text)), "{text}");
        }
    }
}
