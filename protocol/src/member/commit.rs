//! Commit: delta, commitment, replicas, receipts, reveals (PROTOCOL section 5, "Commit").

use super::round::{HeldReplica, InRound, Own, Step};
use super::{Action, Config, Event};
use crate::ids::{CidBytes, Hash32, PeerBytes};
use crate::message::{Body, Commitment, Complaint, Offence, Reason, Receipt, Reveal};
use crate::time::{Deadline, Time};

/// A holder reveals for a silent member this long after the cutoff.
const REVEAL_FOR_MS: u64 = 2_000;
/// A holder that has not signed a receipt after this long is not waited for alone: the next is asked too.
const RECEIPT_MS: u64 = 6_000;
/// Replicas kept until their commitment is seen.
const MAX_UNMATCHED: usize = 16;

/// SHA3-256(`gym/commit/v1` ‖ genesis ‖ PeerId bytes ‖ salt ‖ CID bytes).
#[must_use]
pub fn commitment(genesis: Hash32, member: &PeerBytes, salt: Hash32, cid: &CidBytes) -> Hash32 {
    crate::cbor::sha3_256(&[
        b"gym/commit/v1",
        &genesis.0,
        member.as_bytes(),
        &salt.0,
        cid.as_bytes(),
    ])
}

impl InRound {
    pub(super) fn on_trained(&mut self, residual: &[f32], mut delta: Vec<f32>, out: &mut Vec<Action>) {
        if !matches!(self.step, Step::Training) {
            return;
        }
        for (d, r) in delta.iter_mut().zip(residual) {
            *d += *r;
        }
        if let Some(at) = crate::quant::out_of_bounds(&delta) {
            out.push(Action::Notice(format!(
                "round {}: the delta's element {at} is not finite, or too large to be summed; it is not committed",
                self.roster.round
            )));
            self.step = Step::SittingOut;
            return;
        }
        out.push(Action::BuildCommit {
            round: self.roster.round,
            roster: self.hash,
            parent: self.roster.parent,
            delta: delta.clone(),
        });
        self.step = Step::Building { delta };
    }

    pub(super) fn on_commit_built(
        &mut self,
        now: Time,
        config: &Config,
        cid: CidBytes,
        salt: Hash32,
        out: &mut Vec<Action>,
    ) {
        let Step::Building { delta } = &mut self.step else {
            return;
        };
        let delta = std::mem::take(delta);
        let commitment = commitment(config.genesis, &config.me, salt, &cid);
        self.own = Some(Own {
            cid,
            salt,
            delta,
            sent_to: std::collections::BTreeMap::new(),
            refused_by: std::collections::BTreeSet::new(),
        });
        self.step = Step::Committed;
        self.commitments.insert(config.me.clone(), commitment);
        out.push(Action::Publish(Body::Commitment(Commitment {
            job: config.job.clone(),
            round: self.roster.round,
            roster: self.hash,
            commitment,
        })));
        self.replicate(now, config, out);
        if self.cutoff.is_some() {
            self.reveal_own(config, out);
        }
    }

    pub(super) fn on_commitment(
        &mut self,
        now: Time,
        config: &Config,
        member: PeerBytes,
        commitment: Hash32,
        out: &mut Vec<Action>,
    ) {
        if !self.in_roster(&member) {
            return;
        }
        match self.commitments.get(&member) {
            Some(known) if *known == commitment => return,
            Some(_) => {
                self.accuse(
                    config,
                    &member,
                    Offence::Equivocation,
                    "another commitment came first",
                    out,
                );
                return;
            }
            None => {
                self.commitments.insert(member, commitment);
            }
        }
        self.replicate(now, config, out);
        for replica in std::mem::take(&mut self.unmatched) {
            self.on_replica(config, replica, out);
        }
    }

    /// Sends one's commit to the next `redundancy` members whose own commitments have been seen.
    fn replicate(&mut self, now: Time, config: &Config, out: &mut Vec<Action>) {
        let n = self.roster.members.len();
        let Some(own) = &mut self.own else { return };
        let after = (1..n).filter_map(|i| self.roster.members.get((self.rank + i) % n));
        for holder in after.filter(|m| self.commitments.contains_key(&m.peer)) {
            let asked = own.sent_to.len() - own.refused_by.len();
            if asked >= config.spec.schedule.redundancy as usize {
                return;
            }
            if !own.sent_to.contains_key(&holder.peer) {
                own.sent_to.insert(holder.peer.clone(), now);
                out.push(Action::SendReplica {
                    to: holder.peer.clone(),
                    round: self.roster.round,
                    roster: self.hash,
                    cid: own.cid.clone(),
                    salt: own.salt,
                });
            }
        }
    }

    /// A holder that refuses our delta is replaced by the next: it may be the one at fault.
    pub(super) fn on_complaint(
        &mut self,
        now: Time,
        config: &Config,
        accuser: &PeerBytes,
        complaint: &Complaint,
        out: &mut Vec<Action>,
    ) {
        self.on_complaint_in_view(config, accuser, complaint.context, out);
        if complaint.accused != config.me || complaint.context != self.hash {
            return;
        }
        if let Some(own) = &mut self.own
            && own.sent_to.contains_key(accuser)
        {
            own.refused_by.insert(accuser.clone());
        }
        self.replicate(now, config, out);
    }

    pub(super) fn on_replica(&mut self, config: &Config, event: Event, out: &mut Vec<Action>) {
        let Event::Replica {
            from,
            salt,
            cid,
            outcome,
            ..
        } = &event
        else {
            return;
        };
        let Some(known) = self.commitments.get(from) else {
            if self.in_roster(from) && self.unmatched.len() < MAX_UNMATCHED {
                self.unmatched.push(event);
            }
            return;
        };
        let opens = *known == commitment(config.genesis, from, *salt, cid);
        let checked = match outcome {
            _ if !opens => Err(Reason::FalseReveal),
            Ok(facts) if facts.member != *from || facts.round != self.roster.round => Err(Reason::Malformed),
            Ok(facts) if facts.parent != self.roster.parent => Err(Reason::StaleParent),
            Ok(facts) => Ok(facts.delta.clone()),
            Err(reason) => Err(*reason),
        };
        match checked {
            Ok(delta) => {
                let (commitment, cid) = (*known, cid.clone());
                self.held.insert(
                    from.clone(),
                    HeldReplica {
                        salt: *salt,
                        cid: cid.clone(),
                        delta,
                    },
                );
                out.push(Action::Publish(Body::Receipt(Receipt {
                    job: config.job.clone(),
                    round: self.roster.round,
                    roster: self.hash,
                    member: from.clone(),
                    commitment,
                    cid,
                })));
            }
            Err(reason) => {
                let offence = match reason {
                    Reason::NotFinite => Offence::DeltaNotFinite,
                    Reason::NoCommitment
                    | Reason::NoReceipts
                    | Reason::NoReveal
                    | Reason::FalseReveal
                    | Reason::Unavailable
                    | Reason::Malformed
                    | Reason::StaleParent
                    | Reason::Equivocation => Offence::DeltaMalformed,
                };
                let from = from.clone();
                self.accuse(config, &from, offence, reason.explain(), out);
            }
        }
    }

    /// A holder's word for one's own commit. Whoever signs for another delta has not this one: the next is asked.
    pub(super) fn on_receipt(
        &mut self,
        now: Time,
        config: &Config,
        holder: &PeerBytes,
        receipt: &Receipt,
        out: &mut Vec<Action>,
    ) {
        let own = receipt.member == self.me && self.commitments.get(&self.me) == Some(&receipt.commitment);
        if !own || !self.in_roster(holder) {
            return;
        }
        let Some(commit) = &mut self.own else { return };
        if receipt.cid == commit.cid {
            self.receipts.insert(holder.clone());
        } else if commit.sent_to.contains_key(holder) && commit.refused_by.insert(holder.clone()) {
            self.accuse(
                config,
                holder,
                Offence::BadMessage,
                "its receipt names another delta",
                out,
            );
            self.replicate(now, config, out);
        }
    }

    /// Somebody opened a commitment. Holders are silent for a member only where the orchestrator has taken its reveal: after
    /// the cutoff, from a member of the roster, with the salt and the directory that were committed to.
    pub(super) fn on_reveal(&mut self, config: &Config, sender: &PeerBytes, b: Reveal) {
        let opened = commitment(config.genesis, &b.member, b.salt, &b.cid);
        let opens = self.commitments.get(&b.member) == Some(&opened);
        if opens && self.cutoff.is_some() && self.in_roster(sender) {
            self.revealed.insert(b.member);
        }
    }

    pub(super) fn on_cutoff(&mut self, now: Time, config: &Config, out: &mut Vec<Action>) {
        if self.cutoff.is_none() {
            self.cutoff = Some(now);
            self.reveal_own(config, out);
        }
    }

    /// Holders that owe a receipt, and since when.
    fn owing(&self) -> impl Iterator<Item = (&PeerBytes, Time)> {
        let own = self.own.as_ref().filter(|_| self.cutoff.is_none());
        own.into_iter()
            .flat_map(|own| own.sent_to.iter().map(move |(holder, at)| (own, holder, *at)))
            .filter_map(move |(own, holder, at)| {
                let answered = self.receipts.contains(holder) || own.refused_by.contains(holder);
                (!answered).then_some((holder, at))
            })
    }

    pub(super) fn receipt_deadline(&self) -> Option<Deadline> {
        self.owing()
            .map(|(_, at)| (at.plus(RECEIPT_MS), "a holder's receipt"))
            .min()
    }

    pub(super) fn ask_another_holder(&mut self, now: Time, config: &Config, out: &mut Vec<Action>) {
        let late: Vec<PeerBytes> = self
            .owing()
            .filter(|(_, at)| at.plus(RECEIPT_MS) <= now)
            .map(|(holder, _)| holder.clone())
            .collect();
        let Some(own) = &mut self.own else { return };
        if !late.is_empty() {
            own.refused_by.extend(late);
            self.replicate(now, config, out);
        }
    }

    fn reveal_own(&mut self, config: &Config, out: &mut Vec<Action>) {
        if let Some(own) = &self.own {
            self.revealed.insert(config.me.clone());
            out.push(self.reveal(config, &config.me, own.salt, &own.cid));
        }
    }

    fn reveal(&self, config: &Config, member: &PeerBytes, salt: Hash32, cid: &CidBytes) -> Action {
        Action::Publish(Body::Reveal(Reveal {
            job: config.job.clone(),
            round: self.roster.round,
            roster: self.hash,
            member: member.clone(),
            salt,
            cid: cid.clone(),
        }))
    }

    /// Replicas held for members that have not revealed.
    fn silent(&self) -> impl Iterator<Item = (&PeerBytes, &HeldReplica)> {
        self.held
            .iter()
            .filter(|(member, _)| !self.revealed.contains(*member))
    }

    pub(super) fn reveal_deadline(&self) -> Option<Deadline> {
        let at = self.cutoff?.plus(REVEAL_FOR_MS);
        self.silent().next().map(|_| (at, "a member's own reveal"))
    }

    /// Who cannot be reached after the cutoff is not waited for.
    pub(super) fn reveal_for_the_lost(&mut self, config: &Config, peer: &PeerBytes, out: &mut Vec<Action>) {
        if self.cutoff.is_none() || self.revealed.contains(peer) {
            return;
        }
        if let Some(held) = self.held.get(peer) {
            out.push(self.reveal(config, peer, held.salt, &held.cid));
            self.revealed.insert(peer.clone());
        }
    }

    pub(super) fn reveal_for_the_silent(&mut self, now: Time, config: &Config, out: &mut Vec<Action>) {
        if self.reveal_deadline().is_none_or(|(at, _)| now < at) {
            return;
        }
        let reveals: Vec<(PeerBytes, Action)> = self
            .silent()
            .map(|(m, held)| (m.clone(), self.reveal(config, m, held.salt, &held.cid)))
            .collect();
        for (member, action) in reveals {
            self.revealed.insert(member);
            out.push(action);
        }
    }
}
