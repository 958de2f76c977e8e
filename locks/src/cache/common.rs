//! What the locks of a source have in common.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fencepost_policy::{Gate, Layout, LockKey, Moment, Predecessor, Revision, Walk};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use super::health::Health;
use super::registry::Registry;
use super::slots::Unconfirmed;
use super::tenures::Tenures;
use super::tracked::TrackedLock;
use super::trust::{Sent, Trust};
use crate::group::{Membership, Request};
use crate::sync::{Mutex, MutexGuard};

/// How many locks without a record may wait to be read. Further ones are refused: names are easily
/// made up.
const UNKNOWN_MAX: usize = 6_400;

/// How many other locks may wait to be read: more than a process has.
const KNOWN_MAX: usize = 1 << 24;

/// How often the log says that some are refused.
const REFUSALS_TOLD_EVERY: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) name: Arc<str>,
    pub(crate) trust: Arc<Trust>,
    pub(crate) registry: Registry<TrackedLock>,
    pub(crate) counts: Counts,
    /// Who began or ceased to hold a lock.
    pub(crate) tenures: Tenures,
    /// Something has to be read at once: other locks are static, a template is new, or a watch has
    /// caught up.
    pub(crate) read_now: Notify,
    /// What has to be watched has changed, or a new era has begun.
    pub(crate) watched_changed: Notify,
    /// Cached news admits from now on, because reads fail. All who wait for a read judge again.
    pub(crate) reads_fail: Notify,
    /// An operator has ended the orphans of a lock. Not one for each lock: it is rare, and there
    /// may be a million of them.
    pub(crate) orphans_cleared: Notify,
    /// The members may be other than they were when they were last asked.
    pub(crate) members_due: Notify,
    commands: mpsc::UnboundedSender<Command>,
    reads: mpsc::Sender<Arc<TrackedLock>>,
    refreshes: mpsc::Sender<Arc<TrackedLock>>,
    reads_of_unknown: mpsc::Sender<Arc<TrackedLock>>,
    refusals_told: Mutex<Option<Instant>>,
    period_nanos: AtomicU64,
    period_changed: Notify,
    health: Mutex<Health>,
    /// Where the gates' clock begins.
    origin: Instant,
    memory: Option<Arc<dyn GateMemory>>,
    /// The group that shares the gates, if there is one.
    pub(crate) group: Option<Arc<Membership>>,
}

/// What is remembered of the gates of an earlier process.
pub trait GateMemory: Send + Sync + std::fmt::Debug {
    /// What is remembered of that lock's gate, whose tenures are those of that layout: revisions of
    /// another one's are no measure for them.
    fn of(&self, lock: &LockKey, layout: Layout) -> Option<Remembered>;

    /// Leaves out what an earlier process left at the worker of that lock, should its gate be made
    /// anew: an operator has said that none of it is running.
    fn clear(&self, lock: &LockKey);

    /// Takes note, without waiting for a disk, that the store went back, having been seen up to
    /// that revision. Called as soon as that is found, so that a later process knows of it whenever
    /// it knows that the store has grown beyond.
    fn distrust(&self, through: Revision);

    /// Leaves the tenures out of what is remembered from now on, and has a later process know that,
    /// without waiting for a disk: the operator has accepted that the store went back. The gates
    /// that there are start anew after this. So one that is made meanwhile does not begin with an
    /// old floor and keep it, and no tenure is recorded that begins anew and is forgotten with the
    /// old ones, or kept from being remembered by one of them.
    fn forget_tenures(&self);
}

/// What is remembered of a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remembered {
    /// The `first` revision of the last tenure that was let in; `None` if the store went back
    /// since, and that was accepted, or if the lock had another layout then.
    pub tenure: Option<Revision>,
    /// Until when requests may run that the earlier process left at the worker; `None` if it left
    /// none.
    pub until: Option<Instant>,
    /// Whether others' requests than that tenure's may be among them.
    pub others: bool,
}

/// What is asked of the driver of a source.
#[derive(Debug)]
pub(crate) enum Command {
    /// Look at the writes between what is known of that lock and what a read has shown.
    Walk(Arc<TrackedLock>, Sent, Box<Walk>),
    /// Say that work goes on.
    Answer(oneshot::Sender<()>),
    /// The operator accepts that the store went back. Answers whether it had.
    Accept(oneshot::Sender<bool>),
    /// End.
    Stop,
}

/// What reaches the driver of a source. Each lock waits at most once to be read.
#[derive(Debug)]
pub(crate) struct Inbox {
    pub(crate) commands: mpsc::UnboundedReceiver<Command>,
    /// Locks to be read.
    pub(crate) reads: mpsc::Receiver<Arc<TrackedLock>>,
    /// Locks to be read before their news are too old. Nobody waits for that.
    pub(crate) refreshes: mpsc::Receiver<Arc<TrackedLock>>,
    /// Locks of templates that have no record, as far as is known. Apart, so that made-up names
    /// hold up no lock in use.
    pub(crate) reads_of_unknown: mpsc::Receiver<Arc<TrackedLock>>,
    /// What is asked of this process's part in a group, if it has one.
    pub(crate) group_requests: Option<mpsc::UnboundedReceiver<Request>>,
}

/// How often the store was asked, and why.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) freshness: AtomicU64,
    pub(crate) confirms: AtomicU64,
    pub(crate) walks: AtomicU64,
    pub(crate) resumes: AtomicU64,
    pub(crate) watch_restarts: AtomicU64,
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Common {
    pub(crate) fn new(
        name: &str,
        trust: Trust,
        period: Duration,
        memory: Option<Arc<dyn GateMemory>>,
        group: Option<(Membership, mpsc::UnboundedReceiver<Request>)>,
    ) -> (Common, Inbox) {
        let (group, group_requests) = group.unzip();
        let (commands, commands_receiver) = mpsc::unbounded_channel();
        let (reads, reads_receiver) = mpsc::channel(KNOWN_MAX);
        let (refreshes, refreshes_receiver) = mpsc::channel(KNOWN_MAX);
        let (reads_of_unknown, unknown_receiver) = mpsc::channel(UNKNOWN_MAX);
        let inbox = Inbox {
            commands: commands_receiver,
            reads: reads_receiver,
            refreshes: refreshes_receiver,
            reads_of_unknown: unknown_receiver,
            group_requests,
        };
        let common = Common {
            name: name.into(),
            trust: Arc::new(trust),
            registry: Registry::default(),
            counts: Counts::default(),
            tenures: Tenures::default(),
            read_now: Notify::new(),
            watched_changed: Notify::new(),
            reads_fail: Notify::new(),
            orphans_cleared: Notify::new(),
            members_due: Notify::new(),
            commands,
            reads,
            refreshes,
            reads_of_unknown,
            refusals_told: Mutex::default(),
            period_nanos: AtomicU64::new(0),
            period_changed: Notify::new(),
            health: Mutex::new(Health::default()),
            origin: Instant::now(),
            memory,
            group: group.map(Arc::new),
        };
        common.set_period(period);
        (common, inbox)
    }

    pub(crate) fn set_period(&self, period: Duration) {
        let nanos = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX);
        self.period_nanos.store(nanos.max(1_000_000), Ordering::Relaxed);
        self.period_changed.notify_waiters();
    }

    pub(crate) fn period(&self) -> Duration {
        Duration::from_nanos(self.period_nanos.load(Ordering::Relaxed))
    }

    /// Completes when a period has passed since then, even if the period changes meanwhile.
    pub(crate) async fn period_after(&self, since: Instant) {
        loop {
            let mut changed = pin!(self.period_changed.notified());
            changed.as_mut().enable();
            tokio::select! {
                biased;
                () = changed => {}
                () = sleep_until(since + self.period()) => return,
            }
        }
    }

    /// The `first` revision of the tenure that was last let in under that lock, as far as that is
    /// remembered.
    pub(crate) fn let_in_before(&self, lock: &LockKey, layout: Layout) -> Option<Revision> {
        self.memory.as_ref()?.of(lock, layout)?.tenure
    }

    /// The gate of a lock that is tracked from now on. With a memory its tenures are recorded
    /// before they enter.
    pub(crate) fn new_gate(&self, lock: &LockKey, layout: Layout) -> Gate {
        match &self.memory {
            None => Gate::default(),
            Some(memory) => {
                Gate::recording(memory.of(lock, layout).map(|remembered| Predecessor {
                    tenure: remembered.tenure,
                    until: remembered.until.map(|until| self.moment(until)),
                    others: remembered.others,
                }))
            }
        }
    }

    /// Has the driver read a lock whose slots want it.
    pub(crate) fn queue_read(&self, lock: Arc<TrackedLock>) {
        let waiting = if lock.is_unknown() { &self.reads_of_unknown } else { &self.reads };
        self.queue(waiting, lock);
    }

    /// Has the driver read a lock soon, together with others.
    pub(crate) fn queue_refresh(&self, lock: Arc<TrackedLock>) {
        let waiting = if lock.is_unknown() { &self.reads_of_unknown } else { &self.refreshes };
        self.queue(waiting, lock);
    }

    fn queue(&self, waiting: &mpsc::Sender<Arc<TrackedLock>>, lock: Arc<TrackedLock>) {
        if let Err(TrySendError::Full(lock)) = waiting.try_send(lock) {
            self.note_refusal();
            while lock.slots().begin() {
                lock.slots().finish(Err(Unconfirmed::Overloaded));
            }
        }
    }

    /// Whether one more lock without a record is refused.
    pub(crate) fn is_overloaded(&self) -> bool {
        self.reads_of_unknown.capacity() == 0
    }

    /// Notes that a lock was refused because too many without a record wait to be read. The log
    /// says so while the store answers: otherwise the store may be the reason.
    pub(crate) fn note_refusal(&self) {
        let now = Instant::now();
        let is_up = self.health().is_up(now, self.period());
        let mut told = self.refusals_told.lock().expect("nothing panics while it holds this");
        if !is_up
            || told.is_some_and(|told| now.saturating_duration_since(told) < REFUSALS_TOLD_EVERY)
        {
            return;
        }
        *told = Some(now);
        tracing::warn!(
            source = %self.name,
            "locks that are not known are asked for faster than they are read: requests with such locks are refused (unverifiable), \
             true holders' among them if theirs is not known yet; that alone says nothing against the lock store"
        );
    }

    /// See [`GateMemory::clear`].
    pub(crate) fn clear_left_behind(&self, lock: &LockKey) {
        self.memory.iter().for_each(|memory| memory.clear(lock));
    }

    /// Until when requests of that lock may run that an earlier process left at the worker, as a
    /// gate would be told that is made now.
    pub(crate) fn left_behind_until(&self, lock: &LockKey) -> Option<Instant> {
        self.memory.as_ref()?.of(lock, Layout::Key)?.until // Requests run, whatever the layout of the lock.
    }

    /// Has a later process know that the store went back.
    pub(crate) fn remember_distrust(&self) {
        let (memory, through) = (self.memory.iter(), self.trust.all_distrusted_through());
        memory.zip(through).for_each(|(memory, through)| memory.distrust(through));
    }

    /// Has the gates that are made from now on, and a later process, know of no tenure that was let
    /// in until now.
    pub(crate) fn forget_tenures(&self) {
        self.memory.iter().for_each(|memory| memory.forget_tenures());
    }

    /// An instant on the gates' clock.
    pub(crate) fn moment(&self, instant: Instant) -> Moment {
        let since = instant.saturating_duration_since(self.origin);
        Moment(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }

    /// A moment of the gates' clock.
    pub(crate) fn instant(&self, moment: Moment) -> Instant {
        self.origin + Duration::from_nanos(moment.0)
    }

    /// Tells the driver, if there still is one.
    pub(crate) fn send(&self, command: Command) {
        let _ = self.commands.send(command);
    }

    /// Ends when the driver has ended.
    pub(crate) async fn stopped(&self) {
        self.commands.closed().await;
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.commands.is_closed()
    }

    pub(crate) fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().expect("nothing panics while it notes how the store is")
    }
}
