//! How a lock is, for the eyes of an operator.

use std::sync::Arc;
use std::time::Duration;

use fencepost_policy::{GateState, Layout, LockKey, Owner, Revision, Snapshot, Waiter};
use tokio::time::Instant;

use super::TrackedLock;

/// How a lock is.
#[derive(Debug, Clone)]
pub struct LockDescription {
    /// Its key.
    pub key: LockKey,
    /// How its record is laid out.
    pub layout: Layout,
    /// The name of that in a configuration.
    pub layout_name: &'static str,
    /// Who holds it, if anybody does, and the lowest and highest revision that name the tenure.
    pub holder: Option<(Owner, Revision, Revision)>,
    /// The revision at which it was last seen to change or read whole; `None` before it is first
    /// read.
    pub as_of: Option<Revision>,
    /// How old that is.
    pub age: Option<Duration>,
    /// Who queues, the oldest first.
    pub waiters: Arc<[Waiter]>,
    /// What is wrong with its record, if it can't be read.
    pub problem: Option<Arc<str>>,
    /// Its gate.
    pub gate: GateState,
    /// For how long requests may still run that an earlier process left at the worker, if any may.
    pub left_behind_for: Option<Duration>,
}

impl TrackedLock {
    /// What an operator sees of it.
    pub fn describe(&self, now: Instant) -> LockDescription {
        let gate = self.inner().gate.state();
        let left_behind_until = gate.left_behind_until.map(|until| self.common.instant(until));
        let outlook = self.view();
        let snapshot = outlook.snapshot();
        LockDescription {
            key: self.key().clone(),
            layout: self.layout(),
            layout_name: self.format().layout_name(),
            holder: snapshot
                .and_then(Snapshot::tenure)
                .map(|held| (held.owner.clone(), held.first, held.last)),
            as_of: snapshot.and_then(|snapshot| snapshot.as_of),
            age: outlook.age(now),
            waiters: snapshot.map(|snapshot| Arc::clone(&snapshot.waiters)).unwrap_or_default(),
            problem: outlook.problem().map(Arc::from).or_else(|| {
                let refused = self.common.health().too_large(self.range(), now)?;
                Some(refused.to_string().into())
            }),
            gate,
            left_behind_for: left_behind_until
                .map(|until| until.saturating_duration_since(now))
                .filter(|left| !left.is_zero()),
        }
    }
}
