//! Lets a connection to a worker write only while this process stands in its group
//! (`written-is-standing`).
//! It does not know requests: a connection that is reset leaves orphans, as any lost one does.
//!
//! A paused write looks like one that the worker does not read, and the worker's time runs on: that
//! of the request, and over HTTP/2 that of a ping. A pause is shorter than a third of `member_ttl`,
//! and a reset ends it at the latest. A request that times out meanwhile gets its answer in time,
//! and becomes an orphan.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};

use fencepost_locks::Membership;
use fencepost_policy::Revision;
use fencepost_policy::group::Standing;

/// Whether one connection may write to its worker.
pub(super) struct GroupWrites {
    membership: Arc<Membership>,
    /// The worker, for the log.
    upstream: Arc<str>,
    /// The revision at which this process had joined when the connection was made, or when the
    /// process first stood after that.
    joined: Cell<Option<Revision>>,
    /// The task that waits to write.
    paused: RefCell<Option<Waker>>,
}

impl GroupWrites {
    pub(super) fn new(membership: Arc<Membership>, upstream: Arc<str>) -> GroupWrites {
        let joined = Cell::new(membership.stands_since());
        GroupWrites { membership, upstream, joined, paused: RefCell::default() }
    }

    /// What this process may do on this connection now. Once the process has joined anew, this
    /// stays `Cut`: the others no longer wait for what came in before.
    pub(super) fn standing(&self) -> Standing {
        match (self.membership.stands_since(), self.joined.get()) {
            (Some(now), Some(before)) if now != before => Standing::Cut,
            (Some(now), _) => {
                self.joined.set(Some(now));
                Standing::Stands
            }
            (None, _) if self.membership.standing() == Standing::Cut => Standing::Cut,
            (None, _) => Standing::Lapsed,
        }
    }

    /// Has the task woken by [`resume`](Self::resume).
    pub(super) fn pause(&self, cx: &Context<'_>) {
        *self.paused.borrow_mut() = Some(cx.waker().clone());
    }

    pub(super) fn resume(&self) {
        if let Some(waker) = self.paused.take() {
            waker.wake();
        }
    }

    /// Counts a write that ended when this process stood no more: it was held up in between.
    pub(super) fn wrote_late(&self) {
        self.membership.counts().late_writes.fetch_add(1, Ordering::Relaxed);
        let (group, upstream) = (&self.membership.options().name, &self.upstream);
        tracing::warn!(
            group,
            %upstream,
            "a write to the worker was held up until this process had lost its standing in the group; its connection is reset"
        );
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use fencepost_locks::{GroupOptions, LockSource, MemoryStore, SourceOptions};
    use fencepost_policy::group::Timing;
    use tokio::time::timeout;

    use super::*;

    /// A member of a group that has joined.
    pub(crate) struct Member {
        pub(crate) store: MemoryStore,
        source: LockSource,
    }

    impl Member {
        pub(crate) async fn joined() -> Member {
            let member_ttl = Duration::from_secs(3); // The least that can be configured.
            let timing = Timing { member_ttl, orphan_timeout: Duration::from_secs(1) };
            let (host, version) = ("h".into(), "v".into());
            let group =
                GroupOptions { name: "g".into(), prefix: "/g/".into(), timing, host, version };
            let options = SourceOptions { group: Some(group), ..SourceOptions::default() };
            let store = MemoryStore::new();
            let of_source = store.clone();
            let source = LockSource::spawn("main", options, || of_source).unwrap();
            let member = Member { store, source };
            member.until(Membership::stands).await;
            member
        }

        pub(crate) fn membership(&self) -> &Arc<Membership> {
            self.source.group().unwrap()
        }

        pub(crate) async fn until(&self, is_so: impl Fn(&Membership) -> bool) {
            loop {
                let changed = self.membership().changed();
                if is_so(self.membership()) {
                    return;
                }
                let time = self.membership().changes_in().unwrap_or(Duration::from_secs(60));
                let _ = timeout(time, changed).await;
            }
        }

        pub(crate) async fn lapse(&self) {
            self.store.pause();
            self.until(|membership| !membership.stands()).await;
        }
    }
}
