//! Puts a node together: identity, network, links, API, and the part that runs jobs; and takes it apart again.

use crate::announce;
use crate::api::{self, JobsApi, Server};
use crate::config::Config;
use crate::connected::Connected;
use crate::content::store::StoreError;
use crate::content::unixfs::Layout;
use crate::content::{self, Content, bitswap};
use crate::files::{self, FileError};
use crate::home::{Home, HomeError, HomeLock};
use crate::identity::{KeyError, NodeIdentity};
use crate::job;
use crate::link::LinkPool;
use crate::metrics::Metrics;
use crate::net::{self, NetEvent, NetHandle};
use crate::publish;
use gym_protocol::cbor::CborError;
use gym_protocol::genesis::{Constants, Genesis, GenesisError, MAX_FILE};
use gym_protocol::ids::Hash32;
use libp2p::Multiaddr;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How long tasks may take to end once the node stops.
const SHUTDOWN_DEADLINE: Duration = Duration::from_secs(10);

/// Outcomes of publications that wait for the jobs' task.
const PUBLISHED: usize = 16;

/// Why a node does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The home directory cannot be used.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The genesis file is refused.
    #[error("{}: {source}", path.display())]
    Genesis {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: Box<GenesisError>,
    },
    /// The genesis file's bootstrap address is none.
    #[error("{}: bootstrap address {address} is not understood: {source}", path.display())]
    Bootstrap {
        /// The file.
        path: PathBuf,
        /// The address.
        address: String,
        /// What is wrong with it.
        source: libp2p::multiaddr::Error,
    },
    /// The genesis cannot be hashed.
    #[error(transparent)]
    Hash(#[from] CborError),
    /// Keys or record cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The network does not start.
    #[error(transparent)]
    Net(#[from] net::StartError),
    /// The API does not start.
    #[error(transparent)]
    Api(#[from] api::ServerError),
    /// The content store cannot be opened.
    #[error(transparent)]
    Content(#[from] StoreError),
    /// The device cannot be had.
    #[error(transparent)]
    Device(#[from] gym_training::device::DeviceError),
    /// The trainer thread does not start.
    #[error("the trainer thread does not start: {0}")]
    Trainer(std::io::Error),
    /// The link protocol is registered twice.
    #[error("the sealed-link protocol is already registered")]
    Links,
}

/// A checked genesis file and its hash.
#[derive(Clone, Debug)]
pub struct Network {
    /// What the file says.
    pub genesis: Genesis,
    /// Its hash, the network's name for machines.
    pub hash: Hash32,
}

impl Network {
    /// Reads and checks a genesis file.
    ///
    /// # Errors
    /// The key that is wrong, or that the file cannot be read.
    pub fn load(path: &Path) -> Result<Self, StartError> {
        let text = files::read_text(path, MAX_FILE as u64)?;
        let genesis = Genesis::parse(&text).map_err(|source| StartError::Genesis {
            path: path.to_path_buf(),
            source: Box::new(source),
        })?;
        let hash = genesis.hash()?;
        Ok(Self { genesis, hash })
    }

    fn bootstrap(&self, path: &Path) -> Result<Vec<Multiaddr>, StartError> {
        let parse = |address: &String| {
            address.parse().map_err(|source| StartError::Bootstrap {
                path: path.to_path_buf(),
                address: address.clone(),
                source,
            })
        };
        self.genesis.bootstrap.iter().map(parse).collect()
    }
}

/// What the part of a node that runs jobs works with.
#[derive(Debug)]
pub struct Parts {
    /// The home directory.
    pub home: Home,
    /// The configuration.
    pub config: Config,
    /// The network's genesis.
    pub network: Network,
    /// Who this node is.
    pub identity: Arc<NodeIdentity>,
    /// Talks to the swarm.
    pub net: NetHandle,
    /// What happens on the network, sealed links included.
    pub events: mpsc::Receiver<NetEvent>,
    /// Sends over sealed links.
    pub links: LinkPool,
    /// The content store.
    pub content: Content,
    /// The counters.
    pub metrics: Metrics,
    /// Cancelled when the node stops.
    pub stop: CancellationToken,
}

/// What the API serves besides the network.
#[derive(Clone, Default)]
pub struct Services {
    /// Jobs.
    pub jobs: Option<Arc<dyn JobsApi>>,
    /// Content.
    pub content: Option<Content>,
}

impl std::fmt::Debug for Services {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Services")
            .field("jobs", &self.jobs.is_some())
            .field("content", &self.content.is_some())
            .finish()
    }
}

/// A running node.
#[derive(Debug)]
pub struct Node {
    identity: Arc<NodeIdentity>,
    net: NetHandle,
    api: SocketAddr,
    stop: CancellationToken,
    tasks: JoinSet<()>,
    _lock: HomeLock,
}

impl Node {
    /// Starts everything: the node is reachable when this returns.
    ///
    /// # Errors
    /// What is wrong, where, and what to do.
    pub async fn start(home: Home, config: Config) -> Result<Self, StartError> {
        home.require_initialised()?;
        let lock = home.lock()?;
        let network = Network::load(&home.genesis())?;
        let identity = Arc::new(NodeIdentity::open(&home, network.hash)?);
        let server = Server::bind(&config.api, &home).await?;
        let mut tasks = JoinSet::new();
        let parts = start_network(home, config, network, identity, &mut tasks)?;
        let (identity, net, stop) = (Arc::clone(&parts.identity), parts.net.clone(), parts.stop.clone());
        let mut state = api_state(&parts);
        let services = start_services(parts, &mut tasks)?;
        state.jobs = services.jobs;
        state.content = services.content;
        let api = server.address();
        tasks.spawn(server.run(state, stop.clone()));
        Ok(Self {
            identity,
            net,
            api,
            stop,
            tasks,
            _lock: lock,
        })
    }

    /// Who this node is.
    #[must_use]
    pub fn identity(&self) -> &NodeIdentity {
        &self.identity
    }

    /// Talks to the swarm.
    #[must_use]
    pub fn net(&self) -> &NetHandle {
        &self.net
    }

    /// Where the API listens.
    #[must_use]
    pub fn api(&self) -> SocketAddr {
        self.api
    }

    /// Stops the node when cancelled.
    #[must_use]
    pub fn stopper(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// Runs until SIGINT, SIGTERM or a request to stop, then ends every task.
    pub async fn run_until_shutdown(mut self) {
        tokio::select! {
            () = stop_signal() => tracing::info!("stopping"),
            () = self.stop.cancelled() => tracing::info!("stopping, as asked"),
        }
        self.stop.cancel();
        let ended = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(SHUTDOWN_DEADLINE, ended).await.is_err() {
            tracing::warn!("some tasks did not end within {SHUTDOWN_DEADLINE:?} and are cut off");
            self.tasks.shutdown().await;
        }
        tracing::info!("stopped");
    }
}

fn start_network(
    home: Home,
    config: Config,
    network: Network,
    identity: Arc<NodeIdentity>,
    tasks: &mut JoinSet<()>,
) -> Result<Parts, StartError> {
    let stop = CancellationToken::new();
    let (content, exchange) = content::open(content_config(&home, &config))?;
    let mut bootstrap = config.network.bootstrap.clone();
    bootstrap.extend(network.bootstrap(&home.genesis())?);
    let setup = net::Setup {
        config: config.network.clone(),
        roles: config.roles.clone(),
        identity,
        metrics: Metrics::default(),
        bootstrap,
        content: exchange,
    };
    let connected = Connected::start(setup, link_config(&network.genesis.constants), &stop, tasks)?;
    Ok(Parts {
        home,
        config,
        network,
        identity: connected.identity,
        net: connected.net,
        events: connected.events,
        links: connected.links,
        content,
        metrics: connected.metrics,
        stop,
    })
}

fn content_config(home: &Home, config: &Config) -> content::Config {
    content::Config {
        root: home.content(),
        limit: config.content.limit_mib.saturating_mul(1 << 20),
        layout: Layout::default(),
        bitswap: bitswap::Config::default(),
    }
}

/// Both ends of a link take its limits from the genesis they share.
fn link_config(constants: &Constants) -> gym_crypto::link::Config {
    gym_crypto::link::Config {
        epoch_messages: constants.ratchet_messages,
        epoch_ms: constants.ratchet_seconds.saturating_mul(1000),
        grace_ms: constants.old_key_seconds.saturating_mul(1000),
        max_plaintext: crate::link::MAX_PAYLOAD,
    }
}

fn api_state(parts: &Parts) -> api::State {
    api::State {
        identity: Arc::clone(&parts.identity),
        roles: parts.config.roles.clone(),
        net: parts.net.clone(),
        metrics: parts.metrics.clone(),
        jobs: None,
        content: None,
        started: Instant::now(),
        stop: parts.stop.clone(),
    }
}

/// Starts what runs on the network: jobs and content.
fn start_services(parts: Parts, tasks: &mut JoinSet<()>) -> Result<Services, StartError> {
    let chosen = gym_training::device::resolve(parts.config.training.device)?;
    tracing::info!("device: {}", chosen.why);
    let content = parts.content.clone();
    tasks.spawn(announce::run(
        content.clone(),
        parts.net.clone(),
        parts.stop.clone(),
    ));
    let faults = parts.config.faults.clone();
    let (outcomes, published) = mpsc::channel(PUBLISHED);
    let scratch = parts.home.jobs().join("publishing");
    let (publication, publishing) =
        publish::new(parts.config.publish.clone(), content.clone(), scratch, outcomes);
    tasks.spawn(publishing.run(parts.stop.clone()));
    let publication = (publication, published);
    let (jobs, service) = job::start(parts, chosen, faults, publication).map_err(StartError::Trainer)?;
    tasks.spawn(service);
    Ok(Services {
        jobs: Some(jobs),
        content: Some(content),
    })
}

async fn stop_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut interrupt), Ok(mut terminate)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        tracing::warn!("signals cannot be caught: stop this node with `hanzod stop`");
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}
