//! Finds the routes that only watched, and whose requests a new configuration judges, and has its
//! routes wait for those. The waiting itself is in `let_past.rs`.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

use fencepost_config::{
    Config, CoverIndex, Lock, LockIndex, LockTemplate, Mode, OverlapIndex, Route,
};

use crate::generation::Generation;
use crate::let_past::LetPast;

/// Configurations that were in force and have requests under way.
#[derive(Default)]
pub(super) struct Earlier(Vec<Weak<Generation>>);

impl Earlier {
    /// Closes each route that only watched and whose like `new` judges. The routes of `new` that
    /// may have a lock in common with it wait for what it let past: that may be anybody's.
    pub(super) fn bar_what_was_let_past(&mut self, old: &Arc<Generation>, new: &mut Generation) {
        self.0.retain(|earlier| earlier.strong_count() > 0);
        self.0.push(Arc::downgrade(old));
        let config = Arc::clone(&new.config);
        let enforcing: Vec<(usize, &Lock)> = enforcing(&config).collect();
        let judging = LazyCell::new(|| CoverIndex::new(config.routes.iter()));
        let locks = LazyCell::new(|| LockIndex::new(enforcing.iter().map(|(_, lock)| *lock)));
        let mut waits: HashMap<(usize, &str), Vec<Weak<LetPast>>> = HashMap::new();
        for generation in self
            .generations()
            .filter(|generation| generation.config.routes.iter().any(only_watches))
        {
            let watching = Watching::new(&generation.config, &judging);
            // Those of its routes that have turned, and how long the worker may go on with what
            // they let past.
            let mut turned: BTreeMap<usize, Duration> = BTreeMap::new();
            for (index, lock) in &enforcing {
                let route = &config.routes[*index];
                for (watched, _) in watching.turned(*index, route, lock) {
                    let own = generation.config.routes[watched].orphan_timeout;
                    let counts_for = turned.entry(watched).or_insert(own);
                    *counts_for = route.orphan_timeout.max(*counts_for);
                }
            }
            for (watched, counts_for) in turned {
                let (mode, let_past) =
                    (&generation.config.routes[watched].mode, &generation.routes[watched].let_past);
                let (Some(lock), Some(let_past)) = (mode.lock(), let_past) else { continue };
                if let_past.close(counts_for) {
                    for number in locks.overlapping(&lock.key) {
                        let waiting = enforcing[number].1;
                        let passes =
                            waits.entry((waiting.source, waiting.key.as_str())).or_default();
                        passes.push(Arc::downgrade(let_past));
                    }
                }
            }
        }
        let waits: HashMap<_, Arc<[_]>> =
            waits.into_iter().map(|(lock, passes)| (lock, passes.into())).collect();
        for (index, lock) in enforcing {
            let earlier = waits.get(&(lock.source, lock.key.as_str()));
            new.routes[index].earlier = earlier.map(Arc::clone).unwrap_or_default();
        }
    }

    /// Those of them.
    pub(super) fn generations(&self) -> impl Iterator<Item = Arc<Generation>> {
        self.0.iter().filter_map(Weak::upgrade)
    }
}

/// The routes that judge, by their indexes, with their locks.
fn enforcing(config: &Config) -> impl Iterator<Item = (usize, &Lock)> {
    config.routes.iter().enumerate().filter_map(|(index, route)| match &route.mode {
        Mode::Enforce(lock) => Some((index, lock)),
        Mode::Shadow(_) | Mode::Off => None,
    })
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
            by_name: routes
                .iter()
                .enumerate()
                .map(|(number, (_, route, _))| (route.name.as_str(), number))
                .collect(),
            overlaps: OverlapIndex::new(routes.iter().map(|(_, route, _)| *route)),
            old: CoverIndex::new(old.routes.iter()),
            takers: routes.iter().map(|(_, route, _)| new.first_that_takes_all_of(route)).collect(),
            routes,
        }
    }

    /// Those, by index, of what the route of that index in the new configuration, which judges by
    /// that lock, takes by now; and the keys of their locks.
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
