//! Finds the routes that only watched, and whose requests a new configuration judges, and has its
//! routes wait for those. The waiting itself is in `let_past.rs`.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use fencepost_config::{Config, Lock, LockIndex, Mode, Route};

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
        let enforcing = Enforcing::of(&config);
        let mut waits: HashMap<usize, Vec<Weak<LetPast>>> = HashMap::new();
        for generation in self.generations() {
            let before = &generation.config.routes;
            for (at, in_force) in generation.routes.iter().enumerate() {
                let (Mode::Shadow(lock), Some(let_past)) = (&before[at].mode, &in_force.let_past)
                else {
                    continue;
                };
                let sharing = enforcing.sharing(lock);
                let judging =
                    sharing.iter().filter(|index| takes(&config.routes, **index, before, at));
                let Some(longest) = judging.map(|index| config.routes[*index].orphan_timeout).max()
                else {
                    continue;
                };
                // As long as the worker may go on with what the route let past.
                if let_past.close(longest.max(before[at].orphan_timeout)) {
                    for index in sharing {
                        waits.entry(index).or_default().push(Arc::downgrade(let_past));
                    }
                }
            }
        }
        for (index, passes) in waits {
            new.routes[index].earlier = passes.into();
        }
    }

    /// Those of them.
    pub(super) fn generations(&self) -> impl Iterator<Item = Arc<Generation>> {
        self.0.iter().filter_map(Weak::upgrade)
    }
}

/// The routes that judge, by their locks.
struct Enforcing<'c> {
    locks: Vec<(&'c Lock, Vec<usize>)>,
    index: LockIndex<'c>,
}

impl<'c> Enforcing<'c> {
    fn of(config: &'c Config) -> Enforcing<'c> {
        let mut numbers = HashMap::new();
        let mut locks: Vec<(&Lock, Vec<usize>)> = Vec::new();
        for (at, route) in config.routes.iter().enumerate() {
            let Mode::Enforce(lock) = &route.mode else { continue };
            let number = *numbers.entry((lock.source, lock.key.as_str())).or_insert_with(|| {
                locks.push((lock, Vec::new()));
                locks.len() - 1
            });
            locks[number].1.push(at);
        }
        let index = LockIndex::new(locks.iter().map(|(lock, _)| *lock));
        Enforcing { locks, index }
    }

    /// The indexes of those that may have a lock in common with a route that has this one.
    fn sharing(&self, lock: &Lock) -> Vec<usize> {
        let alike = self.index.overlapping(&lock.key);
        alike.flat_map(|number| self.locks[number].1.iter().copied()).collect()
    }
}

/// Whether a route of the present configuration takes what one of an earlier configuration took.
///
/// A route of the same name judges what it let past, whatever it takes by now. Otherwise the two
/// routes must overlap, and no route before either of them may take all that the other takes.
fn takes(present: &[Route], index: usize, before: &[Route], at: usize) -> bool {
    let (judging, watched) = (&present[index], &before[at]);
    let had_it = || !before[..at].iter().any(|first| first.takes_all_of(judging));
    let has_it = || !present[..index].iter().any(|first| first.takes_all_of(watched));
    judging.name == watched.name || judging.overlaps(watched) && had_it() && has_it()
}
