//! Who waits at the barrier of a lock, in the order in which they came.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Poll, Waker};

/// The requests that wait at the barrier of a lock, in the order in which they came, whatever their
/// threads.
///
/// The queue tracks whose turn it is. It does not track the barrier: each waiter checks that by
/// itself ([`TrackedLock::gate_changed`](crate::TrackedLock::gate_changed)). A request need not
/// queue while nobody in line was held up by the barrier. So a barrier that has opened is done with
/// its queue after as many turns as were waiting, however fast others come. A request that came
/// meanwhile keeps its place behind them.
#[derive(Debug, Default)]
pub struct Queue {
    /// Made for the first who joins: most locks never have anybody wait.
    line: OnceLock<Arc<Line>>,
}

#[derive(Debug, Default)]
struct Line {
    /// How many requests in line the barrier has held up. While that is zero, a request needs no
    /// mutex.
    held_up_in_line: AtomicUsize,
    places: Mutex<Places>,
}

#[derive(Debug, Default)]
struct Places {
    arrivals: u64,
    /// How many the barrier has held up, those too that stand aside.
    held_up: usize,
    /// Those in line, by the order of their arrival, with whom to wake when it is their turn.
    line: BTreeMap<u64, Option<Waker>>,
}

/// A place in a queue, kept until this is dropped.
#[derive(Debug)]
pub struct Queued {
    line: Arc<Line>,
    arrival: u64,
    is_held_up: bool,
}

/// Somebody stands aside until this is dropped.
#[derive(Debug)]
pub struct Aside<'q>(&'q Queued);

impl Queue {
    /// Whether a request that comes now overtakes nobody that the barrier has held up.
    pub fn is_clear(&self) -> bool {
        self.line.get().is_none_or(|line| line.held_up_in_line.load(Ordering::Acquire) == 0)
    }

    /// Takes the place at the end.
    pub fn join(&self) -> Queued {
        let line = self.line.get_or_init(Arc::default);
        let mut places = line.places();
        places.arrivals += 1;
        let arrival = places.arrivals;
        places.line.insert(arrival, None);
        Queued { line: Arc::clone(line), arrival, is_held_up: false }
    }
}

impl Line {
    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner) // Places are given up in panics too.
    }
}

impl Places {
    fn is_first(&self, arrival: u64) -> bool {
        self.line.first_key_value().is_some_and(|(first, _)| *first == arrival)
    }
}

impl Queued {
    /// Notes that the barrier holds it up, so that later requests queue behind it. Returns false if
    /// the barrier holds up `held_up_max` requests already.
    pub fn hold_up(&mut self, held_up_max: usize) -> bool {
        if self.is_held_up {
            return true;
        }
        let mut places = self.line.places();
        if places.held_up >= held_up_max {
            return false;
        }
        places.held_up += 1;
        self.line.held_up_in_line.fetch_add(1, Ordering::Release);
        self.is_held_up = true;
        true
    }

    /// Whether all who came before have left or stand aside.
    pub fn is_first(&self) -> bool {
        self.line.places().is_first(self.arrival)
    }

    /// Waits until [`Queued::is_first`] is true.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing: the place is kept until it is dropped itself.
    pub fn turn(&self) -> impl Future<Output = ()> + '_ {
        poll_fn(|cx| {
            let mut places = self.line.places();
            if places.is_first(self.arrival) {
                return Poll::Ready(());
            }
            if let Some(waker) = places.line.get_mut(&self.arrival) {
                *waker = Some(cx.waker().clone());
            }
            Poll::Pending
        })
    }

    /// Lets those pass who are ready. They keep their places: when it comes back, it is before all
    /// who came later.
    pub fn step_aside(&self) -> Aside<'_> {
        let next = self.leave_line(&mut self.line.places());
        next.into_iter().for_each(Waker::wake);
        Aside(self)
    }

    fn come_back(&self) {
        let mut places = self.line.places();
        places.line.insert(self.arrival, None);
        if self.is_held_up {
            self.line.held_up_in_line.fetch_add(1, Ordering::Release);
        }
    }

    /// Leaves the line. Returns the waker of the request whose turn it is now, if that has changed.
    fn leave_line(&self, places: &mut Places) -> Option<Waker> {
        let was_first = places.is_first(self.arrival);
        if places.line.remove(&self.arrival).is_some() && self.is_held_up {
            self.line.held_up_in_line.fetch_sub(1, Ordering::Release);
        }
        places.line.first_entry().filter(|_| was_first).and_then(|mut next| next.get_mut().take())
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        let mut places = self.line.places();
        places.held_up -= usize::from(self.is_held_up);
        let next = self.leave_line(&mut places);
        drop(places); // Whoever is woken may want it at once.
        next.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Aside<'_> {
    fn drop(&mut self) {
        self.0.come_back();
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
