//! From a manifest's attests to the close (PROTOCOL section 5, "Attest").

use super::audit::Audit;
use super::reach::Stragglers;
use super::view::Reducing;
use super::{Action, Follows, Orchestrator, Phase};
use crate::ids::{CidBytes, Hash32, PeerBytes, Round};
use crate::member::Held;
use crate::message::{Attest, Body, Close, Complaint, Offence, Verified};
use crate::time::Time;
use std::collections::{BTreeMap, BTreeSet};

impl Reducing {
    /// The value that more than two thirds attested of the members whose commits count; once the round was replayed, only what
    /// follows from it.
    fn quorum(&self) -> Option<(Hash32, CidBytes)> {
        let right = |value: &(Hash32, CidBytes)| self.follows.as_ref().is_none_or(|f| is_value(value, f));
        self.behind(2, 3).filter(right)
    }

    /// The value that stands where none has its quorum: what follows from the committed deltas, or else that of more than half
    /// of the members whose commits count.
    fn standing(&self) -> Option<(Hash32, CidBytes)> {
        let follows = self.follows.as_ref();
        let right = follows.map(|f| (f.state, f.checkpoint.clone()));
        right.or_else(|| self.behind(1, 2))
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

    /// Everyone who attested another value.
    fn others(&self, state: Hash32, checkpoint: &CidBytes) -> impl Iterator<Item = (&PeerBytes, &Attest)> {
        let attests = self.attests.iter().map(|(peer, (attest, _))| (peer, attest));
        attests.filter(move |(_, a)| a.state != state || a.checkpoint != *checkpoint)
    }

    /// Says of everyone who attested another state, or another checkpoint of it, that it did.
    fn blame_the_others(&self, state: Hash32, checkpoint: &CidBytes, out: &mut Vec<Action>) {
        let round = self.manifest.round;
        for (peer, attest) in self.others(state, checkpoint) {
            let detail = if attest.state == state {
                let other = &attest.checkpoint;
                format!("round {round}: checkpoint {other} in place of {checkpoint}")
            } else {
                let (other, state) = (attest.state.short(), state.short());
                format!("round {round}: {other} in place of {state}")
            };
            out.push(Action::Penalise {
                peer: peer.clone(),
                offence: Offence::StateDiffers,
                detail,
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

fn is_value((state, checkpoint): &(Hash32, CidBytes), follows: &Follows) -> bool {
    (state, checkpoint) == (&follows.state, &follows.checkpoint)
}

impl Orchestrator {
    pub(super) fn on_attest(&mut self, now: Time, attest: Attest, m: Verified, out: &mut Vec<Action>) {
        let Phase::Reducing(r) = &mut self.phase else {
            return;
        };
        let known = attest.manifest == r.hash && r.manifest.entries.iter().any(|e| e.member == m.sender);
        if !known || r.audit == Audit::Found {
            return;
        }
        // Members take no certificate in which one attest names another round.
        let (named, open) = (
            (attest.round, attest.view, attest.parent),
            (r.manifest.round, r.manifest.view, r.manifest.parent),
        );
        if named != open {
            let ((round, view, _), (of_round, of_view, _)) = (named, open);
            out.push(Action::Penalise {
                peer: m.sender,
                offence: Offence::BadMessage,
                detail: format!(
                    "round {of_round} view {of_view}: its attest names round {round} view {view}, or another parent"
                ),
            });
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
            // Whether they differ from each other, or agree on what does not follow from their own deltas.
            None if (differ || r.follows.is_some()) && r.audit.is_over(now) && !r.reach.is_waiting() => {
                r.forget_finished();
                r.quorum_since = None;
                self.strike_the_others(out);
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

    /// The sum is sound, and no value has its quorum, or not the one that follows from it: who attested another one computed
    /// another state. Where the sum is not known to be sound nobody is struck: they may have been given a false one.
    fn strike_the_others(&mut self, out: &mut Vec<Action>) {
        let Phase::Reducing(r) = &mut self.phase else {
            return;
        };
        let Some((state, checkpoint)) = r.standing().filter(|_| r.audit == Audit::Sound) else {
            return;
        };
        r.blame_the_others(state, &checkpoint, out);
        let differs: Vec<PeerBytes> = r.others(state, &checkpoint).map(|(p, _)| p.clone()).collect();
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
        r.blame_the_others(state, &checkpoint, out);
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
