//! Requests that may run on at the worker though nobody will see their end: each counts until its time has come.

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use fencepost_locks::TrackedLock;
use fencepost_policy::OrphanId;
use prometheus::IntGauge;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

use crate::let_past::Pass;
use crate::request_context::RequestContext;
use crate::wire::{Socket, caught_up};

/// A request that may run on at the worker, unseen, until its time has come or its end is seen after all. Its worker is listened to:
/// without this, time alone ends it.
pub(super) struct Unseen {
    counted: Rc<Counted>,
    /// When its time has come, unless its worker is heard of before.
    until: Rc<Cell<Instant>>,
    /// The task that ends it in time. It goes on without this.
    timer: AbortHandle,
}

/// Where such a request counts.
pub(super) enum Counted {
    /// At the gate of its lock, and among the orphans of its route.
    Orphan { lock: Arc<TrackedLock>, id: OrphanId, _among_orphans: OneMore },
    /// With what its route let past. Empty once it counts no more.
    Pass(RefCell<Option<Pass>>),
}

impl Counted {
    pub(super) fn orphan(lock: Arc<TrackedLock>, id: OrphanId, orphans: IntGauge) -> Counted {
        lock.set_heard(id, true);
        Counted::Orphan { lock, id, _among_orphans: OneMore::new(orphans) }
    }

    pub(super) fn pass(pass: Pass) -> Counted {
        Counted::Pass(RefCell::new(Some(pass)))
    }

    /// Whether it still counts.
    fn counts(&self) -> bool {
        match self {
            Counted::Orphan { lock, id, .. } => lock.counts_orphan(*id),
            Counted::Pass(pass) => pass.borrow().is_some(),
        }
    }

    /// It counts no more. False if it did not before.
    fn end(&self) -> bool {
        match self {
            Counted::Orphan { lock, id, .. } => lock.end_orphan(*id),
            Counted::Pass(pass) => pass.take().is_some(),
        }
    }
}

impl Unseen {
    /// Its `connection` is reset before it ceases to count.
    pub(super) fn new(
        counted: Counted,
        until: Instant,
        context: Rc<RequestContext>,
        connection: Option<Weak<Socket>>,
    ) -> Unseen {
        let (counted, until) = (Rc::new(counted), Rc::new(Cell::new(until)));
        // Not in the thread's background work, since a process that drains need not wait for it.
        let outlive = outlive(Rc::clone(&counted), Rc::clone(&until), context, connection);
        let timer = tokio::task::spawn_local(outlive).abort_handle();
        Unseen { counted, until, timer }
    }

    /// When its time has come.
    pub(super) fn until(&self) -> Instant {
        self.until.get()
    }

    /// Puts its time off, unless it is over: then others may have been let in.
    pub(super) fn postpone(&self, until: Instant) {
        let until = until.max(self.until.get());
        self.until.set(until);
        if let Counted::Orphan { lock, id, .. } = &*self.counted {
            lock.postpone(*id, until);
        }
    }

    pub(super) fn end(self) {
        self.counted.end();
        self.timer.abort();
    }
}

impl Drop for Unseen {
    /// Nobody listens any more.
    fn drop(&mut self) {
        if let Counted::Orphan { lock, id, .. } = &*self.counted {
            lock.set_heard(*id, false);
        }
    }
}

/// Completes when that time has come and nothing is left to be read that would put it off. If nobody else has it, nobody reads.
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

/// Holds the lock for as long as an orphan of it counts, so that no cache forgets the gate that counts it, and ends the request
/// when its time has come: first its connection, which the kernel may hold bytes for, then its place in the counts.
async fn outlive(
    counted: Rc<Counted>,
    until: Rc<Cell<Instant>>,
    context: Rc<RequestContext>,
    connection: Option<Weak<Socket>>,
) {
    let _untimely = Untimely { counted: Rc::clone(&counted), context: Rc::clone(&context) };
    let is_due = match &*counted {
        Counted::Orphan { lock, id, .. } => orphan_is_due(lock, *id, &until).await,
        Counted::Pass(_) => {
            comes(&until).await;
            true
        }
    };
    if let Some(connection) = connection.and_then(|connection| connection.upgrade()) {
        connection.reset();
    }
    if is_due && counted.end() && matches!(&*counted, Counted::Orphan { .. }) {
        context.metrics().orphans_expired.inc();
    }
}

/// Waits for that time as long as the orphan counts; false if an operator has ended it.
async fn orphan_is_due(lock: &TrackedLock, id: OrphanId, until: &Rc<Cell<Instant>>) -> bool {
    let mut time = pin!(comes(until));
    loop {
        let cleared = lock.orphans_cleared();
        if !lock.counts_orphan(id) {
            return false;
        }
        tokio::select! {
            () = cleared => {}
            () = &mut time => return true,
        }
    }
}

/// Lives with the task that ends a request's time. If the task goes with its thread before, the process is told: nobody may have the gate
/// any more that counts the request, and so nobody could ask it.
struct Untimely {
    counted: Rc<Counted>,
    context: Rc<RequestContext>,
}

impl Drop for Untimely {
    fn drop(&mut self) {
        if self.counted.counts() {
            self.context.share.generation.process.leave_unseen();
        }
    }
}

/// One more, for as long as this lives.
pub(super) struct OneMore(IntGauge);

impl OneMore {
    fn new(gauge: IntGauge) -> OneMore {
        gauge.inc();
        OneMore(gauge)
    }
}

impl Drop for OneMore {
    fn drop(&mut self) {
        self.0.dec();
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::Pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll, Wake, Waker};
    use std::time::Duration;

    use fencepost_locks::{LockSource, LockSpec, MemoryStore, RecordFormat, SourceOptions, Timing};
    use fencepost_policy::{Admission, FenceToken, Layout, LockKey};

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    /// Counts how often anybody is woken.
    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Count>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A lock, and that many requests of its holder that have entered.
    async fn entered(requests: usize) -> (Arc<TrackedLock>, Vec<Admission>) {
        let store = MemoryStore::new();
        let revision = store.put("/k", "a");
        let (source, driver) = LockSource::build("test", SourceOptions::default(), store);
        let spec = LockSpec { key: LockKey::new("/k").unwrap(), format: RecordFormat::plain(Layout::Key).into() };
        let (lock, now) = (source.track(spec).unwrap(), Instant::now());
        tokio::select! {
            () = driver => panic!("nobody has stopped it"),
            read = lock.confirm(now, now + MINUTE) => read.unwrap(),
        }
        let token = FenceToken { owner: "a", revision };
        let timing = Timing { arrived: now, now, not_before: None, max_age: MINUTE, linearizable: false };
        let enter = || {
            let Ok(admission) = lock.enter(&token, &timing) else { panic!("it is the holder") };
            admission
        };
        let admissions = (0..requests).map(|_| enter()).collect();
        (lock, admissions)
    }

    /// With thousands of orphans at one gate each that came or went woke all the others: a worker that broke its connections kept a
    /// processor busy.
    #[tokio::test]
    async fn one_more_whose_end_is_not_seen_wakes_nobody_who_counts_another_and_an_operators_word_wakes_all() {
        let (lock, mut admissions) = entered(101).await;
        let (until, another) = (Instant::now() + MINUTE, admissions.pop().unwrap());
        let lost: Vec<_> = admissions.into_iter().map(|admission| lock.lose(admission, until)).collect();
        let at = Rc::new(Cell::new(until));
        let mut waits: Vec<Pin<Box<dyn Future<Output = bool> + '_>>> = Vec::new();
        for orphan in &lost {
            waits.push(Box::pin(orphan_is_due(&lock, *orphan, &at)));
        }
        let (count, waker) = {
            let count = Arc::<Count>::default();
            (Arc::clone(&count), Waker::from(count))
        };
        let mut look = || waits.iter_mut().map(|wait| wait.as_mut().poll(&mut Context::from_waker(&waker))).collect();
        let before: Vec<Poll<bool>> = look();
        assert!(before.iter().all(Poll::is_pending));

        let another = lock.lose(another, until);
        lock.set_heard(another, true);
        lock.set_heard(another, false);
        lock.end_orphan(another);
        assert_eq!(count.0.load(Ordering::Relaxed), 0);

        assert_eq!(lock.clear_orphans(), 100);
        assert_eq!(count.0.load(Ordering::Relaxed), 100);
        let after: Vec<Poll<bool>> = look();
        assert!(after.iter().all(|due| *due == Poll::Ready(false)), "they count no more");
    }
}
