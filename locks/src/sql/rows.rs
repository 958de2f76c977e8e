//! What the rows of a query say of locks, whatever the database.
//!
//! No row is taken for something that it does not say: what is missing, doubled or of another type
//! makes the lock unreadable, and is told with what the query has to return.

use std::collections::HashMap;
use std::sync::Arc;

use fencepost_policy::{LockKey, Owner, Revision, Seen, Sighting};

use crate::record_store::RecordAnswer;

/// What a lapsed lock is: one that names an owner where `live` is false.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Lapsed {
    /// It is held until a row says something else: its owner may renew it and go on.
    #[default]
    Holds,
    /// It is free: its owner can't renew it, only take it anew.
    Ends,
}

/// A column that a query has returned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) kind: Kind,
    /// The type, as the database calls it.
    pub(super) type_name: String,
}

/// Which values a column has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Integer,
    Boolean,
    Other,
}

/// What the query has to return.
const WANTED: &str =
    "it has to return key (text), owner (text or null), revision (integer) and live (boolean)";

/// Where the columns are that say something of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Columns {
    pub(super) key: usize,
    pub(super) owner: usize,
    pub(super) revision: usize,
    /// `None` where nothing is made of it.
    pub(super) live: Option<usize>,
}

impl Columns {
    /// Finds them among those that were returned. `boolean` is what stands for one in this
    /// database. Others are passed over.
    pub(super) fn find(
        found: &[Column],
        boolean: &[Kind],
        lapsed: Lapsed,
    ) -> Result<Columns, String> {
        let find = |name: &str, kinds: &[Kind]| {
            let mut places = found
                .iter()
                .enumerate()
                .filter(|(_, column)| column.name.eq_ignore_ascii_case(name));
            match (places.next(), places.next()) {
                (None, _) => Err(format!("the query returns no column {name:?}: {WANTED}")),
                (Some(_), Some(_)) => {
                    Err(format!("the query returns the column {name:?} twice: {WANTED}"))
                }
                (Some((place, column)), None) if kinds.contains(&column.kind) => Ok(place),
                (Some((_, column)), None) => Err(format!(
                    "the query returns {name:?} as {}: {WANTED}, so it has to be cast",
                    column.type_name
                )),
            }
        };
        Ok(Columns {
            key: find("key", &[Kind::Text])?,
            owner: find("owner", &[Kind::Text])?,
            revision: find("revision", &[Kind::Integer])?,
            live: match lapsed {
                Lapsed::Holds => None,
                Lapsed::Ends => Some(find("live", boolean)?),
            },
        })
    }
}

/// A value that a row may lack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value<T> {
    Null,
    Is(T),
    /// It is of the right type, and can't be read all the same.
    Wrong,
}

/// A row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) key: Value<String>,
    pub(super) owner: Value<Vec<u8>>,
    pub(super) revision: Value<i128>,
    pub(super) live: Value<bool>,
}

/// The answers where nothing that the query returns can be read.
pub(super) fn all_unreadable<'k>(
    keys: impl Iterator<Item = &'k LockKey>,
    lineage: u64,
    problem: &str,
) -> Vec<RecordAnswer> {
    keys.map(|key| answer(lineage, None, Err(format!("lock {key}: {problem}")))).collect()
}

/// What rows say of these locks: one answer for each, in that order.
pub(super) fn answers<'k>(
    keys: impl Iterator<Item = &'k LockKey> + Clone,
    rows: Vec<Row>,
    lapsed: Lapsed,
    lineage: u64,
) -> Vec<RecordAnswer> {
    let mut of_locks: HashMap<&str, Vec<&Row>> =
        keys.clone().map(|key| (key.as_str(), Vec::new())).collect();
    let mut stranger = None;
    for row in &rows {
        match &row.key {
            Value::Is(key) => match of_locks.get_mut(key.as_str()) {
                Some(of_lock) => of_lock.push(row),
                None => stranger = Some(format!("a row of key {key:?}, which was not asked for")),
            },
            Value::Null => stranger = Some("a row whose key is null".to_owned()),
            Value::Wrong => stranger = Some("a row whose key can't be read".to_owned()),
        }
    }
    let of_lock = |key: &LockKey| match (&*of_locks[key.as_str()], &stranger) {
        ([], None) => answer(lineage, None, Ok(Seen::Free)),
        // It may be the row of this lock, written in another way.
        ([], Some(stranger)) => {
            let problem = format!("lock {key} has no row, and the query returns {stranger}");
            answer(lineage, None, Err(format!("{problem}: it has to compare keys exactly")))
        }
        ([row], _) => {
            let (reach, seen) = row.means(lapsed);
            answer(
                lineage,
                reach,
                seen.map_err(|problem| format!("the row of lock {key}: {problem}")),
            )
        }
        (rows, _) => {
            let problem = format!("lock {key} has {} rows", rows.len());
            answer(lineage, None, Err(format!("{problem}: the query has to return one at most")))
        }
    };
    keys.map(of_lock).collect()
}

fn answer(lineage: u64, reach: Option<Revision>, seen: Result<Seen, String>) -> RecordAnswer {
    let (seen, problem) = match seen {
        Ok(seen) => (seen, None),
        Err(problem) => (Seen::Unreadable, Some(Arc::from(problem))),
    };
    let waiters = Arc::from([]);
    RecordAnswer { sighting: Sighting { lineage, reach, seen, waiters }, problem }
}

impl Row {
    /// Who holds the lock by this row, and the highest revision given out by then.
    fn means(&self, lapsed: Lapsed) -> (Option<Revision>, Result<Seen, String>) {
        let number = match self.revision {
            Value::Is(number) => number,
            Value::Null => return (None, Err(wrong("revision", "null", POSITIVE))),
            Value::Wrong => return (None, Err(wrong("revision", "no number", POSITIVE))),
        };
        let revision = u64::try_from(number).ok().and_then(Revision::new);
        let owner = match &self.owner {
            // A lock that was never taken may have the number 0.
            Value::Null if revision.is_some() || number == 0 => return (revision, Ok(Seen::Free)),
            Value::Null => None,
            Value::Is(owner) => Some(owner),
            Value::Wrong => return (revision, Err(wrong("owner", "no text", "a text or null"))),
        };
        let is_free = match (lapsed, &self.live) {
            (Lapsed::Holds, _) | (Lapsed::Ends, Value::Is(true)) => false,
            (Lapsed::Ends, Value::Is(false)) => true,
            (Lapsed::Ends, Value::Null) => {
                return (revision, Err(wrong("live", "null", "true or false")));
            }
            (Lapsed::Ends, Value::Wrong) => {
                return (revision, Err(wrong("live", "no boolean", "true or false")));
            }
        };
        match (owner, revision) {
            (Some(_), _) if is_free && (revision.is_some() || number == 0) => {
                (revision, Ok(Seen::Free))
            }
            (Some(owner), Some(revision)) => {
                let stamp =
                    [owner.as_slice(), b"\0", &revision.get().to_be_bytes()].concat().into();
                let owner = Owner::new(owner.as_slice());
                (Some(revision), Ok(Seen::Held { owner, revision, stamp }))
            }
            (Some(_), None) | (None, _) => {
                (None, Err(wrong("revision", &number.to_string(), POSITIVE)))
            }
        }
    }
}

const POSITIVE: &str = "a positive integer that grows by one whenever somebody takes the lock";

fn wrong(column: &str, is: &str, has_to_be: &str) -> String {
    format!("{column} is {is}, and has to be {has_to_be}")
}

#[cfg(test)]
#[path = "rows_tests.rs"]
mod tests;
