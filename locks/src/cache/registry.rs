//! Every lock that anybody holds, once.

use std::hash::BuildHasher;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, PoisonError, Weak};

use fencepost_policy::LockKey;
use hashbrown::HashTable;

use super::record::LockSpec;
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

/// A lock as the registry has it: by its key, and read in one way.
pub(crate) trait Registered {
    /// Its key, and how its record is read.
    fn spec(&self) -> &LockSpec;
}

/// Finds the one lock of a key for as long as anybody holds it. Every request for a templated lock looks here.
///
/// Caches may forget a lock, this may not: two gates for one key would each know only half of what is at the worker. So a lock
/// that fell out of a cache while a request or a connection holds it is found here again.
///
/// A lock that nobody holds is forgotten, with its gate's floor. That can't admit an ended tenure: nothing of it is at
/// the worker, or its request would hold the lock; and whoever asks for it next gets an empty one, which admits nobody until a quorum
/// read has shown the present tenure. That read was sent later than all that the old floor was made of, and one that
/// turns out to be behind what this source, or one before it, has ever seen is not believed ([`super::trust`], which is not forgotten).
#[derive(Debug)]
pub(crate) struct Registry<L> {
    hashing: RandomState,
    parts: [Part<L>; PARTS],
}

impl<L> Default for Registry<L> {
    fn default() -> Registry<L> {
        Registry { hashing: RandomState::default(), parts: Default::default() }
    }
}

/// Whatever is upgraded here must leave the guard's scope before it is dropped: the last holder's drop calls
/// [`Registry::forget`]. Locks are let go in panics too.
#[derive(Debug)]
struct Part<L>(RwLock<HashTable<Entry<L>>>);

impl<L> Default for Part<L> {
    fn default() -> Part<L> {
        Part(RwLock::default())
    }
}

/// Of those for one key, at most one has a lock that somebody holds. Without its key, which the lock has beside what every request looks
/// at: among 100,000, the less room the entries take the less often one has to be fetched from memory.
#[derive(Debug)]
pub(crate) struct Entry<L> {
    /// The whole hash of the key.
    pub(crate) hash: u64,
    pub(crate) lock: Weak<L>,
}

impl<L: Registered> Registry<L> {
    fn hash(&self, key: &str) -> u64 {
        self.hashing.hash_one(key)
    }

    /// The part that has the keys of that hash, by bits of it that tell nothing apart within a part.
    fn part(&self, hash: u64) -> &Part<L> {
        &self.parts[(hash >> 32) as usize % PARTS]
    }

    pub(crate) fn find(&self, key: &str) -> Option<Arc<L>> {
        let hash = self.hash(key);
        let mut of_hash = OfHash::default();
        self.part(hash).read().find(hash, |entry| of_hash.is(entry, hash, key));
        of_hash.found
    }

    /// The lock of that key; a new one if nobody holds it.
    pub(crate) fn find_or_make(
        &self,
        spec: LockSpec,
        make: impl FnOnce(LockSpec) -> L,
    ) -> Result<Arc<L>, FormatConflict> {
        let hash = self.hash(spec.key.as_str());
        let mut of_hash = OfHash::default();
        let found = {
            let mut locks = self.part(hash).write();
            locks.find(hash, |entry| of_hash.is(entry, hash, spec.key.as_str()));
            of_hash.found.take().unwrap_or_else(|| {
                let made = Arc::new(make(spec.clone()));
                locks.insert_unique(hash, Entry { hash, lock: Arc::downgrade(&made) }, |entry| entry.hash);
                made
            })
        };
        if found.spec().format == spec.format { Ok(found) } else { Err(FormatConflict { key: spec.key }) }
    }

    /// Called by a lock that nobody holds any more; there may be a new one of its key by now.
    pub(crate) fn forget(&self, gone: &L) {
        let hash = self.hash(gone.spec().key.as_str());
        let mut locks = self.part(hash).write();
        if let Ok(entry) = locks.find_entry(hash, |entry| std::ptr::eq(entry.lock.as_ptr(), gone)) {
            entry.remove();
        }
    }

    pub(crate) fn all(&self) -> Vec<Arc<L>> {
        let of_part = |part: &Part<L>| part.read().iter().filter_map(|entry| entry.lock.upgrade()).collect::<Vec<_>>();
        self.parts.iter().flat_map(of_part).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.parts.iter().map(|part| part.read().len()).sum()
    }
}

/// The lock that is looked for, and those whose keys have its hash but are others, to be let go where no guard is held any more.
pub(crate) struct OfHash<L> {
    pub(crate) found: Option<Arc<L>>,
    others: Vec<Arc<L>>,
}

impl<L> Default for OfHash<L> {
    fn default() -> OfHash<L> {
        OfHash { found: None, others: Vec::new() }
    }
}

impl<L: Registered> OfHash<L> {
    /// Takes note of an entry's lock if it is held. Says whether it is the one.
    pub(crate) fn is(&mut self, entry: &Entry<L>, hash: u64, key: &str) -> bool {
        let held = if entry.hash == hash { entry.lock.upgrade() } else { None };
        match held {
            Some(lock) if lock.spec().key.as_str() == key => self.found = Some(lock),
            Some(other) => self.others.push(other),
            None => {}
        }
        self.found.is_some()
    }
}

impl<L> Part<L> {
    fn read(&self) -> impl Deref<Target = HashTable<Entry<L>>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> impl DerefMut<Target = HashTable<Entry<L>>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}
