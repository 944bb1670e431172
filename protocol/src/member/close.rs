//! The close of a round, and whether it is one.

use super::{Action, Held, Member, Phase, READY_EVERY_MS};
use crate::ids::PeerBytes;
use crate::message::{Body, Close, Offence, Verified};
use crate::time::Time;

impl Member {
    pub(super) fn on_close(&mut self, now: Time, close: &Close, attests: &[Verified], out: &mut Vec<Action>) {
        let Some(held) = &self.held else { return };
        if close.round.0 < held.closed || !certified(close, attests) {
            return;
        }
        let Phase::InRound(round) = &mut self.phase else {
            return;
        };
        if round.roster.round != close.round || !round.is_quorum(close, attests) {
            return;
        }
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
