//! A node's network and sealed links: what jobs run on, and what the ring's benchmark runs on without them.

use crate::identity::NodeIdentity;
use crate::link::{Acceptor, LinkContext, LinkPool, Members, Rates};
use crate::metrics::Metrics;
use crate::net::{self, Driver, NetEvent, NetHandle};
use crate::runtime::StartError;
use gym_protocol::buffers::Buffers;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// The limits of links under the specification's defaults.
#[must_use]
pub fn default_limits() -> gym_crypto::link::Config {
    gym_crypto::link::Config {
        max_plaintext: crate::link::MAX_PAYLOAD,
        ..gym_crypto::link::Config::default()
    }
}

/// A node that is on the network and accepts links.
#[derive(Debug)]
pub struct Connected {
    /// Who this node is.
    pub identity: Arc<NodeIdentity>,
    /// Talks to the swarm.
    pub net: NetHandle,
    /// What happens on the network, sealed links included.
    pub events: mpsc::Receiver<NetEvent>,
    /// Sends over sealed links.
    pub links: LinkPool,
    /// The counters.
    pub metrics: Metrics,
}

impl Connected {
    /// Starts to listen, to join, and to accept links, in tasks that end with `stop`.
    ///
    /// # Errors
    /// When a port is in use or a protocol cannot be set up.
    pub fn start(
        setup: net::Setup,
        limits: gym_crypto::link::Config,
        stop: &CancellationToken,
        tasks: &mut JoinSet<()>,
    ) -> Result<Self, StartError> {
        let (identity, metrics) = (Arc::clone(&setup.identity), setup.metrics.clone());
        let direct = setup.config.direct_sockets;
        let started = Driver::start(setup)?;
        let context = LinkContext {
            identity: Arc::clone(&identity),
            net: started.handle.clone(),
            streams: started.streams,
            doors: started.doors,
            direct,
            events: started.event_sender,
            metrics: metrics.clone(),
            stop: stop.clone(),
            config: limits,
            epoch: Instant::now(),
            buffers: Buffers::default(),
            rates: Rates::default(),
            members: Members::default(),
        };
        let acceptor = Acceptor::new(context.clone()).map_err(|_| StartError::Links)?;
        tasks.spawn(started.driver.run(stop.clone()));
        tasks.spawn(acceptor.run());
        Ok(Self {
            identity,
            net: started.handle,
            events: started.events,
            links: LinkPool::new(context),
            metrics,
        })
    }
}
