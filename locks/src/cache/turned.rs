//! Routes that only watched, and enforce by now.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fencepost_policy::Moment;
use tokio::time::Instant;

use super::by_prefix::ByPrefix;
use super::common::Common;
use super::nameless::{Counted, Nameless};
use crate::sync::MutexGuard;

/// A route enforces from a configuration on, and it, or another, only watched its locks before.
#[derive(Clone)]
pub struct Turning {
    /// The keys of its locks, as the route has them.
    pub keys: String,
    /// What all of those begin with.
    pub prefix: String,
    /// Whether a key is one of those.
    pub names: Arc<dyn Fn(&str) -> bool + Send + Sync>,
    /// The keys of the locks that were watched, as those routes have them.
    pub watched: BTreeSet<String>,
    /// The number of that configuration.
    pub generation: u64,
    /// For how long what was let past before counts, at most, once nothing more of it can go out.
    pub counts_for: Duration,
}

/// Locks of a route that only watched, and enforces from a configuration on.
pub(crate) struct Turned {
    /// What all of their keys begin with.
    pub(crate) prefix: String,
    pub(crate) names: Arc<dyn Fn(&str) -> bool + Send + Sync>,
    pub(crate) generation: u64,
    pub(crate) until: Moment,
    /// What may be any of theirs of the requests that were let past before.
    pub(crate) nameless: Vec<Arc<Counted>>,
}

impl Turned {
    /// Whether there is any of what may be any of theirs.
    pub(crate) fn has_nameless(&self) -> bool {
        self.nameless.iter().any(|counted| counted.bar())
    }
}

impl Common {
    /// See [`LockSource::enforce_since`](super::source::LockSource::enforce_since).
    pub(crate) fn enforce_since(&self, turning: &[Turning]) {
        if turning.is_empty() {
            return;
        }
        // Before the locks, so that one which is made meanwhile is told in one way or the other.
        turning.iter().for_each(|turning| self.turn(turning));
        let mut by_prefix: ByPrefix<Vec<&Turning>> = ByPrefix::default();
        turning.iter().for_each(|turning| by_prefix.at(&turning.prefix).push(turning));
        for lock in self.registry.all() {
            let alike = by_prefix.of(lock.key().as_str()).flatten();
            let its_own = alike.filter(|turning| (turning.names)(lock.key().as_str()));
            // The time begins with the step by which nothing more of it goes out. Among many locks that is not the same for all.
            its_own.for_each(|turning| lock.enforce_since(turning.generation, Instant::now() + turning.counts_for));
        }
        // Once for all of them: it asks all locks again.
        self.settle_nameless();
    }

    /// Has the gates that are made from now on know of it. What was said of the same keys before is part of it, so that this grows with
    /// the routes that there ever were, and not with time.
    fn turn(&self, turning: &Turning) {
        let Turning { keys, prefix, names, watched, generation, counts_for } = turning;
        let until = || self.moment(Instant::now() + *counts_for);
        let nameless = self.nameless_of(watched);
        nameless.iter().for_each(|counted| counted.enforce_since(*generation, until()));
        let (prefix, names) = (prefix.clone(), Arc::clone(names));
        let mut now = Turned { prefix, names, generation: *generation, until: until(), nameless };
        let mut turned = self.turned();
        let alike = turned.at(&now.prefix);
        if let Some(before) = alike.remove(keys) {
            (now.generation, now.until) = (now.generation.max(before.generation), now.until.max(before.until));
            now.nameless.extend(before.nameless);
        }
        now.nameless.retain(|counted| counted.bar());
        alike.insert(keys.clone(), now);
    }

    /// The requests that were let past and named no lock of that template.
    pub(crate) fn nameless(self: &Arc<Common>, keys: &str) -> Nameless {
        let mut all = self.all_nameless();
        let counted = all.entry(keys.to_owned()).or_insert_with(|| Arc::new(Counted::new()));
        Nameless::new(Arc::clone(self), Arc::clone(counted))
    }

    /// Those of several templates.
    fn nameless_of(&self, keys: &BTreeSet<String>) -> Vec<Arc<Counted>> {
        let all = self.all_nameless();
        keys.iter().filter_map(|keys| all.get(keys).map(Arc::clone)).collect()
    }

    /// Whether there are any, of whatever template.
    pub(crate) fn has_nameless(&self) -> bool {
        self.all_nameless().values().any(|counted| !counted.are_none())
    }

    /// Tells each gate whether any of those may be its lock's that were let past before a route enforced. One at a time: what was found
    /// out earlier is told earlier.
    pub(crate) fn settle_nameless(&self) {
        // To be dropped last: a lock's end looks for it in the registry, and whoever makes one there wants to know what has turned.
        let locks = self.registry.all();
        let turned = self.turned();
        // Few, and none but for a moment after a reload: else each lock would be held against all that have ever turned.
        let mut with_nameless: ByPrefix<Vec<&Turned>> = ByPrefix::default();
        let all_turned = turned.values().flat_map(BTreeMap::values);
        all_turned
            .filter(|turned| turned.has_nameless())
            .for_each(|turned| with_nameless.at(&turned.prefix).push(turned));
        for lock in &locks {
            let key = lock.key().as_str();
            lock.set_nameless(with_nameless.of(key).flatten().any(|turned| (turned.names)(key)));
        }
    }

    fn all_nameless(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Counted>>> {
        self.nameless.lock().expect("nothing panics while it looks at a list")
    }

    pub(crate) fn turned(&self) -> MutexGuard<'_, ByPrefix<BTreeMap<String, Turned>>> {
        self.turned.lock().expect("nothing panics while it looks which locks these are")
    }
}

impl fmt::Debug for Turning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Turning { keys, prefix, names: _, watched, generation, counts_for } = self;
        let mut turning = f.debug_struct("Turning");
        turning.field("keys", keys).field("prefix", prefix).field("watched", watched).field("generation", generation);
        turning.field("counts_for", counts_for).finish_non_exhaustive()
    }
}

impl fmt::Debug for Turned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Turned { prefix, names: _, generation, until, nameless } = self;
        let mut turned = f.debug_struct("Turned");
        turned
            .field("prefix", prefix)
            .field("generation", generation)
            .field("until", until)
            .field("nameless", nameless);
        turned.finish()
    }
}
