//! What must hold between the locks of different routes.

use std::collections::HashSet;

use fencepost_policy::Layout;

use crate::lock::{Lock, Record};
use crate::prefixes::Prefixes;
use crate::route::WrittenRoute;
use crate::source::Source;

/// A lock has one store and one reading, no two are named alike, and none lies below another's
/// contenders.
pub(crate) fn check_locks(routes: &[WrittenRoute<'_>], sources: &[Source]) {
    let (mut known, mut locks) = (Prefixes::default(), HashSet::new());
    for (number, later) in routes.iter().enumerate() {
        let Some(lock) = &later.lock else { continue };
        let beginning = lock.key.beginning();
        // The first conflict is enough: once it is settled, the others often are too.
        let conflict = known.alike(&beginning).into_iter().find_map(|number| {
            let other = routes[number].lock.as_ref()?;
            let conflict = conflict_of(lock, other, sources)?;
            Some(format!("{conflict} {}", routes[number].named("lock")))
        });
        if let Some(conflict) = conflict {
            later.table.problem("lock", conflict);
        }
        // The first route that has a lock stands for those after it that have the same.
        if locks.insert((lock.source, lock.key.as_str(), &lock.record)) {
            known.insert(number, &beginning);
        }
    }
}

/// Why there cannot be both locks, up to the name of the other's route.
fn conflict_of(lock: &Lock, other: &Lock, sources: &[Source]) -> Option<String> {
    let (key, other_key) = (lock.key.as_str(), other.key.as_str());
    let is_shared = lock.key.overlaps(&other.key);
    let disagreement = is_shared.then(|| disagreement(lock, other, sources));
    if let Some([what, mine, others]) = disagreement.flatten() {
        let others = format!("but with {what} = {others} in");
        return Some(format!("the key {key:?} is read with {what} = {mine} here, {others}"));
    }
    let has_contenders = |lock: &Lock| lock.record.layout() != Layout::Key;
    let is_above = |one: &Lock, other: &Lock| has_contenders(one) && one.key.is_above(&other.key);
    let how = if lock.key.has_twin_in(&other.key) {
        "are the same where a request names its lock percent-encoded"
    } else if lock.source == other.source && (is_above(lock, other) || is_above(other, lock)) {
        "lie one below the other, so that they block each other in etcd"
    } else {
        return None;
    };
    Some(format!("{key:?} and {other_key:?} {how}; the other is the lock of"))
}

/// A setting in which two locks differ, and both values.
fn disagreement(lock: &Lock, other: &Lock, sources: &[Source]) -> Option<[String; 3]> {
    let settings = |lock: &Lock| {
        let (free_values, owner_field) = match &lock.record {
            Record::Key { free_values, owner_field } => (&free_values[..], owner_field.as_ref()),
            Record::Session
            | Record::Lease
            | Record::Counter
            | Record::Election
            | Record::Mutex => (&[][..], None),
        };
        [
            ("source", format!("{:?}", sources[lock.source].name)),
            ("layout", format!("{:?}", lock.record.layout_name())),
            (
                "owner",
                format!("{:?}", if lock.record == Record::Session { "session" } else { "value" }),
            ),
            ("owner_field", owner_field.map_or("nothing".to_owned(), |field| format!("{field:?}"))),
            ("free_values", format!("{free_values:?}")),
        ]
    };
    let mut pairs = settings(lock).into_iter().zip(settings(other));
    let ((what, mine), (_, others)) = pairs.find(|(mine, others)| mine != others)?;
    Some([what.to_owned(), mine, others])
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;
    use crate::lock_template::LockTemplate;
    use crate::path_template::PathTemplate;
    use crate::problem::Notes;
    use crate::reader::Table;
    use crate::source::SourceKind;

    fn source(name: &str) -> Source {
        Source { name: name.to_owned(), kind: SourceKind::Memory }
    }

    fn record(name: &str) -> Record {
        match name {
            "election" => Record::Election,
            "mutex" => Record::Mutex,
            free => Record::Key { free_values: vec![free.to_owned()], owner_field: None },
        }
    }

    fn route<'t>(
        notes: &'t Notes,
        number: usize,
        (key, source, record_name): &(String, usize, &str),
    ) -> Option<WrittenRoute<'t>> {
        let table = Table::empty(notes, &format!("r{number}"));
        let key = LockTemplate::parse(key, &PathTemplate::parse("/").unwrap(), true).ok()?;
        let lock =
            Some(Lock { source: *source, key, from_header: true, record: record(record_name) });
        Some(WrittenRoute {
            name: format!("r{number}"),
            name_place: table.place_of("name"),
            table,
            lock,
            route: None,
        })
    }

    const KEY: &str =
        "(a|b|a b|a%20b|ab|[{]x[}]|a[{]x[}]|[{]x[}]b)(/(a|b|a b|a%20b|[{]x[}]|[{]y[}]b)){0,2}";

    proptest! {
        /// As by holding each lock against all before it, which takes a reload of 8,000 routes
        /// seconds.
        #[test]
        fn first_route_that_a_lock_conflicts_with_is_named(
            written in vec((KEY, select(vec![0, 0, 0, 1]), select(vec!["x", "x", "y", "election", "mutex"])), 1..16),
        ) {
            let sources = [source("main"), source("other")];
            let (expected, found) = (Notes::default(), Notes::default());
            let routes_on = |notes| written.iter().enumerate().filter_map(move |(number, written)| route(notes, number, written));
            let routes: Vec<_> = routes_on(&expected).collect();
            for (index, later) in routes.iter().enumerate() {
                let lock = later.lock.as_ref().unwrap();
                let first = routes[..index].iter().find_map(|earlier| {
                    let other = earlier.lock.as_ref().unwrap();
                    Some((conflict_of(lock, other, &sources)?, &earlier.name))
                });
                if let Some((conflict, name)) = first {
                    later.table.problem("lock", format_args!("{conflict} route {name:?}"));
                }
            }
            drop(routes);
            check_locks(&routes_on(&found).collect::<Vec<_>>(), &sources);
            let shown = |notes: Notes| notes.finish().map(drop).map_err(|problems| problems.to_string());
            prop_assert_eq!(shown(found), shown(expected));
        }
    }
}
