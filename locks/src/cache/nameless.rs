//! Requests that were let past and named no lock of their route's: whose they are nobody knows.

use std::fmt;
use std::sync::{Arc, PoisonError};

use fencepost_policy::{LostPassId, Moment, Pass, PassReason, Passes};

use super::common::Common;
use crate::sync::{Mutex, MutexGuard, Notify};

/// Counts the requests of a template's routes that were let past and named none of its locks. When such a route turns to enforce, they
/// bar each of the template's locks, as what is counted at a lock's own gate bars that one.
#[derive(Clone)]
pub struct Nameless {
    common: Arc<Common>,
    counted: Arc<Counted>,
}

/// Those of the routes whose locks have the same keys.
#[derive(Debug)]
pub(crate) struct Counted {
    passes: Mutex<Passes>,
    turned: Notify,
}

impl Nameless {
    pub(crate) fn new(common: Arc<Common>, counted: Arc<Counted>) -> Nameless {
        Nameless { common, counted }
    }

    /// Lets a request past, counted. It came in under the configuration of that number. `None` if its route only watched then and
    /// enforces by now: it has to be refused.
    pub fn pass(&self, reason: PassReason, generation: u64) -> Option<Pass> {
        self.counted.passes().pass(reason, generation)
    }

    /// Takes back a pass.
    pub fn leave_pass(&self, pass: Pass) {
        let opened = self.counted.passes().leave(pass);
        if opened {
            self.common.settle_nameless();
        }
    }

    /// Takes back a pass whose request may still be running at the worker; it counts until [`Nameless::end_lost_pass`].
    pub fn lose_pass(&self, pass: Pass) -> LostPassId {
        self.counted.passes().lose(pass)
    }

    /// Whether such a request has not been forgotten yet.
    pub fn counts_lost_pass(&self, lost: LostPassId) -> bool {
        self.counted.passes().counts_lost(lost)
    }

    /// Forgets such a request, because its end was seen after all or its time has come.
    pub fn end_lost_pass(&self, lost: LostPassId) {
        let opened = self.counted.passes().end_lost(lost);
        if opened {
            self.common.settle_nameless();
        }
    }

    /// Whether a route enforces by now that only watched under that configuration.
    pub fn has_turned(&self, generation: u64) -> bool {
        self.counted.passes().has_turned(generation)
    }

    /// Completes when a route has turned. To miss nothing, take it before looking, and await it after.
    pub fn changed(&self) -> impl Future<Output = ()> + '_ {
        let mut changed = Box::pin(self.counted.turned.notified());
        changed.as_mut().enable();
        changed
    }
}

impl fmt::Debug for Nameless {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.counted.fmt(f)
    }
}

impl Counted {
    pub(crate) fn new() -> Counted {
        Counted { passes: Mutex::new(Passes::default()), turned: Notify::new() }
    }

    /// A route enforces from that configuration on.
    pub(crate) fn enforce_since(&self, generation: u64, until: Moment) {
        self.passes().enforce_since(generation, until);
        self.turned.notify_waiters();
    }

    /// Whether any are there that came before their route enforced.
    pub(crate) fn bar(&self) -> bool {
        self.passes().bar_until().is_some()
    }

    pub(crate) fn are_none(&self) -> bool {
        self.passes().are_none()
    }

    fn passes(&self) -> MutexGuard<'_, Passes> {
        self.passes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
