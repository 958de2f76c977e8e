//! What is remembered, and how it changes.

use std::collections::BTreeMap;
use std::collections::btree_map;
use std::time::Duration;

use fencepost_locks::StoreIdentity;
use fencepost_policy::{Layout, LockKey, Revision};

use super::entry::Entry;

/// What the processes before this one left in the `state_dir`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Remembered {
    /// Whether the last process left with nothing at the worker, or there was none.
    pub clean: bool,
    /// How far the store was seen, by the name of the source.
    pub highest_seen: BTreeMap<String, Seen>,
    /// Up to which revision nothing is believed of a store that went back, by the name of the
    /// source, until its operator accepts that.
    pub distrusted: BTreeMap<String, Revision>,
    /// The locks of which a tenure was let in, by the name of the source and the key of the lock.
    pub locks: BTreeMap<String, BTreeMap<LockKey, RememberedLock>>,
    /// How long the worker may go on with requests that routes let past while they only watched, by
    /// the template of their lock's key: they may be anybody's.
    pub watched: BTreeMap<String, Duration>,
}

/// How far a store was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// The highest revision.
    pub revision: Revision,
    /// The identity that the store reported.
    pub store: StoreIdentity,
}

/// What is remembered of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RememberedLock {
    /// How its record was laid out: tenures of different layouts have no order.
    pub layout: Layout,
    /// The first revision of the last tenure that was let in; nothing once the revisions of the
    /// source were forgotten: then no tenure is the one that may be at the worker.
    pub tenure: Option<Revision>,
    /// How long the worker may go on with that tenure's requests after the process ended.
    pub orphan_timeout: Duration,
}

impl Remembered {
    /// What is remembered of this lock.
    pub fn lock(&self, source: &str, lock: &LockKey) -> Option<&RememberedLock> {
        self.locks.get(source)?.get(lock)
    }

    /// Drops the locks that have had several sources, if the last process left nothing at the
    /// worker. Their requests would otherwise have to wait after each crash. Keeps the revisions of
    /// their tenures as seen.
    pub(super) fn without_moved(mut self) -> Remembered {
        if !self.clean {
            return self;
        }
        let Remembered { locks, highest_seen, .. } = &mut self;
        let mut sources_of: BTreeMap<LockKey, usize> = BTreeMap::new();
        for lock in locks.values().flat_map(BTreeMap::keys) {
            *sources_of.entry(lock.clone()).or_default() += 1;
        }
        for (source, locks) in locks {
            let moved = locks.extract_if(.., |lock, _| sources_of[lock] > 1);
            if let Some(revision) = moved.filter_map(|(_, lock)| lock.tenure).max() {
                let seen = Seen { revision, store: StoreIdentity::default() };
                highest_seen.entry(source.clone()).or_insert_with(|| seen.clone()).rise(seen);
            }
        }
        self.locks.retain(|_, locks| !locks.is_empty());
        self
    }

    /// The tenure that is remembered of the entry's lock, if it is later than the entry's.
    pub(super) fn later_than(&self, entry: &Entry) -> Option<Revision> {
        let Entry::Lock { source, lock, layout, tenure, orphan_timeout: _ } = entry else {
            return None;
        };
        let known = self.lock(source, lock).filter(|known| known.layout == *layout)?;
        known.tenure.filter(|known| Some(*known) > *tenure)
    }

    /// What the next process is to remember of it from the start. Whatever a clean process watched
    /// has left the worker.
    pub(super) fn at_start(&self) -> Remembered {
        let watched = if self.clean { BTreeMap::new() } else { self.watched.clone() };
        Remembered { clean: false, watched, ..self.clone() }
    }

    /// How long the worker may go on with requests of a lock that are remembered of one of those
    /// sources.
    pub fn of_sources(&self, lock: &LockKey, is_one: impl Fn(&str) -> bool) -> Option<Duration> {
        let sources = self.locks.iter().filter(|(source, _)| is_one(source));
        sources.filter_map(|(_, locks)| locks.get(lock)).map(|lock| lock.orphan_timeout).max()
    }

    /// How long it may go on with what was let past under the lock while a route only watched.
    pub fn watched(&self, lock: &LockKey) -> Option<Duration> {
        let templates =
            self.watched.iter().filter(|(template, _)| may_name(template, lock.as_str()));
        templates.map(|(_, orphan_timeout)| *orphan_timeout).max()
    }

    /// How long the worker may go on with any of it.
    pub fn longest_orphan_timeout(&self) -> Option<Duration> {
        let locks = self.locks.values().flat_map(BTreeMap::values).map(|lock| lock.orphan_timeout);
        locks.chain(self.watched.values().copied()).max()
    }

    /// Takes over a change; whether it was one.
    pub(super) fn apply(&mut self, entry: &Entry) -> bool {
        // Only the very last thing that a process writes is a clean mark.
        self.clean = false;
        match entry {
            Entry::Lock { source, lock, layout, tenure, orphan_timeout } => {
                let news = RememberedLock {
                    layout: *layout,
                    tenure: *tenure,
                    orphan_timeout: *orphan_timeout,
                };
                self.let_in(source, lock, news)
            }
            Entry::HighestSeen { source, revision, cluster, terms } => {
                let store = StoreIdentity { cluster: *cluster, terms: terms.clone() };
                let seen = Seen { revision: *revision, store };
                match self.highest_seen.get_mut(source) {
                    Some(known) => known.rise(seen),
                    None => self.highest_seen.insert(source.clone(), seen).is_none(),
                }
            }
            Entry::Distrusted { source, through } => rises(&mut self.distrusted, source, *through),
            Entry::Forget { source } => {
                let seen = self.highest_seen.remove(source).is_some();
                let distrusted = self.distrusted.remove(source).is_some();
                let tenures = self.locks.get_mut(source).into_iter().flat_map(BTreeMap::values_mut);
                let forgotten = tenures.filter_map(|lock| lock.tenure.take()).count();
                seen || distrusted || forgotten > 0
            }
            Entry::Watched { key, orphan_timeout } => {
                rises(&mut self.watched, key, *orphan_timeout)
            }
            Entry::CleanLeave => {
                self.clean = true;
                true
            }
        }
    }

    fn let_in(&mut self, source: &str, lock: &LockKey, news: RememberedLock) -> bool {
        if !self.locks.contains_key(source) {
            self.locks.insert(source.to_owned(), BTreeMap::new());
        }
        let locks = self.locks.get_mut(source).expect("the source has just been put in");
        match locks.entry(lock.clone()) {
            btree_map::Entry::Vacant(vacant) => {
                vacant.insert(news);
                true
            }
            btree_map::Entry::Occupied(mut known) => {
                let known = known.get_mut();
                // The barrier opened for a later tenure, so nothing of the earlier one needs its
                // `orphan_timeout` any more. Within one tenure requests may be under way that were
                // promised the longer one. One of another layout is later too: the lock has been
                // given that since.
                let is_alike = known.layout == news.layout;
                let later = !is_alike || known.tenure < news.tenure;
                let longer =
                    known.tenure == news.tenure && known.orphan_timeout < news.orphan_timeout;
                if later || longer {
                    *known = news;
                }
                later || longer
            }
        }
    }

    /// The entries that make this state out of an empty one.
    pub(super) fn entries(&self) -> impl Iterator<Item = Entry> {
        let locks = self
            .locks
            .iter()
            .flat_map(|(source, locks)| locks.iter().map(move |lock| (source, lock)));
        let locks =
            locks.map(|(source, (lock, RememberedLock { layout, tenure, orphan_timeout }))| {
                Entry::Lock {
                    source: source.clone(),
                    lock: lock.clone(),
                    layout: *layout,
                    tenure: *tenure,
                    orphan_timeout: *orphan_timeout,
                }
            });
        let highest_seen = self.highest_seen.iter();
        let highest_seen =
            highest_seen.map(|(source, seen)| Entry::highest_seen(source.clone(), seen.clone()));
        let distrusted = self.distrusted.iter();
        let distrusted = distrusted.map(|(source, through)| Entry::Distrusted {
            source: source.clone(),
            through: *through,
        });
        let watched = self.watched.iter();
        let watched = watched
            .map(|(key, timeout)| Entry::Watched { key: key.clone(), orphan_timeout: *timeout });
        locks
            .chain(highest_seen)
            .chain(distrusted)
            .chain(watched)
            .chain(self.clean.then_some(Entry::CleanLeave))
    }
}

impl Seen {
    /// Takes over what goes as far, or farther; whether it says anything new.
    pub(super) fn rise(&mut self, seen: Seen) -> bool {
        let rises = self.revision < seen.revision;
        let is_told = self.revision <= seen.revision
            && seen.store.cluster.is_some()
            && self.store != seen.store;
        if rises {
            self.revision = seen.revision;
        }
        if is_told {
            self.store = seen.store;
        }
        rises || is_told
    }
}

/// Takes over what is higher than what is known; whether it is.
fn rises<T: Ord>(known: &mut BTreeMap<String, T>, name: &str, value: T) -> bool {
    let rises = known.get(name).is_none_or(|known| *known < value);
    if rises {
        known.insert(name.to_owned(), value);
    }
    rises
}

/// Whether a key may be one of that template. When in doubt, it may.
fn may_name(template: &str, key: &str) -> bool {
    match (template.find('{'), template.rfind('}')) {
        (Some(first), Some(last)) => {
            key.starts_with(&template[..first]) && key.ends_with(&template[last + 1..])
        }
        _ => template == key,
    }
}

#[cfg(test)]
#[path = "remembered_tests.rs"]
mod tests;
