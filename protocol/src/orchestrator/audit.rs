//! Between quorum and close: the sum is replayed, and a liar is named (PROTOCOL section 7.5).

use super::{Action, Audited, Follows, Orchestrator, Phase, STRIKES};
use crate::cbor::BoundedBytes;
use crate::ids::Hash32;
use crate::message::{Body, Offence, Proof};
use crate::ring::{Finding, Lie, placed_to_bytes};
use crate::time::Time;

/// An audit that takes longer is not waited for.
const AUDIT_MS: u64 = 60_000;

/// Where the audit of a view stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Audit {
    /// No attests to check yet.
    NotAsked,
    /// Under way since.
    Asked(Time),
    /// The sum is the exact one.
    Sound,
    /// It could not be told.
    Open,
    /// Somebody lied: nothing closes under this manifest.
    Found,
}

impl Audit {
    /// When it is waited for no longer.
    pub(super) fn deadline(self) -> Option<Time> {
        match self {
            Self::Asked(at) => Some(at.plus(AUDIT_MS)),
            Self::NotAsked | Self::Sound | Self::Open | Self::Found => None,
        }
    }

    /// Whether nothing more is to come of it.
    pub(super) fn is_over(self, now: Time) -> bool {
        match self {
            Self::NotAsked => false,
            Self::Asked(_) => self.deadline().is_some_and(|at| at <= now),
            Self::Sound | Self::Open | Self::Found => true,
        }
    }
}

impl Orchestrator {
    pub(super) fn on_audited(
        &mut self,
        now: Time,
        manifest: Hash32,
        outcome: Audited,
        follows: Option<Follows>,
        out: &mut Vec<Action>,
    ) {
        let Phase::Reducing(r) = &mut self.phase else {
            return;
        };
        if r.hash != manifest || !matches!(r.audit, Audit::Asked(_)) {
            return;
        }
        r.audit = Audit::Open;
        r.follows = follows;
        match outcome {
            Audited::Sound => r.audit = Audit::Sound,
            Audited::Open(why) => {
                let text = format!("round {}: the sum was not audited: {why}", r.manifest.round);
                out.push(Action::Notice(text));
            }
            Audited::Found(finding) => self.replace_liar(now, &finding, out),
        }
    }

    /// The liar's committed work stays in the sum, contributed by a holder: it is the hop that was false. Who is convicted by
    /// its own signatures is not called again.
    fn replace_liar(&mut self, now: Time, finding: &Finding, out: &mut Vec<Action>) {
        let Phase::Reducing(r) = &mut self.phase else {
            return;
        };
        let (round, manifest, member) = (r.manifest.round, finding.manifest, finding.member.clone());
        r.misbehaved.insert(member.clone());
        r.unforgiven.insert(member.clone());
        // No next view may come of it yet: what was attested is false all the same.
        r.audit = Audit::Found;
        r.attests.clear();
        r.quorum_since = None;
        let detail = format!(
            "round {round}: it {} ({:?} step {}, chunk {}, slot {})",
            finding.lie.explain(),
            finding.place.phase,
            finding.place.step,
            finding.place.chunk,
            finding.place.slot
        );
        out.push(Action::Penalise {
            peer: member.clone(),
            offence: Offence::FalseSum,
            detail,
        });
        let hops: Vec<u8> = finding
            .evidence
            .iter()
            .flat_map(|(place, hop)| placed_to_bytes(*place, hop))
            .collect();
        if let Ok(hops) = BoundedBytes::try_from(hops) {
            out.push(Action::Publish(Body::Proof(Proof {
                job: self.config.job.clone(),
                round,
                manifest,
                accused: member.clone(),
                hops,
            })));
        }
        if finding.lie != Lie::Withheld {
            self.strikes.insert(member.clone(), STRIKES - 1);
        }
        self.strike(&member, out);
        if let Phase::Reducing(r) = &mut self.phase {
            r.forget_finished();
        }
        self.raise_view(now, out);
    }
}
