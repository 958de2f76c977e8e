//! What becomes of locks and their gates when another configuration is put in force.

use std::collections::{HashMap, HashSet};
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
use crate::routes::{ActiveRoute, record_format};

/// Locks whose gate goes on and whose record would be read in another way. What is known of them
/// was read in the old one.
///
/// Of a lock that is read by now as it is to be read, nothing can be said that was not known when
/// that was put in force: there is no need to look at it. The same goes for its gate, below.
pub(super) async fn read_otherwise(old: &Generation, config: &Config) -> Vec<String> {
    let present = Present::of(&old.config);
    let other: Vec<(&Route, &Lock)> =
        with_locks(config).filter(|(_, lock)| !present.reads_alike(lock, config)).collect();
    if other.is_empty() {
        return Vec::new();
    }
    let (tracked, mut turns) = (Tracked::of(old), Turns::default());
    let mut problems = Vec::new();
    for (route, lock) in other {
        let (source, format) = (source_of(lock, config), record_format(&lock.record));
        let read_otherwise = |one: &TrackedLock| *one.format() != format;
        let Some(known) =
            tracked.find(lock, |name| name == source, read_otherwise, &mut turns).await
        else {
            continue;
        };
        let (before, after) = (known.layout().name(), format.layout.name());
        let text = match before == after {
            true => format!(
                "the record of {} is read in another way by requests under way, and one gate can't do both: needs a restart",
                known.key()
            ),
            false => format!(
                "the record of {} is read by layout = {before:?}, and one gate can't do {after:?} too: a change of layout needs a restart",
                known.key()
            ),
        };
        problems.push(of_lock(config, &route.name, text));
    }
    problems
}

/// Locks that would have a second gate. They have one with another source, or had until now, and
/// what it has let out may be at the worker: gates belong to the source that their lock is read
/// from.
pub(super) async fn gated_elsewhere(
    old: &Generation,
    earlier: &Earlier,
    config: &Config,
) -> Vec<String> {
    let present = Present::of(&old.config);
    let other: Vec<(&Route, &Lock)> =
        with_locks(config).filter(|(_, lock)| !present.gates_alike(lock, config)).collect();
    if other.is_empty() {
        return Vec::new();
    }
    let (tracked, mut turns) = (Tracked::of(old), Turns::default());
    let earlier: Vec<Arc<Generation>> = earlier.generations().collect();
    // Those that come to be tracked before this is in force are among these.
    let in_force = GatesOf::new(&old.config, with_locks(&old.config).map(|(_, lock)| lock));
    let under_way: Vec<GatesOf<'_>> =
        earlier.iter().map(|generation| GatesOf::templated(generation)).collect();
    let mut problems = Vec::new();
    for (route, lock) in other {
        let source = source_of(lock, config);
        turns.looked_at(1).await;
        let elsewhere = match in_force.another_source(lock, source) {
            Some(other) => Some(other),
            // Of routes that are there no more, requests may still be under way.
            None => match tracked.find(lock, |name| name != source, |_| true, &mut turns).await {
                Some(one) => Some(one.source()),
                None => under_way.iter().find_map(|gates| gates.another_source(lock, source)),
            },
        };
        let Some(other) = elsewhere else { continue };
        let text = format!(
            "the gate of {} belongs to source {other:?}, and with source {source:?} it would have another, which does not know \
             who is at the worker: needs a restart",
            lock.key
        );
        problems.push(of_lock(config, &route.name, text));
    }
    problems
}

fn with_locks(config: &Config) -> impl Iterator<Item = (&Route, &Lock)> {
    config.routes.iter().filter_map(|route| Some((route, route.mode.lock()?)))
}

fn source_of<'c>(lock: &Lock, config: &'c Config) -> &'c str {
    &config.sources[lock.source].name
}

/// From which source each template's locks are read by now, and how. Routes of one template agree
/// on that.
///
/// All of them were held against what was tracked and under way when they were put in force, and no
/// request has come since of a configuration that would have others.
struct Present<'o>(HashMap<&'o str, (&'o str, &'o Record)>);

impl<'o> Present<'o> {
    fn of(old: &'o Config) -> Present<'o> {
        Present(
            with_locks(old)
                .map(|(_, lock)| (lock.key.as_str(), (source_of(lock, old), &lock.record)))
                .collect(),
        )
    }

    fn gates_alike(&self, lock: &Lock, config: &Config) -> bool {
        self.0.get(lock.key.as_str()).is_some_and(|(source, _)| *source == source_of(lock, config))
    }

    fn reads_alike(&self, lock: &Lock, config: &Config) -> bool {
        self.0.get(lock.key.as_str()) == Some(&(source_of(lock, config), &lock.record))
    }
}

/// The locks of a configuration whose gates its sources have.
struct GatesOf<'c> {
    config: &'c Config,
    locks: Vec<&'c Lock>,
    index: LockIndex<'c>,
}

impl<'c> GatesOf<'c> {
    fn new(config: &'c Config, locks: impl Iterator<Item = &'c Lock>) -> GatesOf<'c> {
        let locks: Vec<&Lock> = locks.collect();
        GatesOf { config, index: LockIndex::new(locks.iter().copied()), locks }
    }

    /// Those whose keys come with the requests. A request is counted at none before its body has
    /// been read: so any request of their routes may be meant for any of them.
    fn templated(generation: &'c Generation) -> GatesOf<'c> {
        let is_templated = |route: &ActiveRoute| matches!(route.guard, Some(Guard::Templated(_)));
        let routes = generation
            .config
            .routes
            .iter()
            .zip(&generation.routes)
            .filter(|(_, route)| is_templated(route));
        GatesOf::new(&generation.config, routes.filter_map(|(route, _)| route.mode.lock()))
    }

    /// The source that has the gate of a lock which may be this one, if it is another one than
    /// that.
    fn another_source(&self, lock: &Lock, source: &str) -> Option<&'c str> {
        let mut sources = self
            .index
            .overlapping(&lock.key)
            .map(|number| source_of(self.locks[number], self.config));
        sources.find(|other| *other != source)
    }
}

/// All locks by their source, those of each in the order of their keys. Once for all routes: there
/// may be many.
struct Tracked(Vec<(LockSource, Vec<Arc<TrackedLock>>)>);

impl Tracked {
    fn of(old: &Generation) -> Tracked {
        Tracked(
            old.process
                .sources
                .all()
                .into_iter()
                .map(|source| (source.clone(), source.locks()))
                .collect(),
        )
    }

    /// A lock of sources by such names that is one of a route's, and such a one.
    async fn find(
        &self,
        wanted: &Lock,
        of_source: impl Fn(&str) -> bool,
        is_such: impl Fn(&TrackedLock) -> bool,
        turns: &mut Turns,
    ) -> Option<&TrackedLock> {
        // Most begin otherwise.
        let prefix = wanted.key.literal_prefix();
        for (_, locks) in self.0.iter().filter(|(source, _)| of_source(source.name())) {
            let locks = &locks[locks.partition_point(|one| one.key().as_str() < prefix)..];
            let locks =
                &locks[..locks.partition_point(|one| one.key().as_str().starts_with(prefix))];
            for locks in locks.chunks(LOOKED_AT_ONCE) {
                turns.looked_at(locks.len()).await;
                let found = locks
                    .iter()
                    .find(|one| is_such(one) && wanted.key.matches_key(one.key().as_str()));
                if let Some(found) = found {
                    return Some(found);
                }
            }
        }
        None
    }
}

/// How much of all that is looked at in one go.
const LOOKED_AT_ONCE: usize = 4096;

/// Sees to it that whoever else is on this thread has its turn, however much there is to be looked
/// at: it hears signals, and is what the watchdog of systemd waits for.
#[derive(Default)]
struct Turns(usize);

impl Turns {
    /// So much more is about to be looked at.
    async fn looked_at(&mut self, more: usize) {
        self.0 += more;
        if self.0 >= LOOKED_AT_ONCE {
            self.0 = 0;
            yield_now().await;
        }
    }
}

fn of_lock(config: &Config, route: &str, text: String) -> String {
    config.places.problem(&format!("route.{route}.lock"), text).to_string()
}

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
