//! A round whose manifest is out: what is known of its view, and what it waits for (PROTOCOL section 6, "Failure").

use super::accuse::Heard;
use super::audit::Audit;
use super::collect::Draft;
use super::commit::Commits;
use super::keep::Holdings;
use super::reach::{Reach, Stragglers};
use super::{Action, Config, Follows};
use crate::cbor;
use crate::ids::{Hash32, PeerBytes, View};
use crate::message::{Attest, Body, Entry, LeftOut, Manifest, Verified};
use crate::ring::Layout;
use crate::time::{Deadline, Estimate, Time};
use std::collections::{BTreeMap, BTreeSet};

/// After the first complaint in a view, others are heard, and the accused asked, for half the ring's least deadline, but no
/// longer than this, before a new view is raised.
const HEARING_MS: u64 = 1_500;
/// After a quorum has attested, the rest is waited for by the quorum's own times, but no longer than this.
const STRAGGLING_ATTESTS_MS: u64 = 5_000;

/// A round whose manifest is out.
#[derive(Debug)]
pub(super) struct Reducing {
    pub(super) commits: Commits,
    /// The view that is out, and what becomes of it while another is prepared.
    pub(super) decided: Manifest,
    pub(super) manifest: Manifest,
    pub(super) hash: Hash32,
    pub(super) holdings: Holdings,
    pub(super) audit: Audit,
    /// What the round must end in under this manifest, once it was replayed: nothing else closes.
    pub(super) follows: Option<Follows>,
    pub(super) since: Time,
    pub(super) attest_ms: u64,
    pub(super) floor_ms: u64,
    pub(super) hearing_ms: u64,
    flat_ring_max: u32,
    pub(super) attests: BTreeMap<PeerBytes, (Attest, Verified)>,
    pub(super) quorum_since: Option<Time>,
    /// From the manifest to each attest.
    pub(super) attest_times: Estimate,
    /// Commits that count, of which a quorum is one; those of view 0 at least.
    pub(super) counted: usize,
    /// Entries of view 0, and who was left out of it.
    pub(super) first: Vec<Entry>,
    pub(super) first_left_out: Vec<LeftOut>,
    pub(super) reach: Reach,
    /// Complaints of this view.
    pub(super) complaints: Vec<Heard>,
    pub(super) first_complaint: Option<Time>,
    /// Who has been accused, by whom, over all views of the round; of silence only where the silence starts.
    pub(super) accusers: BTreeMap<PeerBytes, BTreeSet<PeerBytes>>,
    /// No longer asked to serve a slot, as long as the round does not start over.
    pub(super) replaced: BTreeSet<PeerBytes>,
    /// Convicted by the audit, or accused by enough members while it was there: not asked again in this round, and struck.
    pub(super) misbehaved: BTreeSet<PeerBytes>,
    /// Who has had its second chance, or gets none: proven by its own signatures. The accused may be others' victims.
    pub(super) unforgiven: BTreeSet<PeerBytes>,
}

impl Reducing {
    pub(super) fn new(
        now: Time,
        config: &Config,
        commits: Commits,
        draft: Draft,
        out: &mut Vec<Action>,
    ) -> Self {
        let Draft {
            entries,
            left_out,
            counted,
        } = draft;
        let manifest = Manifest {
            job: config.job.clone(),
            round: commits.facts.roster.round,
            view: View(0),
            roster: commits.facts.hash,
            parent: commits.facts.roster.parent,
            entries,
            grid: None,
            kept: Vec::new(),
            left_out,
        };
        let deadlines = &config.spec.schedule.deadlines;
        let mut reducing = Self {
            hash: Hash32::ZERO,
            audit: Audit::NotAsked,
            follows: None,
            counted: counted.max(manifest.entries.len()),
            first: manifest.entries.clone(),
            first_left_out: manifest.left_out.clone(),
            reach: Reach::default(),
            attest_times: Estimate::default(),
            floor_ms: deadlines.ring_floor_ms,
            hearing_ms: HEARING_MS.min(deadlines.ring_floor_ms / 2),
            commits,
            decided: manifest.clone(),
            manifest,
            holdings: Holdings::default(),
            since: now,
            attest_ms: deadlines.attest_ms,
            flat_ring_max: config.flat_ring_max,
            attests: BTreeMap::new(),
            quorum_since: None,
            complaints: Vec::new(),
            first_complaint: None,
            accusers: BTreeMap::new(),
            replaced: BTreeSet::new(),
            misbehaved: BTreeSet::new(),
            unforgiven: BTreeSet::new(),
        };
        reducing.publish(now, out);
        reducing
    }

    pub(super) fn publish(&mut self, now: Time, out: &mut Vec<Action>) {
        self.manifest.grid = self.layout().grid();
        self.hash = cbor::to_dag(&self.manifest)
            .map(|b| cbor::object_hash(&b))
            .unwrap_or_default();
        self.decided = self.manifest.clone();
        self.holdings.renew();
        self.since = now;
        self.attests.clear();
        self.complaints.clear();
        self.first_complaint = None;
        self.quorum_since = None;
        self.audit = Audit::NotAsked;
        self.follows = None;
        self.attest_times = Estimate::default();
        self.reach.renew();
        out.push(Action::Publish(Body::Manifest(self.manifest.clone())));
    }

    pub(super) fn layout(&self) -> Layout {
        let entries = u32::try_from(self.manifest.entries.len()).unwrap_or(u32::MAX);
        Layout::for_members(entries, self.flat_ring_max)
    }

    pub(super) fn gone(&mut self, peer: &PeerBytes) {
        self.commits.gone(peer);
    }

    pub(super) fn deadline(&self) -> Deadline {
        if let Some(at) = self.audit.deadline() {
            return (at, "the audit of the sum");
        }
        if let Some(at) = self.quorum_since {
            if self.reach.stragglers() == Stragglers::NotAsked {
                return (
                    at.plus(self.hearing_ms),
                    "the remaining attests, before it is asked for them",
                );
            }
            let wait = self.attest_times.deadline(self.floor_ms, STRAGGLING_ATTESTS_MS);
            return (at.plus(wait), "the remaining attests");
        }
        if let Some(deadline) = self.reach.deadline() {
            return deadline;
        }
        if let Some(at) = self.first_complaint {
            let wait = self.reach.hearing(self.hearing_ms);
            return (at.plus(wait), "other members' complaints");
        }
        (
            self.since.plus(self.attest_ms << self.manifest.view.0.min(6)),
            "a quorum of attests",
        )
    }

    pub(super) fn members(&self) -> usize {
        self.manifest.entries.len()
    }

    pub(super) fn serves(&self, peer: &PeerBytes) -> bool {
        self.manifest.entries.iter().any(|e| e.server == *peer)
    }
}
