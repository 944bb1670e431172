//! Follows a job on several nodes at once: a thread each asks for events and hands them to the one who watches.

use crate::event::Event;
use crate::netlab::Space;
use crate::node::NodeProcess;
use anyhow::Context;
use hanzod::api::{Client, ClientError};
use hanzod::home::Home;
use serde::Deserialize;
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Events on their way; a slow reader slows the threads.
const QUEUE: usize = 1024;
/// How long one request waits.
const WAIT_MS: u64 = 1_000;
/// Between two tries at a node that is gone or does not know the job yet.
const RETRY: Duration = Duration::from_millis(200);

/// An event and the node that told it.
#[derive(Clone, Debug)]
pub struct Told {
    /// The node's name.
    pub node: String,
    /// The event.
    pub event: Event,
    /// The event as it came.
    pub raw: Value,
}

/// Follows one job.
#[derive(Debug)]
pub struct Watch {
    events: Receiver<Told>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Watch {
    /// Follows `job` on `nodes` from its first event on.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start<'a>(job: &str, nodes: impl Iterator<Item = &'a NodeProcess>) -> anyhow::Result<Self> {
        let (sender, events) = sync_channel(QUEUE);
        let stop = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for node in nodes {
            let follower = Follower {
                node: node.name().to_owned(),
                home: node.home().clone(),
                space: node.space().cloned(),
                job: job.to_owned(),
                sender: sender.clone(),
                stop: Arc::clone(&stop),
            };
            let name = format!("watch {}", node.name());
            threads.push(
                std::thread::Builder::new()
                    .name(name)
                    .spawn(|| follower.run())
                    .context("watching a node")?,
            );
        }
        Ok(Self {
            events,
            stop,
            threads,
        })
    }

    /// The next event, waiting up to `wait`; `None` when there is none.
    #[must_use]
    pub fn next(&self, wait: Duration) -> Option<Told> {
        match self.events.recv_timeout(wait) {
            Ok(told) => Some(told),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                std::thread::sleep(wait);
                None
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // A thread may wait for room in the queue.
        while self.threads.iter().any(|t| !t.is_finished()) {
            let _ = self.events.recv_timeout(Duration::from_millis(10));
        }
        self.threads.drain(..).for_each(|t| drop(t.join()));
    }
}

struct Follower {
    node: String,
    home: Home,
    space: Option<Space>,
    job: String,
    sender: SyncSender<Told>,
    stop: Arc<AtomicBool>,
}

#[derive(Deserialize)]
struct Batch {
    events: Vec<Value>,
    next: u64,
    ended: bool,
}

impl Follower {
    fn run(self) {
        // A namespace that is gone has no node to ask.
        if self.space.as_ref().is_some_and(|space| space.enter().is_err()) {
            return;
        }
        let mut after = 0;
        while !self.stop.load(Ordering::Relaxed) {
            match self.ask(after) {
                Ok(batch) => {
                    // A node that was started again counts from 0.
                    after = batch.next;
                    let ended = batch.ended;
                    if !self.tell(batch.events) || ended {
                        return;
                    }
                }
                Err(ClientError::NotRunning(_)) => {
                    after = 0;
                    std::thread::sleep(RETRY);
                }
                Err(_) => std::thread::sleep(RETRY),
            }
        }
    }

    fn ask(&self, after: u64) -> Result<Batch, ClientError> {
        let path = format!("/v1/jobs/{}/events?after={after}&wait_ms={WAIT_MS}", self.job);
        let answer = Client::connect(&self.home)?.get(&path)?;
        let nothing = Batch {
            events: Vec::new(),
            next: after,
            ended: false,
        };
        Ok(serde_json::from_value(answer).unwrap_or(nothing))
    }

    /// `false` when nobody listens any more.
    fn tell(&self, events: Vec<Value>) -> bool {
        events
            .into_iter()
            .all(|raw| match serde_json::from_value(raw.clone()) {
                Ok(event) => self
                    .sender
                    .send(Told {
                        node: self.node.clone(),
                        event,
                        raw,
                    })
                    .is_ok(),
                Err(_) => true,
            })
    }
}
