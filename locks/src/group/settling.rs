//! What is waited for at the gates: until an ask can be answered, and until a tenure may be told.

use std::sync::Arc;
use std::time::Duration;

use fencepost_policy::group::NamedTenure;
use fencepost_policy::{AskedGate, Revision};
use tokio::time::{Instant, sleep_until};

use crate::cache::TrackedLock;

/// How often a gate is looked at though nothing is known to have changed.
const LOOK_PERIOD: Duration = Duration::from_secs(1);

/// Completes once nothing of a tenure before the one that has this revision is at the worker, or
/// ever will be.
pub(super) async fn sealed(lock: &Arc<TrackedLock>, asked: Revision, joined: Revision) {
    until(lock, || match lock.answer(asked, joined) {
        AskedGate::Sealed => true,
        AskedGate::Busy => false,
        AskedGate::Unknown => {
            lock.want_read();
            false
        }
    })
    .await;
}

/// Says whether nothing is at the worker that this tenure has to wait for, once that is so or the
/// tenure has ended.
pub(super) async fn empty(lock: &Arc<TrackedLock>, tenure: &NamedTenure) -> bool {
    let mut found = None;
    until(lock, || {
        found = lock.is_empty_before(tenure.revision);
        found != Some(false)
    })
    .await;
    found == Some(true)
}

async fn until(lock: &Arc<TrackedLock>, mut done: impl FnMut() -> bool) {
    loop {
        let changed = lock.gate_changed(); // Before the look, so that no change is missed.
        if done() {
            return;
        }
        let now = Instant::now();
        let next = lock.next_unseen(now).unwrap_or(now + LOOK_PERIOD).min(now + LOOK_PERIOD);
        tokio::select! {
            () = changed => {}
            () = sleep_until(next) => {}
        }
    }
}
