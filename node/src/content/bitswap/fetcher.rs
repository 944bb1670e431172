//! How the rest of the node asks for blocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cid::Cid;
use libp2p::PeerId;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::{Announcement, MAX_WANTS};
use crate::content::store::StoreError;

/// How long the swarm's owner may take to say what becomes of an announcement.
const PROVIDE_DEADLINE: Duration = Duration::from_secs(10);
/// Commands that may wait for the swarm.
pub(super) const COMMANDS: usize = 256;

/// Names one fetch inside this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionId(pub(super) u64);

/// A block to be fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// The block.
    pub cid: Cid,
    /// Its bytes as somebody declared them, who need not be right: how much may be asked for at once goes by it.
    pub size: Option<u64>,
}

impl From<Cid> for Wanted {
    fn from(cid: Cid) -> Self {
        Self { cid, size: None }
    }
}

/// What became of a want.
#[derive(Debug, Clone)]
pub enum Arrival {
    /// The block is verified and in the store.
    Stored {
        /// The block.
        cid: Cid,
        /// Its bytes.
        size: u64,
    },
    /// The block came and could not be stored.
    Failed {
        /// The block.
        cid: Cid,
        /// Why.
        error: Arc<StoreError>,
    },
}

/// The network side of this node has ended or never ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this node is not connected to a network; start it with `hanzod run` and try again")]
pub struct Offline;

/// To the behaviour.
#[derive(Debug)]
pub(super) enum Command {
    Open {
        session: SessionId,
        providers: Vec<PeerId>,
        arrivals: mpsc::Sender<Arrival>,
    },
    Want {
        session: SessionId,
        wanted: Vec<Wanted>,
    },
    Providers {
        session: SessionId,
        peers: Vec<PeerId>,
    },
    Close {
        session: SessionId,
    },
    Provide {
        cid: Cid,
        done: oneshot::Sender<Announcement>,
    },
    StopProviding {
        cid: Cid,
    },
    Find {
        cid: Cid,
        found: oneshot::Sender<Vec<PeerId>>,
    },
    /// Blocks were added that peers may be waiting for.
    Added,
}

/// A handle to the behaviour, for as many tasks as like.
#[derive(Debug, Clone)]
pub struct Fetcher {
    commands: mpsc::Sender<Command>,
    next: Arc<AtomicU64>,
}

impl Fetcher {
    pub(super) fn new() -> (Self, mpsc::Receiver<Command>) {
        let (commands, receiver) = mpsc::channel(COMMANDS);
        (
            Self {
                commands,
                next: Arc::new(AtomicU64::new(1)),
            },
            receiver,
        )
    }

    /// Begins a fetch from `providers`; they are dialled if need be, and more are looked for when they do not do.
    ///
    /// # Errors
    /// [`Offline`].
    pub async fn open(&self, providers: Vec<PeerId>) -> Result<Session, Offline> {
        let session = SessionId(self.next.fetch_add(1, Ordering::Relaxed));
        let (sender, arrivals) = mpsc::channel(MAX_WANTS);
        self.send(Command::Open {
            session,
            providers,
            arrivals: sender,
        })
        .await?;
        Ok(Session {
            session,
            fetcher: self.clone(),
            arrivals,
        })
    }

    /// Has `cid` announced to the network; says whether that has begun.
    ///
    /// # Errors
    /// [`Offline`].
    pub async fn provide(&self, cid: Cid) -> Result<Announcement, Offline> {
        let (done, answer) = oneshot::channel();
        self.send(Command::Provide { cid, done }).await?;
        match timeout(PROVIDE_DEADLINE, answer).await {
            Ok(answer) => answer.map_err(|_| Offline),
            Err(_) => Ok(Announcement::Refused {
                reason: format!("the network did not answer within {PROVIDE_DEADLINE:?}; try again"),
            }),
        }
    }

    /// Has `cid` announced no longer.
    ///
    /// # Errors
    /// [`Offline`].
    pub async fn stop_providing(&self, cid: Cid) -> Result<(), Offline> {
        self.send(Command::StopProviding { cid }).await
    }

    /// Who has said on the network that they have `cid`, this node aside.
    ///
    /// # Errors
    /// [`Offline`].
    pub async fn find(&self, cid: Cid) -> Result<Vec<PeerId>, Offline> {
        let (found, answer) = oneshot::channel();
        self.send(Command::Find { cid, found }).await?;
        answer.await.map_err(|_| Offline)
    }

    /// Says that blocks were added to the store, so that peers who asked for them in vain are answered now.
    pub fn added(&self) {
        // A hint: when the queue is full, or nobody listens, peers ask again by themselves.
        let _ = self.commands.try_send(Command::Added);
    }

    async fn send(&self, command: Command) -> Result<(), Offline> {
        self.commands.send(command).await.map_err(|_| Offline)
    }
}

/// One fetch; dropping it cancels what it still wants.
#[derive(Debug)]
pub struct Session {
    session: SessionId,
    fetcher: Fetcher,
    arrivals: mpsc::Receiver<Arrival>,
}

impl Session {
    /// Wants blocks. At most [`MAX_WANTS`] may be wanted and not yet taken from [`Session::next`].
    ///
    /// # Errors
    /// [`Offline`].
    pub async fn want(&self, wanted: Vec<Wanted>) -> Result<(), Offline> {
        self.fetcher
            .send(Command::Want {
                session: self.session,
                wanted,
            })
            .await
    }

    /// Adds providers.
    ///
    /// # Errors
    /// [`Offline`].
    pub async fn providers(&self, peers: Vec<PeerId>) -> Result<(), Offline> {
        self.fetcher
            .send(Command::Providers {
                session: self.session,
                peers,
            })
            .await
    }

    /// The next block that arrived.
    ///
    /// # Errors
    /// [`Offline`].
    pub async fn next(&mut self) -> Result<Arrival, Offline> {
        self.arrivals.recv().await.ok_or(Offline)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // When the queue is full the behaviour notices by the closed channel, a second later.
        let _ = self.fetcher.commands.try_send(Command::Close {
            session: self.session,
        });
    }
}
