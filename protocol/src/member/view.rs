//! One manifest as a member sees it, and its end: reduce, apply, attest (PROTOCOL sections 5 and 6).

use super::keep::Whose;
use super::reduce::{Sent, deliver};
use super::round::{InRound, Step};
use super::times::{Limits, RingTimes, Waiting, overdue};
use super::{Action, Config, Sums};
use crate::ids::{CidBytes, Hash32, PeerBytes};
use crate::job::spec::DeadlinesSpec;
use crate::message::{Attest, Body, Entry, Manifest, Offence};
use crate::ring::{Axis, Chained, Contribution, Layout, Reduced, Schedule, Scope, ScopeError};
use crate::time::Time;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The rings this member runs under one manifest: its own slot's, and those it stands in for.
#[derive(Debug)]
pub(super) struct ViewState {
    pub(super) manifest: Arc<Manifest>,
    pub(super) hash: Hash32,
    pub(super) me: PeerBytes,
    pub(super) layout: Layout,
    pub(super) scope: Arc<Scope>,
    pub(super) rings: BTreeMap<u32, Chained>,
    pub(super) done: BTreeMap<u32, Reduced>,
    /// The mean, once it is being applied.
    mean: Option<Arc<Vec<f32>>>,
    pub(super) progress: Time,
    pub(super) waiting: Waiting,
    limits: Limits,
}

impl ViewState {
    fn new(now: Time, scope: Arc<Scope>, me: PeerBytes, deadlines: &DeadlinesSpec) -> Self {
        Self {
            layout: scope.plan.layout,
            limits: Limits::of(deadlines),
            rings: BTreeMap::new(),
            done: BTreeMap::new(),
            mean: None,
            progress: now,
            waiting: Waiting::First,
            manifest: scope.manifest.clone(),
            hash: scope.hash,
            scope,
            me,
        }
    }

    /// Who serves a slot; a missing one's successor does.
    pub(super) fn server(&self, slot: u32) -> Option<&PeerBytes> {
        let entry = self.layout.served_as(slot)?;
        self.manifest.entries.get(entry as usize).map(|e| &e.server)
    }

    /// Serves the slot before one of ours.
    pub(super) fn is_predecessor(&self, peer: &PeerBytes) -> bool {
        self.touches(|slot, axis| self.server(self.layout.before(slot, axis)) == Some(peer))
    }

    /// Serves a slot next to one of ours.
    pub(super) fn is_neighbour(&self, peer: &PeerBytes) -> bool {
        self.is_predecessor(peer)
            || self.touches(|slot, axis| self.server(self.layout.next(slot, axis)) == Some(peer))
    }

    fn touches(&self, test: impl Fn(u32, Axis) -> bool) -> bool {
        let axes = self.layout.axes();
        self.rings
            .keys()
            .any(|slot| axes.iter().any(|axis| test(*slot, *axis)))
    }

    /// Slots that this node serves.
    fn mine(&self) -> Vec<u32> {
        (0..self.layout.slots())
            .filter(|slot| self.server(*slot) == Some(&self.me))
            .collect()
    }

    /// When the segment waited for is overdue.
    pub(super) fn overdue_at(&self, times: &RingTimes) -> Time {
        overdue(
            times,
            self.waiting,
            self.progress,
            self.limits,
            self.manifest.view.0,
        )
    }

    pub(super) fn waiting_for(&self) -> &'static str {
        match self.waiting {
            Waiting::First => "the first ring segment",
            Waiting::Next => "the next ring segment",
        }
    }

    /// Segments that the slot of ours that is furthest behind still misses.
    pub(super) fn missing(&self) -> u32 {
        let most = self.rings.values().map(Chained::missing).max().unwrap_or(0);
        u32::try_from(most).unwrap_or(u32::MAX)
    }

    /// Who stands before the slots of ours that still miss segments.
    fn owing(&self) -> Vec<PeerBytes> {
        let waiting = self
            .rings
            .iter()
            .filter(|(slot, _)| !self.done.contains_key(*slot));
        let mut owing: Vec<PeerBytes> = waiting
            .map(|(slot, ring)| self.layout.before(*slot, ring.waits_along()))
            .filter_map(|slot| self.server(slot).cloned())
            .collect();
        owing.dedup();
        owing
    }

    /// A slot's result, once its ring has finished.
    pub(super) fn result(&self, slot: u32) -> Option<&[f32]> {
        let done = self.done.get(&slot)?;
        match &self.mean {
            Some(mean) if done.mean.is_empty() => Some(mean),
            Some(_) | None => Some(&done.mean),
        }
    }

    /// What rounding left over of this member's own contribution to a chunk, if it served it.
    pub(super) fn left_of(&self, chunk: u32) -> Option<Vec<f32>> {
        let slot = self.own_slot()?;
        let Some(done) = self.done.get(&slot) else {
            return Some(self.rings.get(&slot)?.left_of(chunk)?.to_vec());
        };
        let plan = self.scope.plan;
        let schedule = Schedule {
            slots: self.scope.chunks(),
            elements: plan.elements,
            segment: plan.segment,
        };
        done.residual.get(schedule.chunk(chunk)).map(<[f32]>::to_vec)
    }

    /// The slot of this member's own contribution, if it is served here.
    fn own_slot(&self) -> Option<u32> {
        self.rings
            .keys()
            .copied()
            .find(|slot| self.is_of(*slot, &self.me))
    }

    fn is_of(&self, slot: u32, member: &PeerBytes) -> bool {
        let entry = self
            .layout
            .entry(slot)
            .and_then(|e| self.manifest.entries.get(e as usize));
        entry.is_some_and(|e| e.member == *member)
    }

    fn finished(&self) -> bool {
        self.done.len() == self.rings.len()
    }

    /// What the wire rounded away of `member`'s contribution, if this node contributed it.
    pub(super) fn residual_of(&self, member: &PeerBytes) -> Option<Vec<f32>> {
        self.manifest.entries.iter().find(|e| e.member == *member)?;
        match self.done.iter().find(|(slot, _)| self.is_of(**slot, member)) {
            Some((_, reduced)) => Some(reduced.residual.clone()),
            // Someone else contributed for us: what was rounded is not known here.
            None => Some(Vec::new()),
        }
    }
}

impl InRound {
    pub(super) fn on_manifest(
        &mut self,
        now: Time,
        config: &Config,
        manifest: Manifest,
        hash: Hash32,
        out: &mut Vec<Action>,
    ) {
        if let Some(view) = self.view()
            && view.manifest.view == manifest.view
            && view.hash != hash
        {
            let detail = format!(
                "round {}: two manifests for view {}, {} and {}; the first stands",
                self.roster.round,
                manifest.view,
                view.hash.short(),
                hash.short()
            );
            let orchestrator = config.orchestrator.clone();
            if self.is_news(&orchestrator, Offence::Equivocation) {
                out.push(Action::Penalise {
                    peer: orchestrator,
                    offence: Offence::Equivocation,
                    detail,
                });
            }
            return;
        }
        if manifest.parent != self.roster.parent || manifest.round != self.roster.round {
            return;
        }
        let (view, elements) = (manifest.view, self.elements());
        let newer = self.keeping.newest.is_none_or(|newest| view > newest);
        // Without a delta there is nothing to sum.
        if elements == 0 {
            self.sit_out(&manifest, out);
            return;
        }
        match self.keeping.scope(config, manifest.clone(), hash, elements) {
            Ok(scope) if newer => self.begin_view(now, config, scope, out),
            // What a later one may keep chunks of.
            Ok(_) => {}
            Err(ScopeError::Unknown(_)) if newer => {
                self.keeping.ahead = Some(Box::new((manifest, hash)));
                return;
            }
            Err(why) if newer => {
                let round = self.roster.round;
                out.push(Action::Notice(format!(
                    "round {round}: the manifest of view {view} is wrong: {why}; sitting out"
                )));
                self.give_up_ring();
                self.keeping.newest = Some(view);
            }
            // Not begun, and no ring that could be kept.
            Err(_) => {}
        }
        if let Some(ahead) = self.keeping.ahead.take() {
            let (manifest, hash) = *ahead;
            self.on_manifest(now, config, manifest, hash, out);
        }
    }

    fn sit_out(&mut self, manifest: &Manifest, out: &mut Vec<Action>) {
        if matches!(self.step, Step::Training | Step::Building { .. } | Step::Syncing) {
            out.push(Action::AbandonTraining);
        }
        self.say_if_left_out(manifest, out);
        self.step = Step::SittingOut;
    }

    /// Leaves what was under way for the ring of a new manifest.
    fn begin_view(&mut self, now: Time, config: &Config, scope: Arc<Scope>, out: &mut Vec<Action>) {
        self.give_up_ring();
        self.sit_out(&scope.manifest, out);
        self.keeping.retain(&scope);
        self.keeping.newest = Some(scope.manifest.view);
        let deadlines = &config.spec.schedule.deadlines;
        let mut view = ViewState::new(now, scope, config.me.clone(), deadlines);
        self.open_rings(config, &mut view, out);
        if view.rings.is_empty() {
            return;
        }
        self.keeping.clear();
        let mut first = Sent::new();
        let mut sent = Vec::new();
        for (slot, ring) in &mut view.rings {
            ring.start(&mut sent);
            first.extend(sent.drain(..).map(|s| (*slot, s)));
        }
        deliver(config, &self.roster.round.0, &mut view, first, out);
        self.step = Step::Reducing(Box::new(view));
        self.finish_when_done(out);
        for event in self.early.take() {
            self.on_segment(now, config, event, out);
        }
    }

    fn say_if_left_out(&self, manifest: &Manifest, out: &mut Vec<Action>) {
        if let Some(l) = manifest.left_out.iter().find(|l| l.member == self.me) {
            let (round, why) = (self.roster.round, l.reason.explain());
            out.push(Action::Notice(format!(
                "round {round}: this node's work is left out: {why}"
            )));
        }
    }

    /// One machine for each slot that this node serves and holds the delta of.
    fn open_rings(&self, config: &Config, view: &mut ViewState, out: &mut Vec<Action>) {
        let (scope, elements) = (view.scope.clone(), view.scope.plan.elements);
        for slot in view.mine() {
            let entry = view.layout.entry(slot);
            let own = match entry.and_then(|e| view.manifest.entries.get(e as usize)) {
                None => Contribution::nothing(elements),
                Some(entry) => match self.contribution(config, entry, out) {
                    Some(own) => own,
                    None => continue,
                },
            };
            let whose = if view.is_of(slot, &self.me) {
                Whose::Own
            } else {
                Whose::Anothers
            };
            let carried = self.keeping.carried(&scope, slot, whose);
            let machine = Chained::keeping(scope.clone(), config.keys.clone(), slot, own, carried);
            view.rings.insert(slot, machine);
        }
    }

    fn contribution(&self, config: &Config, entry: &Entry, out: &mut Vec<Action>) -> Option<Contribution> {
        let round = self.roster.round;
        let Some(delta) = self.delta_of(entry) else {
            out.push(Action::Notice(format!(
                "round {round}: asked to contribute {} for {}, which is not held here",
                entry.cid, entry.member
            )));
            return None;
        };
        if entry.member != config.me {
            out.push(Action::Notice(format!(
                "round {round}: contributing for {}",
                entry.member
            )));
        }
        let delta = match config.sums {
            Sums::FalseIn(r) if r.is_none_or(|r| r == round) => delta.iter().map(|d| -d).collect(),
            Sums::True | Sums::FalseIn(_) => delta.to_vec(),
        };
        Some(Contribution::new(delta, entry.weight).with_buffers(config.buffers.clone()))
    }

    /// Elements of a delta, by those held here: all of a round have one shape.
    pub(super) fn elements(&self) -> usize {
        let own = self.own.as_ref().map(|own| own.delta.len());
        own.or_else(|| self.held.values().next().map(|h| h.delta.len()))
            .unwrap_or(0)
    }

    fn delta_of(&self, entry: &Entry) -> Option<&[f32]> {
        if entry.member == self.me {
            return self
                .own
                .as_ref()
                .filter(|own| own.cid == entry.cid)
                .map(|own| own.delta.as_slice());
        }
        self.held
            .get(&entry.member)
            .filter(|h| h.cid == entry.cid)
            .map(|h| h.delta.as_slice())
    }

    pub(super) fn finish_when_done(&mut self, out: &mut Vec<Action>) {
        let Step::Reducing(view) = &mut self.step else {
            return;
        };
        if !view.finished() {
            return;
        }
        for (manifest, hops) in self.keeping.chains(view) {
            out.push(Action::KeepHops {
                round: self.roster.round,
                manifest,
                hops,
            });
        }
        let Some(reduced) = view.done.values_mut().next() else {
            return;
        };
        let mean = Arc::new(std::mem::take(&mut reduced.mean));
        view.mean = Some(mean.clone());
        out.push(Action::Apply {
            round: self.roster.round,
            view: view.manifest.view,
            manifest: view.hash,
            mean,
        });
        let Step::Reducing(view) = std::mem::replace(&mut self.step, Step::SittingOut) else {
            return;
        };
        self.step = Step::Applying(view);
    }

    pub(super) fn on_applied(
        &mut self,
        config: &Config,
        manifest: Hash32,
        state: Hash32,
        checkpoint: CidBytes,
        out: &mut Vec<Action>,
    ) {
        let Step::Applying(view) = &self.step else { return };
        if view.hash != manifest {
            return;
        }
        // A stand-in whose own work is left out has no vote.
        if view.manifest.entries.iter().any(|e| e.member == self.me) {
            out.push(Action::Publish(Body::Attest(Attest {
                job: config.job.clone(),
                round: self.roster.round,
                view: view.manifest.view,
                manifest,
                parent: self.roster.parent,
                state,
                checkpoint,
            })));
        }
        let Step::Applying(view) = std::mem::replace(&mut self.step, Step::SittingOut) else {
            return;
        };
        self.step = Step::Attested { view, state };
    }

    /// A predecessor that owes a segment is accused again with every deadline it misses.
    pub(super) fn on_ring_tick(&mut self, now: Time, config: &Config, out: &mut Vec<Action>) {
        let Step::Reducing(view) = &mut self.step else {
            return;
        };
        if now < view.overdue_at(&self.times) {
            return;
        }
        view.progress = now;
        let mut owing = view.owing();
        owing.retain(|p| *p != config.me);
        for peer in owing {
            let missing = self.view().map_or(0, ViewState::missing);
            let detail = format!("round {}: {missing} ring segments are missing", self.roster.round);
            out.push(Action::Penalise {
                peer: peer.clone(),
                offence: Offence::Timeout,
                detail,
            });
            self.complain(config, &peer, Offence::Timeout, out);
        }
    }
}
