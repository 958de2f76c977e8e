//! What sets two configurations apart, in the words of the file.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fmt;

use crate::config::Config;
use crate::places::NONE;

/// The differences of a later configuration, key by key. Shown in one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference(Vec<Change>);

/// One difference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// What changed: the name of a key, such as `route.shards.mode`, or of a whole table, such as
    /// `route.shards`.
    pub what: String,
    /// Whether a running process can follow the change; if not, it takes a restart.
    pub follows: bool,
    how: String,
}

/// The keys of a table with their values.
type Keys<'c> = Vec<(Cow<'static, str>, Cow<'c, str>)>;

impl Config {
    /// Every key with its value, defaults included: the name of its table (`limits`,
    /// `route.shards`; empty at the top level), its name in the table, and its value in the words
    /// of the file, but for the quotes.
    pub fn settings(&self) -> impl Iterator<Item = (&str, Cow<'static, str>, Cow<'_, str>)> {
        self.tables()
            .into_iter()
            .flat_map(|(table, keys)| keys.into_iter().map(move |(key, value)| (table, key, value)))
    }

    fn tables(&self) -> Vec<(&str, Keys<'_>)> {
        let tables = self.places.tables.iter().map(|table| {
            let with_value = table.keys.iter().filter_map(|key| Some((key, key.value.as_deref()?)));
            let keys = with_value.map(|(key, value)| (key.name(), value.into())).collect();
            (table.name.as_str(), keys)
        });
        let (mut listeners, mut tables): (Vec<(_, Keys<'_>)>, Vec<_>) =
            tables.partition(|(name, _)| name.starts_with("listener["));
        // The order in which listeners are written makes no difference.
        let mut by_key = BTreeMap::from(["address", "tls"].map(|key| (key, Vec::new())));
        for (_, keys) in &mut listeners {
            let (_, address) = keys.remove(0);
            by_key.entry("address").or_default().push(address.to_string());
            keys.retain(|(_, value)| !OF_PLAIN_LISTENERS.contains(&&**value));
            // The keys of one table, such as `tls`, stand together.
            for keys in keys.chunk_by(|one, next| top(&one.0) == top(&next.0)) {
                let settings = keys.iter().map(|(key, value)| match key.contains('.') {
                    true => format!("{key} = {value}"),
                    false => value.to_string(),
                });
                let settings = settings.collect::<Vec<_>>().join(", ");
                by_key.entry(top(&keys[0].0)).or_default().push(format!("{address}: {settings}"));
            }
        }
        for (key, mut values) in by_key {
            values.sort_unstable();
            let value = format!("[{}]", values.join(", "));
            tables[0].1.push((format!("listener.{key}").into(), value.into()));
        }
        tables
    }
}

/// What the keys of a listener say that has no proxies before it.
const OF_PLAIN_LISTENERS: [&str; 3] = ["[]", "x-forwarded", "off"];

/// The key of a table's own of which this is one, or a part.
fn top(key: &str) -> &str {
    key.split_once('.').map_or(key, |(top, _)| top)
}

/// The keys of `[limits]` that a running process follows. Listeners are made with the others, and
/// caches with their size.
const FOLLOWED_LIMITS: &str = "connect_timeout connect_retries upstream_idle_timeout upstream_connections_max \
    upstream_headers_max buffer_body_max confirm_timeout drain_delay drain_timeout";

/// Whether a running process follows a change of this key.
fn follows(table: &str, key: &str) -> bool {
    match table {
        "" => key == "include",
        "admin" | "group" => false,
        "limits" => FOLLOWED_LIMITS.split(' ').any(|followed| followed == key),
        table if table.starts_with("source.") => !matches!(key, "kind" | "cluster_id"),
        _ => true,
    }
}

impl Difference {
    /// What is different in `new`. Warnings make none, nor does the way in which something is
    /// written.
    ///
    /// # Contract
    /// It is empty only if a process does the same by both.
    pub fn between(old: &Config, new: &Config) -> Difference {
        if old.does_the_same_as(new) {
            return Difference(Vec::new());
        }
        let (before, after) = (old.tables(), new.tables());
        let in_old: HashMap<&str, _> = before.iter().map(|(name, keys)| (*name, keys)).collect();
        let in_new: HashMap<&str, _> = after.iter().map(|(name, keys)| (*name, keys)).collect();
        let mut changes = Vec::new();
        for (name, keys) in &after {
            match in_old.get(name) {
                Some(earlier) => compare(name, earlier, keys, &mut changes),
                None => changes.push(Change::of_table(name, "added")),
            }
        }
        let stays = |name: &&str| in_old.contains_key(name) && in_new.contains_key(name);
        let before = before.iter().map(|(name, _)| *name);
        let removed = before.clone().filter(|name| !stays(name));
        changes.extend(removed.map(|name| Change::of_table(name, "removed")));
        if !before.filter(stays).eq(after.iter().map(|(name, _)| *name).filter(stays)) {
            changes.push(Change::of_table("route", "reordered")); // Sources are ordered by name.
        }
        if changes.is_empty() {
            // The words tell all settings apart. If they did not, a restart would still be right.
            changes.push(Change { follows: false, ..Change::of_table("configuration", "changed") });
        }
        Difference(changes)
    }

    /// Whether nothing has changed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The changes one by one.
    pub fn iter(&self) -> impl Iterator<Item = &Change> {
        self.0.iter()
    }
}

/// Adds the keys of a table that have other values now.
fn compare(table: &str, old: &Keys<'_>, new: &Keys<'_>, changes: &mut Vec<Change>) {
    fn value<'k>(keys: &'k Keys<'_>, key: &str) -> &'k str {
        keys.iter().find(|(other, _)| other == key).map_or(NONE, |(_, value)| value)
    }
    let gone = old.iter().filter(|(key, _)| new.iter().all(|(other, _)| other != key));
    for (key, _) in new.iter().chain(gone) {
        let (old, new) = (value(old, key), value(new, key));
        if old != new {
            let what = if table.is_empty() { key.to_string() } else { format!("{table}.{key}") };
            let how = format!("{old} → {new}");
            changes.push(Change { what, follows: follows(table, key), how });
        }
    }
}

impl Change {
    fn of_table(name: &str, how: &str) -> Change {
        Change { what: name.to_owned(), follows: name != "group", how: how.to_owned() }
    }

    /// What has become of the key or table, without its name.
    pub fn how(&self) -> &str {
        &self.how
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let changes = self.0.iter().map(|Change { what, how, .. }| format!("{what}: {how}"));
        f.write_str(&changes.collect::<Vec<_>>().join("; "))
    }
}

#[cfg(test)]
#[path = "difference_tests.rs"]
mod tests;
