//! Gossip on its way out: in order, without holding up the job's task.

use super::edge;
use super::service::{Service, Work};
use crate::net::{NetError, NetHandle, Topic};
use gym_protocol::ids::CidBytes;
use gym_protocol::message::{Body, Verified};
use gym_protocol::{member, orchestrator};
use tokio::sync::mpsc;

/// Messages that wait to be gossiped.
const QUEUE: usize = 1_024;

/// The queue of outgoing gossip.
#[derive(Debug)]
pub(crate) struct Publisher {
    queue: mpsc::Sender<(Topic, Vec<u8>)>,
}

impl Publisher {
    pub(crate) fn new(net: NetHandle) -> Self {
        let (queue, outgoing) = mpsc::channel(QUEUE);
        tokio::spawn(carry(net, outgoing));
        Self { queue }
    }

    /// What does not fit the queue is not lost: peers ask for what they missed.
    pub(crate) fn send(&self, body: &Body, envelope: Vec<u8>) {
        let topic = match body {
            Body::Job(_) | Body::Status(_) => Topic::Jobs,
            Body::Roster(_)
            | Body::Manifest(_)
            | Body::Attest(_)
            | Body::Close(_)
            | Body::Report(_)
            | Body::Ready(_)
            | Body::Commitment(_)
            | Body::Receipt(_)
            | Body::Cutoff(_)
            | Body::Reveal(_)
            | Body::Complaint(_)
            | Body::Links(_)
            | Body::Proof(_)
            | Body::Holding(_) => Topic::Rounds,
        };
        if self.queue.try_send((topic, envelope)).is_err() {
            tracing::warn!("gossip queue full: {:?} left to synchronisation", body.kind());
        }
    }
}

async fn carry(net: NetHandle, mut outgoing: mpsc::Receiver<(Topic, Vec<u8>)>) {
    while let Some((topic, bytes)) = outgoing.recv().await {
        match net.publish(topic, bytes).await {
            Ok(()) => {}
            // Peers that come later ask for what they missed.
            Err(NetError::NoPeers(topic)) => tracing::debug!("nobody listens on {topic} yet"),
            Err(NetError::Stopped) => return,
            Err(e) => tracing::warn!("{e}"),
        }
    }
}

impl Service {
    /// Signs a body, gossips it, and hands it to this node's own machines as if it had come in.
    pub(crate) fn publish(&mut self, body: Body, nested: Vec<Verified>) {
        match edge::sign(&self.tools.identity, body, nested) {
            Ok(message) => {
                self.tools.publisher.send(&message.body, message.envelope.clone());
                self.accept(message);
            }
            Err(e) => tracing::error!("a message of this node's own cannot be encoded: {e}"),
        }
    }

    /// A message that is new to this node goes to the job's log and its machines.
    pub(crate) fn accept(&mut self, message: Verified) {
        let id = message.job.clone();
        if let Body::Job(body) = &message.body {
            self.on_job(&id, body, &message);
        }
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if !job.log.add(&message) {
            return;
        }
        self.watch(&id, &message);
        self.hand_to_machines(&id, message);
    }

    fn hand_to_machines(&mut self, id: &CidBytes, message: Verified) {
        let Some(job) = self.jobs.get(id) else { return };
        if job.orchestrator.is_some() {
            let event = orchestrator::Event::Message(Box::new(message.clone()));
            self.work
                .push_back(Work::Orchestrator(id.clone(), Box::new(event)));
        }
        if job.member.is_some() {
            let event = member::Event::Message(Box::new(message));
            self.work.push_back(Work::Member(id.clone(), Box::new(event)));
        }
    }
}
