//! Every lock that anybody holds, once.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, PoisonError, Weak};

use fencepost_policy::LockKey;

use super::record::LockSpec;
use super::tracked::TrackedLock;
use crate::sync::RwLock;

/// The lock is tracked already, but its record is read in another way.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the record of {key} is already read in another way")]
pub struct FormatConflict {
    /// Which lock.
    pub key: LockKey,
}

/// In how many parts the registry is, so that few who look at it meet, and one grows while others are looked at.
const PARTS: usize = 16;

/// Finds the one [`TrackedLock`] of a key for as long as anybody holds it. Every request for a templated lock looks here.
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
    parts: [Part; PARTS],
}

/// Whatever is upgraded here must leave the guard's scope before it is dropped: the last holder's drop calls
/// [`Registry::forget`]. Locks are let go in panics too.
#[derive(Debug, Default)]
struct Part(RwLock<HashMap<LockKey, Weak<TrackedLock>>>);

impl Registry {
    /// The part that has a key, if any has. Who makes up keys may well choose their part, and gains a longer wait at that one.
    fn part(&self, key: &str) -> &Part {
        let mixed = key.bytes().fold(0_usize, |mixed, byte| mixed.wrapping_mul(31).wrapping_add(byte.into()));
        &self.parts[mixed % PARTS]
    }

    pub(crate) fn find(&self, key: &str) -> Option<Arc<TrackedLock>> {
        self.part(key).read().get(key).and_then(Weak::upgrade)
    }

    /// The lock of that key; a new one if nobody holds it.
    pub(crate) fn find_or_make(
        &self,
        spec: LockSpec,
        make: impl FnOnce(LockSpec) -> TrackedLock,
    ) -> Result<Arc<TrackedLock>, FormatConflict> {
        let found = {
            let mut locks = self.part(spec.key.as_str()).write();
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
        let mut locks = self.part(key.as_str()).write();
        if locks.get(key).is_some_and(|lock| lock.strong_count() == 0) {
            locks.remove(key);
        }
    }

    pub(crate) fn all(&self) -> Vec<Arc<TrackedLock>> {
        let of_part = |part: &Part| part.read().values().filter_map(Weak::upgrade).collect::<Vec<_>>();
        self.parts.iter().flat_map(of_part).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.parts.iter().map(|part| part.read().len()).sum()
    }
}

impl Part {
    fn read(&self) -> impl Deref<Target = HashMap<LockKey, Weak<TrackedLock>>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> impl DerefMut<Target = HashMap<LockKey, Weak<TrackedLock>>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}
