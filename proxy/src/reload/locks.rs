//! What becomes of locks and their gates when another configuration is put in force.

use std::sync::Arc;

use fencepost_config::{Config, Lock};
use fencepost_policy::LockKey;
use fencepost_sources::{LockSource, TemplatedLocks, TrackedLock, Unconfirmed};
use futures_util::future::join_all;
use tokio::time::Instant;

use super::sources::went_back;
use super::turning::Earlier;
use crate::fence::{Fence, Prepared};
use crate::routes::{Guard, record_format};

/// Locks whose gate goes on and whose record would be read in another way. What is known of them was read in the old one.
pub(super) fn read_otherwise(old: &Fence, config: &Config) -> impl Iterator<Item = String> {
    let tracked = tracked(old);
    config.routes.iter().filter_map(move |route| {
        let lock = route.mode.lock()?;
        let format = record_format(&lock.record);
        let source = &config.sources[lock.source].name;
        let (_, locks) = tracked.iter().find(|(tracked, _)| tracked.name() == source)?;
        let other = locks.iter().find(|one| *one.format() != format && lock.key.matches_key(one.key().as_str()))?;
        let text = format!(
            "the record of {} is read in another way by requests under way, and one gate can't do both: needs a restart",
            other.key()
        );
        Some(of_lock(config, &route.name, text))
    })
}

/// Locks that would have a second gate. They have one with another source, or had until now, and what it has let out may be at the worker:
/// gates belong to the source that their lock is read from.
pub(super) fn gated_elsewhere(old: &Fence, earlier: &Earlier, config: &Config) -> impl Iterator<Item = String> {
    let all = tracked(old);
    let earlier: Vec<Arc<Fence>> = earlier.fences().collect();
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
            let mut others = all.iter().filter(|(other, _)| other.name() != source);
            let has_it = |locks: &[Arc<TrackedLock>]| locks.iter().any(|one| lock.key.matches_key(one.key().as_str()));
            others.find(|(_, locks)| has_it(locks)).map(|(other, _)| other.name())
        };
        // What names no lock is counted at none, and nothing is before its body has been read: so any request of theirs may be such a one.
        let under_way = || {
            let has_it = |other: &&Lock| other.key.overlaps(&lock.key);
            let mut sources = earlier.iter().flat_map(|fence| {
                let templated = fence.config.routes.iter().zip(&fence.routes).filter(|(_, route)| route.nameless.is_some());
                let locks = templated.filter_map(|(route, _)| route.mode.lock()).filter(has_it);
                locks.map(|other| fence.sources[other.source].name())
            });
            sources.find(|other| *other != source)
        };
        let (key, other) = (&lock.key, in_force.or_else(tracked).or_else(under_way)?);
        let text = format!(
            "the gate of {key} belongs to source {other:?}, and with source {source:?} it would have another, which does not know \
             who is at the worker: needs a restart"
        );
        Some(of_lock(config, &route.name, text))
    })
}

/// All locks by their source. Once for all routes: each call looks at all of them, and there may be many.
fn tracked(old: &Fence) -> Vec<(LockSource, Vec<Arc<TrackedLock>>)> {
    old.process.sources.all().into_iter().map(|source| (source.clone(), source.locks())).collect()
}

fn of_lock(config: &Config, route: &str, text: String) -> String {
    config.places.problem(&format!("route.{route}.lock"), text).to_string()
}

/// Has every lock that is new read once from now on, also one that is known: it may have been read in the way in which the source
/// was reached before. A lock that is in force already may be unread: its store has not answered yet, and a reload is what may
/// help against that.
pub(super) async fn first_reads(old: &Fence, new: &Prepared) -> Result<(), Vec<String>> {
    let timeout = new.config.limits.confirm_timeout;
    let (now, deadline) = (Instant::now(), Instant::now() + timeout);
    let mut new_locks: Vec<&Arc<TrackedLock>> = Vec::new();
    for lock in new.static_locks() {
        if old.static_locks().chain(new_locks.iter().copied()).all(|other| !Arc::ptr_eq(other, lock)) {
            new_locks.push(lock);
        }
    }
    let reads = new_locks.iter().map(|lock| async move {
        let outcome = lock.confirm(now, deadline).await;
        outcome.map_err(|error| unreadable(&new.config, lock.source(), lock.key(), &error))
    });
    let problems: Vec<String> = join_all(reads).await.into_iter().filter_map(Result::err).collect();
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

fn unreadable(config: &Config, source: &str, key: &LockKey, error: &Unconfirmed) -> String {
    let why = match error {
        Unconfirmed::Regressed => went_back(source),
        Unconfirmed::Store(cause) => format!("{error}: {cause}"),
        Unconfirmed::Deadline | Unconfirmed::Overloaded | Unconfirmed::Overtaken | Unconfirmed::Stopped => {
            error.to_string()
        }
    };
    config.places.problem(&format!("source.{source}"), format!("its lock {key} could not be read: {why}")).to_string()
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
