//! What must hold between the locks of different routes.

use fencepost_policy::Layout;

use crate::check::DeclaredSource;
use crate::check_route::CheckedRoute;
use crate::problem::Notes;
use crate::route::{Lock, Record};

/// A lock has one store and one reading, no two are named alike, and none lies below another's contenders.
pub(crate) fn check_locks(routes: &[CheckedRoute], sources: &[DeclaredSource], notes: &Notes) {
    let locks = || routes.iter().filter_map(|checked| Some((checked, checked.lock.as_ref()?)));
    for (index, (later, lock)) in locks().enumerate() {
        let conflict = locks().take(index).find_map(|(earlier, other)| {
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
    let contends = |above: &Lock, below: &Lock| {
        let queues = match above.record.layout() {
            Layout::Election | Layout::Mutex => true,
            Layout::Key => false,
        };
        queues && above.key.is_above(&below.key)
    };
    if lock.source != other.source || !(contends(lock, other) || contends(other, lock)) {
        return None;
    }
    let (key, other_key) = (lock.key.as_str(), other.key.as_str());
    Some(format!(
        "{key:?} and {other_key:?} lie one below the other, so that they block each other in etcd; the other is the lock of"
    ))
}
