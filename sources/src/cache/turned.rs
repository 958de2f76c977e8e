//! Routes that only watched, and enforce by now.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fencepost_policy::Moment;

use super::nameless::Counted;

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
