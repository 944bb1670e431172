//! One job on this node: its machines, what they work on, and what is shown of it.

use super::commit::{Files, Trained};
use super::events::Events;
use super::form::Sequences;
use super::holds::Holds;
use super::log::RoundLog;
use super::places::Fetching;
use super::replica::Assembly;
use super::state::{ModelState, Names};
use super::trainer::JobFiles;
use super::validate::Validator;
use crate::content::Cid;
use gym_protocol::ids::{CidBytes, Hash32, PeerBytes};
use gym_protocol::member::{Held, Member};
use gym_protocol::message::{Close, JobBody, Manifest, Report, Roster, Standing, Subject};
use gym_protocol::orchestrator::Orchestrator;
use gym_protocol::quant::SEGMENT;
use gym_protocol::ring::Scope;
use gym_protocol::time::Time;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Rosters and manifests remembered.
const MAX_REMEMBERED: usize = 64;
/// Replicas of one member that are looked at under one roster: it commits once, and may send it again.
const MAX_REPLICAS: u32 = 4;

/// A job that this node takes part in or watches.
#[derive(Debug)]
pub(crate) struct Active {
    pub(crate) id: CidBytes,
    pub(crate) body: JobBody,
    pub(crate) names: Names,
    pub(crate) events: Events,
    pub(crate) log: RoundLog,
    pub(crate) member: Option<Member>,
    pub(crate) orchestrator: Option<Orchestrator>,
    pub(crate) validator: Option<Validator>,
    /// Model and questions on their way.
    pub(crate) fetching: Option<Fetching>,
    pub(crate) files: Option<JobFiles>,
    /// The state held for good.
    pub(crate) model: Option<Arc<ModelState>>,
    /// The outer step taken, not closed yet.
    pub(crate) tentative: Option<Arc<ModelState>>,
    /// The state of round 0, from the job's seed.
    pub(crate) zero_state: Option<Arc<ModelState>>,
    pub(crate) rosters: BTreeMap<Hash32, Roster>,
    pub(crate) manifests: BTreeMap<Hash32, Manifest>,
    /// Outer steps write one directory, one after the other: a view that keeps chunks may end while the one before is applied.
    pub(crate) applying: Arc<tokio::sync::Mutex<()>>,
    pub(crate) trained: Trained,
    /// One's own commit of the round: its directory and files.
    pub(crate) commit: Option<(CidBytes, Files)>,
    pub(crate) assembly: Assembly,
    /// Commits that a round needs.
    pub(crate) holds: Holds,
    /// Whose replicas were looked at, under which roster and how many.
    pub(crate) replicas: BTreeMap<PeerBytes, (Hash32, u32)>,
    /// Of deltas that were found good.
    pub(crate) sequences: Sequences,
    cancel: Option<Arc<AtomicBool>>,
    last_close: Option<(Close, Vec<PeerBytes>, usize)>,
    /// Whose commits are in the last closed round's sum, and their CIDs.
    commits: Vec<Value>,
    checkpoint_report: Option<(PeerBytes, Report)>,
    pub(crate) standing: Option<(Standing, String)>,
    /// Rounds of a job that is done, until its last checkpoint is asked for.
    pub(crate) last_wanted: Option<u64>,
    /// When its orchestrator said something last.
    pub(crate) heard: Time,
    doing: (String, String),
}

impl Active {
    pub(crate) fn new(id: CidBytes, body: JobBody, genesis: Hash32, me: PeerBytes) -> Self {
        let log = RoundLog::new(body.orchestrator.clone(), me);
        let names = Names {
            genesis,
            job: id.clone(),
            spec: (*body.spec).clone(),
        };
        Self {
            id,
            body,
            names,
            events: Events::default(),
            log,
            member: None,
            orchestrator: None,
            validator: None,
            fetching: None,
            files: None,
            model: None,
            tentative: None,
            zero_state: None,
            rosters: BTreeMap::new(),
            manifests: BTreeMap::new(),
            applying: Arc::default(),
            trained: Trained::default(),
            commit: None,
            assembly: Assembly::default(),
            holds: Holds::default(),
            replicas: BTreeMap::new(),
            sequences: Sequences::default(),
            cancel: None,
            last_close: None,
            commits: Vec::new(),
            checkpoint_report: None,
            standing: None,
            last_wanted: None,
            heard: super::service::now(),
            doing: Default::default(),
        }
    }

    /// Whether this node still has something to do in it.
    pub(crate) fn is_running(&self) -> bool {
        self.standing.is_none()
    }

    /// The state of the last close.
    pub(crate) fn last_held(&self) -> Option<Held> {
        let (close, _, _) = self.last_close.as_ref()?;
        Some(Held {
            closed: close.round.0 + 1,
            state: close.state,
            checkpoint: close.checkpoint.clone(),
        })
    }

    /// A state that is in memory, by its hash.
    pub(crate) fn state(&self, hash: Hash32) -> Option<Arc<ModelState>> {
        let known = [&self.model, &self.tentative, &self.zero_state];
        known.into_iter().flatten().find(|m| m.hash == hash).cloned()
    }

    /// Elements of the adapter, once it is known.
    pub(crate) fn elements(&self) -> Option<usize> {
        self.model.as_ref().map(|m| m.adapter.elements())
    }

    pub(crate) fn remember_roster(&mut self, hash: Hash32, roster: Roster) {
        if self.rosters.len() >= MAX_REMEMBERED
            && let Some(oldest) = self
                .rosters
                .iter()
                .min_by_key(|(_, r)| (r.round, r.attempt))
                .map(|(h, _)| *h)
        {
            self.rosters.remove(&oldest);
        }
        let members: Vec<String> = roster.members.iter().map(|m| m.peer.to_string()).collect();
        let event = json!({ "round": roster.round.0, "attempt": roster.attempt, "members": members });
        let first = roster.round.0.saturating_sub(1);
        self.holds.drop_before(first);
        self.rosters.insert(hash, roster);
        // Of members that are in no remembered roster nothing is awaited.
        let rosters = &self.rosters;
        self.replicas
            .retain(|_, (roster, _)| rosters.contains_key(roster));
        self.events.push("round", event);
    }

    /// Whether a member of the last rounds may have a commit for this node: its part of the round's roster may not have
    /// come yet.
    pub(crate) fn may_replicate(&self, from: &PeerBytes, round: u64) -> bool {
        let Some(newest) = self.rosters.values().map(|r| r.round.0).max() else {
            return false;
        };
        let near = newest.saturating_sub(1)..=newest.saturating_add(1);
        let mut last = self.rosters.values().filter(|r| near.contains(&r.round.0));
        self.is_running()
            && self.member.is_some()
            && (newest..=newest.saturating_add(1)).contains(&round)
            && last.any(|r| r.members.iter().any(|m| m.peer == *from))
    }

    /// Whether a whole replica is of a round that both sides are called to, and not one of too many.
    pub(crate) fn takes_replica(
        &mut self,
        from: &PeerBytes,
        me: &PeerBytes,
        round: u64,
        roster: Hash32,
    ) -> bool {
        let is_called = |r: &Roster, peer: &PeerBytes| r.members.iter().any(|m| m.peer == *peer);
        let known = self.rosters.get(&roster);
        if !known.is_some_and(|r| r.round.0 == round && is_called(r, from) && is_called(r, me)) {
            return false;
        }
        let (last, looked_at) = self.replicas.entry(from.clone()).or_insert((roster, 0));
        if *last != roster {
            (*last, *looked_at) = (roster, 0);
        }
        *looked_at += 1;
        *looked_at <= MAX_REPLICAS
    }

    pub(crate) fn remember_manifest(&mut self, hash: Hash32, manifest: Manifest) {
        if self.manifests.len() >= MAX_REMEMBERED
            && let Some(oldest) = self
                .manifests
                .iter()
                .min_by_key(|(_, m)| (m.round, m.view))
                .map(|(h, _)| *h)
        {
            self.manifests.remove(&oldest);
        }
        self.manifests.insert(hash, manifest);
    }

    /// The ring that a manifest describes, with those whose chunks it keeps.
    pub(crate) fn scope(&self, hash: Hash32) -> Option<Arc<Scope>> {
        let (wanted, elements) = (self.manifests.get(&hash)?, self.elements()?);
        let before = self.manifests.iter();
        let mut before: Vec<_> = before
            .filter(|(_, m)| m.roster == wanted.roster && m.view <= wanted.view)
            .collect();
        before.sort_by_key(|(_, m)| m.view);
        let mut scopes: BTreeMap<Hash32, Arc<Scope>> = BTreeMap::new();
        for (hash, m) in before {
            let origin = |hash: Hash32| scopes.get(&hash).cloned();
            let (m, wire) = (Arc::new(m.clone()), self.body.spec.wire);
            if let Ok(scope) = Scope::keeping(m, *hash, wire, elements, SEGMENT, &origin) {
                scopes.insert(*hash, Arc::new(scope));
            }
        }
        scopes.remove(&hash)
    }

    pub(crate) fn remember_close(&mut self, close: &Close, signers: Vec<PeerBytes>) {
        let text = |peers: &[PeerBytes]| peers.iter().map(ToString::to_string).collect::<Vec<_>>();
        let manifest = self.manifests.get(&close.manifest);
        let members: Vec<PeerBytes> = manifest
            .map(|m| m.entries.iter().map(|e| e.member.clone()).collect())
            .unwrap_or_default();
        let left_out: Vec<Value> = manifest
            .map(|m| {
                let out = m.left_out.iter();
                out.map(|l| json!({ "member": l.member.to_string(), "reason": l.reason.explain() }))
                    .collect()
            })
            .unwrap_or_default();
        self.commits = manifest.map(commits).unwrap_or_default();
        self.events.push(
            "closed",
            json!({
                "round": close.round.0,
                "view": close.view.0,
                "state_hash": close.state.to_hex(),
                "checkpoint": close.checkpoint.to_string(),
                "signers": text(&signers),
                "members": text(&members),
                "commits": self.commits,
                "left_out": left_out,
                "grid": manifest.and_then(|m| m.grid).map(|g| [g.rows, g.columns]),
            }),
        );
        // Those of this round stay for its validators until the next is closed.
        self.holds.drop_before(close.round.0);
        self.last_close = Some((close.clone(), signers, members.len()));
    }

    /// A member has no say on its own job's quality. Which other signers are validators is not decided until the ledger
    /// exists: who signed is shown beside what was found.
    pub(crate) fn remember_report(&mut self, report: &Report, signer: &PeerBytes) {
        if self
            .rosters
            .values()
            .any(|r| r.members.iter().any(|m| m.peer == *signer))
        {
            return;
        }
        let (subject, member) = match &report.subject {
            Subject::Delta { member, .. } => ("delta", Some(member.to_string())),
            Subject::Checkpoint { .. } => ("checkpoint", None),
        };
        self.events.push(
            "report",
            json!({
                "round": report.round.0,
                "by": signer.to_string(),
                "subject": subject,
                "member": member,
                "questions": report.questions,
                "correct_before": report.correct_before,
                "correct_after": report.correct_after,
            }),
        );
        if matches!(report.subject, Subject::Checkpoint { .. }) {
            self.checkpoint_report = Some((signer.clone(), report.clone()));
        }
    }

    /// The checkpoint that a validator reported on last.
    pub(crate) fn evaluated(&self) -> Option<Cid> {
        match &self.checkpoint_report.as_ref()?.1.subject {
            Subject::Checkpoint { cid } => cid.to_cid().ok(),
            Subject::Delta { .. } => None,
        }
    }

    /// A flag for a training that begins; an earlier one is told to stop.
    pub(crate) fn new_cancel(&mut self) -> Arc<AtomicBool> {
        self.abandon_training();
        let flag = Arc::new(AtomicBool::new(false));
        self.cancel = Some(flag.clone());
        flag
    }

    pub(crate) fn abandon_training(&mut self) {
        if let Some(flag) = self.cancel.take() {
            flag.store(true, Ordering::Relaxed);
        }
    }

    /// Says what the machines are doing, when it has changed.
    pub(crate) fn tell_doing(&mut self) {
        let member = self
            .member
            .as_ref()
            .map(|m| (format!("{:?}", m.doing()).to_lowercase(), m.round().0));
        let orchestrator = self
            .orchestrator
            .as_ref()
            .map(|o| (format!("{:?}", o.doing()).to_lowercase(), o.held().closed));
        let needs = self.body.spec.schedule.min_workers;
        for (role, now) in [("worker", member), ("orchestrator", orchestrator)] {
            let Some((doing, round)) = now else { continue };
            let last = if role == "worker" {
                &mut self.doing.0
            } else {
                &mut self.doing.1
            };
            let key = format!("{doing} {round}");
            if *last != key {
                *last = key;
                self.events.push(
                    "doing",
                    json!({ "role": role, "doing": doing, "round": round, "needs": needs }),
                );
            }
        }
    }

    /// What `job show` prints.
    pub(crate) fn summary(&self) -> Value {
        let spec = &self.body.spec;
        let rounds = self
            .orchestrator
            .as_ref()
            .map_or(spec.schedule.rounds, Orchestrator::rounds);
        let close = self.last_close.as_ref();
        let closed = close.map_or(0, |(c, _, _)| c.round.0 + 1);
        let doing = match &self.standing {
            Some((standing, _)) => format!("{standing:?}").to_lowercase(),
            None => self
                .orchestrator
                .as_ref()
                .map(|o| format!("{:?}", o.doing()))
                .or_else(|| self.member.as_ref().map(|m| format!("{:?}", m.doing())))
                .unwrap_or_else(|| "watching".into())
                .to_lowercase(),
        };
        json!({
            "job": self.id.to_string(),
            "name": spec.name,
            "orchestrator": self.body.orchestrator.to_string(),
            "doing": doing,
            "why": self.standing.as_ref().map(|(_, why)| why.clone()),
            "round": closed,
            "rounds": rounds,
            "needs": spec.schedule.min_workers,
            "closed": closed,
            "state_hash": close.map(|(c, _, _)| c.state.to_hex()),
            "checkpoint": close.map(|(c, _, _)| c.checkpoint.to_string()),
            "signers": close.map(|(_, s, _)| s.iter().map(ToString::to_string).collect::<Vec<_>>()),
            "members": close.map(|(_, _, n)| *n),
            "commits": close.map(|_| &self.commits),
            "elements": self.elements(),
            "evaluation": self.checkpoint_report.as_ref().map(|(by, r)| json!({
                "by": by.to_string(),
                "questions": r.questions,
                "correct_before": r.correct_before,
                "correct_after": r.correct_after,
            })),
        })
    }
}

/// Whose commits a manifest sums, each a directory of `delta.bin` and `rollouts.jsonl`.
fn commits(manifest: &Manifest) -> Vec<Value> {
    let entry = |e: &gym_protocol::message::Entry| json!({ "member": e.member.to_string(), "cid": e.cid.to_string() });
    manifest.entries.iter().map(entry).collect()
}
