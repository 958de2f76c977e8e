//! A request's place at the worker: counted by the gate until all of the request is over, or until
//! nobody can see its end. It does not decide when a request is over.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use fencepost_locks::TrackedLock;
use fencepost_policy::{Admission, FenceToken, LockKey, OrphanId, Owner, Revision};
use http::HeaderValue;
use tokio::time::Instant;

use crate::rules::{Rules, TIME_MAX};
use crate::shared::Shared;
use crate::tenure::{Tenure, any_ended};

/// A request that the gate has counted in. It leaves the gate when this is dropped, unless it is
/// lost before.
#[derive(Debug)]
#[must_use = "a request counts for as long as its entry is there"]
pub struct Entry {
    lock: Arc<TrackedLock>,
    /// `None` once the gate has it back.
    admission: Option<Admission>,
}

/// A request whose end nobody has seen. The gate counts it until its time has come, or until
/// [`end`](Orphan::end). While this exists, no cache forgets the gate.
#[derive(Debug)]
pub struct Orphan {
    lock: Arc<TrackedLock>,
    id: OrphanId,
}

impl Entry {
    pub(crate) fn new(lock: Arc<TrackedLock>, admission: Admission) -> Entry {
        Entry { lock, admission: Some(admission) }
    }

    /// The tenure under which the request was admitted, judged by news that are not older than
    /// `max_age`.
    pub fn tenure(&self, max_age: Duration) -> Tenure {
        let admission = self
            .admission
            .as_ref()
            .expect("an entry has its admission until it is dropped or lost");
        Tenure::new(Arc::clone(&self.lock), admission.term(), max_age)
    }

    /// The request may still run at the worker, though nobody will see its end. It counts until
    /// then.
    pub fn lose(mut self, until: Instant) -> Orphan {
        let admission =
            self.admission.take().expect("an entry has its admission until it is dropped or lost");
        Orphan { id: self.lock.lose(admission, until), lock: Arc::clone(&self.lock) }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if let Some(admission) = self.admission.take() {
            self.lock.leave(admission);
        }
    }
}

impl Orphan {
    /// Lets it count until then at least, because its worker was heard of.
    pub fn postpone(&self, until: Instant) {
        self.lock.postpone(self.id, until);
    }

    /// Whether somebody reads what its worker says. As long as they do, only [`end`](Orphan::end)
    /// ends it, and no clock.
    pub fn set_heard(&self, is_heard: bool) {
        self.lock.set_heard(self.id, is_heard);
    }

    /// Whether it still counts.
    pub fn counts(&self) -> bool {
        self.lock.counts_orphan(self.id)
    }

    /// Ends it. False if it did not count any more.
    pub fn end(&self) -> bool {
        self.lock.end_orphan(self.id)
    }

    /// Completes when it counts no more because an operator has ended the lock's orphans.
    pub async fn cleared(&self) {
        loop {
            let cleared = self.lock.orphans_cleared();
            if !self.counts() {
                return;
            }
            cleared.await;
        }
    }
}

/// Keeps a request at the worker: no request of a later tenure is let in as long as a clone of this
/// exists.
///
/// The layer puts it into the extensions of each request that it lets in. A handler moves a clone
/// into whatever it begins and does not wait for: a task, a blocking call, an upgraded connection.
/// A clone that is kept for ever locks all later holders out.
///
/// ```
/// # use fencepost_fence::WorkerPermit;
/// # use http::Request;
/// # fn write_index() {}
/// async fn handle<B>(request: Request<B>) {
///     let permit = request.extensions().get::<WorkerPermit>().expect("the layer has put it there").clone();
///     tokio::task::spawn_blocking(move || {
///         // The next holder's requests wait for this, though the client may be gone and the handler with it.
///         while !permit.has_ended() {
///             write_index();
///         }
///     });
/// }
/// ```
///
/// A panic drops its clones too, but nobody knows what it left behind. So a request that has
/// panicked counts for another `orphan_timeout` after its last clone is gone.
#[derive(Clone)]
pub struct WorkerPermit(Arc<Held>);

struct Held {
    fence: Arc<Shared>,
    /// `None` once it is lost.
    entry: Option<Entry>,
    /// What the request needs: its own tenure first, then those of the layers farther out.
    tenures: Vec<Tenure>,
    owner: Owner,
    revision: Revision,
    orphan_timeout: Duration,
    /// Something of the request has panicked.
    panicked: AtomicBool,
    /// Of a layer farther out, where a request needs several locks.
    outer: Option<WorkerPermit>,
}

impl WorkerPermit {
    pub(crate) fn new(
        fence: Arc<Shared>,
        token: &FenceToken<HeaderValue>,
        entry: Entry,
        rules: &Rules,
        outer: Option<WorkerPermit>,
    ) -> WorkerPermit {
        let outer_tenures = outer.iter().flat_map(|outer| &outer.0.tenures).cloned();
        WorkerPermit(Arc::new(Held {
            tenures: [entry.tenure(rules.max_age)].into_iter().chain(outer_tenures).collect(),
            fence,
            entry: Some(entry),
            owner: Owner::new(token.owner.as_bytes()),
            revision: token.revision,
            orphan_timeout: rules.orphan_timeout,
            panicked: AtomicBool::new(false),
            outer,
        }))
    }

    /// Completes when the tenure of this request has ended, as far as is known. Another holder may
    /// wait for what still runs, so stop early if you can. Where a request needs several locks, the
    /// end of one of their tenures is enough.
    ///
    /// It does not complete while etcd cannot be reached. It has etcd asked once the news of the
    /// lock is older than `max_age`: await it in a tokio runtime with its timer enabled.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn ended(&self) {
        any_ended(&self.0.tenures).await;
    }

    /// Whether the tenure of this request has ended, as far as is known.
    pub fn has_ended(&self) -> bool {
        self.0.tenures.iter().any(Tenure::has_ended)
    }

    /// The revision that the request presents. A later tenure has a higher one, so a database can
    /// check it once more.
    pub fn revision(&self) -> Revision {
        self.0.revision
    }

    /// The owner, as the request presents it.
    pub fn owner(&self) -> &Owner {
        &self.0.owner
    }

    /// The lock that guards the request.
    pub fn lock(&self) -> &LockKey {
        self.0.tenures[0].lock().key()
    }

    /// The tenures that the request needs, its own first, to follow them without keeping the
    /// request.
    pub(crate) fn tenures(&self) -> &[Tenure] {
        &self.0.tenures
    }

    /// Something of the request has panicked.
    fn note_panic(&self) {
        self.0.panicked.store(true, Ordering::Relaxed); // Read when the last clone is dropped, after this.
        self.0.outer.iter().for_each(WorkerPermit::note_panic);
    }
}

impl Drop for WorkerPermit {
    fn drop(&mut self) {
        if thread::panicking() {
            self.note_panic();
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Otherwise the entry leaves the gate when it is dropped.
        let Some(entry) = self.entry.take_if(|_| self.panicked.load(Ordering::Relaxed)) else {
            return;
        };
        // Bounded here too: a panic in this place would end the process, or keep all later holders
        // out for ever.
        let until = Instant::now() + self.orphan_timeout.min(TIME_MAX);
        tracing::warn!(
            lock = %self.tenures[0].lock().key(),
            owner = %self.owner,
            revision = self.revision.get(),
            orphan_timeout = ?self.orphan_timeout,
            "a request panicked: it counts as running for orphan_timeout"
        );
        self.fence.keep_orphan(entry.lose(until), until);
    }
}

impl fmt::Debug for WorkerPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerPermit")
            .field("lock", self.lock())
            .field("owner", self.owner())
            .field("revision", &self.revision())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::{Context, Poll, Wake, Waker};

    use fencepost_locks::{LockSource, LockSpec, MemoryStore, RecordFormat, SourceOptions, Timing};
    use fencepost_policy::Layout;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    /// Counts wake-ups.
    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Count>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// That many requests of the holder of a lock.
    async fn entered(requests: usize) -> Vec<Entry> {
        let store = MemoryStore::new();
        let revision = store.put("/k", "a");
        let (source, driver) = LockSource::build("test", SourceOptions::default(), store);
        let spec = LockSpec {
            key: LockKey::new("/k").unwrap(),
            format: RecordFormat::plain(Layout::Key).into(),
        };
        let (lock, now) = (source.track(spec).unwrap(), Instant::now());
        tokio::select! {
            () = driver => panic!("nobody has stopped it"),
            read = lock.confirm(now, now + MINUTE) => read.unwrap(),
        }
        let token = FenceToken { owner: "a", revision };
        let timing =
            Timing { arrived: now, now, not_before: None, max_age: MINUTE, linearizable: false };
        (0..requests)
            .map(|_| Entry::new(Arc::clone(&lock), lock.enter(&token, &timing).unwrap()))
            .collect()
    }

    /// A worker that breaks its connections makes thousands of orphans: each that woke all others
    /// would keep a processor busy.
    #[tokio::test]
    async fn orphans_wake_each_other_only_when_cleared() {
        let mut entries = entered(101).await;
        let until = Instant::now() + MINUTE;
        let another = entries.pop().unwrap();
        let orphans: Vec<Orphan> = entries.into_iter().map(|entry| entry.lose(until)).collect();
        let mut waits: Vec<_> = orphans.iter().map(|orphan| Box::pin(orphan.cleared())).collect();
        let count = Arc::<Count>::default();
        let waker = Waker::from(Arc::clone(&count));
        let mut look = || {
            waits
                .iter_mut()
                .map(|wait| wait.as_mut().poll(&mut Context::from_waker(&waker)))
                .collect()
        };
        let before: Vec<Poll<()>> = look();
        assert!(before.iter().all(Poll::is_pending));

        let another = another.lose(until);
        another.set_heard(true);
        another.set_heard(false);
        assert!(another.end());
        assert_eq!(count.0.load(Ordering::Relaxed), 0);

        assert_eq!(orphans[0].lock.clear_orphans(), 100);
        assert_eq!(count.0.load(Ordering::Relaxed), 100);
        let after: Vec<Poll<()>> = look();
        assert!(after.iter().all(Poll::is_ready));
    }
}
