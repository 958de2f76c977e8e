//! Which endpoint to ask: the present one, and when it is suspect, the next.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

/// How long an endpoint is left alone after its first failure; twice as long after each further
/// one.
const BACKOFF_MIN: Duration = Duration::from_millis(10);

/// The longest that an endpoint is left alone.
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// What is known of the endpoints' health. Told the time, so that it needs no clock.
#[derive(Debug)]
pub(super) struct Health {
    conditions: Vec<Condition>,
    present: usize,
}

/// How one endpoint is.
#[derive(Debug, Clone, Default)]
struct Condition {
    /// Failures in a row: any makes it suspect.
    failures: u32,
    /// Not to be asked before; none for one that is not suspect.
    retry_at: Option<Instant>,
    /// What was wrong with it when it was last found not to be a member of our cluster.
    strange: Option<Arc<str>>,
}

/// An endpoint that may be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) index: usize,
    /// The earliest moment.
    pub(super) at: Instant,
}

impl Health {
    /// As many endpoints, none of them suspect.
    pub(super) fn new(endpoints: usize) -> Health {
        Health { conditions: vec![Condition::default(); endpoints], present: 0 }
    }

    /// All endpoints, the best first: the present one and those beside it that are not suspect,
    /// then the suspect ones by the time at which they may be asked again.
    pub(super) fn candidates(&self, now: Instant) -> Vec<Candidate> {
        let count = self.conditions.len();
        let mut ring: Vec<usize> = (0..count).map(|step| (self.present + step) % count).collect();
        ring.sort_by_key(|&index| self.conditions[index].retry_at);
        let at = |index: usize| {
            self.conditions[index].retry_at.map_or(now, |retry_at| retry_at.max(now))
        };
        ring.into_iter().map(|index| Candidate { index, at: at(index) }).collect()
    }

    /// An endpoint did not answer, or not in time. `jitter`, from 0 to 1, keeps many of us from
    /// coming back in step.
    pub(super) fn failed(&mut self, index: usize, now: Instant, jitter: f64) {
        let condition = &mut self.conditions[index];
        let doublings = condition.failures.min(16);
        let backoff = BACKOFF_MIN.saturating_mul(1 << doublings).min(BACKOFF_MAX);
        condition.failures = condition.failures.saturating_add(1);
        condition.retry_at = Some(now + backoff.mul_f64(0.5 + 0.5 * jitter.clamp(0.0, 1.0)));
        self.present = self.candidates(now)[0].index;
    }

    /// An endpoint is not a member of our cluster, for that reason. Whether it was not so before.
    pub(super) fn is_news(&mut self, index: usize, why: &str) -> bool {
        self.conditions[index].strange.replace(why.into()).as_deref() != Some(why)
    }

    /// An endpoint answered a read. It becomes the present one only if that is suspect: news of the
    /// watch, which hangs on the present one, is worth more than the fastest answer.
    pub(super) fn answered(&mut self, index: usize) {
        self.conditions[index] = Condition::default();
        if self.conditions[self.present].failures > 0 {
            self.present = index;
        }
    }

    /// A watch runs on an endpoint now. It becomes the present one, so that the reads will notice
    /// if it stops.
    pub(super) fn watched(&mut self, index: usize) {
        self.conditions[index] = Condition::default();
        self.present = index;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(health: &Health, now: Instant) -> Vec<usize> {
        health.candidates(now).into_iter().map(|candidate| candidate.index).collect()
    }

    #[test]
    fn the_present_endpoint_stays_until_it_fails() {
        let now = Instant::now();
        let mut health = Health::new(3);
        health.answered(2);
        assert_eq!(order(&health, now), [0, 1, 2], "an answer moves nothing");
        health.failed(0, now, 0.5);
        assert_eq!(order(&health, now), [1, 2, 0]);
        health.answered(0);
        assert_eq!(order(&health, now), [1, 2, 0], "one that came back waits for its turn");
        health.failed(1, now, 0.5);
        assert_eq!(order(&health, now), [2, 0, 1]);
    }

    #[test]
    fn first_to_answer_of_suspects_becomes_the_present_one() {
        let now = Instant::now();
        let mut health = Health::new(3);
        for index in [0, 1, 2, 0] {
            health.failed(index, now, 1.0);
        }
        assert_eq!(order(&health, now), [2, 1, 0], "the one that failed twice waits longest");
        health.answered(1);
        assert_eq!(order(&health, now), [1, 2, 0]);
    }

    #[test]
    fn the_endpoint_of_the_watch_is_the_one_that_is_read() {
        let now = Instant::now();
        let mut health = Health::new(3);
        health.watched(1);
        assert_eq!(order(&health, now), [1, 2, 0]);
    }

    /// It was logged about 8 times a second.
    #[test]
    fn endpoint_of_another_cluster_is_logged_once() {
        let mut health = Health::new(2);
        assert!(health.is_news(0, "of 7"));
        health.failed(0, Instant::now(), 0.5);
        assert!(!health.is_news(0, "of 7"));
        assert!(health.is_news(1, "of 7"), "so is another");
        assert!(health.is_news(0, "of 8"), "it is of yet another cluster");
        health.answered(0);
        assert!(health.is_news(0, "of 8"), "it was one of ours meanwhile");
        assert!(!health.is_news(1, "of 7"));
    }

    #[test]
    fn an_endpoint_is_left_alone_for_ten_milliseconds_to_one_second() {
        let now = Instant::now();
        let mut health = Health::new(1);
        let mut waits = Vec::new();
        for _ in 0..40 {
            health.failed(0, now, 1.0);
            waits.push((health.candidates(now)[0].at - now).as_millis());
        }
        assert_eq!(waits[..9], [10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
        assert_eq!(waits[39], 1000);
        health.answered(0);
        health.failed(0, now, 0.0);
        assert_eq!(health.candidates(now)[0].at - now, Duration::from_millis(5));
    }
}
