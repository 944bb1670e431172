//! Ring segments as they come and go.

use super::early::Room;
use super::round::{InRound, Step};
use super::times::Waiting;
use super::view::ViewState;
use super::{Action, Config, Event};
use crate::ids::PeerBytes;
use crate::message::{LinkHeader, LinkKind, Offence, Phase};
use crate::ring::{Axis, RingError, Segment};
use crate::time::Time;
use std::collections::VecDeque;

impl InRound {
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
            Place::Early => {
                let members = self.roster.members.len();
                let room = Room::of(self.elements(), config.segment, members);
                self.early.keep(from, header, payload, room);
            }
            Place::Stale => {}
            Place::Wrong(offence, why) => {
                self.accuse(config, &from, offence, &why, out);
            }
        }
    }

    /// Whether a segment belongs to the ring that runs, to one to come, to one gone by, or nowhere. Of who is not a member, and
    /// of other rounds, nothing is taken and nothing said: who is ahead has only heard of its roster first, and its ring has
    /// no place for a member that has not.
    fn place(&self, from: &PeerBytes, h: &LinkHeader) -> Place {
        if !self.in_roster(from) {
            return Place::Stale;
        }
        let view = self.view();
        if let Some(view) = view.filter(|view| view.hash == h.manifest) {
            return self.place_in(view, from, h);
        }
        let later = view.is_none_or(|view| h.view > view.manifest.view.0);
        if later && h.round == self.roster.round.0 {
            Place::Early
        } else {
            Place::Stale
        }
    }

    /// A segment under the manifest of the ring that runs, or ran.
    fn place_in(&self, view: &ViewState, from: &PeerBytes, h: &LinkHeader) -> Place {
        if h.round != self.roster.round.0 || h.view != view.manifest.view.0 {
            return Place::Wrong(Offence::WrongRound, format!("chunk is for round {}", h.round));
        }
        let axis = Phase::from_number(h.phase).map_or(Axis::Row, Phase::axis);
        let ours = || view.rings.contains_key(&view.layout.next(h.slot, axis));
        if h.slot >= view.layout.slots() || !ours() || view.server(h.slot) != Some(from) {
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
                self.times.add(view.waiting, now.since(view.progress));
                view.waiting = Waiting::Next;
                view.progress = now;
                self.finish_when_done(out);
            }
            Err((offence, why)) => {
                self.accuse(config, from, offence, &why, out);
            }
        }
    }
}

enum Place {
    Here,
    Early,
    Stale,
    Wrong(Offence, String),
}

pub(super) type Sent = VecDeque<(u32, Segment)>;

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
        RingError::Unexpected { .. } | RingError::Early { .. } | RingError::Twice { .. } => {
            Offence::Unexpected
        }
        RingError::Length { .. } => Offence::Truncated,
        RingError::Value { .. } => Offence::BadValue,
        RingError::Hop { .. } => Offence::BadHop,
    }
}

/// Carries segments to their next slot: over a link, or straight into a ring of ours when we serve that slot too.
pub(super) fn deliver(
    config: &Config,
    round: &u64,
    view: &mut ViewState,
    mut sent: Sent,
    out: &mut Vec<Action>,
) {
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
