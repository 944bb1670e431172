//! Testing again whether others reach addresses at which they once did not: a router's mapping may come later.

use libp2p::autonat::v2::client::{Behaviour, Event};
use libp2p::core::Endpoint;
use libp2p::core::transport::PortUse;
use libp2p::swarm::behaviour::{ConnectionClosed, ConnectionEstablished, NewExternalAddrCandidate};
use libp2p::swarm::{
    ConnectionDenied, ConnectionId, FromSwarm, NetworkBehaviour, THandler, THandlerInEvent, THandlerOutEvent,
    ToSwarm,
};
use libp2p::{Multiaddr, PeerId};
use std::collections::HashSet;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// The pause before addresses that failed are tested again, which doubles up to the longest: each test costs a bootstrap
/// node a dial, and this node up to 100 kB.
const FIRST_PAUSE: Duration = Duration::from_secs(15 * 60);
const LONGEST_PAUSE: Duration = Duration::from_secs(2 * 3600);

/// When addresses that failed are tested again.
#[derive(Debug, Default)]
pub(crate) struct Retests {
    next: Option<(Instant, Duration)>,
}

impl Retests {
    /// Whether what has `failed` is to be tested again now. Without anything the pauses begin anew.
    pub(crate) fn is_due(&mut self, now: Instant, failed: &[Multiaddr]) -> bool {
        if failed.is_empty() {
            self.next = None;
            return false;
        }
        let (at, pause) = *self.next.get_or_insert((now + FIRST_PAUSE, FIRST_PAUSE));
        let is_due = now >= at;
        if is_due {
            let pause = (2 * pause).min(LONGEST_PAUSE);
            self.next = Some((now + pause, pause));
        }
        is_due
    }
}

/// AutoNAT's client. libp2p's asks for each address once, and keeps that to itself; so it is made anew for another round.
/// The new one knows no connection of before: whoever is to test must be dialled beside those.
#[derive(Default)]
pub(crate) struct Tests {
    client: Behaviour,
    /// Connections that it knows.
    known: HashSet<ConnectionId>,
}

impl Tests {
    /// Forgets what was tested, and asks for these by connections that are yet to be made.
    pub(crate) fn begin_anew(&mut self, addresses: &[Multiaddr]) {
        *self = Self::default();
        for addr in addresses {
            let candidate = NewExternalAddrCandidate { addr };
            self.client
                .on_swarm_event(FromSwarm::NewExternalAddrCandidate(candidate));
        }
    }
}

impl NetworkBehaviour for Tests {
    type ConnectionHandler = THandler<Behaviour>;
    type ToSwarm = Event;

    fn handle_established_inbound_connection(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        ours: &Multiaddr,
        theirs: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        self.client
            .handle_established_inbound_connection(id, peer, ours, theirs)
    }

    fn handle_established_outbound_connection(
        &mut self,
        id: ConnectionId,
        peer: PeerId,
        theirs: &Multiaddr,
        role: Endpoint,
        port: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        self.client
            .handle_established_outbound_connection(id, peer, theirs, role, port)
    }

    #[allow(clippy::wildcard_enum_match_arm)] // the client looks at the others itself
    fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
        match event {
            FromSwarm::ConnectionEstablished(ConnectionEstablished { connection_id, .. }) => {
                self.known.insert(connection_id);
            }
            FromSwarm::ConnectionClosed(ConnectionClosed { connection_id, .. })
                if !self.known.remove(&connection_id) =>
            {
                return;
            }
            _ => {}
        }
        self.client.on_swarm_event(event);
    }

    fn on_connection_handler_event(
        &mut self,
        peer: PeerId,
        connection: ConnectionId,
        event: THandlerOutEvent<Self>,
    ) {
        if self.known.contains(&connection) {
            self.client.on_connection_handler_event(peer, connection, event);
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ToSwarm<Event, THandlerInEvent<Self>>> {
        self.client.poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::StreamExt;
    use libp2p::swarm::SwarmEvent;
    use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
    use libp2p::{Swarm, SwarmBuilder, autonat, identify, noise, tcp, yamux};

    #[test]
    fn what_failed_is_tested_again_ever_more_rarely() {
        let start = Instant::now();
        let failed = ["/ip4/8.8.8.8/tcp/4011".parse().unwrap()];
        let mut retests = Retests::default();
        let mut due = Vec::new();
        for minute in 0..9 * 60 {
            if retests.is_due(start + Duration::from_secs(60 * minute), &failed) {
                due.push(minute);
            }
        }
        assert_eq!(due, [15, 45, 105, 225, 345, 465]);
        // Reached for a while, then not any more.
        let later = start + Duration::from_secs(9 * 3600);
        assert!(!retests.is_due(later, &[]));
        assert!(!retests.is_due(later, &failed));
        assert!(retests.is_due(later + FIRST_PAUSE, &failed));
    }

    #[derive(NetworkBehaviour)]
    #[behaviour(prelude = "libp2p::swarm::derive_prelude")]
    struct Client {
        identify: identify::Behaviour,
        tests: Tests,
    }

    #[derive(NetworkBehaviour)]
    #[behaviour(prelude = "libp2p::swarm::derive_prelude")]
    struct Server {
        identify: identify::Behaviour,
        tests: autonat::v2::server::Behaviour,
    }

    fn swarm<B: NetworkBehaviour>(behaviour: impl FnOnce(identify::Behaviour) -> B) -> Swarm<B> {
        SwarmBuilder::with_new_identity()
            .with_tokio()
            .with_tcp(tcp::Config::default(), noise::Config::new, yamux::Config::default)
            .unwrap()
            .with_behaviour(|key| {
                let config = identify::Config::new("test/1".to_owned(), key.public());
                behaviour(identify::Behaviour::new(config))
            })
            .unwrap()
            .with_swarm_config(|config| config.with_idle_connection_timeout(Duration::from_secs(600)))
            .build()
    }

    /// The next verdict about `address`.
    async fn verdict(client: &mut Swarm<Client>, address: &Multiaddr) -> Result<(), String> {
        let next = async {
            loop {
                if let SwarmEvent::Behaviour(ClientEvent::Tests(event)) = client.select_next_some().await
                    && event.tested_addr == *address
                {
                    return event.result.map_err(|error| error.to_string());
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(60), next)
            .await
            .expect("a verdict")
    }

    #[tokio::test]
    async fn an_address_that_failed_is_confirmed_when_it_is_reached_later() {
        let mut server = swarm(|identify| Server {
            identify,
            tests: autonat::v2::server::Behaviour::default(),
        });
        server.listen_on("/ip4/127.0.0.1/tcp/0".parse().unwrap()).unwrap();
        let at = loop {
            if let SwarmEvent::NewListenAddr { address, .. } = server.select_next_some().await {
                break address;
            }
        };
        let peer = *server.local_peer_id();
        tokio::spawn(async move {
            loop {
                server.select_next_some().await;
            }
        });
        let mut client = swarm(|identify| Client {
            identify,
            tests: Tests::default(),
        });
        let dial = |client: &mut Swarm<Client>| {
            let options = DialOpts::peer_id(peer)
                .condition(PeerCondition::Always)
                .addresses(vec![at.clone()])
                .allocate_new_port();
            client.dial(options.build()).unwrap();
        };
        // Nobody listens there yet.
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let address: Multiaddr = format!("/ip4/127.0.0.1/tcp/{port}").parse().unwrap();
        dial(&mut client);
        let one = std::slice::from_ref(&address);
        client.behaviour_mut().tests.begin_anew(one);
        assert!(verdict(&mut client, &address).await.is_err());

        client.listen_on(address.clone()).unwrap();
        // The connections of before are there still, and must not confuse the new round, nor when they close.
        client.behaviour_mut().tests.begin_anew(one);
        dial(&mut client);
        assert_eq!(verdict(&mut client, &address).await, Ok(()));
        assert!(client.external_addresses().any(|known| *known == address));
        client.disconnect_peer_id(peer).unwrap();
        while client.is_connected(&peer) {
            client.select_next_some().await;
        }
    }
}
