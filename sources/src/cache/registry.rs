//! Every lock that anybody holds, once.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, Weak};

use fencepost_policy::LockKey;

use super::record::LockSpec;
use super::tracked::TrackedLock;
use crate::sync::{Mutex, MutexGuard};

/// The lock is tracked already, but its record is read in another way.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the record of {key} is already read in another way")]
pub struct FormatConflict {
    /// Which lock.
    pub key: LockKey,
}

/// Finds the one [`TrackedLock`] of a key for as long as anybody holds it.
///
/// Caches may forget a lock, this may not: two gates for one key would each know only half of what is at the worker. So a lock
/// that fell out of a cache while a request or a connection holds it is found here again.
///
/// A lock that nobody holds is forgotten, with its gate's floor. That can't admit an ended tenure: nothing of it is at
/// the worker, or its request would hold the lock; and whoever asks for it next gets an empty one, which admits nobody until a quorum
/// read has shown the present tenure. That read was sent later than all that the old floor was made of, and one that
/// turns out to be behind what this source has ever seen is not believed ([`super::trust`], which is not forgotten).
#[derive(Debug, Default)]
pub(crate) struct Registry {
    locks: Mutex<HashMap<LockKey, Weak<TrackedLock>>>,
}

impl Registry {
    // What is upgraded must leave the guard's scope before it is dropped: the last holder's drop calls `forget`.
    fn locks(&self) -> MutexGuard<'_, HashMap<LockKey, Weak<TrackedLock>>> {
        self.locks.lock().unwrap_or_else(PoisonError::into_inner) // Locks are let go in panics too.
    }

    pub(crate) fn find(&self, key: &str) -> Option<Arc<TrackedLock>> {
        let locks = self.locks();
        locks.get(key).and_then(Weak::upgrade)
    }

    /// The lock of that key; a new one if nobody holds it.
    pub(crate) fn find_or_make(
        &self,
        spec: LockSpec,
        make: impl FnOnce(LockSpec) -> TrackedLock,
    ) -> Result<Arc<TrackedLock>, FormatConflict> {
        let found = {
            let mut locks = self.locks();
            match locks.get(spec.key.as_str()).and_then(Weak::upgrade) {
                Some(found) => found,
                None => {
                    let made = Arc::new(make(spec.clone()));
                    locks.insert(spec.key.clone(), Arc::downgrade(&made));
                    made
                }
            }
        };
        if found.spec().format == spec.format { Ok(found) } else { Err(FormatConflict { key: spec.key }) }
    }

    /// Called by a lock that nobody holds any more; there may be a new one of its key by now.
    pub(crate) fn forget(&self, key: &LockKey) {
        let mut locks = self.locks();
        if locks.get(key).is_some_and(|lock| lock.strong_count() == 0) {
            locks.remove(key);
        }
    }

    pub(crate) fn all(&self) -> Vec<Arc<TrackedLock>> {
        self.locks().values().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.locks().len()
    }
}
