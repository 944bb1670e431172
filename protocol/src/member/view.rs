//! Reduce, apply, attest under one manifest (PROTOCOL sections 5 and 6).

use super::round::{InRound, Step};
use super::{Action, Config, Event};
use crate::ids::{CidBytes, Hash32, PeerBytes};
use crate::job::spec::DeadlinesSpec;
use crate::message::{Attest, Body, Entry, LinkHeader, LinkKind, Manifest, Offence, Phase};
use crate::ring::{Axis, Contribution, Layout, Machine, Plan, Reduced, RingError, Segment};
use crate::time::{Estimate, Time};
use std::collections::{BTreeMap, VecDeque};

/// Segments kept for a manifest that has not come yet.
const MAX_EARLY: usize = 1_024;

/// The rings this member runs under one manifest: its own slot's, and those it stands in for.
#[derive(Debug)]
pub(super) struct ViewState {
    pub(super) manifest: Manifest,
    pub(super) hash: Hash32,
    me: PeerBytes,
    layout: Layout,
    rings: BTreeMap<u32, Machine>,
    done: BTreeMap<u32, Reduced>,
    progress: Time,
    gaps: Estimate,
    floor: u64,
    cap: u64,
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
        let doubling = 1u64 << manifest.view.0.min(6);
        Some(Self {
            layout,
            floor: deadlines.ring_floor_ms.saturating_mul(doubling),
            cap: deadlines.ring_cap_ms.saturating_mul(doubling),
            rings: BTreeMap::new(),
            done: BTreeMap::new(),
            progress: now,
            gaps: Estimate::default(),
            manifest,
            hash,
            me,
        })
    }

    /// Who serves a slot; a missing one's successor does.
    fn server(&self, slot: u32) -> Option<&PeerBytes> {
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

    /// When the next segment is overdue: median + k·MAD of the gaps seen, floor and cap doubling with each view.
    pub(super) fn overdue_at(&self) -> Time {
        let wait = if self.gaps.is_empty() {
            self.floor
        } else {
            self.gaps.deadline(self.floor, self.cap)
        };
        self.progress.plus(wait)
    }

    /// Segments that the slot of ours that is furthest behind still misses.
    pub(super) fn missing(&self) -> u32 {
        let most = self.rings.values().map(Machine::missing).max().unwrap_or(0);
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
        let mut first = VecDeque::new();
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
        let plan = Plan {
            layout: view.layout,
            wire: config.spec.wire,
            total_weight: view.manifest.entries.iter().map(|e| e.weight).sum(),
            elements,
            segment: config.segment,
        };
        for slot in view.mine() {
            let entry = view.layout.entry(slot);
            let Some(entry) = entry.and_then(|e| view.manifest.entries.get(e as usize)) else {
                let nothing = Contribution::nothing(elements);
                view.rings.insert(slot, Machine::new(plan, slot, nothing));
                continue;
            };
            let Some(delta) = self.delta_of(entry) else {
                out.push(Action::Notice(format!(
                    "round {}: asked to contribute {} for {}, which is not held here",
                    self.roster.round, entry.cid, entry.member
                )));
                continue;
            };
            if entry.member != config.me {
                let notice = format!("round {}: contributing for {}", self.roster.round, entry.member);
                out.push(Action::Notice(notice));
            }
            let own = Contribution::new(delta.to_vec(), entry.weight);
            view.rings.insert(slot, Machine::new(plan, slot, own));
        }
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

    pub(super) fn on_segment(&mut self, now: Time, config: &Config, event: Event, out: &mut Vec<Action>) {
        let Event::Segment {
            from,
            header,
            payload,
        } = event
        else {
            return;
        };
        match self.place(&from, &header) {
            Place::Here => self.take_segment(now, config, &from, &header, payload, out),
            Place::Early if self.early.len() < MAX_EARLY => {
                self.early.push(Event::Segment {
                    from,
                    header,
                    payload,
                });
            }
            Place::Early | Place::Stale => {}
            Place::Wrong(offence, why) => {
                self.accuse(config, &from, offence, &why, out);
            }
        }
    }

    /// Whether a segment belongs to the ring that runs, to one to come, to one gone by, or nowhere.
    fn place(&self, from: &PeerBytes, h: &LinkHeader) -> Place {
        let wrong_round = || Place::Wrong(Offence::WrongRound, format!("chunk is for round {}", h.round));
        if h.round > self.roster.round.0 {
            return wrong_round();
        }
        let Some(view) = self.view() else {
            return if h.round == self.roster.round.0 {
                Place::Early
            } else {
                Place::Stale
            };
        };
        if h.manifest != view.hash {
            let later = h.round == self.roster.round.0 && h.view > view.manifest.view.0;
            return if later { Place::Early } else { Place::Stale };
        }
        if h.round != self.roster.round.0 || h.view != view.manifest.view.0 {
            return wrong_round();
        }
        let axis = Phase::from_number(h.phase).map_or(Axis::Row, Phase::axis);
        let to = view.layout.next(h.slot, axis);
        let ours = h.slot < view.layout.slots() && view.rings.contains_key(&to);
        if !ours || view.server(h.slot) != Some(from) {
            return Place::Wrong(
                Offence::Unexpected,
                format!("slot {} is not its own, or not before ours", h.slot),
            );
        }
        if matches!(self.step, Step::Reducing(_)) {
            Place::Here
        } else {
            Place::Stale
        }
    }

    fn take_segment(
        &mut self,
        now: Time,
        config: &Config,
        from: &PeerBytes,
        header: &LinkHeader,
        payload: Vec<u8>,
        out: &mut Vec<Action>,
    ) {
        let round = self.roster.round.0;
        let Step::Reducing(view) = &mut self.step else {
            return;
        };
        let result = match Phase::from_number(header.phase) {
            Some(phase) => {
                let s = Segment {
                    phase,
                    step: header.step,
                    chunk: header.chunk,
                    segment: header.segment,
                    payload,
                };
                let to = view.layout.next(header.slot, phase.axis());
                receive(view, to, s).map(|sent| deliver(config, &round, view, sent, out))
            }
            None => Err((
                Offence::Unexpected,
                format!("phase {} does not exist", header.phase),
            )),
        };
        match result {
            Ok(()) => {
                view.gaps.add(now.since(view.progress));
                view.progress = now;
                self.finish_when_done(out);
            }
            Err((offence, why)) => {
                self.accuse(config, from, offence, &why, out);
            }
        }
    }

    fn finish_when_done(&mut self, out: &mut Vec<Action>) {
        let Step::Reducing(view) = &mut self.step else {
            return;
        };
        if !view.finished() {
            return;
        }
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
        if now < view.overdue_at() {
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

enum Place {
    Here,
    Early,
    Stale,
    Wrong(Offence, String),
}

type Sent = VecDeque<(u32, Segment)>;

/// Gives a segment to a ring of ours; what it sends in turn comes back with its slot.
fn receive(view: &mut ViewState, slot: u32, segment: Segment) -> Result<Sent, (Offence, String)> {
    let Some(ring) = view.rings.get_mut(&slot) else {
        return Ok(Sent::new());
    };
    let mut sent = Vec::new();
    ring.receive(segment, &mut sent)
        .map_err(|e| (offence_of(&e), e.to_string()))?;
    Ok(sent.into_iter().map(|s| (slot, s)).collect())
}

fn offence_of(e: &RingError) -> Offence {
    match e {
        RingError::Unexpected { .. } | RingError::Twice { .. } => Offence::Unexpected,
        RingError::Length { .. } => Offence::Truncated,
        RingError::Value { .. } => Offence::BadValue,
    }
}

/// Carries segments to their next slot: over a link, or straight into a ring of ours when we serve that slot too.
fn deliver(config: &Config, round: &u64, view: &mut ViewState, mut sent: Sent, out: &mut Vec<Action>) {
    while let Some((slot, segment)) = sent.pop_front() {
        let next = view.layout.next(slot, segment.phase.axis());
        match view.server(next).cloned() {
            Some(server) if server == view.me => {
                // Our own rings send what the schedule expects.
                if let Ok(more) = receive(view, next, segment) {
                    sent.extend(more);
                }
            }
            Some(to) => out.push(send(config, *round, view, slot, to, segment)),
            None => {}
        }
    }
    collect_done(view);
}

fn collect_done(view: &mut ViewState) {
    for (slot, ring) in &mut view.rings {
        if !view.done.contains_key(slot)
            && let Some(reduced) = ring.take_result()
        {
            view.done.insert(*slot, reduced);
        }
    }
}

fn send(config: &Config, round: u64, view: &ViewState, slot: u32, to: PeerBytes, s: Segment) -> Action {
    Action::SendSegment {
        header: LinkHeader {
            kind: LinkKind::Ring.number(),
            job: config.job.clone(),
            round,
            view: view.manifest.view.0,
            manifest: view.hash,
            phase: s.phase.number(),
            step: s.step,
            chunk: s.chunk,
            segment: s.segment,
            slot,
            sender: config.me.clone(),
            receiver: to.clone(),
        },
        to,
        payload: s.payload,
    }
}
