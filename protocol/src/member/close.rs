//! The close of a round, and whether it is one.

use super::{Action, Held, Member, Phase, READY_EVERY_MS};
use crate::ids::PeerBytes;
use crate::message::{Attest, Body, Close, Offence, Verified};
use crate::time::Time;

impl Member {
    /// An attest that a close may be waiting for.
    pub(super) fn on_attest(
        &mut self,
        now: Time,
        signer: &PeerBytes,
        attest: &Attest,
        out: &mut Vec<Action>,
    ) {
        let Phase::InRound(round) = &mut self.phase else {
            return;
        };
        // Others could say as much as they like.
        if !round.in_roster(signer) {
            return;
        }
        round.heard.hear(signer, attest);
        if let Some(close) = round.close.take() {
            self.on_close(now, &close, &[], out);
        }
    }

    pub(super) fn on_close(&mut self, now: Time, close: &Close, attests: &[Verified], out: &mut Vec<Action>) {
        let Some(held) = &self.held else { return };
        if close.round.0 < held.closed || !certified(close, attests) {
            return;
        }
        let Phase::InRound(round) = &mut self.phase else {
            return;
        };
        if round.roster.round != close.round {
            return;
        }
        if let Some(view) = round.view().map(|v| v.manifest.view).filter(|v| *v > close.view) {
            let detail = format!(
                "round {}: it closes view {} after it decided view {view}: the close is void",
                close.round, close.view
            );
            out.push(Action::Penalise {
                peer: self.config.orchestrator.clone(),
                offence: Offence::Equivocation,
                detail,
            });
            return;
        }
        if !round.is_quorum(close, attests) {
            // Attests that it names are on their way, or are asked for.
            round.close = close.signers.is_some().then(|| Box::new(close.clone()));
            return;
        }
        self.times = std::mem::take(&mut round.times);
        let next = Held {
            closed: close.round.0 + 1,
            state: close.state,
            checkpoint: close.checkpoint.clone(),
        };
        match round.attested_state() {
            Some(state) if state == close.state => {
                if let Some(residual) = round.next_residual(close.manifest) {
                    self.residual = residual;
                }
                self.held = Some(next.clone());
                out.push(Action::Promote(next));
                // The attest said that we are here: a further word is needed only if no roster comes.
                self.phase = Phase::Waiting {
                    ready_again: now.plus(READY_EVERY_MS),
                };
            }
            other => {
                if let Some(state) = other {
                    out.push(Action::Penalise {
                        peer: self.config.me.clone(),
                        offence: Offence::StateDiffers,
                        detail: format!(
                            "round {}: this node's state {} differs from the quorum's {}; loading the checkpoint",
                            close.round,
                            state.short(),
                            close.state.short()
                        ),
                    });
                }
                self.residual.clear();
                out.push(Action::AbandonTraining);
                out.push(Action::Fetch(next));
                self.phase = Phase::Preparing;
            }
        }
    }
}

/// Every attest in the certificate is by another signer and says what the certificate says. Signatures were checked at
/// the edge.
fn certified(close: &Close, attests: &[Verified]) -> bool {
    if close.signers.is_some() {
        return close.attests.is_empty();
    }
    let mut signers: Vec<&PeerBytes> = attests
        .iter()
        .filter(|v| {
            matches!(&v.body, Body::Attest(a) if a.job == close.job && a.round == close.round
                && a.manifest == close.manifest && a.state == close.state && a.checkpoint == close.checkpoint)
        })
        .map(|v| &v.sender)
        .collect();
    signers.sort();
    signers.dedup();
    !signers.is_empty() && signers.len() == close.attests.len()
}
