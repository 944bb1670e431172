//! What this member measured of its links.

use super::{Action, Member};
use crate::cbor::Bounded;
use crate::message::{Body, Link, Links, MAX_LINKS};

impl Member {
    /// Says what was measured, where it differs from what was said before.
    pub(super) fn on_measured(&mut self, mut links: Vec<Link>, out: &mut Vec<Action>) {
        links.retain(|l| l.peer != self.config.me);
        links.sort_by(|a, b| (a.delay_us, &a.peer).cmp(&(b.delay_us, &b.peer)));
        links.truncate(MAX_LINKS);
        links.sort_by(|a, b| a.peer.cmp(&b.peer));
        links.dedup_by(|a, b| a.peer == b.peer);
        if !differ(&self.said_links, &links) {
            return;
        }
        self.said_links.clone_from(&links);
        if let Ok(links) = Bounded::try_from(links) {
            let job = self.config.job.clone();
            out.push(Action::Publish(Body::Links(Links { job, links })));
        }
    }
}

/// Other peers, or a delay or bandwidth that moved by more than a fifth.
fn differ(said: &[Link], now: &[Link]) -> bool {
    let moved = |a: u32, b: u32| u64::from(a.abs_diff(b)) * 5 > u64::from(a);
    said.len() != now.len()
        || said.iter().zip(now).any(|(a, b)| {
            a.peer != b.peer || moved(a.delay_us, b.delay_us) || moved(a.bytes_per_ms, b.bytes_per_ms)
        })
}
