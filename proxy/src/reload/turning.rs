//! Routes that only watched, and whose requests are judged when another configuration is put in force.

use std::cell::LazyCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Weak};

use fencepost_config::{Config, CoverIndex, Lock, LockTemplate, Mode, OverlapIndex, Route};
use fencepost_locks::Turning;

use crate::generation::Generation;

/// Configurations that were in force and have requests under way.
#[derive(Default)]
pub(super) struct Earlier(Vec<Replaced>);

struct Replaced {
    /// Gone with its last request.
    generation: Weak<Generation>,
    /// What is judged by now of what was let past under it.
    turned: HashSet<Turn>,
}

/// A route of that index only watched, and one that takes this judges its like by now.
#[derive(PartialEq, Eq, Hash)]
struct Turn {
    watching: usize,
    host: Option<String>,
    path: String,
    keys: String,
}

impl Earlier {
    /// Where a route judges requests which it, or another, let past before because it only watched, has the gates of its locks wait for
    /// those: they may be anybody's.
    pub(super) fn bar_what_was_let_past(&mut self, old: &Arc<Generation>, new: &Generation) {
        self.0.push(Replaced { generation: Arc::downgrade(old), turned: HashSet::new() });
        let judging = LazyCell::new(|| CoverIndex::new(new.config.routes.iter()));
        let mut turning = vec![Vec::new(); new.sources.len()];
        self.0.retain_mut(|replaced| {
            let Some(generation) = replaced.generation.upgrade() else { return false };
            if !generation.config.routes.iter().any(only_watches) {
                return true;
            }
            let watching = Watching::new(&generation.config, &judging);
            for (index, route) in new.config.routes.iter().enumerate() {
                let Mode::Enforce(lock) = &route.mode else { continue };
                let keys = lock.key.to_string();
                let mut turned = watching.turned(index, route, lock);
                let turn = |watching| Turn {
                    watching,
                    host: route.host.clone(),
                    path: route.path.to_string(),
                    keys: keys.clone(),
                };
                // What bars already does so until its time has come.
                turned.retain(|(watching, ..)| !replaced.turned.contains(&turn(*watching)));
                let timeout =
                    turned.iter().map(|(watching, _)| generation.config.routes[*watching].orphan_timeout).max();
                let Some(timeout) = timeout else { continue };
                let template = lock.key.clone();
                turning[lock.source].push(Turning {
                    keys: keys.clone(),
                    prefix: lock.key.literal_prefix().to_owned(),
                    names: Arc::new(move |key| template.matches_key(key)),
                    watched: turned.iter().map(|(_, key)| key.to_string()).collect(),
                    generation: generation.number + 1,
                    counts_for: timeout.max(route.orphan_timeout),
                });
                replaced.turned.extend(turned.iter().map(|(watching, _)| turn(*watching)));
            }
            true
        });
        // All of a source at once: there may be many routes, and many locks.
        new.sources.iter().zip(&turning).for_each(|(source, turning)| source.enforce_since(turning));
    }

    /// Those of them.
    pub(super) fn generations(&self) -> impl Iterator<Item = Arc<Generation>> {
        self.0.iter().filter_map(|replaced| replaced.generation.upgrade())
    }
}

/// Whether a route lets past what it judges.
fn only_watches(route: &Route) -> bool {
    matches!(route.mode, Mode::Shadow(_))
}

/// The routes of a configuration that only watched.
struct Watching<'o> {
    /// Their indexes in the configuration, and the keys of their locks.
    routes: Vec<(usize, &'o Route, &'o LockTemplate)>,
    by_name: HashMap<&'o str, usize>,
    overlaps: OverlapIndex<'o>,
    old: CoverIndex<'o>,
    /// Which route of the new configuration takes all of what each takes.
    takers: Vec<Option<usize>>,
}

impl<'o> Watching<'o> {
    /// Those of `old`; `new` has the routes that judge by now.
    fn new(old: &'o Config, new: &CoverIndex<'_>) -> Watching<'o> {
        let routes = old.routes.iter().enumerate().filter_map(|(at, route)| match &route.mode {
            Mode::Shadow(watched) => Some((at, route, &watched.key)),
            Mode::Enforce(_) | Mode::Off => None,
        });
        let routes: Vec<_> = routes.collect();
        Watching {
            by_name: routes.iter().enumerate().map(|(number, (_, route, _))| (route.name.as_str(), number)).collect(),
            overlaps: OverlapIndex::new(routes.iter().map(|(_, route, _)| *route)),
            old: CoverIndex::new(old.routes.iter()),
            takers: routes.iter().map(|(_, route, _)| new.first_that_takes_all_of(route)).collect(),
            routes,
        }
    }

    /// Those, by index, of what the route of that index in the new configuration, which judges by that lock, takes by now; and the keys of
    /// their locks.
    fn turned(&self, index: usize, judging: &Route, lock: &Lock) -> Vec<(usize, &'o LockTemplate)> {
        // The same route judges what it has let past, whatever it takes by now.
        let its_own = self.by_name.get(judging.name.as_str()).copied();
        let alike: BTreeSet<usize> = self.overlaps.overlapping(judging).chain(its_own).collect();
        // Others may have come first: to the one that watched, and to the one that judges.
        let taker = self.old.first_that_takes_all_of(judging);
        let had_it = |at: usize| taker.is_none_or(|first| first >= at);
        let has_it = |number: usize| self.takers[number].is_none_or(|first| first >= index);
        let turned = alike.into_iter().filter_map(|number| {
            let (at, _, key) = self.routes[number];
            let is_turned = its_own == Some(number) || had_it(at) && has_it(number);
            (is_turned && key.overlaps(&lock.key)).then_some((at, key))
        });
        turned.collect()
    }
}

#[cfg(test)]
#[path = "turning_tests.rs"]
mod tests;
