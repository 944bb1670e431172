//! The hops that were shown, held against what they should say.

use super::Expected;
use crate::ids::{Hash32, PeerBytes};
use crate::ring::chain::{Hop, HopKeys, Place, Scope, built_on};
use std::collections::{BTreeMap, BTreeSet};

/// What an audit comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every mean that was shown is the replay's.
    Sound,
    /// Somebody lied.
    Found(Box<Finding>),
    /// Something is wrong, or not shown, and those who could show more did not answer.
    Unproven(Place),
}

/// Who lied, how, and the signatures that show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Under which manifest.
    pub manifest: Hash32,
    /// Where.
    pub place: Place,
    /// Who serves that slot.
    pub member: PeerBytes,
    /// How.
    pub lie: Lie,
    /// Its hop, then the hops it builds on; for two words both of them.
    pub evidence: Vec<(Place, Hop)>,
}

/// How a hop lied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lie {
    /// What it signed to go out does not follow from what it signed to have come in and its committed delta.
    Sum,
    /// What it signed to have come in is not what its predecessor signed to have sent, and it shows no other signature.
    In,
    /// It signed two different things in one place.
    TwoWords,
    /// It does not show a signature that it must have.
    Withheld,
}

impl Lie {
    /// For people, after a member's name.
    #[must_use]
    pub fn explain(self) -> &'static str {
        match self {
            Self::Sum => {
                "lied about a sum: what it signed does not follow from what came in and its committed delta"
            }
            Self::In => "lied about what came in: the signature before it says otherwise",
            Self::TwoWords => "signed two different things in one place",
            Self::Withheld => "withholds a hop signature that it must have",
        }
    }

    /// Whether the evidence alone convicts; otherwise that the accused was asked is the asker's word.
    #[must_use]
    pub fn stands_alone(self) -> bool {
        matches!(self, Self::Sum | Self::TwoWords)
    }
}

/// Judges what members have shown of their chains. `answered` are those who were asked and answered: only they can be said
/// to withhold something. Hops that are wrongly signed count as not shown.
#[must_use]
pub fn judge(
    scope: &Scope,
    expected: &Expected,
    shown: &[(Place, Hop)],
    answered: &BTreeSet<PeerBytes>,
    keys: &dyn HopKeys,
) -> Verdict {
    let places: BTreeSet<Place> = expected.iter().map(|(place, _)| *place).collect();
    let mut words: BTreeMap<Place, Vec<Hop>> = BTreeMap::new();
    for (place, hop) in shown.iter().filter(|(place, _)| places.contains(place)) {
        let said = words.entry(*place).or_default();
        // Members show the same hops: each word is checked once.
        if !said.iter().any(|known| known == hop) && hop.is_signed(scope, *place, keys) {
            said.push(*hop);
        }
    }
    let court = Court {
        scope,
        right: expected.iter().copied().collect(),
        words,
        answered,
    };
    expected
        .iter()
        .find_map(|(place, _)| court.look_at(*place))
        .unwrap_or_else(|| court.is_complete())
}

struct Court<'a> {
    scope: &'a Scope,
    right: BTreeMap<Place, Hash32>,
    words: BTreeMap<Place, Vec<Hop>>,
    answered: &'a BTreeSet<PeerBytes>,
}

impl Court<'_> {
    /// `None` where nothing is wrong, or nothing was shown. All places before this one are right as far as they were shown.
    fn look_at(&self, place: Place) -> Option<Verdict> {
        let words = self.words.get(&place)?;
        let first = words.first()?;
        if let Some(other) = words.iter().find(|w| !w.says_the_same(first)) {
            return self.found(place, Lie::TwoWords, vec![(place, *first), (place, *other)]);
        }
        let is_right = self.right.get(&place) == Some(&first.went);
        let places = self.scope.builds_on(place);
        let on: Option<Vec<&Hop>> = places.iter().map(|p| self.words.get(p)?.first()).collect();
        let Some(on) = on else {
            return if is_right { None } else { self.gap(place, *first) };
        };
        let mut evidence = vec![(place, *first)];
        evidence.extend(places.iter().copied().zip(on.iter().map(|h| **h)));
        let [came, _] = built_on(&on);
        match (first.came == came, is_right) {
            (true, true) => None,
            (true, false) => self.found(place, Lie::Sum, evidence),
            (false, _) if self.has_answered(place.slot) => self.found(place, Lie::In, evidence),
            (false, true) => None,
            (false, false) => Some(Verdict::Unproven(place)),
        }
    }

    /// A wrong hop, and one before it that nobody shows: the one that built on it must have it, and its maker.
    fn gap(&self, place: Place, hop: Hop) -> Option<Verdict> {
        if self.has_answered(place.slot) {
            return self.found(place, Lie::Withheld, vec![(place, hop)]);
        }
        let missing = self.scope.builds_on(place);
        let missing = missing.iter().find(|p| !self.words.contains_key(p));
        match missing {
            Some(missing) if self.has_answered(missing.slot) => {
                self.found(*missing, Lie::Withheld, vec![(place, hop)])
            }
            _ => Some(Verdict::Unproven(place)),
        }
    }

    fn found(&self, place: Place, lie: Lie, evidence: Vec<(Place, Hop)>) -> Option<Verdict> {
        let member = self.scope.seat(place.slot)?.server.clone();
        Some(Verdict::Found(Box::new(Finding {
            manifest: self.scope.hash,
            place,
            member,
            lie,
            evidence,
        })))
    }

    fn has_answered(&self, slot: u32) -> bool {
        let seat = self.scope.seat(slot);
        seat.is_some_and(|seat| self.answered.contains(seat.server))
    }

    /// Nothing is wrong: sound where the last hop of every chunk was shown, its mean.
    fn is_complete(&self) -> Verdict {
        let mut unseen: BTreeMap<u32, Place> = BTreeMap::new();
        let means = |p: &&Place| p.phase == crate::message::Phase::AllGather;
        for place in self.right.keys().filter(means) {
            unseen.entry(self.scope.row_chunk(*place)).or_insert(*place);
        }
        for place in self.words.keys().filter(means) {
            unseen.remove(&self.scope.row_chunk(*place));
        }
        unseen
            .into_values()
            .next()
            .map_or(Verdict::Sound, Verdict::Unproven)
    }
}
