//! Waits that end when they should: tokio's timers are a millisecond wide, which is a fifth of what the worker takes for a request.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::sync::oneshot;

/// A thread that wakes whoever waits. It never ends.
#[derive(Clone, Debug)]
pub(crate) struct Alarms(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<BinaryHeap<Waiting>>,
    changed: Condvar,
}

#[derive(Debug)]
struct Waiting {
    until: Instant,
    wake: oneshot::Sender<()>,
}

impl Alarms {
    /// Starts it.
    pub(crate) fn start() -> anyhow::Result<Alarms> {
        let shared = Arc::<Shared>::default();
        let thread = std::thread::Builder::new().name("alarms".to_owned());
        thread
            .spawn({
                let shared = Arc::clone(&shared);
                move || shared.run()
            })
            .context("cannot start a thread")?;
        Ok(Alarms(shared))
    }

    /// Completes when so much time has passed.
    pub(crate) async fn wait(&self, length: Duration) {
        let (wake, woken) = oneshot::channel();
        self.0.waiting().push(Waiting { until: Instant::now() + length, wake });
        self.0.changed.notify_one();
        let _ = woken.await; // The thread never ends before.
    }
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, BinaryHeap<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) -> ! {
        let mut waiting = self.waiting();
        loop {
            let now = Instant::now();
            while waiting.peek().is_some_and(|first| first.until <= now) {
                let _ = waiting.pop().map(|due| due.wake.send(())); // Its connection may be gone.
            }
            waiting = match waiting.peek().map(|first| first.until - now) {
                Some(rest) => self.changed.wait_timeout(waiting, rest).unwrap_or_else(PoisonError::into_inner).0,
                None => self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

/// The earliest is the greatest: a heap gives out that one first.
impl Ord for Waiting {
    fn cmp(&self, other: &Waiting) -> Ordering {
        other.until.cmp(&self.until)
    }
}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Waiting) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Waiting) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Waiting {}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn waits_end_in_the_order_of_their_times_and_none_too_early() {
        let alarms = Alarms::start().unwrap();
        let begun = Instant::now();
        let wait = async |milliseconds| {
            alarms.wait(Duration::from_millis(milliseconds)).await;
            begun.elapsed()
        };
        let (late, early, middle) = tokio::join!(wait(30), wait(10), wait(20));
        assert!(early < middle && middle < late, "{early:?} {middle:?} {late:?}");
        assert!(early >= Duration::from_millis(10) && late >= Duration::from_millis(30), "{early:?} {late:?}");
    }
}
