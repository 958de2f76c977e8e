//! Whether the generator, the machine or the connections kept requests from being sent when they were due.

use std::time::Duration;

use serde_json::{Value, json};

use super::told::{milliseconds, percentiles};
use crate::drive::durations::Durations;
use crate::machine::CpuShare;

/// A thread that has, or wants, a CPU for more of the time than this sends later than it should.
const BUSY_MAX: f64 = 0.9;
/// How late one of a hundred requests may be sent before that is told.
const LATE_MAX: Duration = Duration::from_millis(5);
/// That one of a hundred.
const LATE_SHARE_MAX: f64 = 0.01;

/// What is known of whoever sent.
#[derive(Debug, Default)]
pub(super) struct Generator {
    /// Of the thread that had a CPU for most of the time.
    busiest: CpuShare,
    /// Of the thread that had one, or waited for one, for most of it.
    neediest: CpuShare,
    /// How late requests were sent for which a connection was free.
    lag: Durations,
    /// How long requests waited for a connection, all being taken.
    queued: Durations,
}

impl Generator {
    /// Whose threads had CPUs so.
    pub(super) fn new(threads: &[CpuShare], lag: Durations, queued: Durations) -> Generator {
        let most = |of: fn(&CpuShare) -> f64| threads.iter().copied().max_by(|one, two| of(one).total_cmp(&of(two)));
        let (busiest, neediest) =
            (most(|share| share.had).unwrap_or_default(), most(CpuShare::wanted).unwrap_or_default());
        Generator { busiest, neediest, lag, queued }
    }

    /// Whether it had no time to send faster, and figures are its own.
    fn was_the_limit(&self) -> bool {
        self.busiest.had > BUSY_MAX
    }

    /// Whether it wanted to be on a CPU, and others were.
    fn was_kept_waiting(&self) -> bool {
        !self.was_the_limit() && self.neediest.wanted() > BUSY_MAX
    }

    /// Whether it had too little time, for whatever reason.
    pub(super) fn was_disturbed(&self) -> bool {
        self.was_the_limit() || self.was_kept_waiting()
    }

    /// Whether it sent late what was due, for a reason that is not its own.
    fn was_late(&self) -> bool {
        !self.was_the_limit() && !self.was_kept_waiting() && self.lag.at(1.0 - LATE_SHARE_MAX) > Some(LATE_MAX)
    }

    /// How many requests waited long for a connection, if that is more than a few. A generator that was the limit takes its
    /// connections longer than they are needed: then this says nothing.
    fn long_queued(&self) -> Option<u64> {
        let (long, all) = (self.queued.above(LATE_MAX), self.queued.count() + self.lag.count());
        (!self.was_the_limit() && long as f64 > all as f64 * LATE_SHARE_MAX).then_some(long)
    }

    /// What lessens the worth of the figures, in words; whether connections have paused after requests that had failed, too.
    pub(super) fn warnings(&self, connections_paused: bool) -> Vec<String> {
        let mut warnings = Vec::new();
        let lag = milliseconds(self.lag.at(0.99));
        if self.was_the_limit() {
            warnings.push(format!(
                "the generator was the limit: its busiest thread had a CPU for {:.2} of the time. Use more --threads, a machine of its own, \
                 or less load",
                self.busiest.had
            ));
        }
        if self.was_kept_waiting() {
            warnings.push(format!(
                "the machine was shared: a thread of the generator had a CPU for {:.2} of the time, and for {:.2} waited for one that \
                 others had. It sent, and read answers, late by that",
                self.neediest.had, self.neediest.waited
            ));
        }
        if self.was_late() {
            warnings.push(format!(
                "requests were sent late (p99 {lag}, a connection being free) though the generator was not busy ({:.2} of a CPU): the machine \
                 was shared, or stood still. That is part of the latencies",
                self.busiest.had
            ));
        }
        if let Some(count) = self.long_queued() {
            let why = match connections_paused {
                true => "connections paused after requests that had failed, or answers were slow",
                false => "answers were slow, or there are too few --connections for them",
            };
            warnings.push(format!(
                "{count} requests waited more than {LATE_MAX:?} for a connection, all being taken (p99 {}). That is part of their latencies: {why}",
                milliseconds(self.queued.at(0.99))
            ));
        }
        warnings
    }

    /// The same for a program.
    pub(super) fn as_json(&self) -> Value {
        json!({
            "busy": self.busiest.had,
            "waited_for_cpu": self.neediest.waited,
            "cpu_measured_seconds": self.busiest.of.as_secs_f64(),
            "lag": percentiles(&self.lag),
            "waited_for_a_connection": percentiles(&self.queued),
            "was_the_limit": self.was_the_limit(),
            "shared_its_machine": self.was_kept_waiting(),
            "sent_late": self.was_late(),
        })
    }

    /// The same for people, in one line.
    pub(super) fn in_a_line(&self) -> String {
        format!(
            "busy {:.2} of a CPU, waited {:.2} for one, lag p99 {}",
            self.busiest.had,
            self.neediest.waited,
            milliseconds(self.lag.at(0.99))
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A generator of one thread that sent a hundred requests, so many of them late by that, for want of a connection or with one free.
    fn generator((had, waited): (f64, f64), late: u32, by: Duration, for_a_connection: bool) -> Generator {
        let (mut lag, mut queued) = (Durations::default(), Durations::default());
        (late..100).for_each(|_| lag.add(Duration::from_micros(50)));
        (0..late).for_each(|_| if for_a_connection { queued.add(by) } else { lag.add(by) });
        Generator::new(&[CpuShare { had, waited, of: Duration::from_secs(1) }], lag, queued)
    }

    const LATE: Duration = Duration::from_millis(20);

    #[track_caller]
    fn check(generator: &Generator, expected: &[&str]) {
        let warnings = generator.warnings(false);
        assert_eq!(warnings.len(), expected.len(), "{warnings:#?}");
        for (warning, expected) in warnings.iter().zip(expected) {
            assert!(warning.contains(expected), "{expected:?} is not in {warning:?}");
        }
    }

    #[test]
    fn only_a_generator_that_had_a_cpu_all_the_time_was_the_limit() {
        for (late, for_a_connection) in [(0, false), (50, false), (50, true)] {
            let busy = generator((0.95, 0.0), late, LATE, for_a_connection);
            check(&busy, &["the generator was the limit: its busiest thread had a CPU for 0.95"]);
            assert_eq!(busy.as_json()["was_the_limit"], true);
        }
        check(&generator((0.5, 0.1), 0, LATE, false), &[]);
    }

    /// It said that it was the limit itself, whatever others did on its machine.
    #[test]
    fn a_generator_that_sent_late_and_was_not_busy_says_what_it_was() {
        let shared = generator((0.5, 0.45), 50, LATE, false);
        check(
            &shared,
            &["the machine was shared: a thread of the generator had a CPU for 0.50 of the time, and for 0.45 waited"],
        );
        assert_eq!(shared.as_json()["was_the_limit"], false);
        check(&generator((0.3, 0.1), 50, LATE, false), &["sent late (p99 20.0"]);
        check(&generator((0.3, 0.1), 50, LATE, true), &["50 requests waited more than 5ms for a connection"]);
        check(&generator((0.5, 0.45), 50, LATE, true), &["the machine was shared", "for a connection"]);
    }

    #[test]
    fn a_few_late_requests_are_no_matter() {
        for for_a_connection in [false, true] {
            check(&generator((0.5, 0.1), 1, LATE, for_a_connection), &[]);
            check(&generator((0.5, 0.1), 50, Duration::from_millis(2), for_a_connection), &[]);
        }
    }

    #[test]
    fn of_many_threads_the_one_counts_that_was_worst_off() {
        let share = |had, waited| CpuShare { had, waited, of: Duration::from_secs(1) };
        let none = Durations::default;
        let threads = [share(0.1, 0.1), share(0.4, 0.55), share(0.6, 0.0)];
        let generator = Generator::new(&threads, none(), none());
        assert_eq!(generator.in_a_line(), "busy 0.60 of a CPU, waited 0.55 for one, lag p99 -");
        assert!(generator.was_kept_waiting());
    }
}
