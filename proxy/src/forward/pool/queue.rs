//! Requests that wait for something of which each gets one.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use tokio::sync::oneshot;

use super::Wants;

/// Those who wait for a `T`, by the order in which they came. Each takes itself out: however many wait, one more or less takes few steps.
pub(super) struct Queue<T> {
    waiting: RefCell<BTreeMap<u64, (Wants, oneshot::Sender<T>)>>,
    /// How many have ever waited.
    arrivals: Cell<u64>,
}

/// A place among those who wait, until this is dropped.
pub(super) struct Waiting<'a, T> {
    queue: &'a Queue<T>,
    arrival: u64,
}

impl<T> Queue<T> {
    /// The place behind all who wait, and what is got there. `None` if `most` of them wait.
    pub(super) fn join(&self, wants: Wants, most: usize) -> Option<(Waiting<'_, T>, oneshot::Receiver<T>)> {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.len() >= most {
            return None;
        }
        let arrival = self.arrivals.get();
        self.arrivals.set(arrival + 1);
        let (waiter, turn) = oneshot::channel();
        waiting.insert(arrival, (wants, waiter));
        Some((Waiting { queue: self, arrival }, turn))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.borrow().is_empty()
    }

    /// Who has waited longest, and waits no more. It has not given up: on one thread it can't have before the next await.
    pub(super) fn next(&self) -> Option<oneshot::Sender<T>> {
        let (_, (_, waiter)) = self.waiting.borrow_mut().pop_first()?;
        Some(waiter)
    }

    /// All who take whatever the worker speaks. They wait no more.
    pub(super) fn take_those_who_take_either(&self) -> Vec<oneshot::Sender<T>> {
        let take = |_: &u64, (wants, _): &mut (Wants, _)| *wants == Wants::Either;
        self.waiting.borrow_mut().extract_if(.., take).map(|(_, (_, waiter))| waiter).collect()
    }
}

impl<T> Default for Queue<T> {
    fn default() -> Queue<T> {
        Queue { waiting: RefCell::default(), arrivals: Cell::new(0) }
    }
}

impl<T> Drop for Waiting<'_, T> {
    fn drop(&mut self) {
        self.queue.waiting.borrow_mut().remove(&self.arrival);
    }
}
