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

/// Applies entries one after the other: whether each changed something, and what is remembered in
/// the end.
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
        &[
            (distrusted(7), true),
            (distrusted(7), false),
            (distrusted(5), false),
            (distrusted(9), true),
        ],
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

/// A tenure of layout `key` is not later than one of layout `mutex`, and so does not bar a mutex's
/// holder.
#[test]
fn a_tenure_of_another_layout_replaces_the_earlier_one() {
    let mutex = |tenure| lock_of(Layout::Mutex, Some(tenure), 10);
    check(
        &[(lock(Some(7), 30), true), (mutex(5), true), (mutex(5), false), (mutex(4), false)],
        &[mutex(5)],
    );
    check(&[(mutex(5), true), (lock(Some(5), 30), true)], &[lock(Some(5), 30)]);
    let mut state = Remembered::default();
    state.apply(&lock(Some(7), 30));
    assert_eq!(
        (state.later_than(&lock(Some(5), 30)), state.later_than(&mutex(5))),
        (Revision::new(7), None)
    );
}

#[test]
fn forgetting_revisions_forgets_no_request() {
    check(
        &[(lock(Some(7), 30), true), (seen(9), true), (forget(), true), (forget(), false)],
        &[lock(None, 30)],
    );
    check(
        &[(lock(Some(7), 30), true), (forget(), true), (lock(Some(3), 5), true)],
        &[lock(Some(3), 5)],
    );
    check(&[(distrusted(7), true), (seen(9), true), (forget(), true), (seen(3), true)], &[seen(3)]);
    check(&[(distrusted(7), true), (forget(), true), (distrusted(4), true)], &[distrusted(4)]);
    check(&[(forget(), false)], &[]);
}

#[test]
fn watched_locks_count_longest_until_a_clean_stop() {
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
    assert_eq!(
        state.at_start().of_sources(&a, |source| source == "main"),
        Some(Duration::from_secs(10))
    );
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
fn earlier_sources_are_forgotten_after_a_clean_stop() {
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
    for entry in [
        of("one", "/a", 7),
        of("two", "/a", 10),
        of("two", "/b", 12),
        seen("one", 5),
        seen("two", 20),
    ] {
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
    let watched =
        Entry::Watched { key: "/{a}".to_owned(), orphan_timeout: Duration::from_millis(1500) };
    let seen_of = seen_of(1, Some(u64::MAX), &[(u64::MAX, u64::MAX), (1, 2)]);
    for entry in
        [odd, lock(None, 1), seen(1), seen_of, distrusted(1), forget(), watched, Entry::CleanLeave]
    {
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
