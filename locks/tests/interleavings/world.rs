//! What the tests have in common: a lock, a store's words about it, and threads that wait.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use bytes::Bytes;
use fencepost_policy::{Admission, EnterError, FenceToken, Layout, LockKey, Revision};
use loom::sync::{Condvar, Mutex};
use tokio::time::Instant;

use crate::cache::cache_view::Timing;
use crate::cache::common::{Common, Inbox};
use crate::cache::record::{LockSpec, RecordFormat};
use crate::cache::scope::Scope;
use crate::cache::tracked::TrackedLock;
use crate::cache::trust::Trust;
use crate::store::KeyValue;

pub(crate) const KEY: &str = "s/lock";

/// Runs it once for each interleaving, and for each value that the memory model lets a load show.
pub(crate) fn every_interleaving(of: impl Fn() + Sync + Send + 'static) {
    check(loom::model::Builder::new(), of);
}

/// Runs it once for each interleaving in which threads are interrupted so many times at most where
/// they could have gone on: for what would take too long otherwise.
pub(crate) fn interleavings_with_interruptions(max: usize, of: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = model.preemption_bound.or(Some(max));
    check(model, of);
}

fn check(model: loom::model::Builder, of: impl Fn() + Sync + Send + 'static) {
    // Deadlines want a timer. It is never driven: no deadline comes, so who waits for ever is found
    // out.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let _entered = runtime.enter();
    model.check(of);
}

pub(crate) fn revision(number: u64) -> Revision {
    Revision::new(number).unwrap()
}

pub(crate) fn spec() -> LockSpec {
    LockSpec { key: LockKey::new(KEY).unwrap(), format: RecordFormat::plain(Layout::Key).into() }
}

pub(crate) fn common(trust: Trust) -> (Arc<Common>, Inbox) {
    let (common, inbox) = Common::new("test", trust, Duration::from_secs(1), None, None);
    (Arc::new(common), inbox)
}

/// The lock, in the registry.
pub(crate) fn track(common: &Arc<Common>, scope: Option<Arc<Scope>>) -> Arc<TrackedLock> {
    let make = |spec| TrackedLock::new(spec, scope, Arc::clone(common));
    common.registry.find_or_make(spec(), make).unwrap()
}

/// Makes such a lock, with a watch of it that is up.
pub(crate) fn track_watched(common: &Arc<Common>, scope: Option<Arc<Scope>>) -> Arc<TrackedLock> {
    let (number, _) = common.trust.watch_caught_up();
    scope.iter().for_each(|scope| _ = scope.set_watched(Some(number)));
    let lock = track(common, scope);
    lock.set_watched(Some(number));
    lock
}

/// The lock's record as the owner that took it at that revision wrote it.
pub(crate) fn taken(owner: &'static str, at: u64) -> KeyValue {
    let at = revision(at);
    KeyValue {
        key: Bytes::from_static(KEY.as_bytes()),
        value: owner.into(),
        created: at,
        modified: at,
        version: 1,
    }
}

pub(crate) fn token(owner: &'static str, at: u64) -> FenceToken<&'static str> {
    FenceToken { owner, revision: revision(at) }
}

/// Of a request that takes news of any age.
pub(crate) fn any_news() -> Timing {
    let now = Instant::now();
    Timing {
        arrived: now,
        not_before: None,
        now,
        max_age: Duration::from_secs(3600),
        linearizable: false,
    }
}

/// Waits at the barrier as the last layer of the proxy does: the change is taken before the look,
/// and awaited after.
pub(crate) async fn enter_when_open(
    lock: &TrackedLock,
    token: &FenceToken<&'static str>,
) -> Result<Admission, EnterError> {
    loop {
        let changed = lock.gate_changed();
        match lock.enter(token, &any_news()) {
            Err(EnterError::Wait) => changed.await,
            entered => return entered,
        }
    }
}

/// Wakes a thread of loom's, never without cause.
#[derive(Debug)]
struct Parked {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        *self.woken.lock().unwrap() = true;
        self.changed.notify_one();
    }
}

/// Runs a future on a thread of loom's. One that is never woken is a deadlock, and fails the test.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let parked = Arc::new(Parked { woken: Mutex::new(false), changed: Condvar::new() });
    let waker = Waker::from(Arc::clone(&parked));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return result;
        }
        let mut woken = parked.woken.lock().unwrap();
        while !std::mem::take(&mut *woken) {
            woken = parked.changed.wait(woken).unwrap();
        }
    }
}
