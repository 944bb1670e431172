//! From the manifest to the close: attests, complaints, views (PROTOCOL section 6, "Failure").

use super::audit::Audit;
use super::collect::Draft;
use super::commit::Commits;
use super::keep::Holdings;
use super::reach::{Reach, Stragglers};
use super::{Action, Config, Orchestrator, Phase};
use crate::cbor;
use crate::ids::{CidBytes, Hash32, PeerBytes, Round, View};
use crate::member::Held;
use crate::message::{Attest, Body, Close, Complaint, Entry, LeftOut, Manifest, Offence, Verified};
use crate::ring::Layout;
use crate::time::{Deadline, Estimate, Time};
use std::collections::{BTreeMap, BTreeSet};

/// After the first complaint in a view, others are heard, and the accused asked, for half the ring's least deadline, but no
/// longer than this, before a new view is raised.
const HEARING_MS: u64 = 1_500;
/// After a quorum has attested, the rest is waited for by the quorum's own times, but no longer than this.
const STRAGGLING_ATTESTS_MS: u64 = 5_000;
/// A round is void after this many views.
const MAX_VIEWS: u32 = 8;

/// One complaint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Heard {
    accuser: PeerBytes,
    pub(super) accused: PeerBytes,
    pub(super) offence: Offence,
    pub(super) missing: u32,
}

/// A round whose manifest is out.
#[derive(Debug)]
pub(super) struct Reducing {
    pub(super) commits: Commits,
    /// The view that is out, and what becomes of it while another is prepared.
    pub(super) decided: Manifest,
    pub(super) manifest: Manifest,
    pub(super) hash: Hash32,
    pub(super) holdings: Holdings,
    pub(super) audit: Audit,
    since: Time,
    pub(super) attest_ms: u64,
    pub(super) floor_ms: u64,
    pub(super) hearing_ms: u64,
    flat_ring_max: u32,
    pub(super) attests: BTreeMap<PeerBytes, (Attest, Verified)>,
    quorum_since: Option<Time>,
    /// From the manifest to each attest.
    attest_times: Estimate,
    /// Commits that count, of which a quorum is one; those of view 0 at least.
    pub(super) counted: usize,
    /// Entries of view 0, and who was left out of it.
    pub(super) first: Vec<Entry>,
    first_left_out: Vec<LeftOut>,
    pub(super) reach: Reach,
    /// Complaints of this view.
    pub(super) complaints: Vec<Heard>,
    first_complaint: Option<Time>,
    /// Who has been accused, by whom, over all views of the round; of silence only where the silence starts.
    accusers: BTreeMap<PeerBytes, BTreeSet<PeerBytes>>,
    /// No longer asked to serve a slot in this round.
    pub(super) replaced: BTreeSet<PeerBytes>,
}

impl Reducing {
    pub(super) fn new(
        now: Time,
        config: &Config,
        commits: Commits,
        draft: Draft,
        out: &mut Vec<Action>,
    ) -> Self {
        let Draft {
            entries,
            left_out,
            counted,
        } = draft;
        let manifest = Manifest {
            job: config.job.clone(),
            round: commits.facts.roster.round,
            view: View(0),
            roster: commits.facts.hash,
            parent: commits.facts.roster.parent,
            entries,
            grid: None,
            kept: Vec::new(),
            left_out,
        };
        let deadlines = &config.spec.schedule.deadlines;
        let mut reducing = Self {
            hash: Hash32::ZERO,
            audit: Audit::NotAsked,
            counted: counted.max(manifest.entries.len()),
            first: manifest.entries.clone(),
            first_left_out: manifest.left_out.clone(),
            reach: Reach::default(),
            attest_times: Estimate::default(),
            floor_ms: deadlines.ring_floor_ms,
            hearing_ms: HEARING_MS.min(deadlines.ring_floor_ms / 2),
            commits,
            decided: manifest.clone(),
            manifest,
            holdings: Holdings::default(),
            since: now,
            attest_ms: deadlines.attest_ms,
            flat_ring_max: config.flat_ring_max,
            attests: BTreeMap::new(),
            quorum_since: None,
            complaints: Vec::new(),
            first_complaint: None,
            accusers: BTreeMap::new(),
            replaced: BTreeSet::new(),
        };
        reducing.publish(now, out);
        reducing
    }

    fn publish(&mut self, now: Time, out: &mut Vec<Action>) {
        self.manifest.grid = self.layout().grid();
        self.hash = cbor::to_dag(&self.manifest)
            .map(|b| cbor::object_hash(&b))
            .unwrap_or_default();
        self.decided = self.manifest.clone();
        self.holdings.renew();
        self.since = now;
        self.attests.clear();
        self.complaints.clear();
        self.first_complaint = None;
        self.quorum_since = None;
        self.audit = Audit::NotAsked;
        self.attest_times = Estimate::default();
        self.reach.renew();
        out.push(Action::Publish(Body::Manifest(self.manifest.clone())));
    }

    fn layout(&self) -> Layout {
        let entries = u32::try_from(self.manifest.entries.len()).unwrap_or(u32::MAX);
        Layout::for_members(entries, self.flat_ring_max)
    }

    pub(super) fn gone(&mut self, peer: &PeerBytes) {
        self.commits.gone(peer);
    }

    pub(super) fn deadline(&self) -> Deadline {
        if let Some(at) = self.audit.deadline() {
            return (at, "the audit of the sum");
        }
        if let Some(at) = self.quorum_since {
            if self.reach.stragglers() == Stragglers::NotAsked {
                return (
                    at.plus(self.hearing_ms),
                    "the remaining attests, before it is asked for them",
                );
            }
            let wait = self.attest_times.deadline(self.floor_ms, STRAGGLING_ATTESTS_MS);
            return (at.plus(wait), "the remaining attests");
        }
        if let Some(deadline) = self.reach.deadline() {
            return deadline;
        }
        if let Some(at) = self.first_complaint {
            let wait = self.reach.hearing(self.hearing_ms);
            return (at.plus(wait), "other members' complaints");
        }
        (
            self.since.plus(self.attest_ms << self.manifest.view.0.min(6)),
            "a quorum of attests",
        )
    }

    fn members(&self) -> usize {
        self.manifest.entries.len()
    }

    pub(super) fn serves(&self, peer: &PeerBytes) -> bool {
        self.manifest.entries.iter().any(|e| e.server == *peer)
    }

    /// The value that more than two thirds attested of the members whose commits count.
    fn quorum(&self) -> Option<(Hash32, CidBytes)> {
        let mut by_value: BTreeMap<(Hash32, &CidBytes), usize> = BTreeMap::new();
        for (attest, _) in self.attests.values() {
            *by_value.entry((attest.state, &attest.checkpoint)).or_default() += 1;
        }
        let ((state, checkpoint), attests) = by_value.into_iter().max_by_key(|(_, attests)| *attests)?;
        (3 * attests > 2 * self.counted).then(|| (state, checkpoint.clone()))
    }

    /// Different values attested.
    fn values(&self) -> usize {
        let values = self.attests.values().map(|(a, _)| (a.state, &a.checkpoint));
        values.collect::<BTreeSet<_>>().len()
    }

    /// The attests of a value.
    fn certificate(&self, state: Hash32, checkpoint: &CidBytes) -> Vec<Verified> {
        let same = |a: &Attest| a.state == state && a.checkpoint == *checkpoint;
        let attests = self.attests.values().filter(|(attest, _)| same(attest));
        attests.map(|(_, verified)| verified.clone()).collect()
    }

    /// Everyone who is expected to has attested.
    fn everyone(&self) -> bool {
        self.expected().all(|peer| self.attests.contains_key(peer))
    }

    /// Who is expected to attest: members of the manifest that serve and are there.
    pub(super) fn expected(&self) -> impl Iterator<Item = &PeerBytes> {
        let servers: BTreeSet<&PeerBytes> = self.manifest.entries.iter().map(|e| &e.server).collect();
        let there = move |p: &&PeerBytes| {
            servers.contains(*p) && !self.commits.gone.contains(*p) && !self.reach.silent.contains(*p)
        };
        self.manifest.entries.iter().map(|e| &e.member).filter(there)
    }

    /// Where the silence starts: a stall spreads around the ring, and the member that misses most is next to its source.
    fn accuse_the_silent(&mut self) {
        let silence = |c: &&Heard| c.offence.is_silence();
        let Some(most) = self.most_missing() else {
            return;
        };
        for c in self
            .complaints
            .iter()
            .filter(silence)
            .filter(|c| c.missing == most)
        {
            self.accusers
                .entry(c.accused.clone())
                .or_default()
                .insert(c.accuser.clone());
        }
    }

    /// Segments that the member which misses most says to miss, of those that complain of silence.
    pub(super) fn most_missing(&self) -> Option<u32> {
        let silence = self.complaints.iter().filter(|c| c.offence.is_silence());
        silence.map(|c| c.missing).max()
    }

    /// Who is not asked again in this round: two different members accused it (one, in a ring of two), or it is gone.
    fn decide_replacements(&mut self, lost: &dyn Fn(&PeerBytes) -> bool) -> BTreeSet<PeerBytes> {
        self.accuse_the_silent();
        let needed = if self.members() <= 2 { 1 } else { 2 };
        let accused = self
            .accusers
            .iter()
            .filter(|(_, by)| by.len() >= needed)
            .map(|(p, _)| p);
        let servers = self.manifest.entries.iter().map(|e| &e.server);
        accused
            .chain(servers.filter(|s| lost(s) || self.commits.gone.contains(*s)))
            .cloned()
            .collect()
    }

    /// Everybody's work again, by everybody: also by those for whom a holder stood in the first manifest.
    pub(super) fn start_over(&mut self) {
        self.manifest.entries = self.first.clone();
        for e in &mut self.manifest.entries {
            e.server = e.member.clone();
        }
        self.manifest.left_out = self.first_left_out.clone();
        self.accusers.clear();
        self.replaced.clear();
        self.complaints.clear();
    }

    /// An order in which no accused is followed by one of its accusers, if there is one: members are exchanged pairwise
    /// until it is found.
    fn reorder(&mut self) {
        let layout = self.layout();
        while let Some(slot) = (0..layout.slots()).find(|slot| self.clashes_at(layout, *slot) > 0) {
            let before = self.clashes(layout);
            let Some(i) = layout.served_as(slot) else { return };
            let exchanges = (0..layout.entries()).filter(|j| *j != i).map(|j| {
                self.manifest.entries.swap(i as usize, j as usize);
                let after = self.clashes(layout);
                self.manifest.entries.swap(i as usize, j as usize);
                (after, j)
            });
            match exchanges.min() {
                Some((after, j)) if after < before => self.manifest.entries.swap(i as usize, j as usize),
                _ => return,
            }
        }
    }

    fn clashes(&self, layout: Layout) -> usize {
        if self.accusers.is_empty() {
            return 0;
        }
        (0..layout.slots())
            .map(|slot| self.clashes_at(layout, slot))
            .sum()
    }

    /// Slots after this one whose server accused the one of this slot.
    fn clashes_at(&self, layout: Layout, slot: u32) -> usize {
        let server = |slot| {
            let entry = layout.served_as(slot)?;
            self.manifest.entries.get(entry as usize).map(|e| &e.server)
        };
        let Some(accusers) = server(slot).and_then(|s| self.accusers.get(s)) else {
            return 0;
        };
        let after = layout.axes().iter().map(|axis| layout.next(slot, *axis));
        after
            .filter_map(server)
            .filter(|next| accusers.contains(*next))
            .count()
    }
}

impl Orchestrator {
    pub(super) fn on_complaint(
        &mut self,
        now: Time,
        accuser: &PeerBytes,
        b: &Complaint,
        out: &mut Vec<Action>,
    ) {
        let Some(offence) = Offence::from_number(b.offence) else {
            return;
        };
        let Phase::Reducing(r) = &mut self.phase else {
            self.on_delta_refused(accuser, &b.accused, offence);
            return;
        };
        let known = b.context == r.hash && r.serves(accuser) && r.serves(&b.accused) && *accuser != b.accused;
        let complaint = Heard {
            accuser: accuser.clone(),
            accused: b.accused.clone(),
            offence,
            missing: b.missing,
        };
        let same = |c: &Heard| {
            c.accuser == complaint.accuser && c.accused == complaint.accused && c.offence == offence
        };
        if !known || r.complaints.iter().any(same) {
            return;
        }
        out.push(Action::Notice(format!(
            "round {} view {}: {accuser} says that {} {}",
            b.round,
            b.view,
            b.accused,
            offence.explain()
        )));
        if !offence.is_silence() {
            r.accusers
                .entry(b.accused.clone())
                .or_default()
                .insert(accuser.clone());
            let detail = format!("round {}, by word of {accuser}", b.round);
            out.push(Action::Penalise {
                peer: b.accused.clone(),
                offence,
                detail,
            });
        }
        if offence.is_silence() {
            r.ask(&b.accused, out);
        }
        r.complaints.push(complaint);
        r.first_complaint.get_or_insert(now);
    }

    pub(super) fn on_attest(&mut self, now: Time, attest: Attest, m: Verified, _out: &mut Vec<Action>) {
        let Phase::Reducing(r) = &mut self.phase else {
            return;
        };
        let known = attest.manifest == r.hash && r.manifest.entries.iter().any(|e| e.member == m.sender);
        if !known {
            return;
        }
        r.attest_times.add(now.since(r.since));
        r.attests.entry(m.sender.clone()).or_insert((attest, m));
        if r.quorum_since.is_none() && r.quorum().is_some() {
            r.quorum_since = Some(now);
        }
    }

    pub(super) fn close_or_raise_view(&mut self, now: Time, out: &mut Vec<Action>) {
        let Phase::Reducing(r) = &mut self.phase else {
            return;
        };
        let quorum = r.quorum();
        let all = (quorum.is_some() || r.values() > 1) && r.everyone();
        if let Some(since) = r.quorum_since.filter(|_| !all)
            && r.reach.stragglers() == Stragglers::NotAsked
            && now >= since.plus(r.hearing_ms)
        {
            r.ask_stragglers(out);
        }
        let due = now >= r.deadline().0;
        let differ = quorum.is_none() && all;
        match quorum {
            Some((state, checkpoint)) if r.audit.is_over(now) => {
                let attests = r.certificate(state, &checkpoint);
                self.close(now, state, checkpoint, attests, out);
                return;
            }
            // A quorum is to be checked; where all have attested and none is there, somebody may have lied.
            quorum if r.audit == Audit::NotAsked && (differ || quorum.is_some() && (all || due)) => {
                r.audit = Audit::Asked(now);
                out.push(Action::Audit {
                    round: r.manifest.round,
                    manifest: r.hash,
                });
                return;
            }
            Some(_) => return,
            None if differ && r.audit.is_over(now) => {
                r.forget_finished();
                return self.raise_view(now, out);
            }
            None => {}
        }
        if r.reach.is_waiting() {
            self.wait_for_quorum(now, out);
            return;
        }
        let lost = &self.lost;
        let heard_all = r.first_complaint.is_some() && lost.keys().any(|p| r.serves(p));
        let dead = r
            .manifest
            .entries
            .iter()
            .any(|e| r.commits.gone.contains(&e.server));
        let found = r.first_complaint.is_some() && r.has_found_silence();
        let away = |p: &PeerBytes| lost.contains_key(p) || r.is_away(p);
        let has_heard = r.first_complaint.is_none() || r.has_heard_holders(&away);
        if due || (heard_all || found || dead) && has_heard {
            self.raise_view(now, out);
        }
    }

    pub(super) fn raise_view(&mut self, now: Time, out: &mut Vec<Action>) {
        let lost = self.lost.clone();
        let Phase::Reducing(r) = &mut self.phase else {
            return;
        };
        if r.manifest.view.0 + 1 >= MAX_VIEWS {
            self.void_round(now, "no quorum in any view", out);
            return;
        }
        let silent = r.found_silent();
        let is_lost = |p: &PeerBytes| lost.contains_key(p) || silent.contains(p);
        r.doubt_the_accused();
        let replaced = r.decide_replacements(&is_lost);
        let fresh: Vec<PeerBytes> = replaced.difference(&r.replaced).cloned().collect();
        r.replaced.extend(replaced);
        let unavailable = |p: &PeerBytes| is_lost(p) || r.replaced.contains(p);
        let mut entries = Vec::new();
        for e in &r.manifest.entries {
            if !unavailable(&e.server) && !r.commits.gone.contains(&e.server) {
                entries.push(e.clone());
                continue;
            }
            match r.commits.server(&e.member, &e.cid, &unavailable) {
                Some(server) => {
                    out.push(Action::Notice(format!(
                        "round {}: {server} contributes for {}",
                        r.manifest.round, e.member
                    )));
                    entries.push(Entry { server, ..e.clone() });
                }
                None => {
                    let reason = crate::message::Reason::Unavailable;
                    r.manifest.left_out.push(LeftOut {
                        member: e.member.clone(),
                        reason,
                    });
                }
            }
        }
        if entries.is_empty() {
            self.void_round(now, "nobody is left to contribute", out);
            return;
        }
        if !r.can_close(&entries) {
            self.begin_waiting(now, out);
            return;
        }
        r.manifest.entries = entries;
        r.reorder();
        r.keep_finished();
        r.manifest.view = r.manifest.view.next();
        let kept = match r.manifest.kept.len() {
            0 => String::new(),
            n => format!(", {n} of {} chunks are finished", r.members()),
        };
        out.push(Action::Notice(format!(
            "round {}: view {}{kept}",
            r.manifest.round, r.manifest.view
        )));
        r.publish(now, out);
        let misbehaved: Vec<PeerBytes> = fresh
            .into_iter()
            .filter(|p| r.accusers.contains_key(p) && !is_lost(p))
            .collect();
        for peer in misbehaved {
            self.strike(&peer, out);
        }
    }

    fn close(
        &mut self,
        now: Time,
        state: Hash32,
        checkpoint: CidBytes,
        attests: Vec<Verified>,
        out: &mut Vec<Action>,
    ) {
        let Phase::Reducing(r) = &self.phase else { return };
        let round = r.manifest.round;
        for (peer, (attest, _)) in &r.attests {
            if attest.state != state {
                let detail = format!(
                    "round {round}: {} in place of {}",
                    attest.state.short(),
                    state.short()
                );
                out.push(Action::Penalise {
                    peer: peer.clone(),
                    offence: Offence::StateDiffers,
                    detail,
                });
                out.push(Action::Publish(Body::Complaint(Complaint {
                    job: self.config.job.clone(),
                    round,
                    view: r.manifest.view,
                    context: r.hash,
                    accused: peer.clone(),
                    offence: Offence::StateDiffers.number(),
                    missing: 0,
                })));
            }
        }
        let body = Close {
            job: self.config.job.clone(),
            round,
            view: r.manifest.view,
            manifest: r.hash,
            state,
            checkpoint: checkpoint.clone(),
            attests: Vec::new(),
            signers: None,
        }
        .certified(&attests, r.manifest.entries.iter().map(|e| &e.member));
        out.push(Action::Notice(format!(
            "round {round} closes: state {}, {} of {} signed",
            state.short(),
            attests.len(),
            r.members()
        )));
        let attests = if body.signers.is_some() {
            Vec::new()
        } else {
            attests
        };
        out.push(Action::Close { body, attests });
        self.held = Held {
            closed: Round(round.0).next().0,
            state,
            checkpoint,
        };
        self.attempt = 0;
        self.next_round(now, out);
    }
}
