//! What one route counts.

use std::time::Duration;

use fencepost_fence::claim::Confirmed;
use prometheus::{Histogram, IntCounter, IntCounterVec, IntGauge};

use super::{Metrics, RequestCounts};
use crate::refusal::Failure;

/// How many outcomes of a confirming read are told apart.
const CONFIRMS: [&str; 3] = ["admitted", "refused", "failed"];

/// What stands for the route of what has none.
const NONE: &str = "none";

/// The counters of one route, looked up once.
#[derive(Debug)]
pub struct RouteMetrics {
    /// What all of its requests count.
    pub requests: RequestCounts,
    /// Those in flight that wait at a barrier.
    pub waiting: IntGauge,
    /// Requests of which something was cut because their tenure had ended, or might have.
    pub cut_requests: IntCounter,
    /// Requests that may be running at the worker, their end not having been seen.
    pub orphans: IntGauge,
    /// Those that counted for the whole of `orphan_timeout`.
    pub orphans_expired: IntCounter,
    confirms: [IntCounter; CONFIRMS.len()],
    /// Requests that passed the barrier by `on_handoff_timeout = "dangerous_proceed"`.
    pub dangerous_proceed: IntCounter,
    /// Requests let past by `on_unavailable = "dangerous_admit"`, each as often as it was.
    pub dangerous_admit: IntCounter,
    handoffs: IntCounter,
    handoff_wait_seconds: Histogram,
    failures: IntCounterVec,
    route: String,
}

/// Adds one to a gauge, until this is dropped.
pub struct OneMore(IntGauge);

impl OneMore {
    /// Adds one to the gauge.
    pub fn new(gauge: IntGauge) -> OneMore {
        gauge.inc();
        OneMore(gauge)
    }
}

impl Drop for OneMore {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl RouteMetrics {
    /// Confirming reads that ended so.
    pub fn confirmed(&self, confirmed: Confirmed) -> &IntCounter {
        &self.confirms[match confirmed {
            Confirmed::Admitted => 0,
            Confirmed::Refused(_) => 1,
            Confirmed::Unanswered => 2,
        }]
    }

    /// How many requests had to wait for those of an earlier tenure.
    pub fn handoffs(&self) -> u64 {
        self.handoffs.get()
    }

    /// Counts a request that had to wait for those of an earlier tenure, and for how long it did.
    pub fn handoff_waited(&self, waited: Duration) {
        self.handoffs.inc();
        self.handoff_wait_seconds.observe(waited.as_secs_f64());
    }

    /// Counts a request that the worker did not answer, or that went nowhere.
    pub fn failed(&self, failure: Failure) {
        self.failures.with_label_values(&[self.route.as_str(), failure.code()]).inc();
    }
}

impl Metrics {
    /// The counters of what has no route.
    pub fn unrouted(&self) -> RouteMetrics {
        self.begin_failures(NONE, |_| true);
        self.route(NONE, "enforce")
    }

    /// The counters of a route; `mode` is its mode's name in the configuration.
    pub fn route(&self, route: &str, mode: &str) -> RouteMetrics {
        self.begin_failures(route, Failure::may_be_on_a_route);
        RouteMetrics {
            requests: self.requests.route(route, mode),
            waiting: self.waiting.with_label_values(&[route]),
            confirms: CONFIRMS.map(|outcome| self.confirms.with_label_values(&[route, outcome])),
            dangerous_proceed: self.dangerous.with_label_values(&[route, "on_handoff_timeout"]),
            dangerous_admit: self.dangerous.with_label_values(&[route, "on_unavailable"]),
            cut_requests: self.cut_requests.with_label_values(&[route]),
            orphans: self.orphans.with_label_values(&[route]),
            orphans_expired: self.orphans_expired.with_label_values(&[route]),
            handoffs: self.handoffs.with_label_values(&[route]),
            handoff_wait_seconds: self.handoff_wait_seconds.clone(),
            failures: self.failures.clone(),
            route: route.to_owned(),
        }
    }

    /// A series that began with its first failure would not show that one as a rise.
    fn begin_failures(&self, route: &str, may_be: impl Fn(Failure) -> bool) {
        for failure in Failure::ALL.into_iter().filter(|failure| may_be(*failure)) {
            self.failures.with_label_values(&[route, failure.code()]);
        }
    }
}
