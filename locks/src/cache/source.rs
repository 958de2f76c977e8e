//! The handle of a source of locks.

mod status;

use std::sync::{Arc, Weak};
use std::time::Duration;
use std::{fmt, io};

use fencepost_policy::LockKey;
use tokio::sync::oneshot;
use tokio::task::LocalSet;
use tokio::time::Instant;

pub use self::status::{ReadCounts, SourceStatus};
use super::common::{Command, Common, Inbox};
use super::driver::{Driver, drive};
use super::record::{LockSpec, TemplateSpec};
use super::records::drive_records;
use super::registry::FormatConflict;
use super::scope::Scope;
use super::shared::{Shared, SourceOptions, lock_list};
use super::templated::TemplatedLocks;
use super::tenures::TenureChange;
use super::tracked::TrackedLock;
use super::trust::StorePast;
use crate::group::Membership;
use crate::record_store::RecordStore;
use crate::store::LockStore;

/// A source of locks: a cheap handle, for any thread. The source stops when [`LockSource::stop`] is
/// called, or when all handles are dropped; what is known then only ages.
#[derive(Clone)]
pub struct LockSource(Arc<Handle>);

/// Finds a source again for as long as anybody has a handle of it.
#[derive(Debug, Clone)]
pub struct WeakLockSource(Weak<Handle>);

impl WeakLockSource {
    /// The source, unless it has been stopped because nobody had a handle any more.
    pub fn upgrade(&self) -> Option<LockSource> {
        self.0.upgrade().map(LockSource)
    }
}

#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.common.send(Command::Stop);
    }
}

/// A source's thread could not be started.
#[derive(Debug, thiserror::Error)]
#[error("the thread of a lock source cannot be started")]
pub struct SpawnError(#[from] io::Error);

/// The source was stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the lock source was stopped")]
pub struct Stopped;

impl LockSource {
    /// Starts a source on a thread of its own, so that load can't make its news old. The store is
    /// made there, within a tokio runtime.
    ///
    /// # Errors
    /// [`SpawnError`] if the system gives no thread.
    pub fn spawn<S: LockStore>(
        name: &str,
        options: SourceOptions,
        make_store: impl FnOnce() -> S + Send + 'static,
    ) -> Result<LockSource, SpawnError> {
        let run = async move |shared, inbox| drive(shared, make_store(), inbox).await;
        LockSource::spawn_driver(name, options, run)
    }

    /// [`LockSource::spawn`] over a store of records that name their own tenures.
    ///
    /// # Errors
    /// [`SpawnError`] if the system gives no thread.
    pub fn spawn_records<S: RecordStore>(
        name: &str,
        options: SourceOptions,
        make_store: impl FnOnce() -> S + Send + 'static,
    ) -> Result<LockSource, SpawnError> {
        let run = async move |shared, inbox| drive_records(shared, make_store(), inbox).await;
        LockSource::spawn_driver(name, options, run)
    }

    fn spawn_driver(
        name: &str,
        options: SourceOptions,
        run: impl AsyncFnOnce(Arc<Shared>, Inbox) + Send + 'static,
    ) -> Result<LockSource, SpawnError> {
        let (shared, inbox) = Shared::new(name, options);
        let source = LockSource(Arc::new(Handle { shared: Arc::clone(&shared) }));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let run = move || LocalSet::new().block_on(&runtime, run(shared, inbox));
        std::thread::Builder::new().name(format!("locks-{name}")).spawn(run)?;
        Ok(source)
    }

    /// Makes a source and its driver. The source works while the caller polls the driver, within
    /// any tokio runtime.
    pub fn build<S: LockStore>(
        name: &str,
        options: SourceOptions,
        store: S,
    ) -> (LockSource, Driver) {
        let (shared, inbox) = Shared::new(name, options);
        let source = LockSource(Arc::new(Handle { shared: Arc::clone(&shared) }));
        (source, Box::pin(drive(shared, store, inbox)))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.common().name
    }

    /// Another way to find it, which does not keep it going.
    pub fn downgrade(&self) -> WeakLockSource {
        WeakLockSource(Arc::downgrade(&self.0))
    }

    /// What it has learnt of its store, and will learn: for the source that comes after it.
    pub fn past(&self) -> StorePast {
        StorePast::of(&self.common().trust)
    }

    /// Tracks a lock whose key is known beforehand, until [`LockSource::keep`] leaves it out. Equal
    /// keys give one lock, with one gate, for as long as anybody holds it.
    ///
    /// # Errors
    /// [`FormatConflict`] if the lock is tracked already, but its record is read in another way.
    pub fn track(&self, spec: LockSpec) -> Result<Arc<TrackedLock>, FormatConflict> {
        let common = self.common();
        let lock = common
            .registry
            .find_or_make(spec, |spec| TrackedLock::new(spec, None, Arc::clone(common)))?;
        let mut tracked = lock_list(&self.0.shared.static_locks);
        tracked.named.insert(lock.key().clone(), Arc::clone(&lock));
        let is_this = |other: &Weak<TrackedLock>| other.as_ptr() == Arc::as_ptr(&lock);
        let is_read = tracked.read.get(lock.key()).is_some_and(is_this);
        if !is_read {
            tracked.read.insert(lock.key().clone(), Arc::downgrade(&lock));
            common.read_now.notify_one();
        }
        Ok(lock)
    }

    /// Names all that is tracked from now on. Every other lock stays as it is while somebody holds
    /// it. It is forgotten after that, with its gate's floor: nothing of it is at the worker then.
    pub fn keep(&self, named: &[Arc<TrackedLock>], templates: &[TemplatedLocks]) {
        let shared = &self.0.shared;
        let named = named.iter().map(|lock| (lock.key().clone(), Arc::clone(lock))).collect();
        let mut tracked = lock_list(&shared.static_locks);
        let before = std::mem::replace(&mut tracked.named, named);
        drop(tracked);
        drop(before); // A lock's end looks for it in the registry.
        for scope in shared.scopes() {
            scope.set_kept(templates.iter().any(|template| Arc::ptr_eq(template.scope(), &scope)));
        }
        shared.kept.drop_unnamed();
    }

    /// The locks of a template, whose keys come with the requests. Equal templates give the same
    /// locks.
    pub fn template(&self, spec: &TemplateSpec) -> TemplatedLocks {
        let shared = &self.0.shared;
        let mut scopes = lock_list(&shared.scopes);
        let of_prefix = scopes.entry(spec.prefix.clone()).or_default();
        of_prefix.retain(|scope| scope.strong_count() > 0);
        let found = of_prefix
            .iter()
            .filter_map(Weak::upgrade)
            .find(|scope| scope.is_of(&spec.prefix, &spec.format));
        let scope = found.unwrap_or_else(|| {
            let scope = Arc::new(Scope::new(&spec.prefix, spec.format.clone()));
            of_prefix.push(Arc::downgrade(&scope));
            self.common().read_now.notify_one();
            scope
        });
        drop(scopes);
        TemplatedLocks::new(Arc::clone(shared), scope, spec.clone())
    }

    /// Every lock that is tracked, for the eyes of an operator.
    pub fn locks(&self) -> Vec<Arc<TrackedLock>> {
        let mut locks = self.common().registry.all();
        locks.sort_by(|a, b| a.key().cmp(b.key()));
        locks
    }

    /// The lock of that key, if it is tracked.
    pub fn find(&self, key: &str) -> Option<Arc<TrackedLock>> {
        self.common().registry.find(key)
    }

    /// Ends the wait for what an earlier process left at the worker of a lock whose gate has not
    /// been made: an operator has said that none of it is running. False if nothing of the kind is
    /// remembered.
    pub fn clear_left_behind(&self, key: &LockKey) -> bool {
        let is_left =
            self.common().left_behind_until(key).is_some_and(|until| until > Instant::now());
        if is_left {
            self.common().clear_left_behind(key);
        }
        is_left
    }

    /// Whether the source has started and every static lock has been read, or is too large.
    pub fn ready(&self) -> bool {
        self.has_started() && self.0.shared.named().iter().all(|lock| lock.is_answered())
    }

    /// Whether a watch has once been up of all that is tracked, and a quorum read that was sent
    /// since then has been applied to each lock and template. Locks and templates that may not be
    /// read are left out. A watch that is lost later does not make this false.
    pub fn has_started(&self) -> bool {
        self.0.shared.has_started()
    }

    /// Has the members asked once more how they are: there may be others.
    pub fn ask_members(&self) {
        self.common().members_due.notify_one();
    }

    /// Reads everything that often from now on: a fifth of the smallest `max_age`.
    pub fn set_period(&self, period: Duration) {
        self.common().set_period(period);
    }

    /// Completes when the source's thread gets to answer: it makes progress, whatever the store
    /// does.
    ///
    /// # Errors
    /// [`Stopped`] if nobody is there to answer.
    pub async fn answers(&self) -> Result<(), Stopped> {
        let (sender, answer) = oneshot::channel();
        self.common().send(Command::Answer(sender));
        answer.await.map_err(|_| Stopped)
    }

    /// Whether nobody is there any more who reads: it was stopped, or its thread has failed.
    pub fn has_ended(&self) -> bool {
        self.common().is_stopped()
    }

    /// Accepts that the store went back to what it was: what was learnt is forgotten, floors start
    /// anew. Says whether there was anything to accept; if not, nothing changes.
    ///
    /// # Errors
    /// [`Stopped`] if nobody is there to do it.
    pub async fn accept_regression(&self) -> Result<bool, Stopped> {
        let (sender, answer) = oneshot::channel();
        self.common().send(Command::Accept(sender));
        answer.await.map_err(|_| Stopped)
    }

    /// Who began or ceased to hold a lock since this was last called, in the order in which it was
    /// learnt; and how many such changes were lost because it was not called for too long.
    pub fn take_tenures(&self) -> (Vec<TenureChange>, u64) {
        self.common().tenures.take()
    }

    /// The group that shares the gates of its locks, if there is one.
    pub fn group(&self) -> Option<&Arc<Membership>> {
        self.common().group.as_ref()
    }

    /// Stops it, for all handles.
    pub fn stop(&self) {
        self.common().send(Command::Stop);
    }

    fn common(&self) -> &Arc<Common> {
        &self.0.shared.common
    }
}

impl fmt::Debug for LockSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LockSource").field(&self.name()).finish()
    }
}
