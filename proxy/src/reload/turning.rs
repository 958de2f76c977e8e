//! Routes that only watched, and whose requests are judged when another configuration is put in force.

use std::sync::{Arc, Weak};

use fencepost_config::{Config, Lock, LockTemplate, Mode, Route};
use fencepost_sources::Turning;

use crate::fence::Fence;

/// Configurations that were in force and have requests under way.
#[derive(Default)]
pub(super) struct Earlier(Vec<Generation>);

struct Generation {
    /// Gone with its last request.
    fence: Weak<Fence>,
    /// What is judged by now of what was let past under it.
    turned: Vec<Turn>,
}

/// A route of that index only watched, and one that takes this judges its like by now.
#[derive(PartialEq, Eq)]
struct Turn {
    watching: usize,
    host: Option<String>,
    path: String,
    keys: String,
}

impl Earlier {
    /// Where a route judges requests which it, or another, let past before because it only watched, has the gates of its locks wait for
    /// those: they may be anybody's.
    pub(super) fn bar_what_was_let_past(&mut self, old: &Arc<Fence>, new: &Fence) {
        self.0.push(Generation { fence: Arc::downgrade(old), turned: Vec::new() });
        let mut turning = vec![Vec::new(); new.sources.len()];
        self.0.retain_mut(|generation| {
            let Some(fence) = generation.fence.upgrade() else { return false };
            for (index, route) in new.config.routes.iter().enumerate() {
                let Mode::Enforce(lock) = &route.mode else { continue };
                let keys = lock.key.to_string();
                let mut turned = turned(&fence.config, &new.config, index, lock);
                let turn = |watching| Turn {
                    watching,
                    host: route.host.clone(),
                    path: route.path.to_string(),
                    keys: keys.clone(),
                };
                // What bars already does so until its time has come.
                turned.retain(|(watching, ..)| !generation.turned.contains(&turn(*watching)));
                let timeout = turned.iter().map(|(watching, _)| fence.config.routes[*watching].orphan_timeout).max();
                let Some(timeout) = timeout else { continue };
                let template = lock.key.clone();
                turning[lock.source].push(Turning {
                    keys: keys.clone(),
                    prefix: lock.key.literal_prefix().to_owned(),
                    names: Arc::new(move |key| template.matches_key(key)),
                    watched: turned.iter().map(|(_, key)| key.to_string()).collect(),
                    generation: fence.generation + 1,
                    counts_for: timeout.max(route.orphan_timeout),
                });
                generation.turned.extend(turned.iter().map(|(watching, _)| turn(*watching)));
            }
            true
        });
        // All of a source at once: there may be many routes, and many locks.
        new.sources.iter().zip(&turning).for_each(|(source, turning)| source.enforce_since(turning));
    }

    /// Those of them.
    pub(super) fn fences(&self) -> impl Iterator<Item = Arc<Fence>> {
        self.0.iter().filter_map(|generation| generation.fence.upgrade())
    }
}

/// The routes of a configuration that only watched, by index, of what a route which judges by that lock takes by now; and the keys of
/// their locks.
fn turned<'o>(old: &'o Config, new: &Config, index: usize, lock: &Lock) -> Vec<(usize, &'o LockTemplate)> {
    let judging = &new.routes[index];
    let watching = old.routes.iter().enumerate().filter_map(|(at, route)| match &route.mode {
        Mode::Shadow(watched) => Some((at, route, &watched.key)),
        Mode::Enforce(_) | Mode::Off => None,
    });
    let is_turned = |(at, route, key): &(usize, &Route, &LockTemplate)| {
        // Others may have come first: to the one that watched, and to the one that judges. There may be many: they are asked last.
        let had_it = || !old.routes[..*at].iter().any(|first| first.takes_all_of(judging));
        let has_it = || !new.routes[..index].iter().any(|first| first.takes_all_of(route));
        // The same route judges what it has let past, whatever it takes by now.
        let is_its_own = route.name == judging.name;
        key.overlaps(&lock.key) && (is_its_own || judging.overlaps(route) && had_it() && has_it())
    };
    watching.filter(is_turned).map(|(at, _, key)| (at, key)).collect()
}
