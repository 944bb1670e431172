//! Finished chunks from one view of a round to the next (PROTOCOL section 6, "Failure").
//!
//! When somebody complains, a member says what it holds ([`Holding`]); a manifest that keeps a chunk names who holds it. A
//! ring that is given up leaves its finished means here, and the next one is opened with those that its manifest keeps.

use super::round::{InRound, Step};
use super::view::ViewState;
use super::{Action, Config};
use crate::ids::{Hash32, PeerBytes, View};
use crate::message::{Body, HeldChunk, Holding, MAX_KEPT, Manifest};
use crate::ring::{Carried, Chained, Finished, Hop, Place, Scope, ScopeError};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Manifests of a round that are remembered: each may be what a later one keeps chunks of.
const MAX_SCOPES: usize = 16;

/// What a member has of a round's earlier views.
#[derive(Debug, Default)]
pub(super) struct Keeping {
    /// Means by chunk, with the manifest under which they were finished.
    means: BTreeMap<u32, (Hash32, Finished)>,
    /// What rounding left over of this member's own contribution, likewise (integers only).
    left: BTreeMap<u32, (Hash32, Vec<f32>)>,
    /// Hops by manifest.
    hops: BTreeMap<Hash32, BTreeMap<Place, Hop>>,
    /// The rings that the round's manifests describe.
    scopes: BTreeMap<Hash32, Arc<Scope>>,
    /// The latest view that was begun.
    pub(super) newest: Option<View>,
    /// A later manifest that keeps chunks of one that has not come yet.
    pub(super) ahead: Option<Box<(Manifest, Hash32)>>,
    /// How many chunks were said to be held, and under which manifest.
    said: Option<(Hash32, usize)>,
}

impl Keeping {
    /// The ring that a manifest describes. It is remembered, for manifests that keep chunks of it.
    pub(super) fn scope(
        &mut self,
        config: &Config,
        manifest: Manifest,
        hash: Hash32,
        elements: usize,
    ) -> Result<Arc<Scope>, ScopeError> {
        if let Some(known) = self.scopes.get(&hash).filter(|s| s.plan.elements == elements) {
            return Ok(known.clone());
        }
        let (wire, segment) = (config.spec.wire, config.segment);
        let origin = |hash: Hash32| self.scopes.get(&hash).cloned();
        let scope = Scope::keeping(Arc::new(manifest), hash, wire, elements, segment, &origin)?;
        let scope = Arc::new(scope);
        if self.scopes.len() < MAX_SCOPES {
            self.scopes.insert(hash, scope.clone());
        }
        Ok(scope)
    }

    /// Takes what a ring that is given up has finished.
    pub(super) fn absorb(&mut self, view: &ViewState) {
        self.take_hops(view);
        if !can_keep(&view.scope) {
            return;
        }
        for chunk in 0..view.scope.chunks() {
            let origin = view.scope.origin(chunk).hash;
            let mean = view
                .rings
                .iter()
                .find_map(|(slot, ring)| ring.finished(chunk, view.result(*slot)));
            if let Some(mean) = mean {
                self.means.insert(chunk, (origin, mean));
            }
            if let Some(left) = view.left_of(chunk) {
                self.left.insert(chunk, (origin, left));
            }
        }
    }

    /// Forgets what a new manifest does not keep.
    pub(super) fn retain(&mut self, scope: &Scope) {
        let is_kept = |chunk: &u32, origin: Hash32| {
            let kept = scope.kept.get(chunk);
            kept.filter(|kept| kept.scope.hash == origin)
        };
        self.means.retain(|chunk, (origin, mean)| {
            is_kept(chunk, *origin).is_some_and(|kept| kept.mean == mean.hop.went)
        });
        self.left
            .retain(|chunk, (origin, _)| is_kept(chunk, *origin).is_some());
        self.hops
            .retain(|hash, _| scope.kept.values().any(|kept| kept.scope.hash == *hash));
    }

    /// What a slot brings of the chunks that its manifest keeps; `own`, if it is this member's own.
    pub(super) fn carried(&self, scope: &Scope, slot: u32, whose: Whose) -> Carried {
        let means = self.means.iter().filter(|(chunk, _)| {
            let kept = scope.kept.get(chunk);
            kept.is_some_and(|kept| kept.holders.contains(&slot))
        });
        let left = self.left.iter().filter(|_| whose == Whose::Own);
        Carried {
            means: means.map(|(chunk, (_, mean))| (*chunk, mean.clone())).collect(),
            left: left.map(|(chunk, (_, left))| (*chunk, left.clone())).collect(),
        }
    }

    /// The rings have it now.
    pub(super) fn clear(&mut self) {
        self.means.clear();
        self.left.clear();
    }

    /// Takes a ring's hops, each to the manifest under which it was signed.
    fn take_hops(&mut self, view: &ViewState) {
        for (place, hop) in view.rings.values().flat_map(|ring| ring.hops()) {
            let of = if *place == view.scope.mean_of(place.chunk) {
                view.scope.origin(place.chunk).hash
            } else {
                view.hash
            };
            self.hops.entry(of).or_default().insert(*place, *hop);
        }
    }

    /// A finished ring's hops, and those of the rings whose chunks it kept.
    pub(super) fn chains(&mut self, view: &ViewState) -> Vec<(Hash32, Vec<(Place, Hop)>)> {
        self.take_hops(view);
        let chains = self.hops.iter();
        chains
            .map(|(hash, hops)| (*hash, hops.iter().map(|(place, hop)| (*place, *hop)).collect()))
            .collect()
    }
}

/// Whose contribution a slot adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// This member's.
    Own,
    /// Another's, or nobody's.
    Anothers,
}

/// Whether a ring's chunks can be kept: grids and large rings keep none.
fn can_keep(scope: &Scope) -> bool {
    let layout = scope.plan.layout;
    layout.grid().is_none() && (2..=MAX_KEPT).contains(&(layout.slots() as usize))
}

impl ViewState {
    /// The chunks that are here, whole and signed.
    fn held(&self) -> Vec<HeldChunk> {
        let mean = |chunk| self.rings.values().find_map(|ring: &Chained| ring.holds(chunk));
        (0..self.scope.chunks())
            .filter_map(|chunk| mean(chunk).map(|mean| HeldChunk { chunk, mean }))
            .collect()
    }
}

impl InRound {
    /// The ring that runs, or ran, is given up.
    pub(super) fn give_up_ring(&mut self) {
        if self.view().is_none() {
            return;
        }
        match std::mem::replace(&mut self.step, Step::SittingOut) {
            Step::Reducing(view) | Step::Applying(view) | Step::Attested { view, .. } => {
                self.keeping.absorb(&view);
            }
            Step::Syncing | Step::Training | Step::Building { .. } | Step::Committed | Step::SittingOut => {}
        }
    }

    /// Says what is held here of the view's finished chunks, if that was not said.
    pub(super) fn say_holding(&mut self, config: &Config, out: &mut Vec<Action>) {
        let Some(view) = self.view().filter(|view| can_keep(&view.scope)) else {
            return;
        };
        let (hash, number, held) = (view.hash, view.manifest.view, view.held());
        let saying = Some((hash, held.len()));
        if self.keeping.said == saying {
            return;
        }
        if let Ok(held) = held.try_into() {
            out.push(Action::Publish(Body::Holding(Holding {
                job: config.job.clone(),
                round: self.roster.round,
                view: number,
                manifest: hash,
                held,
            })));
            self.keeping.said = saying;
        }
    }

    /// Somebody complains under the view that runs here.
    pub(super) fn on_complaint_in_view(
        &mut self,
        config: &Config,
        accuser: &PeerBytes,
        context: Hash32,
        out: &mut Vec<Action>,
    ) {
        if self.in_roster(accuser) && self.view().is_some_and(|view| view.hash == context) {
            self.say_holding(config, out);
        }
    }
}
