//! From a manifest's attests to the close (PROTOCOL section 5, "Attest").

use super::audit::Audit;
use super::reach::Stragglers;
use super::view::Reducing;
use super::{Action, Orchestrator, Phase};
use crate::ids::{CidBytes, Hash32, PeerBytes, Round};
use crate::member::Held;
use crate::message::{Attest, Body, Close, Complaint, Offence, Verified};
use crate::time::Time;
use std::collections::{BTreeMap, BTreeSet};

impl Reducing {
    /// The value that more than two thirds attested of the members whose commits count.
    fn quorum(&self) -> Option<(Hash32, CidBytes)> {
        self.behind(2, 3)
    }

    /// The value that more than this part attested of the members whose commits count.
    fn behind(&self, part: usize, of: usize) -> Option<(Hash32, CidBytes)> {
        let mut by_value: BTreeMap<(Hash32, &CidBytes), usize> = BTreeMap::new();
        for (attest, _) in self.attests.values() {
            *by_value.entry((attest.state, &attest.checkpoint)).or_default() += 1;
        }
        let ((state, checkpoint), attests) = by_value.into_iter().max_by_key(|(_, attests)| *attests)?;
        (of * attests > part * self.counted).then(|| (state, checkpoint.clone()))
    }

    /// Says of everyone who attested another state that it did.
    fn blame_the_others(&self, state: Hash32, out: &mut Vec<Action>) {
        let round = self.manifest.round;
        let others = self
            .attests
            .iter()
            .filter(|(_, (attest, _))| attest.state != state);
        for (peer, (attest, _)) in others {
            let (other, state) = (attest.state.short(), state.short());
            out.push(Action::Penalise {
                peer: peer.clone(),
                offence: Offence::StateDiffers,
                detail: format!("round {round}: {other} in place of {state}"),
            });
            out.push(Action::Publish(Body::Complaint(Complaint {
                job: self.manifest.job.clone(),
                round,
                view: self.manifest.view,
                context: self.hash,
                accused: peer.clone(),
                offence: Offence::StateDiffers.number(),
                missing: 0,
            })));
        }
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
}

impl Orchestrator {
    pub(super) fn on_attest(&mut self, now: Time, attest: Attest, m: Verified, _out: &mut Vec<Action>) {
        let Phase::Reducing(r) = &mut self.phase else {
            return;
        };
        let known = attest.manifest == r.hash && r.manifest.entries.iter().any(|e| e.member == m.sender);
        if !known || r.audit == Audit::Found {
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
            None if differ && r.audit.is_over(now) && !r.reach.is_waiting() => {
                r.forget_finished();
                self.strike_the_minority(out);
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

    /// All have attested, the sum is sound, and no value has its quorum: where more than half of the commits that count are
    /// behind one value, the others computed another state.
    fn strike_the_minority(&mut self, out: &mut Vec<Action>) {
        let Phase::Reducing(r) = &mut self.phase else {
            return;
        };
        let Some((state, _)) = r.behind(1, 2).filter(|_| r.audit == Audit::Sound) else {
            return;
        };
        r.blame_the_others(state, out);
        let differs = r.attests.iter().filter(|(_, (attest, _))| attest.state != state);
        let differs: Vec<PeerBytes> = differs.map(|(peer, _)| peer.clone()).collect();
        let fresh: Vec<PeerBytes> = differs
            .into_iter()
            .filter(|p| r.misbehaved.insert(p.clone()))
            .collect();
        r.unforgiven.extend(fresh.iter().cloned());
        fresh.iter().for_each(|peer| self.strike(peer, out));
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
        r.blame_the_others(state, out);
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
        self.resting.clear();
        self.next_round(now, out);
    }
}
