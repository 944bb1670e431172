//! Who has attested what, without the attests themselves: what a close of many members stands on.

use crate::ids::{CidBytes, Hash32, PeerBytes};
use crate::message::{Attest, Close};
use std::collections::BTreeMap;

/// Different values remembered in a round: honest members attest one a view.
const MAX_VALUES: usize = 64;

type Value = (Hash32, Hash32, CidBytes);

/// The attests heard in a round.
#[derive(Debug, Default)]
pub(super) struct Heard {
    /// Manifest, state and checkpoint.
    values: Vec<Value>,
    /// The latest value of each, by number.
    by: BTreeMap<PeerBytes, u8>,
}

impl Heard {
    pub(super) fn hear(&mut self, signer: &PeerBytes, a: &Attest) {
        let value = (a.manifest, a.state, a.checkpoint.clone());
        let at = self.values.iter().position(|v| *v == value).or_else(|| {
            let room = self.values.len() < MAX_VALUES;
            room.then(|| {
                self.values.push(value);
                self.values.len() - 1
            })
        });
        if let Some(at) = at.and_then(|at| u8::try_from(at).ok()) {
            self.by.insert(signer.clone(), at);
        }
    }

    /// Whether `member` has attested what a close says.
    pub(super) fn agrees(&self, member: &PeerBytes, close: &Close) -> bool {
        let value = self
            .by
            .get(member)
            .and_then(|at| self.values.get(usize::from(*at)));
        value.is_some_and(|(manifest, state, checkpoint)| {
            (*manifest, *state, checkpoint) == (close.manifest, close.state, &close.checkpoint)
        })
    }
}
