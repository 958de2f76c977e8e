//! Every lock that anybody holds, once.

use std::hash::BuildHasher;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, PoisonError, Weak};

use fencepost_policy::LockKey;
use hashbrown::HashTable;

use super::record::LockSpec;
use super::tracked::TrackedLock;
use crate::sync::{RandomState, RwLock};

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
/// turns out to be behind what this source, or one before it, has ever seen is not believed ([`super::trust`], which is not forgotten).
#[derive(Debug, Default)]
pub(crate) struct Registry {
    hashing: RandomState,
    parts: [Part; PARTS],
}

/// Whatever is upgraded here must leave the guard's scope before it is dropped: the last holder's drop calls
/// [`Registry::forget`]. Locks are let go in panics too.
#[derive(Debug, Default)]
struct Part(RwLock<HashTable<Entry>>);

/// At most one for each key.
#[derive(Debug)]
struct Entry {
    key: LockKey,
    lock: Weak<TrackedLock>,
}

impl Registry {
    fn hash(&self, key: &str) -> u64 {
        self.hashing.hash_one(key)
    }

    /// The part that has the keys of that hash, by bits of it that tell nothing apart within a part.
    fn part(&self, hash: u64) -> &Part {
        &self.parts[(hash >> 32) as usize % PARTS]
    }

    pub(crate) fn find(&self, key: &str) -> Option<Arc<TrackedLock>> {
        let hash = self.hash(key);
        // The lock first, though the key alone would do: a long key's text and the lock are both far away in memory, and so one is
        // fetched while the other still is on its way. Compared first, the text would have to be there before the lock is asked for.
        let is_held_and_meant = |entry: &Entry| entry.lock.strong_count() > 0 && entry.key.as_str() == key;
        self.part(hash).read().find(hash, is_held_and_meant)?.lock.upgrade()
    }

    /// The lock of that key; a new one if nobody holds it.
    pub(crate) fn find_or_make(
        &self,
        spec: LockSpec,
        make: impl FnOnce(LockSpec) -> TrackedLock,
    ) -> Result<Arc<TrackedLock>, FormatConflict> {
        let found = {
            let hash = self.hash(spec.key.as_str());
            let mut locks = self.part(hash).write();
            let of_key = |entry: &Entry| entry.key == spec.key;
            match locks.find(hash, of_key).and_then(|entry| entry.lock.upgrade()) {
                Some(found) => found,
                None => {
                    let made = Arc::new(make(spec.clone()));
                    let entry = Entry { key: spec.key.clone(), lock: Arc::downgrade(&made) };
                    locks.entry(hash, of_key, |entry| self.hash(entry.key.as_str())).insert(entry);
                    made
                }
            }
        };
        if found.spec().format == spec.format { Ok(found) } else { Err(FormatConflict { key: spec.key }) }
    }

    /// Called by a lock that nobody holds any more; there may be a new one of its key by now.
    pub(crate) fn forget(&self, key: &LockKey) {
        let hash = self.hash(key.as_str());
        let mut locks = self.part(hash).write();
        if let Ok(gone) = locks.find_entry(hash, |entry| entry.lock.strong_count() == 0 && entry.key == *key) {
            gone.remove();
        }
    }

    pub(crate) fn all(&self) -> Vec<Arc<TrackedLock>> {
        let of_part = |part: &Part| part.read().iter().filter_map(|entry| entry.lock.upgrade()).collect::<Vec<_>>();
        self.parts.iter().flat_map(of_part).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.parts.iter().map(|part| part.read().len()).sum()
    }
}

impl Part {
    fn read(&self) -> impl Deref<Target = HashTable<Entry>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> impl DerefMut<Target = HashTable<Entry>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}
