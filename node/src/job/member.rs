//! Carries out what a member's machine asks for.

use super::commit::{self, Draft, Values, salt};
use super::done::{Done, Purpose};
use super::faults::FaultKind;
use super::hops::NodeHopKeys;
use super::keep::pin_name;
use super::replica::Replica;
use super::service::Service;
use super::state::{ModelState, Names, Origin};
use super::trainer::{Task, TrainTask};
use crate::content::{Content, Pin};
use crate::link::{Damage, Rates};
use crate::net::{PeerInfo, Standing};
use gym_protocol::ids::{CidBytes, Hash32, PeerBytes, Round};
use gym_protocol::member::{Action, Config, Event, Held, Member};
use gym_protocol::message::{Body, Link, LinkHeader, Phase};
use gym_protocol::quant::SEGMENT;
use gym_protocol::ring::{Hop, Place};
use serde_json::json;
use std::path::PathBuf;
use std::sync::Arc;

impl Service {
    /// The model is loaded: this node can take part.
    pub(crate) fn begin_member(&mut self, id: &CidBytes, zero: Held) {
        let (me, record) = (self.tools.me(), self.tools.identity.record_hash());
        let Some(job) = self.jobs.get_mut(id) else { return };
        if job.member.is_none() {
            job.member = Some(Member::new(Config {
                me,
                record,
                genesis: job.names.genesis,
                job: id.clone(),
                orchestrator: job.body.orchestrator.clone(),
                spec: (*job.body.spec).clone(),
                segment: SEGMENT,
                buffers: self.tools.outbox.buffers(),
                keys: Arc::new(NodeHopKeys(self.tools.identity.clone())),
                sums: self.tools.faults.sums(),
            }));
        }
        self.tell_member(id, Event::Synced(zero));
        self.replay_log(id);
    }

    /// What was said before the machine was there.
    fn replay_log(&mut self, id: &CidBytes) {
        let Some(job) = self.jobs.get(id) else { return };
        let none = std::collections::BTreeSet::new();
        for envelope in job.log.lacking(&none, usize::MAX) {
            if let Ok(message) = gym_protocol::message::Verified::open(&envelope, &self.tools.keys) {
                self.tell_member(id, Event::Message(Box::new(message)));
            }
        }
    }

    pub(crate) fn member_action(&mut self, id: &CidBytes, action: Action) {
        match action {
            Action::Publish(body) => {
                self.die_before_saying(&body);
                self.publish(body, Vec::new());
            }
            Action::Fetch(held) => self.fetch_state(id, held, Purpose::Member),
            Action::Train {
                round,
                roster,
                rank,
                members,
            } => self.train(id, round, roster, rank, members),
            Action::AbandonTraining => {
                if let Some(job) = self.jobs.get_mut(id) {
                    job.abandon_training();
                }
            }
            Action::BuildCommit {
                round,
                roster,
                parent,
                delta,
            } => {
                self.measure_links(id);
                self.build_commit(id, round, roster, parent, delta);
            }
            Action::SendReplica {
                to,
                round,
                roster,
                cid,
                salt,
            } => {
                self.send_replica(id, &to, round, roster, cid, salt);
            }
            Action::SendSegment { to, header, payload } => self.send_segment(&to, header, payload),
            Action::KeepHops {
                round,
                manifest,
                hops,
            } => self.keep_hops(id, round, manifest, hops),
            Action::Judge(proof) => self.judge(id, *proof),
            Action::Apply {
                round,
                manifest,
                mean,
                ..
            } => self.apply(id, round, manifest, mean),
            Action::Promote(held) => self.promote(id, &held),
            Action::Penalise {
                peer,
                offence,
                detail,
            } => self.penalise(id, &peer, offence, &detail),
            Action::Notice(text) => self.notice(id, &text),
            Action::Finished(standing) => {
                tracing::info!(job = %id, "this worker's part is over: {standing:?}")
            }
        }
    }

    fn die_before_saying(&self, body: &Body) {
        if let Body::Reveal(reveal) = body
            && reveal.member == self.tools.me()
        {
            self.tools.faults.die(FaultKind::DieInReveal, reveal.round.0);
        }
        if let Body::Attest(attest) = body {
            self.tools.faults.die(FaultKind::DieInAttest, attest.round.0);
        }
    }

    /// The round trips of the last pings and the bandwidths of the last long sends, before the manifest of the round
    /// orders its ring.
    fn measure_links(&self, id: &CidBytes) {
        let (net, job) = (self.tools.net.clone(), id.clone());
        let rates = self.tools.outbox.rates();
        self.tools.spawn(async move {
            // A network that is stopping has no peers.
            let peers = net.peers().await.unwrap_or_default();
            let links = peers.into_iter().filter_map(|info| link(info, &rates)).collect();
            Done::Measured { job, links }
        });
    }

    pub(crate) fn notice(&mut self, id: &CidBytes, text: &str) {
        tracing::info!("{text}");
        if let Some(job) = self.jobs.get(id) {
            job.events.push("notice", json!({ "text": text }));
        }
    }

    fn train(&mut self, id: &CidBytes, round: Round, roster: Hash32, rank: u32, members: u32) {
        self.tools.faults.die(FaultKind::DieInTrain, round.0);
        if self.tools.faults.has(FaultKind::HangInTrain, round.0) {
            tracing::warn!(round = round.0, "fault: training hangs");
            return;
        }
        let Some(job) = self.jobs.get_mut(id) else { return };
        let Some(model) = job.model.clone() else { return };
        let task = TrainTask {
            job: id.clone(),
            round: round.0,
            roster,
            rank,
            members,
            adapter: Arc::new(model.adapter.clone()),
            bad_batch: self
                .tools
                .home
                .jobs()
                .join(id.to_string())
                .join("bad-batch.jsonl"),
            cancel: job.new_cancel(),
        };
        if !self.tools.trainer.ask(Task::Train(Box::new(task))) {
            let why = "the trainer thread is busy or has stopped".to_owned();
            self.tell_member(id, Event::TrainFailed { roster, why });
        }
    }

    fn build_commit(&mut self, id: &CidBytes, round: Round, roster: Hash32, parent: Hash32, delta: Vec<f32>) {
        self.tools.faults.die(FaultKind::DieInCommit, round.0);
        let nan = self.tools.faults.has(FaultKind::NanDelta, round.0);
        let values = if nan { Values::WithNan } else { Values::Checked };
        let Some(job) = self.jobs.get_mut(id) else { return };
        let Some(model) = job.model.clone() else { return };
        let (names, trained) = (job.names.clone(), std::mem::take(&mut job.trained));
        let (identity, content) = (self.tools.identity.clone(), self.tools.content.clone());
        let holds = job.holds.clone();
        let (sequence, job) = (self.tools.home.counter("delta-sequence"), id.clone());
        self.tools.spawn(async move {
            let made = tokio::task::spawn_blocking(move || {
                let layout = &model.adapter;
                let draft = Draft {
                    names: &names,
                    layout,
                    delta: &delta,
                    round,
                    parent,
                    trained: &trained,
                };
                commit::build(&draft, values, &identity, &sequence).map_err(|e| e.to_string())
            });
            let result = match made.await {
                Ok(Ok(files)) => {
                    let added = holds.add(&content, round.0, files.clone()).await;
                    added.map(|cid| (cid, files))
                }
                Ok(Err(why)) => Err(why),
                Err(e) => Err(format!("encoding the delta was cut off: {e}")),
            };
            Done::Commit { job, roster, result }
        });
    }

    pub(crate) fn on_commit(
        &mut self,
        id: &CidBytes,
        roster: Hash32,
        result: Result<(CidBytes, commit::Files), String>,
    ) {
        let Some(job) = self.jobs.get_mut(id) else { return };
        match result {
            Ok((cid, files)) => {
                job.commit = Some((cid.clone(), files));
                let round = job.rosters.get(&roster).map(|r| r.round.0);
                job.events
                    .push("commit", json!({ "round": round, "cid": cid.to_string() }));
                self.tell_member(
                    id,
                    Event::CommitBuilt {
                        roster,
                        cid,
                        salt: salt(),
                    },
                );
            }
            Err(why) => {
                let why = format!("the delta cannot be committed: {why}");
                self.tell_member(id, Event::TrainFailed { roster, why });
            }
        }
    }

    fn send_replica(
        &mut self,
        id: &CidBytes,
        to: &PeerBytes,
        round: Round,
        roster: Hash32,
        cid: CidBytes,
        salt: Hash32,
    ) {
        self.tools.faults.die(FaultKind::DieInReplicate, round.0);
        let Some((own, files)) = self.jobs.get(id).and_then(|j| j.commit.clone()) else {
            return;
        };
        if own != cid {
            return;
        }
        let replica = Replica {
            roster,
            salt,
            cid,
            files,
        };
        for (header, payload) in replica.frames(id, round.0, &self.tools.me(), to) {
            self.send_frame(to, header, payload, Damage::None);
        }
    }

    fn send_segment(&mut self, to: &PeerBytes, mut header: LinkHeader, payload: Vec<u8>) {
        let (faults, round) = (&self.tools.faults, header.round);
        faults.die(FaultKind::DieInReduce, round);
        if let Some(phase) = Phase::from_number(header.phase) {
            faults.die(FaultKind::DieAt(phase, header.step), round);
        }
        if faults.has(FaultKind::MuteInReduce, round) {
            return;
        }
        if faults.has(FaultKind::WrongRound, round) {
            header.round += 1;
        }
        let damage = if faults.has(FaultKind::Truncated, round) {
            Damage::Truncated
        } else if faults.has(FaultKind::BadTag, round) {
            Damage::BadTag
        } else {
            Damage::None
        };
        self.send_frame(to, header, payload, damage);
    }

    fn send_frame(&mut self, to: &PeerBytes, header: LinkHeader, payload: Vec<u8>, damage: Damage) {
        if !self.tools.outbox.send(to, header, payload, damage) {
            tracing::warn!(peer = %to, "the queue of frames to this peer is full: it takes nothing");
            self.tell_members(&Event::PeerLost(to.clone()));
        }
    }

    /// On disk, beside the task: what is asked for on dispute survives a restart.
    fn keep_hops(&self, id: &CidBytes, round: Round, manifest: Hash32, hops: Vec<(Place, Hop)>) {
        let store = self.hop_store(id);
        tokio::task::spawn_blocking(move || {
            if let Err(e) = store.keep(round, manifest, &hops) {
                tracing::warn!("the hop signatures of round {round} are not kept: {e}");
            }
        });
    }

    fn apply(&mut self, id: &CidBytes, round: Round, manifest: Hash32, mut mean: Arc<Vec<f32>>) {
        self.tools.faults.die(FaultKind::DieInApply, round.0);
        if self.tools.faults.has(FaultKind::OtherState, round.0)
            && let Some(first) = Arc::make_mut(&mut mean).first_mut()
        {
            *first += 1.0;
        }
        let Some(job) = self.jobs.get(id) else { return };
        let (Some(model), Some(m)) = (job.model.clone(), job.manifests.get(&manifest)) else {
            return;
        };
        let origin = Origin::of(manifest, m);
        let (names, applying) = (job.names.clone(), job.applying.clone());
        let (content, job) = (self.tools.content.clone(), id.clone());
        let dir = self.checkpoint_dir(id, round.0 + 1);
        self.tools.spawn(async move {
            // One after the other.
            let _turn = applying.lock().await;
            let stepped = {
                let names = names.clone();
                tokio::task::spawn_blocking(move || model.apply(&names, &mean)).await
            };
            let result = match stepped {
                Ok(Ok(state)) => add_checkpoint(&content, &names, Arc::new(state), origin, dir).await,
                Ok(Err(e)) => Err(e.to_string()),
                Err(e) => Err(format!("the outer step was cut off: {e}")),
            };
            Done::Applied {
                job,
                manifest,
                result,
            }
        });
    }

    pub(crate) fn on_applied(
        &mut self,
        id: &CidBytes,
        manifest: Hash32,
        result: Result<(Arc<ModelState>, CidBytes), String>,
    ) {
        match result {
            Ok((state, checkpoint)) => {
                let hash = state.hash;
                if let Some(job) = self.jobs.get_mut(id) {
                    job.tentative = Some(state);
                }
                self.tell_member(
                    id,
                    Event::Applied {
                        manifest,
                        state: hash,
                        checkpoint,
                    },
                );
            }
            Err(why) => self.notice(id, &format!("the outer step failed: {why}")),
        }
    }

    fn promote(&mut self, id: &CidBytes, held: &Held) {
        let Some(job) = self.jobs.get_mut(id) else { return };
        if let Some(state) = job.tentative.take().filter(|s| s.hash == held.state) {
            job.model = Some(state);
        }
        self.keep_checkpoint(id, Round(held.closed.saturating_sub(1)), &held.checkpoint);
    }

    /// Where this node writes a job's checkpoints.
    pub(crate) fn checkpoint_dir(&self, id: &CidBytes, closed: u64) -> PathBuf {
        self.tools
            .home
            .jobs()
            .join(id.to_string())
            .join("checkpoints")
            .join(format!("{closed:06}"))
    }
}

/// Writes a state's checkpoint directory and adds it to the store.
pub(crate) async fn add_checkpoint(
    content: &Content,
    names: &Names,
    state: Arc<ModelState>,
    origin: Origin,
    dir: PathBuf,
) -> Result<(Arc<ModelState>, CidBytes), String> {
    let written = {
        let (names, state, dir) = (names.clone(), state.clone(), dir.clone());
        tokio::task::spawn_blocking(move || {
            // A try that was cut off, or another view of the round, may have left something.
            if dir.exists() {
                std::fs::remove_dir_all(&dir).map_err(|e| format!("cannot clear {}: {e}", dir.display()))?;
            }
            std::fs::create_dir_all(&dir).map_err(|e| format!("cannot create {}: {e}", dir.display()))?;
            state.write(&names, &origin, &dir).map_err(|e| e.to_string())
        })
    };
    written
        .await
        .map_err(|e| format!("writing the checkpoint was cut off: {e}"))??;
    let added = content
        .add_dir(dir, Pin::Named(pin_name(&names.job, state.closed)))
        .await
        .map_err(|e| e.to_string())?;
    Ok((state, CidBytes::from_cid(&added.cid)))
}

/// A measured link: half the round trip of the last ping, and the bandwidth of the last long sends. A peer to which none
/// went is taken to be as near as the best known one: what an uplink carries, it carries to anybody.
fn link(info: PeerInfo, rates: &Rates) -> Option<Link> {
    let delay = info.rtt.filter(|_| info.standing == Standing::Member)? / 2;
    let bytes_per_ms = rates.to(&info.peer).or_else(|| rates.best()).unwrap_or(0);
    Some(Link {
        peer: info.peer,
        delay_us: u32::try_from(delay.as_micros()).unwrap_or(u32::MAX),
        bytes_per_ms,
    })
}
