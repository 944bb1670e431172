//! Room for what is to be fetched, looked at before it is.

use std::collections::HashSet;
use std::sync::Arc;

use cid::Cid;

use super::{FetchError, blocking};
use crate::content::store::{Store, StoreError};
use crate::content::unixfs;

/// Makes sure that the rest of `root`, which declares `declared` bytes, has room. What no pin reaches is collected when
/// the store's limit or its disk ask for it, and never for content that would not fit even then.
///
/// # Errors
/// [`FetchError::NoRoom`].
pub(super) async fn make(store: Arc<Store>, root: Cid, declared: u64) -> Result<(), FetchError> {
    blocking(move || {
        let room = store.room()?;
        if declared <= room.limit.min(room.disk) {
            return Ok(());
        }
        let missing = declared.saturating_sub(held(&store, root)?);
        let room = store.make_room(missing)?;
        if missing <= room.limit.min(room.disk) {
            return Ok(());
        }
        Err(FetchError::NoRoom {
            root,
            declared,
            missing,
            limit: room.limit,
            disk: room.disk,
        })
    })
    .await
}

/// Makes room for `needed` bytes, if there is none. Says whether there is some.
///
/// # Errors
/// [`StoreError`].
pub(super) async fn make_some(store: Arc<Store>, needed: u64) -> Result<bool, StoreError> {
    blocking(move || {
        let room = store.make_room(needed)?;
        Ok(room.limit.min(room.disk) >= needed)
    })
    .await
}

/// Bytes of blocks under `root` that are here.
fn held(store: &Store, root: Cid) -> Result<u64, StoreError> {
    let (mut bytes, mut seen, mut todo) = (0, HashSet::from([root]), vec![root]);
    while let Some(cid) = todo.pop() {
        let Some(size) = store.size(&cid) else { continue };
        bytes += size;
        if !unixfs::may_have_links(&cid) {
            continue;
        }
        let block = match store.get(&cid) {
            Ok(Some(block)) => block,
            Ok(None) | Err(StoreError::Corrupt { .. } | StoreError::Block(_)) => continue,
            Err(error) => return Err(error),
        };
        let links = unixfs::links(&cid, &block).unwrap_or_default();
        todo.extend(links.into_iter().filter(|link| seen.insert(*link)));
    }
    Ok(bytes)
}
