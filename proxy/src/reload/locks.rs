//! What becomes of locks and their gates when another configuration is put in force.

use std::collections::HashSet;
use std::sync::Arc;

use fencepost_config::{Config, Lock, LockIndex, Record, Route};
use fencepost_fence::claim::Guard;
use fencepost_locks::{LockSource, TemplatedLocks, TrackedLock, Unconfirmed};
use fencepost_policy::LockKey;
use futures_util::future::join_all;
use tokio::task::yield_now;
use tokio::time::Instant;

use super::sources::went_back;
use super::turning::Earlier;
use crate::generation::{Generation, PreparedGeneration};
use crate::routes::record_format;

/// What speaks against the locks of a configuration that would be new, or be read in another way:
///
/// - A lock would have a second gate. It has one with another source, or had until now, and what that
///   has let out may be at the worker. Gates belong to the source that their lock is read from.
/// - A lock's gate goes on, and its record would be read in another way. What is known of the lock
///   was read in the old one.
///
/// Of a lock that is read by now as it is to be read, nothing can be said that was not known when
/// that was put in force.
pub(super) async fn conflicts(old: &Generation, earlier: &Earlier, config: &Config) -> Vec<String> {
    let known: HashSet<_> =
        with_locks(&old.config).map(|(_, lock)| identity(lock, &old.config)).collect();
    let new: Vec<(&Route, &Lock)> =
        with_locks(config).filter(|(_, lock)| !known.contains(&identity(lock, config))).collect();
    if new.is_empty() {
        return Vec::new();
    }
    let earlier: Vec<Arc<Generation>> = earlier.generations().collect();
    let others = earlier.iter().map(|generation| &*generation.config).chain([&*old.config]);
    let others: Vec<Others<'_>> = others.map(Others::of).collect();
    let tracked: Vec<(LockSource, Vec<Arc<TrackedLock>>)> = old
        .process
        .sources
        .all()
        .into_iter()
        .map(|source| (source.clone(), source.locks()))
        .collect();
    let mut problems = Vec::new();
    for (route, lock) in new {
        let (source, format) = (source_of(lock, config), record_format(&lock.record));
        let mut elsewhere =
            others.iter().find_map(|others| others.another_source(lock, source)).map(str::to_owned);
        let mut read_otherwise = None;
        for (other, locks) in &tracked {
            let is_own = other.name() == source;
            let conflicts = |one: &TrackedLock| !is_own || *one.format() != format;
            match find(locks, lock, conflicts).await {
                Some(found) if is_own => read_otherwise = Some(found),
                Some(_) => elsewhere = Some(other.name().to_owned()),
                None => {}
            }
        }
        let mut problem = |text| {
            let key = format!("route.{}.lock", route.name);
            problems.push(config.places.problem(&key, text).to_string());
        };
        if let Some(known) = read_otherwise {
            let (before, after) = (known.format().layout_name(), format.layout_name());
            problem(match before == after {
                true => format!(
                    "the record of {} is read in another way by requests under way, and one gate can't do both: needs a restart",
                    known.key()
                ),
                false => format!(
                    "the record of {} is read by layout = {before:?}, and one gate can't do {after:?} too: a change of layout needs a restart",
                    known.key()
                ),
            });
        }
        if let Some(other) = elsewhere {
            problem(format!(
                "the gate of {} belongs to source {other:?}, and with source {source:?} it would have another, which does not know \
                 who is at the worker: needs a restart",
                lock.key
            ));
        }
    }
    problems
}

fn with_locks(config: &Config) -> impl Iterator<Item = (&Route, &Lock)> {
    config.routes.iter().filter_map(|route| Some((route, route.mode.lock()?)))
}

fn source_of<'c>(lock: &Lock, config: &'c Config) -> &'c str {
    &config.sources[lock.source].name
}

/// Which locks these are, from which source they are read, and how.
fn identity<'c>(lock: &'c Lock, config: &'c Config) -> (&'c str, &'c str, &'c Record) {
    (lock.key.as_str(), source_of(lock, config), &lock.record)
}

/// The locks of another configuration, whose requests may be under way. Those of a templated lock are
/// counted at no gate before their body has been read, so any of them may be meant for any lock.
struct Others<'c> {
    config: &'c Config,
    locks: Vec<&'c Lock>,
    index: LockIndex<'c>,
}

impl<'c> Others<'c> {
    fn of(config: &'c Config) -> Others<'c> {
        let locks: Vec<&Lock> = with_locks(config).map(|(_, lock)| lock).collect();
        Others { config, index: LockIndex::new(locks.iter().copied()), locks }
    }

    /// Another source than this one that has the gate of a lock which may be that one.
    fn another_source(&self, lock: &Lock, source: &str) -> Option<&'c str> {
        let alike = self.index.overlapping(&lock.key);
        let mut sources = alike.map(|number| source_of(self.locks[number], self.config));
        sources.find(|other| *other != source)
    }
}

/// One of these locks, which are in the order of their keys, that is one of a route's, and such a
/// one. However many there are, others on this thread have their turn: it hears signals, and is what
/// the watchdog of systemd waits for.
async fn find<'l>(
    locks: &'l [Arc<TrackedLock>],
    wanted: &Lock,
    is_such: impl Fn(&TrackedLock) -> bool,
) -> Option<&'l TrackedLock> {
    // Most begin otherwise.
    let prefix = wanted.key.literal_prefix();
    let locks = &locks[locks.partition_point(|one| one.key().as_str() < prefix)..];
    let locks = &locks[..locks.partition_point(|one| one.key().as_str().starts_with(prefix))];
    for locks in locks.chunks(LOOKED_AT_ONCE) {
        yield_now().await;
        let mut such = locks.iter().filter(|one| is_such(one));
        if let Some(found) = such.find(|one| wanted.key.matches_key(one.key().as_str())) {
            return Some(found);
        }
    }
    None
}

/// How many locks are looked at in one go.
const LOOKED_AT_ONCE: usize = 4096;

/// Has every lock that is new read once from now on, also one that is known: it may have been read
/// in the way in which the source was reached before. A lock that is in force already may be
/// unread: its store has not answered yet, and a reload is what may help against that.
pub(super) async fn first_reads(
    old: &Generation,
    new: &PreparedGeneration,
) -> Result<(), Vec<String>> {
    let timeout = new.config.limits.confirm_timeout;
    let (now, deadline) = (Instant::now(), Instant::now() + timeout);
    let reads = new_locks(old, new).into_iter().map(|lock| async move {
        let outcome = lock.confirm(now, deadline).await;
        outcome.map_err(|error| unreadable(&new.config, lock.source(), lock.key(), &error))
    });
    let problems: Vec<String> = join_all(reads).await.into_iter().filter_map(Result::err).collect();
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

/// The static locks that `old` has not, each once.
fn new_locks<'n>(old: &Generation, new: &'n PreparedGeneration) -> Vec<&'n Arc<TrackedLock>> {
    let mut known: HashSet<*const TrackedLock> = old.static_locks().map(Arc::as_ptr).collect();
    new.static_locks().filter(|lock| known.insert(Arc::as_ptr(lock))).collect()
}

fn unreadable(config: &Config, source: &str, key: &LockKey, error: &Unconfirmed) -> String {
    let why = match error {
        Unconfirmed::Regressed => went_back(source),
        Unconfirmed::Store(cause) => format!("{error}: {cause}"),
        Unconfirmed::Deadline
        | Unconfirmed::Overloaded
        | Unconfirmed::Overtaken
        | Unconfirmed::Stopped => error.to_string(),
    };
    config
        .places
        .problem(&format!("source.{source}"), format!("its lock {key} could not be read: {why}"))
        .to_string()
}

/// Has every source keep what this configuration names. Whatever else is there goes when its last
/// request has.
pub(super) fn keep_only(generation: &Generation) {
    for source in generation.process.sources.all() {
        let guards =
            generation.config.routes.iter().zip(&generation.routes).filter(|(route, _)| {
                route.mode.lock().is_some_and(|lock| {
                    generation.config.sources[lock.source].name == source.name()
                })
            });
        let mut named: Vec<Arc<TrackedLock>> = Vec::new();
        let mut templates: Vec<TemplatedLocks> = Vec::new();
        for (_, in_force) in guards {
            match &in_force.guard {
                Some(Guard::Static(lock)) => named.push(Arc::clone(lock)),
                Some(Guard::Templated(locks)) => templates.push(locks.clone()),
                None => {}
            }
        }
        source.keep(&named, &templates);
    }
}

#[cfg(test)]
#[path = "locks_tests.rs"]
mod tests;
