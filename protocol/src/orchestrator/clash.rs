//! A view's order after an accusation: a suspicion between two members reorders them first (PROTOCOL section 6, "Failure").

use super::view::Reducing;
use crate::ring::Layout;

impl Reducing {
    /// An order in which no accused is followed by one of its accusers, if there is one: members are exchanged pairwise
    /// until it is found.
    pub(super) fn reorder(&mut self) {
        let layout = self.layout();
        while let Some(slot) = (0..layout.slots()).find(|slot| self.clashes_at(layout, *slot) > 0) {
            let before = self.clashes(layout);
            let Some(i) = layout.served_as(slot) else { return };
            let exchanges = (0..layout.entries()).filter(|j| *j != i).map(|j| {
                self.manifest.entries.swap(i as usize, j as usize);
                let after = self.clashes(layout);
                self.manifest.entries.swap(i as usize, j as usize);
                (after, j)
            });
            match exchanges.min() {
                Some((after, j)) if after < before => self.manifest.entries.swap(i as usize, j as usize),
                _ => return,
            }
        }
    }

    fn clashes(&self, layout: Layout) -> usize {
        if self.accusers.is_empty() {
            return 0;
        }
        (0..layout.slots())
            .map(|slot| self.clashes_at(layout, slot))
            .sum()
    }

    /// Slots after this one whose server accused the one of this slot.
    fn clashes_at(&self, layout: Layout, slot: u32) -> usize {
        let server = |slot| {
            let entry = layout.served_as(slot)?;
            self.manifest.entries.get(entry as usize).map(|e| &e.server)
        };
        let Some(accusers) = server(slot).and_then(|s| self.accusers.get(s)) else {
            return 0;
        };
        let after = layout.axes().iter().map(|axis| layout.next(slot, *axis));
        after
            .filter_map(server)
            .filter(|next| accusers.contains(*next))
            .count()
    }
}
