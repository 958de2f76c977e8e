//! What is remembered, and how it changes.

use std::collections::BTreeMap;
use std::collections::btree_map;
use std::time::Duration;

use fencepost_policy::{Layout, LockKey, Revision};
use fencepost_sources::StoreIdentity;

use super::entry::Entry;

/// What the processes before this one left in the `state_dir`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Remembered {
    /// Whether the last process left with nothing at the worker, or there was none.
    pub clean: bool,
    /// How far the store was seen, by the name of the source.
    pub highest_seen: BTreeMap<String, Seen>,
    /// Up to which revision nothing is believed of a store that went back, by the name of the source, until its operator accepts that.
    pub distrusted: BTreeMap<String, Revision>,
    /// The locks of which a tenure was let in, by the name of the source and the key of the lock.
    pub locks: BTreeMap<String, BTreeMap<LockKey, RememberedLock>>,
    /// How long the worker may go on with requests that routes let past while they only watched, by the template of their lock's key: they
    /// may be anybody's.
    pub watched: BTreeMap<String, Duration>,
}

/// How far a store was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// The highest revision.
    pub revision: Revision,
    /// What that store had told of itself.
    pub store: StoreIdentity,
}

/// What is remembered of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RememberedLock {
    /// How its record was laid out: tenures of different layouts have no order.
    pub layout: Layout,
    /// The first revision of the last tenure that was let in; nothing once the revisions of the source were forgotten: then
    /// no tenure is the one that may be at the worker.
    pub tenure: Option<Revision>,
    /// How long the worker may go on with that tenure's requests after the process ended.
    pub orphan_timeout: Duration,
}

impl Remembered {
    /// What is remembered of this lock.
    pub fn lock(&self, source: &str, lock: &LockKey) -> Option<&RememberedLock> {
        self.locks.get(source)?.get(lock)
    }

    /// The same without the locks that have had several sources, where the last process has left with nothing at the worker: that they
    /// had would make everybody wait after a crash. That those revisions were seen stays.
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
        let Entry::Lock { source, lock, layout, tenure, orphan_timeout: _ } = entry else { return None };
        let known = self.lock(source, lock).filter(|known| known.layout == *layout)?;
        known.tenure.filter(|known| Some(*known) > *tenure)
    }

    /// What the next process is to remember of it from the start. Whatever a clean process watched has left the worker.
    pub(super) fn at_start(&self) -> Remembered {
        let watched = if self.clean { BTreeMap::new() } else { self.watched.clone() };
        Remembered { clean: false, watched, ..self.clone() }
    }

    /// How long the worker may go on with requests of a lock that are remembered of one of those sources.
    pub fn of_sources(&self, lock: &LockKey, is_one: impl Fn(&str) -> bool) -> Option<Duration> {
        let sources = self.locks.iter().filter(|(source, _)| is_one(source));
        sources.filter_map(|(_, locks)| locks.get(lock)).map(|lock| lock.orphan_timeout).max()
    }

    /// How long it may go on with what was let past under the lock while a route only watched.
    pub fn watched(&self, lock: &LockKey) -> Option<Duration> {
        let key = lock.as_str();
        // Each lock asks for this, and there may be thousands of others: of templates, only those that begin like it are looked at.
        let beginnings = (0..=key.len()).filter_map(|end| key.get(..end));
        let templates = beginnings.flat_map(|beginning| self.watched_below(beginning));
        let of_template =
            templates.filter(|(template, _)| may_name(template, key)).map(|(_, orphan_timeout)| *orphan_timeout);
        self.watched.get(key).copied().into_iter().chain(of_template).max()
    }

    /// Those whose first placeholder comes right behind that.
    fn watched_below(&self, beginning: &str) -> impl Iterator<Item = (&String, &Duration)> {
        let beginning = format!("{beginning}{{");
        let from = self.watched.range(beginning.clone()..);
        from.take_while(move |(template, _)| template.starts_with(&beginning))
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
                let news = RememberedLock { layout: *layout, tenure: *tenure, orphan_timeout: *orphan_timeout };
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
            Entry::Watched { key, orphan_timeout } => rises(&mut self.watched, key, *orphan_timeout),
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
                // The barrier opened for a later tenure, so nothing of the earlier one needs its `orphan_timeout` any more.
                // Within one tenure requests may be under way that were promised the longer one.
                // One of another layout is later too: the lock has been given that since.
                let is_alike = known.layout == news.layout;
                let later = !is_alike || known.tenure < news.tenure;
                let longer = known.tenure == news.tenure && known.orphan_timeout < news.orphan_timeout;
                if later || longer {
                    *known = news;
                }
                later || longer
            }
        }
    }

    /// The entries that make this state out of an empty one.
    pub(super) fn entries(&self) -> impl Iterator<Item = Entry> {
        let locks = self.locks.iter().flat_map(|(source, locks)| locks.iter().map(move |lock| (source, lock)));
        let locks = locks.map(|(source, (lock, RememberedLock { layout, tenure, orphan_timeout }))| Entry::Lock {
            source: source.clone(),
            lock: lock.clone(),
            layout: *layout,
            tenure: *tenure,
            orphan_timeout: *orphan_timeout,
        });
        let highest_seen = self.highest_seen.iter();
        let highest_seen = highest_seen.map(|(source, seen)| Entry::highest_seen(source.clone(), seen.clone()));
        let distrusted = self.distrusted.iter();
        let distrusted =
            distrusted.map(|(source, through)| Entry::Distrusted { source: source.clone(), through: *through });
        let watched = self.watched.iter();
        let watched = watched.map(|(key, timeout)| Entry::Watched { key: key.clone(), orphan_timeout: *timeout });
        locks.chain(highest_seen).chain(distrusted).chain(watched).chain(self.clean.then_some(Entry::CleanLeave))
    }
}

impl Seen {
    /// Takes over what goes as far, or farther; whether it says anything new.
    pub(super) fn rise(&mut self, seen: Seen) -> bool {
        let rises = self.revision < seen.revision;
        let is_told = self.revision <= seen.revision && seen.store.cluster.is_some() && self.store != seen.store;
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
        (Some(first), Some(last)) => key.starts_with(&template[..first]) && key.ends_with(&template[last + 1..]),
        _ => template == key,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lock(tenure: Option<u64>, seconds: u64) -> Entry {
        lock_of(Layout::Key, tenure, seconds)
    }

    fn lock_of(layout: Layout, tenure: Option<u64>, seconds: u64) -> Entry {
        Entry::Lock {
            source: "main".to_owned(),
            lock: LockKey::new("/a").unwrap(),
            layout,
            tenure: tenure.map(|tenure| Revision::new(tenure).unwrap()),
            orphan_timeout: Duration::from_secs(seconds),
        }
    }

    fn seen(revision: u64) -> Entry {
        seen_of(revision, None, &[])
    }

    fn seen_of(revision: u64, cluster: Option<u64>, terms: &[(u64, u64)]) -> Entry {
        let (revision, terms) = (Revision::new(revision).unwrap(), terms.iter().copied().collect());
        Entry::HighestSeen { source: "main".to_owned(), revision, cluster, terms }
    }

    fn distrusted(through: u64) -> Entry {
        Entry::Distrusted { source: "main".to_owned(), through: Revision::new(through).unwrap() }
    }

    fn forget() -> Entry {
        Entry::Forget { source: "main".to_owned() }
    }

    /// Applies entries one after the other: whether each changed something, and what is remembered in the end.
    fn check(entries: &[(Entry, bool)], remembered: &[Entry]) {
        let mut state = Remembered::default();
        for (entry, changes) in entries {
            assert_eq!(state.apply(entry), *changes, "{entry:?} of {entries:?}");
        }
        assert_eq!(state.entries().collect::<Vec<_>>(), remembered, "after {entries:?}");
    }

    #[test]
    fn what_is_remembered_only_rises() {
        check(
            &[(lock(Some(7), 30), true), (lock(Some(7), 30), false), (lock(Some(5), 60), false)],
            &[lock(Some(7), 30)],
        );
        check(&[(lock(Some(7), 30), true), (lock(Some(9), 10), true)], &[lock(Some(9), 10)]);
        check(&[(seen(7), true), (seen(7), false), (seen(5), false), (seen(9), true)], &[seen(9)]);
        check(
            &[(distrusted(7), true), (distrusted(7), false), (distrusted(5), false), (distrusted(9), true)],
            &[distrusted(9)],
        );
    }

    #[test]
    fn which_store_was_seen_is_remembered_with_how_far() {
        let one = |revision, terms: &[_]| seen_of(revision, Some(1), terms);
        let two = |revision| seen_of(revision, Some(u64::MAX), &[]);
        check(&[(seen(7), true), (one(7, &[]), true), (one(7, &[]), false)], &[one(7, &[])]);
        check(&[(one(7, &[(8, 2)]), true), (two(6), false), (two(7), true)], &[two(7)]);
        check(&[(one(7, &[(8, 2)]), true), (seen(9), true), (two(8), false)], &[one(9, &[(8, 2)])]);
        // Another log of the same store.
        check(&[(one(7, &[(8, 5), (9, 4)]), true), (one(7, &[(8, 2)]), true)], &[one(7, &[(8, 2)])]);
    }

    #[test]
    fn within_a_tenure_the_longer_orphan_timeout_stays() {
        check(&[(lock(Some(7), 30), true), (lock(Some(7), 10), false)], &[lock(Some(7), 30)]);
        check(&[(lock(Some(7), 30), true), (lock(Some(7), 60), true)], &[lock(Some(7), 60)]);
    }

    /// It was a later one that stood in the way: whoever held a mutex since before its lock was last taken by layout `key` was refused for good.
    #[test]
    fn a_tenure_of_another_layout_is_neither_earlier_nor_later_and_takes_the_place() {
        let mutex = |tenure| lock_of(Layout::Mutex, Some(tenure), 10);
        check(&[(lock(Some(7), 30), true), (mutex(5), true), (mutex(5), false), (mutex(4), false)], &[mutex(5)]);
        check(&[(mutex(5), true), (lock(Some(5), 30), true)], &[lock(Some(5), 30)]);
        let mut state = Remembered::default();
        state.apply(&lock(Some(7), 30));
        assert_eq!((state.later_than(&lock(Some(5), 30)), state.later_than(&mutex(5))), (Revision::new(7), None));
    }

    #[test]
    fn forgetting_revisions_forgets_no_request() {
        check(&[(lock(Some(7), 30), true), (seen(9), true), (forget(), true), (forget(), false)], &[lock(None, 30)]);
        check(&[(lock(Some(7), 30), true), (forget(), true), (lock(Some(3), 5), true)], &[lock(Some(3), 5)]);
        check(&[(distrusted(7), true), (seen(9), true), (forget(), true), (seen(3), true)], &[seen(3)]);
        check(&[(distrusted(7), true), (forget(), true), (distrusted(4), true)], &[distrusted(4)]);
        check(&[(forget(), false)], &[]);
    }

    #[test]
    fn what_was_watched_counts_for_the_longest_time_until_a_process_has_left_cleanly() {
        let watched = |seconds| {
            let key = "/shards/{shard}/lock".to_owned();
            Entry::Watched { key, orphan_timeout: Duration::from_secs(seconds) }
        };
        check(
            &[(watched(30), true), (watched(10), false), (watched(60), true), (seen(1), true)],
            &[seen(1), watched(60)],
        );
        let mut state = Remembered::default();
        state.apply(&watched(30));
        state.apply(&lock(Some(7), 10));
        let of = |state: &Remembered, key: &str| state.at_start().watched(&LockKey::new(key).unwrap());
        assert_eq!(of(&state, "/shards/7/lock"), Some(Duration::from_secs(30)));
        assert_eq!((of(&state, "/shards/7/other"), of(&state, "/a")), (None, None));
        state.apply(&Entry::CleanLeave);
        assert_eq!(of(&state, "/shards/7/lock"), None);
        let a = LockKey::new("/a").unwrap();
        assert_eq!(state.at_start().of_sources(&a, |source| source == "main"), Some(Duration::from_secs(10)));
        assert_eq!(state.at_start().of_sources(&a, |source| source == "other"), None);
    }

    proptest! {
        /// As by holding it against each: with 20,000 routes that watched, a start took 6 s for that.
        #[test]
        fn what_has_watched_a_lock_is_found_as_by_asking_all(
            watched in prop::collection::btree_map("[ab/ü{}]{0,5}", 1..9u64, 0..20),
            key in "[ab/ü{}]{1,6}",
        ) {
            let watched = watched.into_iter().map(|(template, seconds)| (template, Duration::from_secs(seconds))).collect();
            let (remembered, lock) = (Remembered { watched, ..Remembered::default() }, LockKey::new(&key).unwrap());
            let by_asking_all = remembered.watched.iter().filter(|(template, _)| may_name(template, &key));
            prop_assert_eq!(remembered.watched(&lock), by_asking_all.map(|(_, seconds)| *seconds).max());
        }
    }

    #[test]
    fn that_a_lock_has_had_several_sources_is_forgotten_once_a_process_has_left_cleanly() {
        let of = |source: &str, key: &str, tenure| Entry::Lock {
            source: source.to_owned(),
            lock: LockKey::new(key).unwrap(),
            layout: Layout::Key,
            tenure: Some(Revision::new(tenure).unwrap()),
            orphan_timeout: Duration::from_secs(30),
        };
        let seen = |source: &str, revision| Entry::HighestSeen {
            source: source.to_owned(),
            revision: Revision::new(revision).unwrap(),
            cluster: None,
            terms: BTreeMap::new(),
        };
        let mut state = Remembered::default();
        for entry in [of("one", "/a", 7), of("two", "/a", 10), of("two", "/b", 12), seen("one", 5), seen("two", 20)] {
            state.apply(&entry);
        }
        assert_eq!(state.clone().without_moved(), state, "any of them may be at the worker");
        state.apply(&Entry::CleanLeave);
        let left: Vec<Entry> = state.without_moved().entries().collect();
        assert_eq!(left, [of("two", "/b", 12), seen("one", 7), seen("two", 20), Entry::CleanLeave]);
    }

    #[test]
    fn whatever_follows_a_clean_leave_undoes_it() {
        check(&[(Entry::CleanLeave, true)], &[Entry::CleanLeave]);
        check(&[(Entry::CleanLeave, true), (seen(1), true)], &[seen(1)]);
    }

    #[test]
    fn an_entry_is_read_as_it_was_written() {
        let odd = Entry::Lock {
            source: "a-b_C".to_owned(),
            lock: LockKey::new("/\u{1}\n\"\\é/").unwrap(),
            layout: Layout::Mutex,
            tenure: Some(Revision::MAX),
            orphan_timeout: Duration::new(3600, 999_999_999),
        };
        let watched = Entry::Watched { key: "/{a}".to_owned(), orphan_timeout: Duration::from_millis(1500) };
        let seen_of = seen_of(1, Some(u64::MAX), &[(u64::MAX, u64::MAX), (1, 2)]);
        for entry in [odd, lock(None, 1), seen(1), seen_of, distrusted(1), forget(), watched, Entry::CleanLeave] {
            let line = serde_json::to_string(&entry).unwrap();
            assert!(!line.contains('\n'), "{line}");
            assert_eq!(serde_json::from_str::<Entry>(&line).unwrap(), entry);
        }
        for line in [
            r#"{"highest_seen":{"source":"main","revision":0}}"#,
            r#"{"lock":{"source":"main","lock":"","tenure":1,"orphan_timeout":{"secs":1,"nanos":0}}}"#,
            r#"{"lock":{"source":"main","lock":"/a","layout":"keys","tenure":1,"orphan_timeout":{"secs":1,"nanos":0}}}"#,
            // Added to the present it made the process panic when it began.
            r#"{"lock":{"source":"main","lock":"/a","tenure":1,"orphan_timeout":{"secs":18446744073709551615,"nanos":0}}}"#,
            r#""open""#,
        ] {
            assert!(serde_json::from_str::<Entry>(line).is_err(), "{line}");
        }
    }
}
