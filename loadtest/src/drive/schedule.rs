//! When each request of an open loop is due.

use std::cell::Cell;
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use crate::machine::sleep_until;
use crate::stop::Stop;

/// How long after the end of a run its last requests may still be sent.
pub(crate) const GRACE: Duration = Duration::from_secs(1);

/// The requests of a run, at even distances. A free lane claims the next one and waits for it;
/// while all lanes are busy, requests become late.
#[derive(Debug)]
pub(crate) struct Schedule {
    begin: Instant,
    length: Duration,
    rate: NonZeroU64,
    claimed: Cell<u64>,
}

/// How many requests are due in a run of that length, at that rate.
pub(crate) fn due_within(length: Duration, rate: NonZeroU64) -> u64 {
    let due = length.as_nanos() * u128::from(rate.get()) / 1_000_000_000;
    u64::try_from(due).unwrap_or(u64::MAX)
}

impl Schedule {
    pub(crate) fn new(begin: Instant, length: Duration, rate: NonZeroU64) -> Schedule {
        Schedule { begin, length, rate, claimed: Cell::new(0) }
    }

    /// Waits until a request is due; `None` if there are no more. Returns since when it has been
    /// due, and whether its lane waited for it: then only the generator, or its machine, can make
    /// it late.
    pub(crate) async fn next(&self, stop: &Stop) -> Option<(Instant, bool)> {
        let (number, now) = (self.claimed.get(), Instant::now());
        let at = self.due_at(number);
        if !self.is_wanted(number, stop) || now > self.begin + self.length + GRACE {
            return None;
        }
        self.claimed.set(number + 1);
        tokio::select! {
            biased;
            () = sleep_until(at) => Some((at, at > now)),
            () = stop.stopped() => None,
        }
    }

    /// When each request became due that no lane has claimed.
    pub(crate) fn unsent(&self, stop: &Stop) -> impl Iterator<Item = Instant> {
        let unclaimed = (self.claimed.get()..).take_while(|number| self.is_wanted(*number, stop));
        unclaimed.map(|number| self.due_at(number))
    }

    /// Whether the request of this number, from 0, is due within the run.
    fn is_wanted(&self, number: u64, stop: &Stop) -> bool {
        let is_planned = number < due_within(self.length, self.rate);
        is_planned && stop.at().is_none_or(|stopped| self.due_at(number) <= stopped)
    }

    fn due_at(&self, number: u64) -> Instant {
        let nanoseconds = u128::from(number) * 1_000_000_000 / u128::from(self.rate.get());
        self.begin + Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(rate: u64, length: Duration) -> Schedule {
        Schedule::new(Instant::now(), length, NonZeroU64::new(rate).unwrap())
    }

    #[test]
    fn requests_are_due_at_even_distances() {
        let (schedule, stop) = (schedule(4, Duration::from_millis(2500)), Stop::never());
        let due = schedule.unsent(&stop).map(|due| (due - schedule.begin).as_millis());
        assert!(due.eq([0, 250, 500, 750, 1000, 1250, 1500, 1750, 2000, 2250]));
    }

    #[test]
    fn long_run_does_not_overflow() {
        let schedule = schedule(1_000_000, Duration::from_secs(86_400));
        assert!(schedule.is_wanted(86_399_999_999, &Stop::never()));
        assert!(!schedule.is_wanted(86_400_000_000, &Stop::never()));
        let expected = Duration::from_secs(86_399) + Duration::from_micros(1);
        assert_eq!(schedule.due_at(86_399_000_001) - schedule.begin, expected);
    }

    /// A stall must show in all requests that it delayed.
    #[tokio::test]
    async fn late_claim_is_due_since_its_time() {
        let mut schedule = schedule(10, Duration::from_secs(1));
        schedule.begin -= Duration::from_millis(250);
        for expected in [0, 100, 200] {
            let (at, was_awaited) = schedule.next(&Stop::never()).await.unwrap();
            let at = at - schedule.begin;
            assert_eq!((at, was_awaited), (Duration::from_millis(expected), false));
        }
    }

    #[tokio::test]
    async fn each_request_is_due_once() {
        let schedule = schedule(50, Duration::from_secs(1));
        let (stop, mut count) = (Stop::never(), 0);
        while let Some((at, _)) = schedule.next(&stop).await {
            assert!(at <= Instant::now(), "a request came before its time");
            count += 1;
        }
        assert_eq!((count, schedule.unsent(&stop).count()), (50, 0));
    }

    #[tokio::test]
    async fn stopped_run_has_what_was_due() {
        let (stopper, stopped) = tokio::sync::watch::channel(None);
        let stop = Stop::when_told(stopped);
        let schedule = schedule(1, Duration::from_secs(3600));
        let first = schedule.next(&stop).await;
        assert!(first.is_some_and(|(at, _)| at == schedule.begin));
        stopper.send_replace(Some(Instant::now()));
        assert_eq!(schedule.next(&stop).await, None);
        assert_eq!(schedule.unsent(&stop).count(), 0, "a request that is not due is not missed");
    }
}
