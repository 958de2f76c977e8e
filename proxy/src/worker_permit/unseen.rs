//! Requests that may run on at the worker though nobody will see their end: each counts until its
//! time has come. It does not decide when a request is lost.

use std::cell::{Cell, RefCell};
use std::future::pending;
use std::rc::{Rc, Weak};

use fencepost_fence::permit::Orphan;
use scopeguard::guard;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

use crate::let_past::Pass;
use crate::metrics::OneMore;
use crate::request_context::RequestContext;
use crate::wire::{Socket, caught_up};

/// A request that may run on at the worker, unseen, until its time has come or its end is seen
/// after all. As long as this is kept, somebody reads what the worker says; without it, time alone
/// ends the request.
pub(super) struct Unseen {
    lost: Rc<Lost>,
    /// When its time has come, unless its worker is heard of before.
    until: Rc<Cell<Instant>>,
    /// The task that ends it in time. It goes on without this.
    timer: AbortHandle,
}

/// Where a lost request counts.
pub(super) enum Lost {
    /// At the gate of its lock, and among the orphans of its route.
    Orphan { orphan: Orphan, _among_orphans: OneMore },
    /// With what its route let past. Empty once it counts no more.
    Pass(RefCell<Option<Pass>>),
}

impl Lost {
    pub(super) fn orphan(orphan: Orphan, context: &RequestContext) -> Lost {
        orphan.set_heard(true);
        Lost::Orphan { orphan, _among_orphans: OneMore::new(context.metrics().orphans.clone()) }
    }

    pub(super) fn pass(pass: Pass) -> Lost {
        Lost::Pass(RefCell::new(Some(pass)))
    }

    /// Whether it still counts.
    fn counts(&self) -> bool {
        match self {
            Lost::Orphan { orphan, .. } => orphan.counts(),
            Lost::Pass(pass) => pass.borrow().is_some(),
        }
    }

    /// It counts no more. False if it did not before.
    fn end(&self) -> bool {
        match self {
            Lost::Orphan { orphan, .. } => orphan.end(),
            Lost::Pass(pass) => pass.take().is_some(),
        }
    }

    /// Completes when it counts no more because an operator has ended it.
    async fn cleared(&self) {
        match self {
            Lost::Orphan { orphan, .. } => orphan.cleared().await,
            Lost::Pass(_) => pending().await,
        }
    }
}

impl Unseen {
    /// Its `connection` is reset before it ceases to count.
    pub(super) fn new(
        lost: Lost,
        until: Instant,
        context: Rc<RequestContext>,
        connection: Option<Weak<Socket>>,
    ) -> Unseen {
        let (lost, until) = (Rc::new(lost), Rc::new(Cell::new(until)));
        // Not in the thread's background work, since a process that drains need not wait for it.
        let outlive = outlive(Rc::clone(&lost), Rc::clone(&until), context, connection);
        let timer = tokio::task::spawn_local(outlive).abort_handle();
        Unseen { lost, until, timer }
    }

    /// When its time has come.
    pub(super) fn until(&self) -> Instant {
        self.until.get()
    }

    /// Puts its time off, unless it is over: then others may have been let in.
    pub(super) fn postpone(&self, until: Instant) {
        let until = until.max(self.until.get());
        self.until.set(until);
        if let Lost::Orphan { orphan, .. } = &*self.lost {
            orphan.postpone(until);
        }
    }

    pub(super) fn end(self) {
        self.lost.end();
        self.timer.abort();
    }
}

impl Drop for Unseen {
    /// Nobody reads what the worker says any more.
    fn drop(&mut self) {
        if let Lost::Orphan { orphan, .. } = &*self.lost {
            orphan.set_heard(false);
        }
    }
}

/// Completes when that time has come and nothing is left to be read that would put it off. Nobody
/// reads once [`Unseen`] is gone.
async fn comes(until: &Rc<Cell<Instant>>) {
    loop {
        sleep_until(until.get()).await;
        if Rc::strong_count(until) > 1 {
            caught_up().await;
        }
        if until.get() <= Instant::now() {
            return;
        }
    }
}

/// Holds the lock for as long as an orphan of it counts, so that no cache forgets the gate that
/// counts it, and ends the request when its time has come: first its connection, which the kernel
/// may hold bytes for, then its place in the counts.
async fn outlive(
    lost: Rc<Lost>,
    until: Rc<Cell<Instant>>,
    context: Rc<RequestContext>,
    connection: Option<Weak<Socket>>,
) {
    // If this task ends with its thread before that, nobody may have the gate any more that counts
    // the request.
    let _untimely = guard((), |()| {
        if lost.counts() {
            context.share.generation.process.leave_unseen();
        }
    });
    let is_due = tokio::select! {
        biased;
        () = lost.cleared() => false,
        () = comes(&until) => true,
    };
    if let Some(connection) = connection.and_then(|connection| connection.upgrade()) {
        connection.reset();
    }
    if is_due && lost.end() && matches!(&*lost, Lost::Orphan { .. }) {
        context.metrics().orphans_expired.inc();
    }
}
