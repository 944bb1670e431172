//! Who has attested what, without the attests themselves: what a close of many members stands on.

use crate::ids::{CidBytes, Hash32, PeerBytes};
use crate::message::{Attest, Close};
use std::collections::BTreeMap;

/// Manifest, state and checkpoint.
type Value = (Hash32, Hash32, CidBytes);

/// The attests heard in a round: the latest of each member. Whoever calls [`Self::hear`] knows who is one.
#[derive(Debug, Default)]
pub(super) struct Heard {
    by: BTreeMap<PeerBytes, Value>,
}

impl Heard {
    pub(super) fn hear(&mut self, member: &PeerBytes, a: &Attest) {
        let value = (a.manifest, a.state, a.checkpoint.clone());
        self.by.insert(member.clone(), value);
    }

    /// Whether `member` has attested what a close says.
    pub(super) fn agrees(&self, member: &PeerBytes, close: &Close) -> bool {
        self.by.get(member).is_some_and(|(manifest, state, checkpoint)| {
            (*manifest, *state, checkpoint) == (close.manifest, close.state, &close.checkpoint)
        })
    }
}
