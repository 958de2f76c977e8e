//! A request that has been let in, for as long as anything of it runs.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use fencepost_locks::TrackedLock;
use fencepost_policy::{Admission, FenceToken, LockKey, Owner, Revision, Term};
use http::HeaderValue;
use tokio::time::{Instant, timeout_at};

use crate::rules::{Rules, TIME_MAX};
use crate::shared::Shared;

/// Keeps a request at the worker: for as long as anybody has a clone of this, no request of a later tenure is let in.
///
/// The layer puts it into the extensions of each request that it lets in. A handler moves a clone into whatever it begins and
/// does not wait for: a task, a blocking call, an upgraded connection. A clone that is kept for ever locks all later holders out.
///
/// ```
/// # use fencepost_fence::Running;
/// # use http::Request;
/// # fn write_index() {}
/// async fn handle<B>(request: Request<B>) {
///     let running = request.extensions().get::<Running>().expect("the layer has put it there").clone();
///     tokio::task::spawn_blocking(move || {
///         // The next holder's requests wait for this, though the client may be gone and the handler with it.
///         while !running.has_ended() {
///             write_index();
///         }
///     });
/// }
/// ```
///
/// A panic drops its clones like any other code does, but nobody knows what it left behind: when the last clone of that request
/// is gone, the request counts on for `orphan_timeout`.
#[derive(Clone)]
pub struct Running(Arc<AtWorker>);

/// A place at the gate.
struct AtWorker {
    fence: Arc<Shared>,
    lock: Arc<TrackedLock>,
    /// `None` once it is given back.
    admission: Option<Admission>,
    term: Term,
    owner: Owner,
    revision: Revision,
    max_age: Duration,
    orphan_timeout: Duration,
    /// Something of it has panicked.
    panicked: AtomicBool,
    /// Of a layer farther out, where a request needs several locks.
    outer: Option<Running>,
}

impl Running {
    pub(crate) fn new(
        fence: Arc<Shared>,
        lock: Arc<TrackedLock>,
        token: &FenceToken<HeaderValue>,
        admission: Admission,
        rules: &Rules,
        outer: Option<Running>,
    ) -> Running {
        Running(Arc::new(AtWorker {
            outer,
            fence,
            lock,
            term: admission.term(),
            admission: Some(admission),
            owner: Owner::new(token.owner.as_bytes()),
            revision: token.revision,
            max_age: rules.max_age,
            orphan_timeout: rules.orphan_timeout,
            panicked: AtomicBool::new(false),
        }))
    }

    /// Waits until the tenure of this request has ended, as far as is known: somebody else may hold the lock, and waits for what
    /// still runs. Whoever can, stops early. Where a request needs several locks, one of them is enough.
    ///
    /// While etcd cannot be reached nobody knows of an end, and this does not complete. It has etcd asked once news of the lock are older
    /// than `max_age`: await it in a tokio runtime with its timer enabled.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn ended(&self) {
        self.tenures().ended().await;
    }

    /// Whether the tenure of this request has ended, as far as is known.
    pub fn has_ended(&self) -> bool {
        self.0.lock.has_ended(self.0.term) || self.0.outer.as_ref().is_some_and(Running::has_ended)
    }

    /// The revision that the request presented. Of two tenures, the later one's is higher: what is written with it can be
    /// checked once more, where it is stored.
    pub fn revision(&self) -> Revision {
        self.0.revision
    }

    /// The owner, as the request presented it.
    pub fn owner(&self) -> &Owner {
        &self.0.owner
    }

    /// The lock that guards the request.
    pub fn lock(&self) -> &LockKey {
        self.0.lock.key()
    }

    /// Something of it has panicked.
    fn note_panic(&self) {
        self.0.panicked.store(true, Ordering::Relaxed); // Read by whoever drops the last, after this.
        self.0.outer.iter().for_each(Running::note_panic);
    }

    /// The tenures that it needs, to follow them without keeping it.
    pub(crate) fn tenures(&self) -> Tenures {
        let outer = self.0.outer.as_ref().map_or_else(Vec::new, |outer| outer.tenures().0);
        let own = Needed { lock: Arc::clone(&self.0.lock), term: self.0.term, max_age: self.0.max_age };
        Tenures([own].into_iter().chain(outer).collect())
    }

    pub(crate) fn tracked(&self) -> &Arc<TrackedLock> {
        &self.0.lock
    }
}

/// The tenures that a request needs: one, unless there are several layers.
pub(crate) struct Tenures(Vec<Needed>);

struct Needed {
    lock: Arc<TrackedLock>,
    term: Term,
    max_age: Duration,
}

impl Tenures {
    /// Waits until one of them has ended.
    pub(crate) async fn ended(&self) {
        loop {
            let mut changes: Vec<_> = self.0.iter().map(|needed| Box::pin(needed.lock.gate_changed())).collect();
            // Looked at now that no change can be missed.
            if self.0.iter().any(|needed| needed.lock.has_ended(needed.term)) {
                return;
            }
            let now = Instant::now();
            let next_look = self.0.iter().map(|needed| needed.next_look(now)).min().expect("a request needs a lock");
            let changed = poll_fn(|cx| {
                let has_changed = changes.iter_mut().any(|change| change.as_mut().poll(cx).is_ready());
                if has_changed { Poll::Ready(()) } else { Poll::Pending }
            });
            let _ = timeout_at(next_look, changed).await; // Whichever it was: look again.
        }
    }
}

impl Needed {
    /// Returns when to look again.
    fn next_look(&self, now: Instant) -> Instant {
        now + self.lock.good_for(self.max_age, now).unwrap_or(self.max_age / 10)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if thread::panicking() {
            self.note_panic();
        }
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AtWorker { lock, owner, revision, .. } = &*self.0;
        f.debug_struct("Running")
            .field("lock", lock.key())
            .field("owner", owner)
            .field("revision", revision)
            .finish_non_exhaustive()
    }
}

impl Drop for AtWorker {
    fn drop(&mut self) {
        let Some(admission) = self.admission.take() else { return };
        if !self.panicked.load(Ordering::Relaxed) {
            return self.lock.leave(admission);
        }
        // Bounded here too: a panic in this place would end the process, or keep all later holders out for ever.
        let until = Instant::now() + self.orphan_timeout.min(TIME_MAX);
        let id = self.lock.lose(admission, until);
        tracing::warn!(
            lock = %self.lock.key(),
            owner = %self.owner,
            revision = self.revision.get(),
            orphan_timeout = ?self.orphan_timeout,
            "a request panicked: it counts as running for orphan_timeout"
        );
        self.fence.keep_orphan(Arc::clone(&self.lock), id, until);
    }
}
