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
    /// Whether the connection was reset because this process stands no more.
    has_cut: Cell<bool>,
}

impl GroupWrites {
    pub(super) fn new(membership: Arc<Membership>, upstream: Arc<str>) -> GroupWrites {
        let joined = Cell::new(membership.stands_since());
        let (paused, has_cut) = (RefCell::default(), Cell::new(false));
        GroupWrites { membership, upstream, joined, paused, has_cut }
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

    /// Notes that the connection is reset because this process stands no more.
    pub(super) fn note_cut(&self) {
        self.has_cut.set(true);
    }

    pub(super) fn has_cut(&self) -> bool {
        self.has_cut.get()
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
    use fencepost_tests::until;

    use super::*;

    /// Long enough for a machine that stands still. The standing ends by the clock of the tests.
    const MEMBER_TTL: Duration = Duration::from_secs(300);

    /// A member of a group that has joined.
    pub(crate) struct Member {
        pub(crate) store: MemoryStore,
        source: LockSource,
    }

    impl Member {
        pub(crate) async fn joined() -> Member {
            let orphan_timeout = Duration::from_secs(1);
            let timing = Timing { member_ttl: MEMBER_TTL, orphan_timeout };
            let (host, version) = ("h".into(), "v".into());
            let group =
                GroupOptions { name: "g".into(), prefix: "/g/".into(), timing, host, version };
            let options = SourceOptions { group: Some(group), ..SourceOptions::default() };
            let store = MemoryStore::new();
            let of_source = store.clone();
            let source = LockSource::spawn("main", options, || of_source).unwrap();
            let member = Member { store, source };
            until("it stands", async || member.membership().stands()).await;
            member
        }

        pub(crate) fn membership(&self) -> &Arc<Membership> {
            self.source.group().unwrap()
        }

        pub(crate) fn lapse(&self) {
            self.membership().set_clock_ahead(MEMBER_TTL * 2 / 3);
            assert_eq!(self.membership().standing(), Standing::Lapsed);
        }

        pub(crate) fn cut(&self) {
            self.membership().set_clock_ahead(MEMBER_TTL);
        }
    }
}
