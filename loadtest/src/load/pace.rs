//! When the next request is due.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::sync::Semaphore;

/// Says when requests are due, and when there are no more.
#[derive(Debug)]
pub(crate) enum Pace {
    /// As soon as the last one is answered.
    Closed { until: Instant },
    /// At a constant rate, whatever becomes of the earlier ones.
    Open(Arc<Schedule>),
}

/// Requests at a constant rate.
#[derive(Debug)]
pub(crate) struct Schedule {
    begin: Instant,
    rate: NonZeroU64,
    total: u64,
    /// A permit for each request that is due and that no lane has taken. Closed when there will be no more.
    due: Semaphore,
    taken: AtomicU64,
}

/// How long requests that are due may still be sent after the end of the run.
const GRACE: Duration = Duration::from_secs(1);

impl Pace {
    /// Closed loop for so long.
    pub(crate) fn closed(begin: Instant, duration: Duration) -> Pace {
        Pace::Closed { until: begin + duration }
    }

    /// Open loop for so long, with so many requests a second.
    pub(crate) fn open(begin: Instant, duration: Duration, rate: NonZeroU64) -> anyhow::Result<Pace> {
        let total = duration.as_secs().checked_mul(rate.get()).context("that many requests cannot be counted")?;
        let schedule = Schedule { begin, rate, total, due: Semaphore::new(0), taken: AtomicU64::new(0) };
        Ok(Pace::Open(Arc::new(schedule)))
    }

    /// Starts the clock, on a thread of its own: tokio's timers are a millisecond wide.
    pub(crate) fn start(&self) -> anyhow::Result<()> {
        if let Pace::Open(schedule) = self {
            let schedule = Arc::clone(schedule);
            let clock = std::thread::Builder::new().name("clock".to_owned());
            clock.spawn(move || schedule.run()).context("cannot start a thread")?;
        }
        Ok(())
    }

    /// Waits until a request is due, and says since when; `None` if there are no more.
    pub(crate) async fn next(&self) -> Option<Instant> {
        match self {
            Pace::Closed { until } => {
                let now = Instant::now();
                (now < *until).then_some(now)
            }
            Pace::Open(schedule) => schedule.next().await,
        }
    }

    /// How many requests were due and never sent: all lanes were busy.
    pub(crate) fn unsent(&self) -> u64 {
        match self {
            Pace::Closed { .. } => 0,
            Pace::Open(schedule) => schedule.due.available_permits() as u64,
        }
    }
}

impl Schedule {
    /// When the request of this number, from 0, is due.
    fn due_at(&self, number: u64) -> Instant {
        let rate = self.rate.get();
        let (seconds, rest) = (number / rate, number % rate);
        let nanoseconds = u128::from(rest) * 1_000_000_000 / u128::from(rate);
        let within = u64::try_from(nanoseconds).expect("less than a second is left");
        self.begin + Duration::from_secs(seconds) + Duration::from_nanos(within)
    }

    fn run(&self) {
        for number in 0..self.total {
            sleep_until(self.due_at(number));
            if self.due.is_closed() {
                return;
            }
            self.due.add_permits(1);
        }
        // Whoever takes the last request closes this too, earlier.
        sleep_until(self.due_at(self.total) + GRACE);
        self.due.close();
    }

    async fn next(&self) -> Option<Instant> {
        // The permit comes first, so that no request is sent before it is due.
        self.due.acquire().await.ok()?.forget();
        let number = self.taken.fetch_add(1, Ordering::Relaxed);
        if number + 1 == self.total {
            self.due.close();
        }
        Some(self.due_at(number))
    }
}

fn sleep_until(moment: Instant) {
    let wait = moment.saturating_duration_since(Instant::now());
    if !wait.is_zero() {
        std::thread::sleep(wait);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(seconds: u64, rate: u64) -> (Pace, Instant) {
        let begin = Instant::now();
        let rate = NonZeroU64::new(rate).unwrap();
        (Pace::open(begin, Duration::from_secs(seconds), rate).unwrap(), begin)
    }

    fn schedule(pace: &Pace) -> &Schedule {
        match pace {
            Pace::Open(schedule) => schedule,
            Pace::Closed { .. } => panic!("this pace is closed"),
        }
    }

    #[test]
    fn requests_are_due_at_even_distances() {
        let (pace, begin) = open(3, 4);
        let due = |number| schedule(&pace).due_at(number) - begin;
        assert_eq!([0, 1, 4, 11].map(due), [0, 250, 1000, 2750].map(Duration::from_millis));
    }

    #[test]
    fn a_long_run_at_a_high_rate_does_not_overflow() {
        let (pace, begin) = open(1_000_000, 1_000_000);
        let day = schedule(&pace).due_at(86_400_000_001) - begin;
        assert_eq!(day, Duration::from_secs(86_400) + Duration::from_micros(1));
    }

    /// A stall must show in all the requests that it delayed: the due time is the schedule's, not that of the sending.
    #[tokio::test]
    async fn a_request_that_waited_for_a_lane_is_due_since_its_time() {
        let (pace, begin) = open(1, 10);
        schedule(&pace).due.add_permits(3);
        let mut due = Vec::new();
        for _ in 0..3 {
            due.push(pace.next().await.unwrap() - begin);
        }
        assert_eq!(due, [0, 100, 200].map(Duration::from_millis));
    }

    #[tokio::test]
    async fn each_request_is_due_once_and_then_there_are_no_more() {
        let (pace, _) = open(1, 50);
        pace.start().unwrap();
        let mut count = 0;
        while let Some(due) = pace.next().await {
            assert!(due <= Instant::now(), "a request came before its time");
            count += 1;
        }
        assert_eq!((count, pace.unsent()), (50, 0));
    }

    #[test]
    fn what_no_lane_takes_is_unsent() {
        let (pace, _) = open(1, 10);
        schedule(&pace).due.add_permits(10);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async { pace.next().await.unwrap() });
        assert_eq!(pace.unsent(), 9);
    }

    #[tokio::test]
    async fn a_closed_loop_ends_in_time() {
        let begin = Instant::now();
        assert!(Pace::closed(begin, Duration::from_secs(3600)).next().await.is_some());
        assert!(Pace::closed(begin, Duration::ZERO).next().await.is_none());
    }
}
