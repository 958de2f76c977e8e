//! What the locks of a source have in common.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fencepost_policy::{Gate, Layout, LockKey, Moment, Predecessor, Revision};
use tokio::sync::{Notify, Semaphore, mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use super::registry::Registry;
use super::scope::Scope;
use super::tenures::Tenures;
use super::tracked::TrackedLock;
use super::trust::Trust;
use super::unknown::Unknown;
use crate::store::{KeyRange, RangeRead, StoreError};
use crate::sync::{Mutex, MutexGuard};

#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) name: Arc<str>,
    pub(crate) trust: Arc<Trust>,
    pub(crate) registry: Registry<TrackedLock>,
    pub(crate) unknown: Unknown,
    pub(crate) counts: Counts,
    /// For the reads that date scopes.
    pub(crate) window_turns: Semaphore,
    /// Who began or ceased to hold a lock.
    pub(crate) tenures: Tenures,
    /// The static locks have changed.
    pub(crate) statics_changed: Notify,
    /// What has to be watched has changed, or a new era has begun.
    pub(crate) watched_changed: Notify,
    /// Cached news admits from now on, because reads fail. All who wait for a read judge again.
    pub(crate) reads_fail: Notify,
    /// An operator has ended the orphans of a lock. Not one for each lock: it is rare, and there may be a million of them.
    pub(crate) orphans_cleared: Notify,
    commands: mpsc::UnboundedSender<Command>,
    period_nanos: AtomicU64,
    period_changed: Notify,
    health: Mutex<Health>,
    /// Where the gates' clock begins.
    origin: Instant,
    memory: Option<Arc<dyn GateMemory>>,
}

/// What is remembered of the gates of an earlier process.
pub trait GateMemory: Send + Sync + std::fmt::Debug {
    /// What is remembered of that lock's gate, whose tenures are those of that layout: revisions of another one's are no measure for them.
    fn of(&self, lock: &LockKey, layout: Layout) -> Option<Remembered>;

    /// Leaves out what an earlier process left at the worker of that lock, should its gate be made anew: an operator has said that none of it
    /// is running.
    fn clear(&self, lock: &LockKey);

    /// Takes note, without waiting for a disk, that the store went back, having been seen up to that revision. Called as soon as that is
    /// found, so that a later process knows of it whenever it knows that the store has grown beyond.
    fn distrust(&self, through: Revision);

    /// Leaves the tenures out of what is remembered from now on, and has a later process know that, without waiting for a disk: the operator
    /// has accepted that the store went back. The gates that there are start anew after this. So one that is made meanwhile does not begin
    /// with an old floor and keep it, and no tenure is recorded that begins anew and is forgotten with the old ones, or kept from being
    /// remembered by one of them.
    fn forget_tenures(&self);
}

/// What is remembered of a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remembered {
    /// The `first` revision of the last tenure that was let in; `None` if the store went back since, and that was accepted, or if the lock
    /// had another layout then.
    pub tenure: Option<Revision>,
    /// Until when requests may run that the earlier process left at the worker; `None` if it left none.
    pub until: Option<Instant>,
    /// Whether others' requests than that tenure's may be among them.
    pub others: bool,
}

/// What the handles of a source ask of its driver. Each kind is bounded: a lock asks for a read only if none is
/// asked for, a scope is begun once.
#[derive(Debug)]
pub(crate) enum Command {
    /// Serve that lock's slots.
    Read(Arc<TrackedLock>),
    /// Read that lock by itself, and serve its slots then: the read has begun with others', and theirs does not settle it.
    ReadOn(Arc<TrackedLock>),
    /// Keep that scope fresh.
    Begin(Arc<Scope>),
    /// Say that work goes on.
    Answer(oneshot::Sender<()>),
    /// Ask how the members are.
    AskMembers,
    /// The operator accepts that the store went back. Answers whether it had.
    Accept(oneshot::Sender<bool>),
    /// End.
    Stop,
}

/// How often the store was asked, and why.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) freshness: AtomicU64,
    pub(crate) windows: AtomicU64,
    pub(crate) confirms: AtomicU64,
    pub(crate) walks: AtomicU64,
    pub(crate) resumes: AtomicU64,
    pub(crate) watch_restarts: AtomicU64,
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// How the store has been of late.
#[derive(Debug, Clone, Default)]
pub(crate) struct Health {
    /// When the newest quorum read was sent that was answered.
    pub(crate) answered: Option<Instant>,
    /// When the newest freshness read was sent that was answered.
    pub(crate) fresh: Option<Instant>,
    /// The last failure, and whether it was the last thing that happened.
    pub(crate) last_error: Option<Arc<StoreError>>,
    pub(crate) last_failed: bool,
    /// Whether the store has failed since it last answered. That some keys may not be read is not counted.
    pub(crate) failing: bool,
    /// The same for being refused, which is something else than not to be answered.
    pub(crate) refused: bool,
    /// Keys of which it has been logged that we may not read them, as long as we may not.
    pub(crate) denied: Vec<KeyRange>,
    /// That the store went back has been logged.
    pub(crate) regression_told: bool,
}

/// How many scopes are read at once: thousands were more than a store could answer in the time of a read, and none was.
const WINDOWS_AT_ONCE: usize = 512;

/// How many ranges that may not be read are logged, and how many are remembered: what is not would keep others from being read and watched.
const DENIED_MAX: (usize, usize) = (16, 1024);

/// How old the last answer is, at least, where failing reads make a source one that is down.
const DOWN_AFTER_MIN: Duration = Duration::from_secs(1);

impl Health {
    /// Whether the store answers, as far as can be told by then; everything is read once a period.
    pub(crate) fn is_up(&self, now: Instant, period: Duration) -> bool {
        let Some(answered) = self.answered else { return false };
        let age = now.saturating_duration_since(answered);
        // A single read that is lost is no outage: the next one is due a period later. Five of them are all of `max_age`.
        let is_missed = self.last_failed && age >= (period * 2).max(DOWN_AFTER_MIN);
        !is_missed && age <= period * 5
    }

    /// Whether a scope of that range may not be read. It may have been asked for by one key of it, which it is asked for by again once there is
    /// a window.
    pub(crate) fn denies_scope(&self, range: &KeyRange) -> bool {
        self.denied.contains(range) || self.denied.contains(&KeyRange::Key(range.first_key().into()))
    }

    /// Takes note of a failure. Whether it is the first of its kind in a row.
    pub(crate) fn failed(&mut self, error: &Arc<StoreError>) -> bool {
        self.last_error = Some(Arc::clone(error));
        self.last_failed = true;
        match &**error {
            // Others that we may read are answered meanwhile: that ends no row.
            StoreError::Denied { range, .. } => {
                let known = self.denied.len();
                let is_new = known < DENIED_MAX.1 && !self.denied.contains(range);
                self.denied.extend(is_new.then(|| range.clone()));
                is_new && known < DENIED_MAX.0
            }
            StoreError::Refused(_)
            | StoreError::NoLogin(_)
            | StoreError::AnotherCluster { .. }
            | StoreError::ManyClusters { .. } => {
                self.failing = true;
                !std::mem::replace(&mut self.refused, true)
            }
            StoreError::Unavailable(_) | StoreError::Compacted => !std::mem::replace(&mut self.failing, true),
        }
    }

    /// Takes note of an answer to a read that was sent then. Whether it ends a row of failures.
    pub(crate) fn answered(&mut self, sent: Instant, ranges: &[RangeRead]) -> bool {
        self.answered = self.answered.max(Some(sent));
        self.last_failed = false;
        self.refused = false;
        let denied = self.denied.len();
        self.denied.retain(|range| ranges.iter().all(|read| read.range != *range));
        std::mem::take(&mut self.failing) || self.denied.len() < denied
    }
}

impl Common {
    pub(crate) fn new(
        name: &str,
        trust: Trust,
        period: Duration,
        memory: Option<Arc<dyn GateMemory>>,
        commands: mpsc::UnboundedSender<Command>,
    ) -> Common {
        let common = Common {
            name: name.into(),
            trust: Arc::new(trust),
            registry: Registry::default(),
            unknown: Unknown::new(),
            counts: Counts::default(),
            window_turns: Semaphore::new(WINDOWS_AT_ONCE),
            tenures: Tenures::default(),
            statics_changed: Notify::new(),
            watched_changed: Notify::new(),
            reads_fail: Notify::new(),
            orphans_cleared: Notify::new(),
            commands,
            period_nanos: AtomicU64::new(0),
            period_changed: Notify::new(),
            health: Mutex::new(Health::default()),
            origin: Instant::now(),
            memory,
        };
        common.set_period(period);
        common
    }

    pub(crate) fn set_period(&self, period: Duration) {
        let nanos = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX);
        self.period_nanos.store(nanos.max(1_000_000), Ordering::Relaxed);
        self.period_changed.notify_waiters();
    }

    pub(crate) fn period(&self) -> Duration {
        Duration::from_nanos(self.period_nanos.load(Ordering::Relaxed))
    }

    /// Completes when that part of a period has passed since then. Whoever waits for the end of a long one does not sit it out if it becomes
    /// a short one meanwhile.
    pub(crate) async fn part_of_period_after(&self, since: Instant, part: u32) {
        loop {
            let mut changed = pin!(self.period_changed.notified());
            changed.as_mut().enable();
            tokio::select! {
                biased;
                () = changed => {}
                () = sleep_until(since + self.period() / part) => return,
            }
        }
    }

    /// The gate of a lock that is tracked from now on. With a memory its tenures are recorded before they enter.
    pub(crate) fn new_gate(&self, lock: &LockKey, layout: Layout) -> Gate {
        match &self.memory {
            None => Gate::default(),
            Some(memory) => Gate::recording(memory.of(lock, layout).map(|remembered| Predecessor {
                tenure: remembered.tenure,
                until: remembered.until.map(|until| self.moment(until)),
                others: remembered.others,
            })),
        }
    }

    /// Takes note that a lock is refused which is not known, since too many are asked for: said while the store answers, for it may be its fault
    /// otherwise.
    pub(crate) fn refuse_unknown(&self) {
        let is_up = self.health().is_up(Instant::now(), self.period());
        if is_up {
            self.unknown.refuse(&self.name);
        }
    }

    /// See [`GateMemory::clear`].
    pub(crate) fn clear_left_behind(&self, lock: &LockKey) {
        self.memory.iter().for_each(|memory| memory.clear(lock));
    }

    /// Until when requests of that lock may run that an earlier process left at the worker, as a gate would be told that is made now.
    pub(crate) fn left_behind_until(&self, lock: &LockKey) -> Option<Instant> {
        self.memory.as_ref()?.of(lock, Layout::Key)?.until // Requests run, whatever the layout of the lock.
    }

    /// Has a later process know that the store went back.
    pub(crate) fn remember_distrust(&self) {
        let (memory, through) = (self.memory.iter(), self.trust.distrusted_through());
        memory.zip(through).for_each(|(memory, through)| memory.distrust(through));
    }

    /// Has the gates that are made from now on, and a later process, know of no tenure that was let in until now.
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
