//! What must hold between the locks of different routes.

use std::collections::{BTreeSet, HashSet};

use fencepost_policy::Layout;

use crate::check::DeclaredSource;
use crate::check_route::CheckedRoute;
use crate::problem::Notes;
use crate::route::{Lock, Record};
use crate::trie::Trie;

/// A lock has one store and one reading, no two are named alike, and none lies below another's contenders.
pub(crate) fn check_locks(routes: &[CheckedRoute], sources: &[DeclaredSource], notes: &Notes) {
    let mut known = KnownLocks::default();
    for later in routes {
        let Some(lock) = &later.lock else { continue };
        let conflict = known.begin_alike(lock).find_map(|(earlier, other)| {
            let conflict = disagreement(lock, other, sources)
                .or_else(|| ambiguity(lock, other))
                .or_else(|| nesting(lock, other))?;
            Some((earlier, conflict))
        });
        // The first conflict is enough: once it is settled, the others often are too.
        if let Some((earlier, conflict)) = conflict {
            let (name, line) = (&earlier.name, earlier.lock_place.reference());
            notes.problem(&later.lock_place, format_args!("{conflict} route {name:?}{line}"));
        }
        known.insert(later, lock);
    }
}

/// Locks, each with the first route that has it: those after it say the same.
#[derive(Default)]
struct KnownLocks<'r> {
    firsts: Vec<(&'r CheckedRoute, &'r Lock)>,
    known: HashSet<(usize, &'r str, &'r Record)>,
    whole: Trie,
    with_contenders: Trie,
    without_contenders: Trie,
}

impl<'r> KnownLocks<'r> {
    /// All that may be in conflict with a lock, in order. There may be thousands of others.
    fn begin_alike(&self, lock: &Lock) -> impl Iterator<Item = (&'r CheckedRoute, &'r Lock)> {
        let steps = lock.key.steps();
        let mut numbers = BTreeSet::from_iter(self.whole.alike(&lock.key.whole_steps()));
        numbers.extend(self.with_contenders.alike(&steps));
        if has_contenders(lock) {
            numbers.extend(self.without_contenders.alike(&steps));
        }
        numbers.into_iter().map(|number| self.firsts[number])
    }

    fn insert(&mut self, route: &'r CheckedRoute, lock: &'r Lock) {
        if !self.known.insert((lock.source, lock.key.as_str(), &lock.record)) {
            return;
        }
        let number = self.firsts.len();
        self.firsts.push((route, lock));
        self.whole.insert(number, &lock.key.whole_steps());
        let trie = if has_contenders(lock) { &mut self.with_contenders } else { &mut self.without_contenders };
        trie.insert(number, &lock.key.steps());
    }
}

/// How two locks that may have one key are kept or read differently, up to the name of the other's route.
fn disagreement(lock: &Lock, other: &Lock, sources: &[DeclaredSource]) -> Option<String> {
    if !lock.key.overlaps(&other.key) {
        return None;
    }
    let key = lock.key.as_str();
    let differ = |what: &str, mine: &str, others: &str| {
        format!("the key {key:?} is read with {what} = {mine} here, but with {what} = {others} in")
    };
    let quoted = |text: &str| format!("{text:?}");
    let field = |field: &Option<String>| field.as_deref().map_or("nothing".to_owned(), quoted);
    let (source, other_source) = (&sources[lock.source].name, &sources[other.source].name);
    if source != other_source {
        return Some(differ("source", &quoted(source), &quoted(other_source)));
    }
    match (&lock.record, &other.record) {
        (Record::Key { free_values, owner_field }, Record::Key { free_values: others, owner_field: other_field }) => {
            if owner_field != other_field {
                return Some(differ("owner_field", &field(owner_field), &field(other_field)));
            }
            (free_values != others).then(|| differ("free_values", &format!("{free_values:?}"), &format!("{others:?}")))
        }
        (mine, others) if mine.layout() != others.layout() => {
            Some(differ("layout", &quoted(mine.layout().name()), &quoted(others.layout().name())))
        }
        (Record::Key { .. } | Record::Election | Record::Mutex, _) => None,
    }
}

/// How a request that names one of two locks may mean the other, up to the name of the other's route.
fn ambiguity(lock: &Lock, other: &Lock) -> Option<String> {
    let (key, other_key) = (lock.key.as_str(), other.key.as_str());
    lock.key.has_twin_in(&other.key).then(|| {
        format!(
            "{key:?} and {other_key:?} are the same where a request names its lock percent-encoded; the other is the lock of"
        )
    })
}

/// How one of two locks lies among the contenders of the other, up to the name of the other's route.
fn nesting(lock: &Lock, other: &Lock) -> Option<String> {
    let contends = |above: &Lock, below: &Lock| has_contenders(above) && above.key.is_above(&below.key);
    if lock.source != other.source || !(contends(lock, other) || contends(other, lock)) {
        return None;
    }
    let (key, other_key) = (lock.key.as_str(), other.key.as_str());
    Some(format!(
        "{key:?} and {other_key:?} lie one below the other, so that they block each other in etcd; the other is the lock of"
    ))
}

/// Whether who waits for a lock has a key below it.
fn has_contenders(lock: &Lock) -> bool {
    match lock.record.layout() {
        Layout::Election | Layout::Mutex => true,
        Layout::Key => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;
    use crate::lock_template::LockTemplate;
    use crate::path_template::PathTemplate;
    use crate::problem::Place;

    fn source(name: &str) -> DeclaredSource {
        DeclaredSource { name: name.to_owned(), source: None, place: Place::flag(name) }
    }

    fn record(name: &str) -> Record {
        match name {
            "election" => Record::Election,
            "mutex" => Record::Mutex,
            free => Record::Key { free_values: vec![free.to_owned()], owner_field: None },
        }
    }

    fn route(number: usize, (key, source, record_name): &(String, usize, &str)) -> Option<CheckedRoute> {
        let place = Place::flag(&format!("r{number}"));
        let key = LockTemplate::parse(key, &PathTemplate::parse("/").unwrap(), true).ok()?;
        Some(CheckedRoute {
            name: format!("r{number}"),
            lock: Some(Lock { source: *source, key, from_header: true, record: record(record_name) }),
            lock_place: place.clone(),
            path_place: place.clone(),
            upstream_place: place.clone(),
            identity_place: place,
            route: None,
        })
    }

    const KEY: &str = "(a|b|a b|a%20b|ab|[{]x[}]|a[{]x[}]|[{]x[}]b)(/(a|b|a b|a%20b|[{]x[}]|[{]y[}]b)){0,2}";

    proptest! {
        /// As by holding each lock against all before it, which takes a reload of 8,000 routes seconds.
        #[test]
        fn the_first_route_that_a_lock_is_in_conflict_with_is_named(
            written in vec((KEY, select(vec![0, 0, 0, 1]), select(vec!["x", "x", "y", "election", "mutex"])), 1..16),
        ) {
            let sources = [source("main"), source("other")];
            let routes = written.iter().enumerate().filter_map(|(number, written)| route(number, written));
            let routes: Vec<CheckedRoute> = routes.collect();
            let notes = Notes::for_flags();
            for (index, later) in routes.iter().enumerate() {
                let lock = later.lock.as_ref().unwrap();
                let first = routes[..index].iter().find_map(|earlier| {
                    let other = earlier.lock.as_ref().unwrap();
                    let conflict = disagreement(lock, other, &sources).or_else(|| ambiguity(lock, other));
                    Some((conflict.or_else(|| nesting(lock, other))?, &earlier.name))
                });
                if let Some((conflict, name)) = first {
                    notes.problem(&later.lock_place, format_args!("{conflict} route {name:?}"));
                }
            }
            let found = Notes::for_flags();
            check_locks(&routes, &sources, &found);
            let shown = |notes: Notes| notes.finish().map(drop).map_err(|problems| problems.to_string());
            prop_assert_eq!(shown(found), shown(notes));
        }
    }
}
