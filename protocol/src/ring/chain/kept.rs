//! Under which manifest each chunk of a ring was finished: one that is kept was signed, and is replayed, in the order of its
//! own.

use super::{Place, Scope};
use crate::ids::Hash32;
use crate::job::spec::Wire;
use crate::message::{Kept, MAX_KEPT, Manifest, Phase};
use crate::ring::{KeptChunks, Layout};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Where a kept chunk was finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The ring that finished it.
    pub scope: Arc<Scope>,
    /// Hash of its mean.
    pub mean: Hash32,
    /// Slots that hold it.
    pub holders: BTreeSet<u32>,
}

/// Why a manifest describes no ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScopeError {
    /// A grid that the entries do not fill.
    #[error("its grid is not for its entries")]
    Grid,
    /// A manifest that it names is not here.
    #[error("the manifest {} that it keeps chunks of is not known here yet", .0.short())]
    Unknown(Hash32),
    /// A chunk that it may not keep.
    #[error("it keeps chunk {chunk}, but {why}")]
    Kept {
        /// The chunk.
        chunk: u32,
        /// Why not.
        why: &'static str,
    },
}

impl Scope {
    /// Of a manifest that may keep chunks of earlier ones, whose scopes `origin` finds by their hashes.
    ///
    /// # Errors
    /// A grid that the entries do not fill, a manifest that is not known, a chunk that cannot be kept: it is not of the
    /// origin's own ring, others contributed to it, nobody holds it.
    pub fn keeping(
        manifest: Arc<Manifest>,
        hash: Hash32,
        wire: Wire,
        elements: usize,
        segment: usize,
        origin: &dyn Fn(Hash32) -> Option<Arc<Self>>,
    ) -> Result<Self, ScopeError> {
        let entries = u32::try_from(manifest.entries.len()).map_err(|_| ScopeError::Grid)?;
        let layout = Layout::new(entries, manifest.grid).ok_or(ScopeError::Grid)?;
        let mut scope = Self::of(manifest.clone(), hash, layout, wire, elements, segment);
        let mut next = 0;
        for kept in &manifest.kept {
            let refuse = |why| ScopeError::Kept {
                chunk: kept.chunk,
                why,
            };
            if kept.chunk < next {
                return Err(refuse("chunks must ascend"));
            }
            next = kept.chunk.saturating_add(1);
            let from = origin(kept.origin).ok_or(ScopeError::Unknown(kept.origin))?;
            let holders = scope.may_keep(kept, &from).map_err(refuse)?;
            let origin = Origin {
                scope: from,
                mean: kept.mean,
                holders,
            };
            scope.kept.insert(kept.chunk, origin);
        }
        Ok(scope)
    }

    /// The slots that hold a chunk of an earlier ring, if it can be kept.
    fn may_keep(&self, kept: &Kept, from: &Self) -> Result<BTreeSet<u32>, &'static str> {
        let (new, old) = (&self.manifest, &from.manifest);
        let slots = self.plan.layout.slots();
        let same_round =
            (&new.job, new.round, new.roster, new.parent) == (&old.job, old.round, old.roster, old.parent);
        if !same_round || old.view >= new.view {
            return Err("not of an earlier view of the round");
        }
        if self.plan.layout.grid().is_some() || from.plan.layout.grid().is_some() || slots as usize > MAX_KEPT
        {
            return Err("grids and rings as large keep none");
        }
        if !new.sums_the_same(old)
            || (from.plan.elements, from.plan.segment) != (self.plan.elements, self.plan.segment)
        {
            return Err("others contributed to it");
        }
        if from.kept.contains_key(&kept.chunk) {
            return Err("an earlier view had finished it");
        }
        if slots < 2 || kept.chunk >= slots || self.segments(self.mean_of(kept.chunk)) == 0 {
            return Err("there is no such chunk");
        }
        kept.holders(slots)
            .ok_or("its holders are not some of the ring's slots")
    }

    /// Where a ring's owner signs the mean of a chunk.
    #[must_use]
    pub fn mean_of(&self, chunk: u32) -> Place {
        self.signed_at(Phase::AllGather, 0, chunk, 0)
    }

    /// The ring under which a chunk is summed, or was.
    #[must_use]
    pub fn origin(&self, chunk: u32) -> &Self {
        self.kept.get(&chunk).map_or(self, |origin| &origin.scope)
    }

    /// Chunks by the ring under which they are summed, or were: what a replay takes in turn.
    #[must_use]
    pub fn by_origin(self: &Arc<Self>, chunks: &BTreeSet<u32>) -> Vec<(Arc<Self>, BTreeSet<u32>)> {
        let mut by_origin: BTreeMap<Hash32, (Arc<Self>, BTreeSet<u32>)> = BTreeMap::new();
        for chunk in chunks {
            let of = self.kept.get(chunk).map_or(self, |origin| &origin.scope);
            let (_, chunks) = by_origin
                .entry(of.hash)
                .or_insert_with(|| (of.clone(), BTreeSet::new()));
            chunks.insert(*chunk);
        }
        by_origin.into_values().collect()
    }

    /// The kept chunks, as a slot's machine needs them.
    #[must_use]
    pub(in crate::ring) fn kept_chunks(&self) -> KeptChunks {
        let holders = |(chunk, origin): (&u32, &Origin)| (*chunk, origin.holders.clone());
        KeptChunks(self.kept.iter().map(holders).collect())
    }
}
