//! What becomes of locks and their gates when another configuration is put in force.

use std::sync::Arc;

use fencepost_config::{Config, Lock, LockTemplate, Mode, Route};
use fencepost_policy::LockKey;
use fencepost_sources::{LockSource, TemplatedLocks, TrackedLock};
use futures_util::future::join_all;
use tokio::time::Instant;

use crate::exchange::Fence;
use crate::routes::{Guard, record_format};

/// Locks whose gate goes on and whose record would be read in another way. What is known of them was read in the old one.
pub(super) fn read_otherwise(old: &Fence, config: &Config) -> impl Iterator<Item = String> {
    let tracked: Vec<(LockSource, Vec<Arc<TrackedLock>>)> =
        old.process.sources.all().into_iter().map(|source| (source.clone(), source.locks())).collect();
    config.routes.iter().filter_map(move |route| {
        let lock = route.mode.lock()?;
        let format = record_format(&lock.record);
        let source = &config.sources[lock.source].name;
        let (_, locks) = tracked.iter().find(|(tracked, _)| tracked.name() == source)?;
        let other = locks.iter().find(|one| *one.format() != format && lock.key.matches_key(one.key().as_str()))?;
        let (route, key) = (&route.name, other.key());
        Some(format!(
            "route.{route}.lock: the record of {key} is read in another way by requests under way, and one gate can't do both: \
             needs a restart"
        ))
    })
}

/// Locks that would have a second gate. They have one with another source, or had until now, and what it has let out may be at the worker:
/// gates belong to the source that their lock is read from.
pub(super) fn gated_elsewhere(old: &Fence, config: &Config) -> impl Iterator<Item = String> {
    let sources = old.process.sources.all();
    config.routes.iter().filter_map(move |route| {
        let lock = route.mode.lock()?;
        let source = config.sources[lock.source].name.as_str();
        // Those that come to be tracked before this is in force are among these.
        let in_force = old.config.routes.iter().find_map(|route| {
            let other = route.mode.lock().filter(|other| other.key.overlaps(&lock.key))?;
            Some(old.config.sources[other.source].name.as_str()).filter(|other| *other != source)
        });
        // Of routes that are there no more, requests may still be under way.
        let tracked = || {
            let has_it = |other: &&LockSource| other.locks().iter().any(|one| lock.key.matches_key(one.key().as_str()));
            sources.iter().filter(|other| other.name() != source).find(has_it).map(LockSource::name)
        };
        let (route, key, other) = (&route.name, &lock.key, in_force.or_else(tracked)?);
        Some(format!(
            "route.{route}.lock: the gate of {key} belongs to source {other:?}, and with source {source:?} it would have another, \
             which does not know who is at the worker: needs a restart"
        ))
    })
}

/// Has every lock that is new read once from now on, also one that is known: it may have been read in the way in which the source
/// was reached before. A lock that is in force already may be unread: its store has not answered yet, and a reload is what may
/// help against that.
pub(super) async fn first_reads(old: &Fence, new: &Fence) -> Result<(), Vec<String>> {
    let timeout = new.config.limits.confirm_timeout;
    let (now, deadline) = (Instant::now(), Instant::now() + timeout);
    let mut new_locks: Vec<&Arc<TrackedLock>> = Vec::new();
    for lock in static_locks(new) {
        if static_locks(old).chain(new_locks.iter().copied()).all(|other| !Arc::ptr_eq(other, lock)) {
            new_locks.push(lock);
        }
    }
    let reads = new_locks.iter().map(|lock| async move {
        let outcome = lock.confirm(now, deadline).await;
        outcome.map_err(|error| unreadable(lock.source(), lock.key(), &error))
    });
    let problems: Vec<String> = join_all(reads).await.into_iter().filter_map(Result::err).collect();
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

fn unreadable(source: &str, key: &LockKey, error: &dyn std::error::Error) -> String {
    let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("source.{source}: its lock {key} could not be read: {error}{cause}")
}

fn static_locks(fence: &Fence) -> impl Iterator<Item = &Arc<TrackedLock>> {
    fence.routes.iter().filter_map(|route| match &route.guard {
        Some(Guard::Static(lock)) => Some(lock),
        Some(Guard::Templated(_)) | None => None,
    })
}

/// The keys of locks whose routes only watched, in any configuration that has been in force and is no more.
#[derive(Default)]
pub(super) struct Watched(Vec<LockTemplate>);

impl Watched {
    /// Where a route judges requests that one which only watched would have let past, has the gates of its locks wait for what was let past
    /// before: it may be anybody's.
    pub(super) fn bar_what_was_let_past(&mut self, old: &Fence, new: &Fence) {
        self.add(&old.config);
        for route in &new.config.routes {
            let Mode::Enforce(lock) = &route.mode else { continue };
            let overlaps = |key: &&LockTemplate| key.overlaps(&lock.key);
            let watching = watching(&old.config).filter(|(_, key)| overlaps(key));
            let (go_on, turned): (Vec<_>, Vec<_>) =
                watching.partition(|(index, key)| watches_on(*index, key, &old.config, &new.config));
            let among =
                |routes: &[(usize, &LockTemplate)], key: &LockTemplate| routes.iter().any(|(_, other)| *other == key);
            let watched = self.0.iter().filter(overlaps).filter(|key| among(&turned, key) || !among(&go_on, key));
            let watched: Vec<String> = watched.map(LockTemplate::to_string).collect();
            // Where all that watched still do, they let past whoever comes as before: there is nobody to wait for.
            let is_new = go_on.is_empty() && !enforced(route, lock, &old.config);
            if watched.is_empty() || turned.is_empty() && !is_new {
                continue;
            }
            // They came under an earlier configuration.
            let of_those = |route: &&Route| route.mode.lock().is_some_and(|other| other.key.overlaps(&lock.key));
            let before = old.config.routes.iter().filter(of_those).map(|route| route.orphan_timeout).max();
            let until = Instant::now() + route.orphan_timeout.max(before.unwrap_or_default());
            let template = lock.key.clone();
            let names = move |key: &str| template.matches_key(key);
            new.sources[lock.source].enforce_since(&lock.key.to_string(), names, &watched, new.generation, until);
        }
    }

    fn add(&mut self, config: &Config) {
        for (_, key) in watching(config) {
            if !self.0.contains(key) {
                self.0.push(key.clone());
            }
        }
    }
}

/// The routes that only watch, and the keys of their locks.
fn watching(config: &Config) -> impl Iterator<Item = (usize, &LockTemplate)> {
    config.routes.iter().enumerate().filter_map(|(index, route)| match &route.mode {
        Mode::Shadow(lock) => Some((index, &lock.key)),
        Mode::Enforce(_) | Mode::Off => None,
    })
}

/// Whether a route that only watched still does, and still takes what it took, as far as nothing that judges by the same locks does.
fn watches_on(index: usize, key: &LockTemplate, old: &Config, new: &Config) -> bool {
    let before = &old.routes[index];
    let is_it = |(_, other): &(usize, &LockTemplate)| *other == key;
    let now = watching(new).filter(is_it).map(|(index, _)| index);
    let mut now = now.filter(|now| new.routes[*now].name == before.name && takes_the_same(&new.routes[*now], before));
    let Some(now) = now.next() else { return false };
    let judges = |route: &&Route| matches!(&route.mode, Mode::Enforce(lock) if lock.key.overlaps(key));
    let stood_before_it = |route: &Route| old.routes[..index].iter().any(|earlier| takes_the_same(earlier, route));
    new.routes[..now].iter().filter(judges).all(stood_before_it)
}

/// Whether a route judged already, by the same locks, what it does now.
fn enforced(route: &Route, lock: &Lock, old: &Config) -> bool {
    let by_the_same = |other: &Route| matches!(&other.mode, Mode::Enforce(other) if other.key == lock.key);
    old.routes.iter().any(|other| other.name == route.name && by_the_same(other))
}

fn takes_the_same(one: &Route, other: &Route) -> bool {
    (&one.host, &one.path) == (&other.host, &other.path)
}

/// Has every source keep what this configuration names. Whatever else is there goes when its last request has.
pub(super) fn keep_only(fence: &Fence) {
    for source in fence.process.sources.all() {
        let guards = fence.config.routes.iter().zip(&fence.routes).filter(|(route, _)| {
            route.mode.lock().is_some_and(|lock| fence.config.sources[lock.source].name == source.name())
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
