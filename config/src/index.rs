//! Finds, among many routes, those that have requests or locks in common with another: each is held
//! against few of them.

use std::collections::HashSet;

use crate::lock::Lock;
use crate::lock_template::LockTemplate;
use crate::path_template::PathTemplate;
use crate::prefixes::Prefixes;
use crate::route::Route;

/// The routes of a configuration, to find those that take all of what others take.
pub(crate) struct CoverIndex<'r> {
    routes: Vec<&'r Route>,
    /// Those that any requests reach. Whatever the others take is taken by one of these, which is
    /// asked first.
    reached: Prefixes,
}

impl<'r> CoverIndex<'r> {
    /// Of these, in the order in which they are asked.
    pub(crate) fn new(routes: impl IntoIterator<Item = &'r Route>) -> CoverIndex<'r> {
        let mut index = CoverIndex { routes: Vec::new(), reached: Prefixes::default() };
        for (number, route) in routes.into_iter().enumerate() {
            if index.first_that_takes_all_of(route).is_none() {
                index.reached.insert(number, &route.path.beginning());
            }
            index.routes.push(route);
        }
        index
    }

    /// The first of them past which no request gets that the route takes, if it is asked before
    /// that: see [`Route::takes_all_of`].
    pub(crate) fn first_that_takes_all_of(&self, route: &Route) -> Option<usize> {
        self.first_taking(route.host.as_deref(), &route.path)
    }

    /// The first of them past which no request for that host and these paths gets.
    pub(crate) fn first_taking(&self, host: Option<&str>, paths: &PathTemplate) -> Option<usize> {
        let mut candidates = self.reached.beginning(&paths.beginning()).into_iter();
        candidates.find(|number| self.routes[*number].takes_all(host, paths))
    }
}

/// Locks by their keys. Of those of one source that have the same keys, it finds the first.
pub struct LockIndex<'l> {
    locks: Vec<&'l Lock>,
    firsts: Prefixes,
}

impl<'l> LockIndex<'l> {
    /// Of these, in that order.
    pub fn new(locks: impl IntoIterator<Item = &'l Lock>) -> LockIndex<'l> {
        let (mut firsts, mut known) = (Prefixes::default(), HashSet::new());
        let locks: Vec<&Lock> = locks.into_iter().collect();
        for (number, lock) in locks.iter().enumerate() {
            if known.insert((lock.source, lock.key.as_str())) {
                firsts.insert(number, &lock.key.beginning());
            }
        }
        LockIndex { locks, firsts }
    }

    /// The numbers of those that may have a key in common with that, in order: see
    /// [`LockTemplate::overlaps`].
    pub fn overlapping(&self, key: &LockTemplate) -> impl Iterator<Item = usize> {
        let candidates = self.firsts.alike(&key.beginning());
        candidates.into_iter().filter(|number| self.locks[*number].key.overlaps(key))
    }
}

#[cfg(test)]
#[path = "index_tests.rs"]
mod tests;
