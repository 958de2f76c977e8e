//! Finds the connection that has been idle the longest, so that it makes room for another client.
//! Does not close it: its own task does, when [`TrackedConnection::is_evicted`] says so.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// [`Entry::state`]: the connection has a request, or a response that its client has not read.
const BUSY: u64 = u64::MAX;
/// [`Entry::state`]: the connection is to close.
const EVICTED: u64 = u64::MAX - 1;

/// The open connections of a server, on all of its threads.
pub(super) struct IdleConnections {
    started: Instant,
    open: Mutex<HashMap<u64, Arc<Entry>>>,
    next_id: AtomicU64,
    /// Held by the one client that another slot is being made free for.
    one_by_one: tokio::sync::Mutex<()>,
    /// Whether a client waits for another's slot.
    is_wanted: AtomicBool,
    /// Notified when a connection becomes idle, or turns out not to be, while a client waits.
    changed: Notify,
}

/// A connection as other threads see it.
struct Entry {
    /// Since when the connection is idle, in microseconds after the server's start; or [`BUSY`], or
    /// [`EVICTED`].
    state: AtomicU64,
    task: Waker,
}

impl IdleConnections {
    pub(super) fn new() -> IdleConnections {
        IdleConnections {
            started: Instant::now(),
            open: Mutex::default(),
            next_id: AtomicU64::new(0),
            one_by_one: tokio::sync::Mutex::default(),
            is_wanted: AtomicBool::new(false),
            changed: Notify::new(),
        }
    }

    /// Tracks a connection, which is idle from now on. `task` is the waker of the task that serves
    /// it.
    pub(super) fn track(self: &Arc<Self>, task: Waker) -> TrackedConnection {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let entry = Arc::new(Entry { state: AtomicU64::new(BUSY), task });
        self.open().insert(id, Arc::clone(&entry));
        let tracked = TrackedConnection { idle: Arc::clone(self), id, entry };
        tracked.end();
        tracked
    }

    /// Wakes the tasks of all connections.
    pub(super) fn wake_all(&self) {
        self.open().values().for_each(|entry| entry.task.wake_by_ref());
    }

    /// Evicts connections, the one that has been idle the longest first, until `freed` completes.
    /// Where none is idle, it waits.
    pub(super) async fn evict_until<T>(&self, freed: impl Future<Output = T>) -> T {
        let _guard = self.one_by_one.lock().await;
        let (mut freed, mut evicted) = (pin!(freed), None::<Arc<Entry>>);
        loop {
            let changed = self.changed.notified();
            self.is_wanted.store(true, Ordering::SeqCst); // Before the look: who becomes idle later sees it.
            if evicted.as_ref().is_none_or(|entry| entry.state.load(Ordering::SeqCst) != EVICTED) {
                evicted = self.evict_oldest();
            }
            tokio::select! {
                biased;
                freed = &mut freed => {
                    self.is_wanted.store(false, Ordering::SeqCst);
                    return freed;
                }
                () = changed => {}
            }
        }
    }

    /// Evicts the connection that has been idle the longest, if any is idle.
    fn evict_oldest(&self) -> Option<Arc<Entry>> {
        let open = self.open();
        loop {
            let with_state = open.values().map(|entry| (entry.state.load(Ordering::SeqCst), entry));
            let idle = with_state.filter(|(state, _)| *state < EVICTED);
            let (since, entry) = idle.min_by_key(|(since, _)| *since)?;
            // Another state: it has had a request meanwhile.
            let (order, failure) = (Ordering::SeqCst, Ordering::SeqCst);
            if entry.state.compare_exchange(since, EVICTED, order, failure).is_ok() {
                entry.task.wake_by_ref();
                return Some(Arc::clone(entry));
            }
        }
    }

    fn open(&self) -> MutexGuard<'_, HashMap<u64, Arc<Entry>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One connection among the [`IdleConnections`], until this is dropped.
pub(super) struct TrackedConnection {
    idle: Arc<IdleConnections>,
    id: u64,
    entry: Arc<Entry>,
}

impl TrackedConnection {
    /// It is busy from now on, even if it was to close.
    pub(super) fn begin(&self) {
        if self.entry.state.swap(BUSY, Ordering::SeqCst) == EVICTED {
            self.idle.changed.notify_one();
        }
    }

    /// It is idle from now on.
    pub(super) fn end(&self) {
        let since = u64::try_from(self.idle.started.elapsed().as_micros()).unwrap_or(EVICTED - 1);
        self.entry.state.store(since, Ordering::SeqCst);
        if self.idle.is_wanted.load(Ordering::SeqCst) {
            self.idle.changed.notify_one();
        }
    }

    /// Since when it is idle. `None` if it is busy, or to close.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let state = self.entry.state.load(Ordering::Relaxed);
        (state < EVICTED).then(|| self.idle.started + Duration::from_micros(state))
    }

    /// Whether it is to close.
    pub(super) fn is_evicted(&self) -> bool {
        self.entry.state.load(Ordering::Relaxed) == EVICTED
    }
}

impl Drop for TrackedConnection {
    fn drop(&mut self) {
        // It may be a candidate: evicting it would free nothing.
        self.entry.state.store(BUSY, Ordering::SeqCst);
        self.idle.open().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll};

    use super::*;

    fn poll<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Poll<T> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    /// Connections that have become idle one after the other, and time goes on.
    async fn three() -> (Arc<IdleConnections>, Vec<TrackedConnection>) {
        let idle = Arc::new(IdleConnections::new());
        let mut tracked = Vec::new();
        for _ in 0..3 {
            tracked.push(idle.track(Waker::noop().clone()));
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        (idle, tracked)
    }

    fn evicted(tracked: &[TrackedConnection]) -> Vec<usize> {
        (0..tracked.len()).filter(|index| tracked[*index].is_evicted()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn longest_idle_connection_makes_room() {
        let (idle, tracked) = three().await;
        tracked[0].begin();
        tracked[0].end();
        for expected in [vec![1], vec![1, 2], vec![0, 1, 2]] {
            let (free, freed) = tokio::sync::oneshot::channel::<()>();
            let mut evicting = pin!(idle.evict_until(freed));
            assert!(poll(evicting.as_mut()).is_pending() && poll(evicting.as_mut()).is_pending());
            assert_eq!(evicted(&tracked), expected);
            free.send(()).unwrap();
            assert!(poll(evicting).is_ready());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn closed_connection_is_no_candidate_any_more() {
        let (idle, mut tracked) = three().await;
        let (free, freed) = tokio::sync::oneshot::channel::<()>();
        let mut evicting = pin!(idle.evict_until(freed));
        assert!(poll(evicting.as_mut()).is_pending());
        free.send(()).unwrap();
        assert!(poll(evicting).is_ready());
        drop(tracked.remove(1));
        let mut evicting = pin!(idle.evict_until(std::future::pending::<()>()));
        assert!(poll(evicting.as_mut()).is_pending());
        assert_eq!(evicted(&tracked), [0, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn busy_connections_make_room_once_they_are_idle() {
        let (idle, tracked) = three().await;
        tracked.iter().for_each(TrackedConnection::begin);
        let mut evicting = pin!(idle.evict_until(std::future::pending::<()>()));
        assert!(poll(evicting.as_mut()).is_pending());
        assert!(evicted(&tracked).is_empty());
        tracked[1].end();
        assert!(poll(evicting.as_mut()).is_pending());
        assert_eq!(evicted(&tracked), [1]);
        // A request has come before it could close.
        tracked[1].begin();
        tracked[2].end();
        assert!(poll(evicting.as_mut()).is_pending());
        assert_eq!(evicted(&tracked), [2]);
    }

    #[tokio::test(start_paused = true)]
    async fn idle_time_begins_with_the_end_of_the_last_request() {
        let (_, tracked) = three().await;
        let connection = &tracked[0];
        connection.begin();
        assert_eq!(connection.idle_since(), None);
        tokio::time::advance(Duration::from_secs(5)).await;
        connection.end();
        assert_eq!(connection.idle_since(), Some(Instant::now()));
    }
}
