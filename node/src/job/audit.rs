//! A round's sum, replayed from the committed deltas and held against the members' hops (PROTOCOL section 7.5): by the
//! orchestrator before it closes a round, by every member that is shown a proof.

use super::commit;
use super::done::Done;
use super::edge::KnownKeys;
use super::fetch::DeltaSource;
use super::form::Awaited;
use super::hops::{HopStore, NodeHopKeys};
use super::outcome::Start;
use super::service::Service;
use super::sync::{Answer, Question};
use crate::net::NetHandle;
use futures::stream::{FuturesUnordered, StreamExt};
use gym_protocol::ids::{CidBytes, Hash32, PeerBytes};
use gym_protocol::message::{Entry, Manifest, Offence, Proof};
use gym_protocol::orchestrator::{Audited, Event, Follows};
use gym_protocol::ring::{
    Expected, Finding, Hop, Panel, Part, Place, Scope, Verdict, expect, judge, placed_from_bytes,
    replay_by_origin,
};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Elements of all deltas together up to which every chunk is replayed, and the state that follows computed; above, one chunk
/// at random.
const WHOLE: usize = 1 << 26;
/// Elements of all deltas together that are held for a replay.
const MOST: usize = 1 << 29;
/// Least deadlines of the ring that a member has to show its hops. One that was killed says nothing, and its connection may
/// look alive for long.
const PATIENCE: u64 = 3;

/// What an audit needs; it runs beside the service's task.
pub(super) struct Auditor {
    job: CidBytes,
    scope: Arc<Scope>,
    awaited: Awaited,
    start: Option<Start>,
    source: DeltaSource,
    store: HopStore,
    net: NetHandle,
    keys: KnownKeys,
    hop_keys: NodeHopKeys,
    me: PeerBytes,
    patience: Duration,
}

impl Service {
    /// Replays a manifest's sum; the orchestrator's machine hears what it came to.
    pub(crate) fn audit(&mut self, id: &CidBytes, manifest: Hash32) {
        let Some(auditor) = self.auditor(id, manifest) else {
            let outcome = Audited::Open("the manifest or the model is not known here".into());
            let event = Event::Audited {
                manifest,
                outcome,
                follows: None,
            };
            return self.tell_orchestrator(id, event);
        };
        let job = id.clone();
        self.tools.spawn(async move {
            let audited = auditor.run().await;
            let (outcome, follows) = audited.unwrap_or_else(|why| (Audited::Open(why), None));
            Done::Audited {
                job,
                manifest,
                outcome,
                follows,
            }
        });
    }

    /// Replays what a proof is about; whoever is found is named.
    pub(crate) fn judge(&mut self, id: &CidBytes, proof: Proof) {
        let Some(auditor) = self.auditor(id, proof.manifest) else {
            return;
        };
        let job = id.clone();
        self.tools.spawn(async move {
            let result = auditor.judge(&proof).await;
            Done::Judged {
                job,
                accused: proof.accused,
                round: proof.round,
                result,
            }
        });
    }

    pub(crate) fn on_judged(&mut self, id: &CidBytes, accused: &PeerBytes, round: u64, result: JudgeResult) {
        match result {
            Ok(Some(finding)) if finding.member == *accused => {
                let detail = format!(
                    "round {round}: it {}; {}",
                    finding.lie.explain(),
                    place(&finding.place)
                );
                self.penalise(id, accused, Offence::FalseSum, &detail);
            }
            Ok(_) => self.notice(
                id,
                &format!(
                    "round {round}: {accused} was said to have lied in the ring; a replay does not show it"
                ),
            ),
            Err(why) => self.notice(
                id,
                &format!(
                    "round {round}: the proof that {accused} lied in the ring cannot be replayed: {why}"
                ),
            ),
        }
    }

    pub(super) fn auditor(&self, id: &CidBytes, hash: Hash32) -> Option<Auditor> {
        let job = self.jobs.get(id)?;
        let scope = job.scope(hash)?;
        let (round, parent) = (scope.manifest.round, scope.manifest.parent);
        Some(Auditor {
            job: id.clone(),
            start: self.start_of(job, hash, &scope.manifest),
            awaited: self.awaited(job, &PeerBytes::default(), round, parent)?,
            source: self.delta_source(),
            store: self.hop_store(id),
            net: self.tools.net.clone(),
            keys: self.tools.keys.clone(),
            hop_keys: NodeHopKeys(self.tools.identity.clone()),
            me: self.tools.me(),
            patience: Duration::from_millis(PATIENCE * job.body.spec.schedule.deadlines.ring_floor_ms),
            scope,
        })
    }

    /// Where a job's hops are kept.
    pub(crate) fn hop_store(&self, id: &CidBytes) -> HopStore {
        HopStore::new(&self.tools.home.jobs().join(id.to_string()))
    }
}

/// What a member's replay of a proof came to, or why it could not be.
pub(crate) type JudgeResult = Result<Option<Box<Finding>>, String>;

impl Auditor {
    /// Replays each chunk under the manifest that finished it; where that is all of the sum, takes the outer step too.
    pub(super) async fn run(mut self) -> Result<(Audited, Option<Follows>), String> {
        let (mut parts, mut order) = (self.parts().await?, self.scope.manifest.clone());
        let mut open = None;
        let panel = Panel::draw(&self.scope.manifest, commit::salt());
        for (scope, chunks) in self.scope.by_origin(&self.chunks()) {
            parts = reordered(parts, &order, &scope.manifest).ok_or("a kept chunk is of other commits")?;
            order = scope.manifest.clone();
            let replay = {
                let scope = scope.clone();
                move || (expect(&scope, &parts, &chunks), parts)
            };
            let (expected, back) = tokio::task::spawn_blocking(replay)
                .await
                .map_err(|e| format!("the replay was cut off: {e}"))?;
            parts = back;
            let expected = expected.ok_or("the committed deltas are of uneven length")?;
            match self.verdict(&scope, &expected, &panel).await {
                Audited::Sound => {}
                found @ Audited::Found(_) => return Ok((found, None)),
                Audited::Open(why) => open = Some(why),
            }
        }
        let follows = match self.start.take().filter(|_| self.is_whole()) {
            Some(start) => self.follows(start, parts, order).await,
            None => None,
        };
        Ok((open.map_or(Audited::Sound, Audited::Open), follows))
    }

    /// What the round must end in. `parts` are in the order of the manifest `of`.
    async fn follows(&self, start: Start, parts: Vec<Part>, of: Arc<Manifest>) -> Option<Follows> {
        let scope = self.scope.clone();
        let replay = move || replay_by_origin(&scope, &|m| reordered(parts.clone(), &of, m));
        let mean = tokio::task::spawn_blocking(replay).await.ok().flatten();
        let follows = match mean {
            Some(mean) => start.follows(mean).await,
            None => Err("the mean cannot be replayed".into()),
        };
        let round = self.scope.manifest.round;
        follows
            .inspect_err(|why| tracing::warn!("round {round}: its state is not held against a replay: {why}"))
            .ok()
    }

    /// Asks a few first; where they do not settle it, everyone.
    async fn verdict(&self, scope: &Scope, expected: &Expected, panel: &Panel) -> Audited {
        let judge = |(hops, answered): &Shown| judge(scope, expected, hops, answered, &self.hop_keys);
        let is_enough = |shown: &Shown| panel.is_settled(&judge(shown), &shown.1);
        let mut shown = Shown::default();
        self.ask(scope.hash, panel.first(), &mut shown, is_enough).await;
        if !is_enough(&shown) {
            self.ask(scope.hash, panel.rest(), &mut shown, |_| false).await;
        }
        match judge(&shown) {
            Verdict::Found(finding) => Audited::Found(finding),
            Verdict::Unproven(at) => Audited::Open(format!("a hop is not shown: {}", place(&at))),
            Verdict::Sound if is_enough(&shown) => Audited::Sound,
            Verdict::Sound => Audited::Open(format!(
                "only {} members show their hops: they are right, but too few",
                shown.1.len()
            )),
        }
    }

    /// Replays the chunks of a proof's hops.
    async fn judge(self, proof: &Proof) -> JudgeResult {
        let shown = placed_from_bytes(&proof.hops).ok_or("its hops do not parse")?;
        let chunks: BTreeSet<u32> = shown.iter().map(|(p, _)| self.scope.row_chunk(*p)).collect();
        let parts = self.parts().await?;
        let accused = BTreeSet::from([proof.accused.clone()]);
        let judged = tokio::task::spawn_blocking(move || {
            let expected = expect(&self.scope, &parts, &chunks)?;
            Some(judge(&self.scope, &expected, &shown, &accused, &self.hop_keys))
        });
        match judged.await.map_err(|e| format!("the replay was cut off: {e}"))? {
            Some(Verdict::Found(finding)) => Ok(Some(finding)),
            Some(Verdict::Sound | Verdict::Unproven(_)) => Ok(None),
            None => Err("the committed deltas are of uneven length".into()),
        }
    }

    /// All chunks, or one that nobody could foresee.
    fn chunks(&self) -> BTreeSet<u32> {
        let chunks = self.scope.chunks();
        if self.is_whole() {
            (0..chunks).collect()
        } else {
            BTreeSet::from([rand::random_range(0..chunks.max(1))])
        }
    }

    fn is_whole(&self) -> bool {
        self.elements() <= WHOLE
    }

    fn elements(&self) -> usize {
        self.scope
            .plan
            .elements
            .saturating_mul(self.scope.manifest.entries.len())
    }

    /// The manifest's deltas, from the store or from who has them.
    async fn parts(&self) -> Result<Vec<Part>, String> {
        if self.elements() > MOST {
            return Err(format!(
                "{} elements are too many to replay here",
                self.elements()
            ));
        }
        let mut parts = Vec::new();
        for entry in &self.scope.manifest.entries {
            let from = [entry.server.clone(), entry.member.clone()];
            let limit = self.awaited.max_bytes();
            let bytes = self.source.fetch(&entry.cid, &from, limit).await?;
            let awaited = Awaited {
                member: entry.member.clone(),
                ..self.awaited.clone()
            };
            let facts = commit::check(&bytes, &awaited, &self.keys).map_err(|(_, why)| why)?;
            parts.push(Part {
                delta: facts.delta,
                weight: entry.weight,
            });
        }
        Ok(parts)
    }

    /// Adds what members show of a ring, and who they are; no more of them are waited for once that is enough.
    async fn ask(
        &self,
        manifest: Hash32,
        peers: &[PeerBytes],
        shown: &mut Shown,
        is_enough: impl Fn(&Shown) -> bool,
    ) {
        let mut answers: FuturesUnordered<_> = peers
            .iter()
            .map(|peer| async move {
                let bytes = self.hops_of(manifest, peer).await?;
                Some((peer.clone(), placed_from_bytes(&bytes)?))
            })
            .collect();
        while let Some(answer) = answers.next().await {
            let Some((peer, hops)) = answer else { continue };
            shown.0.extend(hops);
            shown.1.insert(peer);
            if is_enough(shown) {
                break;
            }
        }
    }

    async fn hops_of(&self, manifest: Hash32, peer: &PeerBytes) -> Option<Vec<u8>> {
        if *peer == self.me {
            let store = self.store.clone();
            return tokio::task::spawn_blocking(move || store.read(manifest))
                .await
                .ok()?;
        }
        let question = Question::Hops {
            job: self.job.clone(),
            manifest,
        };
        let asked = self.net.sync_request(peer, question.encode().ok()?);
        match timeout(self.patience, asked).await {
            Ok(Ok(reply)) => Answer::decode(&reply)?.envelopes.into_iter().next(),
            Ok(Err(e)) => {
                tracing::debug!(peer = %peer, "does not show its hops: {e}");
                None
            }
            Err(_) => {
                tracing::debug!(peer = %peer, after = ?self.patience, "has not shown its hops");
                None
            }
        }
    }
}

/// Contributions in the order of another manifest. `None` when it does not sum the same.
fn reordered(parts: Vec<Part>, from: &Manifest, to: &Manifest) -> Option<Vec<Part>> {
    let mut parts: Vec<Option<Part>> = parts.into_iter().map(Some).collect();
    let place = |e: &Entry| {
        from.entries
            .iter()
            .position(|f| (&f.member, &f.cid, f.weight) == (&e.member, &e.cid, e.weight))
    };
    let taken = to.entries.iter().map(|e| parts.get_mut(place(e)?)?.take());
    taken.collect()
}

type Shown = (Vec<(Place, Hop)>, BTreeSet<PeerBytes>);

fn place(p: &Place) -> String {
    format!(
        "{:?} step {}, chunk {}, slot {}",
        p.phase, p.step, p.chunk, p.slot
    )
}
