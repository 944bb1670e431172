//! Guards that keep content from collection and can be put away: in a job's state, in a task.

use std::sync::Arc;

use cid::Cid;

use super::{Store, lock};

impl Store {
    /// As [`Store::protect`], with a guard that owns its store.
    pub fn hold(self: &Arc<Self>, root: Cid) -> Hold {
        *lock(&self.protected).entry(root).or_insert(0) += 1;
        Hold {
            store: Arc::clone(self),
            root,
        }
    }

    pub(super) fn let_go(&self, root: &Cid) {
        let mut protected = lock(&self.protected);
        if let Some(count) = protected.get_mut(root) {
            *count -= 1;
            if *count == 0 {
                protected.remove(root);
            }
        }
    }
}

/// Keeps a root and what it links to from collection while it lives. See [`Store::hold`].
#[derive(Debug)]
#[must_use]
pub struct Hold {
    store: Arc<Store>,
    root: Cid,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.store.let_go(&self.root);
    }
}
