//! What sets two configurations apart, in the words of the file.

use std::collections::HashMap;
use std::fmt;

use crate::config::Config;
use crate::shown::{NONE, Setting, Table, tables};

/// What is different in a later configuration, setting by setting. Shown in one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference(Vec<Change>);

/// One difference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// What changed: the name of a key, such as `route.shards.mode`, or of a whole table, such as `route.shards`.
    pub what: String,
    /// Whether a process that runs can go on with it; if not, it takes a restart.
    pub follows: bool,
    how: How,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum How {
    Added,
    Removed,
    Reordered,
    /// In a way that the words of [`Config::settings`] do not show.
    Unseen,
    From {
        old: String,
        new: String,
    },
}

impl Difference {
    /// What is different in `new`. Warnings make none, nor does the way in which something is written.
    ///
    /// # Contract
    /// It is empty only if nothing is: whether there is a difference is told by what the two say, not by the words for it.
    pub fn between(old: &Config, new: &Config) -> Difference {
        if old.does_the_same_as(new) {
            return Difference(Vec::new());
        }
        let (before, after) = (tables(old), tables(new));
        let (in_old, in_new) = (by_name(&before), by_name(&after));
        let whole = |name: &str, how| Change { what: name.to_owned(), follows: true, how };
        let mut changes = Vec::new();
        for table in &after {
            match in_old.get(table.name.as_str()) {
                Some(earlier) => earlier.compare(table, &mut changes),
                None => changes.push(whole(&table.name, How::Added)),
            }
        }
        let removed = before.iter().filter(|table| !in_new.contains_key(table.name.as_str()));
        changes.extend(removed.map(|table| whole(&table.name, How::Removed)));
        let stays_before = before.iter().map(|table| &table.name).filter(|name| in_new.contains_key(name.as_str()));
        let stays_after = after.iter().map(|table| &table.name).filter(|name| in_old.contains_key(name.as_str()));
        if !stays_before.eq(stays_after) {
            changes.push(whole("route", How::Reordered)); // Sources are ordered by name.
        }
        if changes.is_empty() {
            // Numbers are shown as they are, and what else takes a restart is compared itself.
            let follows = (&old.state_dir, &old.admin) == (&new.state_dir, &new.admin) && old.listens_like(new);
            changes.push(Change { what: "configuration".to_owned(), follows, how: How::Unseen });
        }
        Difference(changes)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The changes one by one.
    pub fn iter(&self) -> impl Iterator<Item = &Change> {
        self.0.iter()
    }
}

impl Change {
    /// What has become of it, without its name.
    pub fn how(&self) -> impl fmt::Display {
        &self.how
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, change) in self.0.iter().enumerate() {
            write!(f, "{}{change}", if index == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.how)
    }
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            How::Added => f.write_str("added"),
            How::Removed => f.write_str("removed"),
            How::Reordered => f.write_str("reordered"),
            How::Unseen => f.write_str("other than before, in the same words"),
            How::From { old, new } => write!(f, "{old} → {new}"),
        }
    }
}

/// No two have one name.
fn by_name(tables: &[Table]) -> HashMap<&str, &Table> {
    tables.iter().map(|table| (table.name.as_str(), table)).collect()
}

impl Table {
    /// Adds what is different in `new`, a later state of the same table.
    fn compare(&self, new: &Table, changes: &mut Vec<Change>) {
        let value_in = |table: &Table, key: &str| {
            let found = table.settings.iter().find(|setting| setting.key == key);
            found.map_or_else(|| NONE.to_owned(), |setting| setting.value.clone())
        };
        let gone = self.settings.iter().filter(|old| new.settings.iter().all(|new| new.key != old.key));
        for Setting { key, follows, .. } in new.settings.iter().chain(gone) {
            let (old, new) = (value_in(self, key), value_in(new, key));
            if old == new {
                continue;
            }
            let what = if self.name.is_empty() { (*key).to_owned() } else { format!("{}.{key}", self.name) };
            changes.push(Change { what, follows: *follows, how: How::From { old, new } });
        }
    }
}

#[cfg(test)]
#[path = "difference_tests.rs"]
mod tests;
