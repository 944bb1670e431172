//! One manifest as a member sees it, and its end: reduce, apply, attest (PROTOCOL sections 5 and 6).

use super::reduce::{Sent, deliver};
use super::round::{InRound, Step};
use super::times::{Limits, RingTimes, Waiting, overdue};
use super::{Action, Config, Sums};
use crate::ids::{CidBytes, Hash32, PeerBytes};
use crate::job::spec::DeadlinesSpec;
use crate::message::{Attest, Body, Entry, Manifest, Offence};
use crate::ring::{Axis, Chained, Contribution, Hop, Layout, Place, Reduced, Scope};
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
    pub(super) rings: BTreeMap<u32, Chained>,
    pub(super) done: BTreeMap<u32, Reduced>,
    pub(super) progress: Time,
    pub(super) waiting: Waiting,
    limits: Limits,
}

impl ViewState {
    /// `None` for a grid that the entries do not fill.
    fn new(
        now: Time,
        manifest: Manifest,
        hash: Hash32,
        me: PeerBytes,
        deadlines: &DeadlinesSpec,
    ) -> Option<Self> {
        let layout = Layout::new(u32::try_from(manifest.entries.len()).ok()?, manifest.grid)?;
        Some(Self {
            layout,
            limits: Limits::of(deadlines),
            rings: BTreeMap::new(),
            done: BTreeMap::new(),
            progress: now,
            waiting: Waiting::First,
            manifest: Arc::new(manifest),
            hash,
            me,
        })
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

    /// What this node has of the chains: the hops it made and those it took.
    fn take_hops(&mut self) -> Vec<(Place, Hop)> {
        let mut all = BTreeMap::new();
        for ring in self.rings.values_mut() {
            all.append(&mut ring.take_hops());
        }
        all.into_iter().collect()
    }

    fn finished(&self) -> bool {
        self.done.len() == self.rings.len()
    }

    /// What the wire rounded away of `member`'s contribution, if this node contributed it.
    pub(super) fn residual_of(&self, member: &PeerBytes) -> Option<Vec<f32>> {
        let entry = self.manifest.entries.iter().position(|e| e.member == *member)?;
        let of_member = |slot: &u32| self.layout.entry(*slot).is_some_and(|e| e as usize == entry);
        match self.done.iter().find(|(slot, _)| of_member(slot)) {
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
        let newer = self.view().is_none_or(|v| manifest.view > v.manifest.view);
        if !newer || manifest.parent != self.roster.parent || manifest.round != self.roster.round {
            return;
        }
        if matches!(self.step, Step::Training | Step::Building { .. } | Step::Syncing) {
            out.push(Action::AbandonTraining);
        }
        self.say_if_left_out(&manifest, out);
        let deadlines = &config.spec.schedule.deadlines;
        let view = ViewState::new(now, manifest, hash, config.me.clone(), deadlines);
        let Some(mut view) = view else {
            out.push(Action::Notice(format!(
                "round {}: the manifest's grid is not for its entries; sitting out",
                self.roster.round
            )));
            self.step = Step::SittingOut;
            return;
        };
        self.open_rings(config, &mut view, out);
        if view.rings.is_empty() {
            self.step = Step::SittingOut;
            return;
        }
        let mut first = Sent::new();
        let mut sent = Vec::new();
        for (slot, ring) in &mut view.rings {
            ring.start(&mut sent);
            first.extend(sent.drain(..).map(|s| (*slot, s)));
        }
        deliver(config, &self.roster.round.0, &mut view, first, out);
        self.step = Step::Reducing(Box::new(view));
        self.finish_when_done(out);
        for event in std::mem::take(&mut self.early) {
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
        let elements = self.elements();
        let scope = Scope::new(
            view.manifest.clone(),
            view.hash,
            config.spec.wire,
            elements,
            config.segment,
        );
        let Some(scope) = scope.map(Arc::new) else { return };
        for slot in view.mine() {
            let entry = view.layout.entry(slot);
            let own = match entry.and_then(|e| view.manifest.entries.get(e as usize)) {
                None => Contribution::nothing(elements),
                Some(entry) => match self.contribution(config, entry, out) {
                    Some(own) => own,
                    None => continue,
                },
            };
            let machine = Chained::new(scope.clone(), config.keys.clone(), slot, own);
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
        Some(Contribution::new(delta, entry.weight))
    }

    /// Elements of a delta, by those held here: all of a round have one shape.
    fn elements(&self) -> usize {
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
        out.push(Action::KeepHops {
            round: self.roster.round,
            manifest: view.hash,
            hops: view.take_hops(),
        });
        let Some(reduced) = view.done.values_mut().next() else {
            return;
        };
        out.push(Action::Apply {
            round: self.roster.round,
            view: view.manifest.view,
            manifest: view.hash,
            mean: std::mem::take(&mut reduced.mean),
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
            out.push(self.complain(config, &peer, Offence::Timeout));
        }
    }
}
