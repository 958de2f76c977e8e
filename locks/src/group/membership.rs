//! What all threads of this process see of its part in a group.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fencepost_policy::group::{MemberId, Standing, Timing};
use fencepost_policy::{LockKey, Moment, Revision};
use rustix::rand::{GetRandomFlags, getrandom};
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, mpsc, oneshot};

use super::view::{GroupCounts, GroupView};
use crate::cache::tracked::TrackedLock;

/// How a process takes part in a group.
#[derive(Debug, Clone)]
pub struct GroupOptions {
    /// The name of the group.
    pub name: String,
    /// What the keys of its members begin with, in the store of the locks.
    pub prefix: String,
    /// How long a member may be silent, and its requests unseen.
    pub timing: Timing,
    /// What the others are to call this process.
    pub host: String,
    /// The version of this process.
    pub version: String,
}

/// What a member takes from its system. A simulation has a system of its own.
pub trait MemberSystem: fmt::Debug + Send + Sync {
    /// The time since the system started, also while it was suspended: a process that stood still
    /// sees how long that was. It is never 0.
    fn time(&self) -> Moment;

    /// A name that no earlier start of any process has.
    fn new_member(&self) -> MemberId;
}

/// The system that this process runs on.
#[derive(Debug)]
pub(crate) struct OwnSystem;

impl MemberSystem for OwnSystem {
    fn time(&self) -> Moment {
        let time = clock_gettime(ClockId::Boottime);
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        Moment(seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0))
    }

    fn new_member(&self) -> MemberId {
        let mut bits = [0; 16];
        let filled = getrandom(&mut bits, GetRandomFlags::empty());
        assert_eq!(filled, Ok(bits.len()), "the system has random bits");
        MemberId(u128::from_ne_bytes(bits))
    }
}

/// This process as a member of a group. Each request looks at it, and each write to a worker.
pub struct Membership {
    options: GroupOptions,
    system: Arc<dyn MemberSystem>,
    /// When the newest acknowledged write was sent, in nanoseconds of the system's time since its
    /// start; 0 while this process is no member.
    sent: AtomicU64,
    /// The revision at which it joined; 0 before.
    joined: AtomicU64,
    /// By how much the clock of its standing runs ahead, in nanoseconds; 0 but in tests.
    ahead: AtomicU64,
    requests: mpsc::UnboundedSender<Request>,
    changed: Notify,
    view: Mutex<Arc<GroupView>>,
    pub(super) counts: GroupCounts,
    unfenced: Mutex<Arc<IsUnfenced>>,
}

/// Whether the routes of a lock only watch it.
type IsUnfenced = dyn Fn(&LockKey) -> bool + Send + Sync;

/// What is asked of the driver.
#[derive(Debug)]
pub(crate) enum Request {
    /// The tenure that holds the lock wants to begin.
    Want(Arc<TrackedLock>),
    /// End in good order; answered once the others know.
    Leave(oneshot::Sender<()>),
    /// An operator says that a member is gone, and nothing of it at the worker. Answers whether
    /// there is such a member.
    Forget(MemberId, oneshot::Sender<bool>),
}

impl Membership {
    pub(crate) fn new(
        options: GroupOptions,
        system: Arc<dyn MemberSystem>,
    ) -> (Membership, mpsc::UnboundedReceiver<Request>) {
        let (requests, receiver) = mpsc::unbounded_channel();
        let membership = Membership {
            options,
            system,
            sent: AtomicU64::new(0),
            joined: AtomicU64::new(0),
            ahead: AtomicU64::new(0),
            requests,
            changed: Notify::new(),
            view: Mutex::default(),
            counts: GroupCounts::default(),
            unfenced: Mutex::new(Arc::new(|_| false)),
        };
        (membership, receiver)
    }

    /// How it takes part.
    pub fn options(&self) -> &GroupOptions {
        &self.options
    }

    /// What this process may do now. Look at it before each request is let in, and before each
    /// write to a worker.
    pub fn standing(&self) -> Standing {
        Standing::of(self.sent(), self.options.timing.member_ttl, self.now())
    }

    /// Whether it may let requests in.
    pub fn stands(&self) -> bool {
        self.standing() == Standing::Stands
    }

    /// Since which revision this process is a member, if it may let requests in: only news as of
    /// that revision or later may admit.
    pub fn stands_since(&self) -> Option<Revision> {
        if !self.stands() {
            return None;
        }
        Revision::new(self.joined.load(Ordering::Relaxed))
    }

    /// How long it is until the standing is another, unless a write is acknowledged before. `None`
    /// if it stays what it is.
    pub fn changes_in(&self) -> Option<Duration> {
        let ttl = self.options.timing.member_ttl;
        let since = self.now().0.saturating_sub(self.sent()?.0);
        let ends = [ttl * 2 / 3, ttl * 19 / 20];
        let until = |end: &Duration| end.checked_sub(Duration::from_nanos(since));
        ends.iter().filter_map(until).find(|time| !time.is_zero())
    }

    /// Completes when a write was acknowledged, or this process is a member no longer. To miss
    /// nothing, take it before looking, and await it after.
    pub fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Has the standing end so much sooner from now on. For tests: a wait of that length may take
    /// longer on a busy machine.
    pub fn set_clock_ahead(&self, by: Duration) {
        let nanos = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        self.ahead.store(nanos, Ordering::Relaxed);
        self.changed.notify_waiters();
    }

    /// Sets which locks are guarded by routes that only watch: this process cannot answer for
    /// those.
    pub fn set_unfenced(&self, is_unfenced: impl Fn(&LockKey) -> bool + Send + Sync + 'static) {
        *self.unfenced.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(is_unfenced);
    }

    /// Tells the others that this process ends in good order, and waits until they know.
    pub async fn leave(&self) {
        let (sender, answer) = oneshot::channel();
        let _ = self.requests.send(Request::Leave(sender)); // The driver may have ended.
        let _ = answer.await;
    }

    /// Takes the word of an operator that a member is gone, and nothing of it at the worker. False
    /// if no such member is known.
    pub async fn forget(&self, id: MemberId) -> bool {
        let (sender, answer) = oneshot::channel();
        let _ = self.requests.send(Request::Forget(id, sender)); // The driver may have ended.
        answer.await.unwrap_or(false)
    }

    /// What operators see of the group, as of a moment ago.
    pub fn view(&self) -> Arc<GroupView> {
        Arc::clone(&self.view.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What has been counted since the process started.
    pub fn counts(&self) -> &GroupCounts {
        &self.counts
    }

    pub(super) fn time(&self) -> Moment {
        self.system.time()
    }

    /// A name for another start.
    pub(super) fn new_member(&self) -> MemberId {
        self.system.new_member()
    }

    pub(crate) fn want(&self, lock: Arc<TrackedLock>) {
        let _ = self.requests.send(Request::Want(lock)); // The driver may have ended.
    }

    pub(super) fn is_unfenced(&self, lock: &LockKey) -> bool {
        let is_unfenced = Arc::clone(&self.unfenced.lock().unwrap_or_else(PoisonError::into_inner));
        is_unfenced(lock)
    }

    pub(super) fn joined_at(&self, revision: Revision) {
        self.joined.store(revision.get(), Ordering::Relaxed);
    }

    /// A write was acknowledged that was sent then; `None`: this process is a member no longer.
    pub(super) fn set_sent(&self, sent: Option<Moment>) {
        // Behind the revision of the join, for all who see this.
        self.sent.store(sent.map_or(0, |sent| sent.0), Ordering::Release);
        self.changed.notify_waiters();
    }

    pub(super) fn show(&self, view: GroupView) {
        *self.view.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(view);
    }

    fn now(&self) -> Moment {
        Moment(self.time().0.saturating_add(self.ahead.load(Ordering::Relaxed)))
    }

    fn sent(&self) -> Option<Moment> {
        Some(self.sent.load(Ordering::Acquire)).filter(|sent| *sent > 0).map(Moment)
    }
}

impl fmt::Debug for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Membership").field(&self.options.name).finish()
    }
}
