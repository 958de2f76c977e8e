//! When each request of an open loop is due.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::sync::Semaphore;

use super::stop::Stop;

/// How long requests that are due may still be sent after the end of a run.
pub(crate) const GRACE: Duration = Duration::from_secs(1);

/// The requests of one thread, at even distances: of all requests each so-many-th.
#[derive(Debug)]
pub(crate) struct Schedule {
    begin: Instant,
    /// Of all threads together, per second.
    rate: NonZeroU64,
    threads: u64,
    thread: u64,
    /// How many requests there are: of a run that is stopped, those that were due by then.
    total: AtomicU64,
    /// A permit for each request that is due and that no lane has taken. Closed when there will be no more.
    due: Semaphore,
    given: AtomicU64,
    taken: AtomicU64,
}

/// A request to be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    /// Since when it has been due.
    pub(crate) at: Instant,
    /// Whether its lane waited for it: it is late then only as far as the generator, or its machine, is. Otherwise all lanes were taken.
    pub(crate) was_awaited: bool,
}

/// How many requests are due in a run of that length, at that rate.
pub(crate) fn due_within(length: Duration, rate: NonZeroU64) -> u64 {
    u64::try_from(length.as_nanos() * u128::from(rate.get()) / 1_000_000_000).unwrap_or(u64::MAX)
}

impl Schedule {
    /// Of one of so many threads, which send at that rate together, for so long.
    pub(crate) fn new(begin: Instant, length: Duration, rate: NonZeroU64, (thread, threads): (u64, u64)) -> Schedule {
        let all = due_within(length, rate);
        let total = all / threads + u64::from(all % threads > thread);
        let [total, given, taken] = [total, 0, 0].map(AtomicU64::new);
        Schedule { begin, rate, threads, thread, total, due: Semaphore::new(0), given, taken }
    }

    /// Starts the clock, on a thread of its own: tokio's timers are a millisecond wide.
    pub(crate) fn start(self: &Arc<Schedule>, stop: &Arc<Stop>) -> anyhow::Result<()> {
        let (schedule, stop) = (Arc::clone(self), Arc::clone(stop));
        let clock = std::thread::Builder::new().name("clock".to_owned());
        clock.spawn(move || schedule.run(&stop)).context("cannot start a thread")?;
        Ok(())
    }

    /// Waits until a request is due; `None` if there are no more.
    pub(crate) async fn next(&self) -> Option<Due> {
        // The permit comes first, so that no request is sent before it is due.
        let was_awaited = match self.due.try_acquire() {
            Ok(permit) => {
                permit.forget();
                false
            }
            Err(_) => {
                self.due.acquire().await.ok()?.forget();
                true
            }
        };
        let number = self.taken.fetch_add(1, Ordering::SeqCst);
        if number + 1 == self.total.load(Ordering::SeqCst) {
            self.due.close();
        }
        Some(Due { at: self.due_at(number), was_awaited })
    }

    /// Since when each request has been due that was never sent, all lanes being taken.
    pub(crate) fn unsent(&self) -> impl Iterator<Item = Instant> + '_ {
        let unsent = self.taken.load(Ordering::SeqCst)..self.given.load(Ordering::SeqCst);
        unsent.map(|number| self.due_at(number))
    }

    /// When the request of this number, from 0, is due.
    fn due_at(&self, number: u64) -> Instant {
        let nanoseconds = u128::from(number * self.threads + self.thread) * 1_000_000_000 / u128::from(self.rate.get());
        self.begin + Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }

    fn run(&self, stop: &Stop) {
        let (total, mut given) = (self.total.load(Ordering::SeqCst), 0);
        while given < total && !stop.wait_until(self.due_at(given)) {
            let now = Instant::now();
            let before = given;
            while given < total && self.due_at(given) <= now {
                given += 1;
            }
            self.given.store(given, Ordering::SeqCst);
            // Fewer than there can ever be permits: as many requests as fit into a day.
            self.due.add_permits(usize::try_from(given - before).unwrap_or(0));
        }
        self.total.store(given, Ordering::SeqCst);
        // Whoever takes the last request closes this too, earlier. A closed semaphore takes back what a lane was given and has not seen yet.
        if self.taken.load(Ordering::SeqCst) < given {
            std::thread::sleep(GRACE);
        }
        self.due.close();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn of_thread(thread: u64, threads: u64, rate: u64, length: Duration) -> (Schedule, Instant) {
        let begin = Instant::now();
        (Schedule::new(begin, length, NonZeroU64::new(rate).unwrap(), (thread, threads)), begin)
    }

    #[test]
    fn threads_share_the_requests_at_even_distances() {
        let mut due = Vec::new();
        for thread in 0..3 {
            let (schedule, begin) = of_thread(thread, 3, 4, Duration::from_millis(2500));
            due.extend(
                (0..schedule.total.load(Ordering::SeqCst)).map(|number| (schedule.due_at(number) - begin).as_millis()),
            );
        }
        due.sort_unstable();
        assert_eq!(due, [0, 250, 500, 750, 1000, 1250, 1500, 1750, 2000, 2250]);
    }

    #[test]
    fn a_long_run_at_a_high_rate_does_not_overflow() {
        let (schedule, begin) = of_thread(0, 1, 1_000_000, Duration::from_secs(86_400));
        assert_eq!(schedule.total.load(Ordering::SeqCst), 86_400_000_000);
        assert_eq!(schedule.due_at(86_399_000_001) - begin, Duration::from_secs(86_399) + Duration::from_micros(1));
    }

    /// A stall must show in all the requests that it delayed: the due time is the schedule's, not that of the sending.
    #[tokio::test]
    async fn a_request_that_waited_for_a_lane_is_due_since_its_time() {
        let (schedule, begin) = of_thread(0, 1, 10, Duration::from_secs(1));
        schedule.due.add_permits(3);
        for expected in [0, 100, 200] {
            let due = schedule.next().await.unwrap();
            assert_eq!((due.at - begin, due.was_awaited), (Duration::from_millis(expected), false));
        }
    }

    #[tokio::test]
    async fn each_request_is_due_once_and_then_there_are_no_more() {
        let (schedule, _) = of_thread(0, 1, 50, Duration::from_secs(1));
        let schedule = Arc::new(schedule);
        schedule.start(&Arc::default()).unwrap();
        let mut count = 0;
        while let Some(due) = schedule.next().await {
            assert!(due.at <= Instant::now(), "a request came before its time");
            count += 1;
        }
        assert_eq!((count, schedule.unsent().count()), (50, 0));
    }

    #[tokio::test]
    async fn a_run_that_is_stopped_has_no_more_requests() {
        let (schedule, _) = of_thread(0, 1, 1, Duration::from_secs(3600));
        let (schedule, stop) = (Arc::new(schedule), Arc::<Stop>::default());
        schedule.start(&stop).unwrap();
        assert!(schedule.next().await.is_some());
        stop.stop();
        assert_eq!(schedule.next().await, None);
        assert_eq!(schedule.unsent().count(), 0, "what was not due yet is not missed");
    }

    /// The lane is on this thread, and hears of its request only after the clock has seen the end of the run.
    #[tokio::test]
    async fn a_request_that_was_due_when_its_run_was_stopped_is_sent() {
        let (schedule, _) = of_thread(0, 1, 1, Duration::from_secs(3600));
        let (schedule, stop) = (Arc::new(schedule), Arc::<Stop>::default());
        let mut next = Box::pin(schedule.next());
        assert!(next.as_mut().now_or_never().is_none());
        let clock = std::thread::spawn({
            let (schedule, stop) = (Arc::clone(&schedule), Arc::clone(&stop));
            move || schedule.run(&stop)
        });
        while schedule.given.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        stop.stop();
        while schedule.total.load(Ordering::SeqCst) > 1 && !clock.is_finished() {
            std::thread::yield_now();
        }
        assert!(next.await.is_some());
        assert_eq!(schedule.next().await, None);
        assert_eq!(schedule.unsent().count(), 0);
    }
}
