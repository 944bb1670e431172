//! The protocols a node speaks, put together.

use super::codec::BytesCodec;
use super::hello::MAX_HELLO;
use super::records::Records;
use super::retest::Tests;
use super::{Config, MAX_SYNC_REPLY, MAX_SYNC_REQUEST, Mdns, SYNC_DEADLINE, Topic};
use crate::content::bitswap;
use crate::role::{Role, Roles};
use gym_protocol::ids::Hash32;
use gym_protocol::message::MAX_ENVELOPE;
use libp2p::gossipsub::{
    self, MessageAuthenticity, MessageId, PeerScoreParams, PeerScoreThresholds, TopicScoreParams,
    ValidationMode,
};
use libp2p::identity::Keypair;
use libp2p::request_response::{self, ProtocolSupport};
use libp2p::swarm::NetworkBehaviour;
use libp2p::swarm::behaviour::toggle::Toggle;
use libp2p::{StreamProtocol, autonat, dcutr, identify, kad, mdns, ping, relay};
use libp2p_connection_limits::{self as connection_limits, ConnectionLimits};
use std::time::Duration;

pub(crate) const HELLO: StreamProtocol = StreamProtocol::new("/gym/hello/1");
const SYNC: StreamProtocol = StreamProtocol::new("/gym/sync/1");
const KADEMLIA: StreamProtocol = StreamProtocol::new("/ipfs/kad/1.0.0");
/// Program and version, as identify and hello tell them.
pub(crate) const AGENT: &str = concat!("hanzod/", env!("CARGO_PKG_VERSION"));

const HELLO_DEADLINE: Duration = Duration::from_secs(20);
/// Within this time the same gossip is delivered once; afterwards a repeated announcement reaches newcomers.
const GOSSIP_MEMORY: Duration = Duration::from_secs(30);

#[derive(NetworkBehaviour)]
pub(crate) struct Behaviour {
    pub(crate) limits: connection_limits::Behaviour,
    pub(crate) identify: identify::Behaviour,
    pub(crate) ping: ping::Behaviour,
    pub(crate) kad: kad::Behaviour<Records>,
    pub(crate) gossip: gossipsub::Behaviour,
    pub(crate) hello: request_response::Behaviour<BytesCodec>,
    pub(crate) sync: request_response::Behaviour<BytesCodec>,
    pub(crate) streams: libp2p_stream::Behaviour,
    pub(crate) content: bitswap::Behaviour,
    pub(crate) mdns: Toggle<mdns::tokio::Behaviour>,
    pub(crate) relay: Toggle<relay::Behaviour>,
    pub(crate) relayed: relay::client::Behaviour,
    pub(crate) hole_punch: dcutr::Behaviour,
    pub(crate) reach_client: Tests,
    pub(crate) reach_server: Toggle<autonat::v2::server::Behaviour>,
}

/// What a behaviour is made from.
pub(crate) struct Parts<'a> {
    pub(crate) config: &'a Config,
    pub(crate) roles: &'a Roles,
    pub(crate) genesis: Hash32,
}

pub(crate) type BuildError = Box<dyn std::error::Error + Send + Sync>;

impl Behaviour {
    pub(crate) fn new(
        key: &Keypair,
        parts: &Parts<'_>,
        content: bitswap::Behaviour,
        relayed: relay::client::Behaviour,
    ) -> Result<Self, BuildError> {
        let local = key.public().to_peer_id();
        let mdns = match parts.config.mdns {
            Mdns::On => Some(mdns::tokio::Behaviour::new(mdns::Config::default(), local)?),
            Mdns::Off => None,
        };
        let is_bootstrap = parts.roles.has(Role::Bootstrap);
        Ok(Self {
            limits: connection_limits::Behaviour::new(limits(parts.config)),
            identify: identify::Behaviour::new(
                identify::Config::new("ipfs/0.1.0".to_owned(), key.public())
                    .with_agent_version(AGENT.to_owned())
                    .with_push_listen_addr_updates(true),
            ),
            ping: ping::Behaviour::new(ping::Config::new().with_timeout(Duration::from_secs(30))),
            kad: kademlia(key),
            gossip: gossip(&parts.genesis)?,
            hello: bytes_protocol(HELLO, [MAX_HELLO; 2], HELLO_DEADLINE),
            sync: bytes_protocol(SYNC, [MAX_SYNC_REQUEST, MAX_SYNC_REPLY], SYNC_DEADLINE),
            streams: libp2p_stream::Behaviour::new(),
            content,
            mdns: mdns.into(),
            relay: is_bootstrap
                .then(|| relay::Behaviour::new(local, relay::Config::default()))
                .into(),
            relayed,
            hole_punch: dcutr::Behaviour::new(local),
            reach_client: Tests::default(),
            // Dialling what strangers name is for those who offered to help others join.
            reach_server: is_bootstrap.then(autonat::v2::server::Behaviour::default).into(),
        })
    }
}

/// Of so many connections, those that others may make: an attacker that fills all of these places leaves a quarter for
/// connections of our own making.
pub(crate) fn incoming_room(max_connections: u32) -> u32 {
    max_connections / 4 * 3
}

fn limits(config: &Config) -> ConnectionLimits {
    ConnectionLimits::default()
        .with_max_pending_incoming(Some(config.max_connections / 4))
        .with_max_pending_outgoing(Some(config.max_connections / 4))
        .with_max_established(Some(config.max_connections))
        .with_max_established_incoming(Some(incoming_room(config.max_connections)))
        .with_max_established_per_peer(Some(config.max_connections_per_peer))
}

fn bytes_protocol(
    name: StreamProtocol,
    [max_request, max_response]: [usize; 2],
    deadline: Duration,
) -> request_response::Behaviour<BytesCodec> {
    let config = request_response::Config::default()
        .with_request_timeout(deadline)
        .with_max_concurrent_streams(32);
    let codec = BytesCodec {
        max_request,
        max_response,
    };
    request_response::Behaviour::with_codec(codec, [(name, ProtocolSupport::Full)], config)
}

pub(super) fn kademlia(key: &Keypair) -> kad::Behaviour<Records> {
    let local = key.public().to_peer_id();
    let mut config = kad::Config::new(KADEMLIA);
    config
        .set_query_timeout(super::LOOKUP_DEADLINE)
        .set_periodic_bootstrap_interval(Some(Duration::from_secs(120)))
        // Values are not stored for others: the driver keeps provider records only.
        .set_record_filtering(kad::StoreInserts::FilterBoth);
    kad::Behaviour::with_config(local, Records::new(local), config)
}

fn gossip(genesis: &Hash32) -> Result<gossipsub::Behaviour, BuildError> {
    let config = gossipsub::ConfigBuilder::default()
        .validate_messages()
        // What is gossiped carries its author's signatures; a second author beside them would only let someone else
        // publish the same content under another name first.
        .validation_mode(ValidationMode::Anonymous)
        .message_id_fn(|message| MessageId::from(content_id(message)))
        .max_transmit_size(MAX_ENVELOPE + 64 * 1024)
        .duplicate_cache_time(GOSSIP_MEMORY)
        .history_length(10)
        .heartbeat_interval(Duration::from_millis(700))
        .build()?;
    let mut gossip = gossipsub::Behaviour::new(MessageAuthenticity::Anonymous, config)?;
    gossip.with_peer_score(scores(genesis), PeerScoreThresholds::default())?;
    for topic in Topic::ALL {
        gossip.subscribe(&topic.full(genesis))?;
    }
    Ok(gossip)
}

fn content_id(message: &gossipsub::Message) -> Vec<u8> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(message.topic.as_str().as_bytes());
    hasher.update(&[0]);
    hasher.update(&message.data);
    hasher.finalize().as_bytes()[..20].to_vec()
}

/// Invalid messages cost a neighbour its place in the mesh. How much it delivers is not judged: rounds are bursts with
/// silence between them. Addresses are not either: a laboratory has one for all.
fn scores(genesis: &Hash32) -> PeerScoreParams {
    let topic = TopicScoreParams {
        time_in_mesh_quantum: Duration::from_secs(1),
        time_in_mesh_weight: 0.01,
        mesh_message_deliveries_weight: 0.0,
        mesh_failure_penalty_weight: 0.0,
        invalid_message_deliveries_weight: -2.0,
        invalid_message_deliveries_decay: 0.9,
        ..TopicScoreParams::default()
    };
    PeerScoreParams {
        topics: Topic::ALL
            .into_iter()
            .map(|t| (t.full(genesis).hash(), topic.clone()))
            .collect(),
        ip_colocation_factor_weight: 0.0,
        ..PeerScoreParams::default()
    }
}
