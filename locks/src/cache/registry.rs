//! Every lock that anybody holds, once.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::{Arc, PoisonError, Weak};

use fencepost_policy::LockKey;

use super::record::LockSpec;
use crate::sync::{RandomState, RwLock};

/// The lock is tracked already, but its record is read in another way.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the record of {key} is already read in another way")]
pub struct FormatConflict {
    /// Which lock.
    pub key: LockKey,
}

/// In how many parts the registry is, so that threads rarely meet, and one part grows while the
/// others are used.
const PARTS: usize = 16;

/// A lock as the registry has it.
pub(crate) trait Registered {
    /// Its key, and how its record is read.
    fn spec(&self) -> &LockSpec;
}

/// Finds the one lock of a key for as long as anybody holds it. Every request for a templated lock
/// looks here.
///
/// Caches may forget a lock, this may not: two gates for one key would each know only half of what
/// is at the worker. So a lock that fell out of a cache while a request or a connection holds it is
/// found here again.
///
/// A lock that nobody holds is forgotten, with its gate's floor. That cannot admit an ended tenure.
/// Nothing of it is at the worker, or its request would hold the lock. The next request makes an
/// empty lock, which admits nobody until a quorum read has shown the present tenure. That read was
/// sent later than all that the old floor was made of. A read that is behind what this source, or
/// one before it, has ever seen is not believed ([`super::trust`], which is not forgotten).
#[derive(Debug)]
pub(crate) struct Registry<L> {
    hashing: RandomState,
    parts: [Part<L>; PARTS],
}

/// A lock that is upgraded here must be dropped outside of the guard's scope: the last holder's
/// drop calls [`Registry::forget`].
type Part<L> = RwLock<HashMap<LockKey, Weak<L>, RandomState>>;

impl<L> Default for Registry<L> {
    fn default() -> Registry<L> {
        Registry { hashing: RandomState::default(), parts: Default::default() }
    }
}

impl<L: Registered> Registry<L> {
    fn part(&self, key: &str) -> &Part<L> {
        &self.parts[self.hashing.hash_one(key) as usize % PARTS]
    }

    pub(crate) fn find(&self, key: &str) -> Option<Arc<L>> {
        let locks = self.part(key).read().unwrap_or_else(PoisonError::into_inner);
        locks.get(key)?.upgrade()
    }

    /// The lock of that key; a new one if nobody holds it.
    pub(crate) fn find_or_make(
        &self,
        spec: LockSpec,
        make: impl FnOnce(LockSpec) -> L,
    ) -> Result<Arc<L>, FormatConflict> {
        let found = {
            let mut locks =
                self.part(spec.key.as_str()).write().unwrap_or_else(PoisonError::into_inner);
            locks.get(&spec.key).and_then(Weak::upgrade).unwrap_or_else(|| {
                let made = Arc::new(make(spec.clone()));
                locks.insert(spec.key.clone(), Arc::downgrade(&made));
                made
            })
        };
        if found.spec().format == spec.format {
            Ok(found)
        } else {
            Err(FormatConflict { key: spec.key })
        }
    }

    /// Called by a lock that nobody holds any more; there may be a new one of its key by now.
    pub(crate) fn forget(&self, gone: &L) {
        let key = gone.spec().key.as_str();
        let mut locks = self.part(key).write().unwrap_or_else(PoisonError::into_inner);
        if locks.get(key).is_some_and(|lock| std::ptr::eq(lock.as_ptr(), gone)) {
            locks.remove(key);
        }
    }

    pub(crate) fn all(&self) -> Vec<Arc<L>> {
        let of_part = |part: &Part<L>| {
            let locks = part.read().unwrap_or_else(PoisonError::into_inner);
            locks.values().filter_map(Weak::upgrade).collect::<Vec<_>>()
        };
        self.parts.iter().flat_map(of_part).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.parts
            .iter()
            .map(|part| part.read().unwrap_or_else(PoisonError::into_inner).len())
            .sum()
    }
}
