//! Which counters of an epoch were seen.

use super::REPLAY_WINDOW;

/// One bit for the newest counter and each of the 1,024 before it, in a ring of whole words.
const WORDS: usize = REPLAY_WINDOW as usize / 64 + 1;
const BITS: u64 = WORDS as u64 * 64;

/// What is known of a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    /// Not seen.
    New,
    /// Seen before.
    Before,
    /// More than [`REPLAY_WINDOW`] behind this newest one.
    Behind(u64),
}

/// The replay window of one epoch.
#[derive(Debug, Default)]
pub(super) struct Window {
    newest: Option<u64>,
    seen: [u64; WORDS],
}

impl Window {
    /// Whether `counter` is new; changes nothing, as its message is not verified yet.
    pub(super) fn check(&self, counter: u64) -> Seen {
        match self.newest {
            None => Seen::New,
            Some(newest) if counter > newest => Seen::New,
            Some(newest) if newest - counter > REPLAY_WINDOW => Seen::Behind(newest),
            Some(_) if self.seen[word(counter)] & bit(counter) != 0 => Seen::Before,
            Some(_) => Seen::New,
        }
    }

    /// Notes a verified counter that [`Self::check`] found new.
    pub(super) fn mark(&mut self, counter: u64) {
        let newest = self.newest.unwrap_or(0);
        if counter > newest {
            self.clear(newest, counter);
        }
        self.newest = Some(newest.max(counter));
        self.seen[word(counter)] |= bit(counter);
    }

    /// Forgets what the ring holds at the places of `after + 1 ..= upto`.
    fn clear(&mut self, after: u64, upto: u64) {
        if upto - after >= BITS {
            self.seen = [0; WORDS];
        } else {
            (after + 1..=upto).for_each(|c| self.seen[word(c)] &= !bit(c));
        }
    }
}

fn word(counter: u64) -> usize {
    (counter % BITS / 64) as usize
}

fn bit(counter: u64) -> u64 {
    1 << (counter % 64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_edge_is_1024_behind() {
        let mut window = Window::default();
        window.mark(5000);
        assert_eq!(window.check(5000), Seen::Before);
        assert_eq!(window.check(5000 - 1024), Seen::New);
        assert_eq!(window.check(5000 - 1025), Seen::Behind(5000));
        window.mark(5000 - 1024);
        assert_eq!(window.check(5000 - 1024), Seen::Before);
        window.mark(u64::MAX);
        assert_eq!(window.check(u64::MAX - 1), Seen::New);
        assert_eq!(window.check(5000), Seen::Behind(u64::MAX));
    }

    proptest! {
        #[test]
        fn agrees_with_a_set(steps in proptest::collection::vec((0u64..3000, 0u64..4), 1..400)) {
            let (mut window, mut set, mut base) = (Window::default(), BTreeSet::new(), 0u64);
            for (offset, jump) in steps {
                base += jump * 400;
                let counter = base + offset;
                let newest = set.last().copied();
                let expected = match newest {
                    Some(n) if counter + REPLAY_WINDOW < n => Seen::Behind(n),
                    _ if set.contains(&counter) => Seen::Before,
                    _ => Seen::New,
                };
                prop_assert_eq!(window.check(counter), expected);
                if expected == Seen::New {
                    window.mark(counter);
                    set.insert(counter);
                }
            }
        }
    }
}
