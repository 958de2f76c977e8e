//! What every request counts: its verdict, how long that took, how long the worker took, and that
//! it is in flight.

use std::sync::Arc;
use std::time::Duration;

use fencepost_policy::Rejection;
use prometheus::core::{Collector, Metric};
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
};

use super::Registering;

// Each bound is at most two and a half times the one before: that close a quantile can be read off.
// Verdicts take microseconds, or the milliseconds of a confirming read.
const VERDICT_SECONDS: [f64; 20] = [
    1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05,
    0.1, 0.25, 0.5, 1.0, 2.0,
];
const UPSTREAM_SECONDS: [f64; 16] = [
    2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
];

const REASONS: usize = Rejection::ALL.len();

/// As what a request is counted, once it has a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// Its token was admitted.
    Admitted,
    /// It was let past because its method is exempt.
    Exempt,
    /// It was let past because its route is off.
    Off,
    /// It was let past by `on_unavailable = "dangerous_admit"`.
    Unverified,
    /// It was refused, or would have been if its route did more than watch: routes count by mode.
    Rejected(Rejection),
}

/// What the requests of a route in one mode count. Clones count the same.
#[derive(Debug, Clone)]
pub struct RequestCounts(Arc<Series>);

#[derive(Debug)]
struct Series {
    admitted: IntCounter,
    exempt: IntCounter,
    off: IntCounter,
    unverified: IntCounter,
    /// By the reason; refused or not.
    rejected: [IntCounter; REASONS],
    verdict_seconds: Histogram,
    upstream_seconds: Histogram,
    in_flight: IntGauge,
}

impl RequestCounts {
    /// How many were counted as that.
    pub fn of(&self, as_what: Counted) -> u64 {
        self.counter(as_what).get()
    }

    /// Counts what was decided on a request.
    pub fn count(&self, as_what: Counted) {
        self.counter(as_what).inc();
    }

    fn counter(&self, as_what: Counted) -> &IntCounter {
        match as_what {
            Counted::Admitted => &self.0.admitted,
            Counted::Exempt => &self.0.exempt,
            Counted::Off => &self.0.off,
            Counted::Unverified => &self.0.unverified,
            Counted::Rejected(reason) => &self.0.rejected[reason as usize],
        }
    }

    /// Notes how long it took from a request's arrival to the first verdict on it, which need not
    /// count: it may go no further.
    pub fn verdict_took(&self, took: Duration) {
        self.0.verdict_seconds.observe(took.as_secs_f64());
    }

    /// Notes how long it took from a request's first byte upstream to the head of its response.
    pub fn upstream_took(&self, took: Duration) {
        self.0.upstream_seconds.observe(took.as_secs_f64());
    }

    /// How many requests took how long to their first verdict.
    pub fn verdict_times(&self) -> Vec<(Bucket, u64)> {
        times(&self.0.verdict_seconds)
    }

    /// How many requests took how long from their first byte upstream to the response head.
    pub fn upstream_times(&self) -> Vec<(Bucket, u64)> {
        times(&self.0.upstream_seconds)
    }

    /// A request has arrived.
    pub fn begin(&self) {
        self.0.in_flight.inc();
    }

    /// Its response has ended.
    pub fn end(&self) {
        self.0.in_flight.dec();
    }
}

/// Times in seconds that count as one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bucket {
    /// Up to this bound, and above the one before.
    UpTo(f64),
    /// Above the last bound.
    Above(f64),
}

/// How many times there were in each bucket that has any.
fn times(histogram: &Histogram) -> Vec<(Bucket, u64)> {
    let histogram = histogram.metric();
    let histogram = histogram.get_histogram();
    let (mut below, mut last) = (0, 0.0);
    let mut times = Vec::new();
    for bucket in histogram.get_bucket() {
        times.push((Bucket::UpTo(bucket.upper_bound()), bucket.cumulative_count() - below));
        (below, last) = (bucket.cumulative_count(), bucket.upper_bound());
    }
    times.push((Bucket::Above(last), histogram.get_sample_count() - below));
    times.retain(|(_, count)| *count > 0);
    times
}

/// What the requests of all routes count.
#[derive(Debug, Clone)]
pub(super) struct Requests {
    total: IntCounterVec,
    verdict_seconds: HistogramVec,
    upstream_seconds: HistogramVec,
    in_flight: IntGaugeVec,
}

impl Requests {
    pub(super) fn new(made: &Registering<'_>) -> Result<Requests, prometheus::Error> {
        let verdict = HistogramOpts::new(
            "fencepost_verdict_seconds",
            "From a request's arrival to the first verdict on it.",
        );
        let upstream = HistogramOpts::new(
            "fencepost_upstream_seconds",
            "From a request's first byte upstream to the response head.",
        );
        Ok(Requests {
            total: made.counters(
                "fencepost_requests_total",
                "Requests by verdict.",
                &["route", "verdict", "reason", "mode"],
            )?,
            verdict_seconds: made
                .add(HistogramVec::new(verdict.buckets(VERDICT_SECONDS.to_vec()), &["route"]))?,
            upstream_seconds: made
                .add(HistogramVec::new(upstream.buckets(UPSTREAM_SECONDS.to_vec()), &["route"]))?,
            in_flight: made.gauges(
                "fencepost_in_flight",
                "Requests between arrival and the end of their response.",
                &["route"],
            )?,
        })
    }

    /// Those of a route. One that comes back under its name goes on counting.
    pub(super) fn route(&self, route: &str, mode: &str) -> RequestCounts {
        let counter =
            |verdict, reason| self.total.with_label_values(&[route, verdict, reason, mode]);
        RequestCounts(Arc::new(Series {
            admitted: counter("admit", "none"),
            exempt: counter("pass", "exempt"),
            off: counter("pass", "off"),
            unverified: counter("pass", Rejection::Unverifiable.code()),
            rejected: std::array::from_fn(|reason| {
                counter("reject", Rejection::ALL[reason].code())
            }),
            verdict_seconds: self.verdict_seconds.with_label_values(&[route]),
            upstream_seconds: self.upstream_seconds.with_label_values(&[route]),
            in_flight: self.in_flight.with_label_values(&[route]),
        }))
    }

    /// Requests in flight on all routes.
    pub(super) fn in_flight(&self) -> u64 {
        let families = self.in_flight.collect();
        let routes = families.iter().flat_map(|family| family.get_metric());
        routes.map(|route| route.get_gauge().get_value() as u64).sum()
    }

    /// Requests in flight on a route, also those that came when it had another mode.
    pub(super) fn in_flight_on(&self, route: &str) -> u64 {
        u64::try_from(self.in_flight.with_label_values(&[route]).get()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use prometheus::{Encoder, Registry, TextEncoder};

    use super::*;

    fn check(registry: &Registry, lines: &[&str]) {
        let mut text = Vec::new();
        TextEncoder::new().encode(&registry.gather(), &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        for line in lines {
            assert!(text.lines().any(|found| found == *line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn durations_are_counted_at_the_first_bound_that_they_do_not_exceed() {
        let registry = Registry::new();
        let requests = Requests::new(&Registering(&registry)).unwrap();
        let counts = requests.route("shards", "enforce");
        for nanos in [0, 1_000, 1_001, 2_000_000_000, 2_000_000_001, 60_000_000_000] {
            counts.verdict_took(Duration::from_nanos(nanos));
        }
        counts.upstream_took(Duration::from_millis(1));
        assert_eq!(
            counts.verdict_times(),
            [
                (Bucket::UpTo(1e-6), 2),
                (Bucket::UpTo(2e-6), 1),
                (Bucket::UpTo(2.0), 1),
                (Bucket::Above(2.0), 2)
            ]
        );
        check(
            &registry,
            &[
                r#"fencepost_verdict_seconds_bucket{route="shards",le="0.000001"} 2"#,
                r#"fencepost_verdict_seconds_bucket{route="shards",le="0.000002"} 3"#,
                r#"fencepost_verdict_seconds_bucket{route="shards",le="1"} 3"#,
                r#"fencepost_verdict_seconds_bucket{route="shards",le="2"} 4"#,
                r#"fencepost_verdict_seconds_bucket{route="shards",le="+Inf"} 6"#,
                r#"fencepost_verdict_seconds_count{route="shards"} 6"#,
                r#"fencepost_upstream_seconds_bucket{route="shards",le="0.0005"} 0"#,
                r#"fencepost_upstream_seconds_bucket{route="shards",le="0.001"} 1"#,
            ],
        );
    }

    #[test]
    fn a_route_is_one_in_whatever_mode_where_its_mode_is_not_told_apart() {
        let registry = Registry::new();
        let requests = Requests::new(&Registering(&registry)).unwrap();
        let [watching, fencing] = ["shadow", "enforce"].map(|mode| requests.route("shards", mode));
        watching.count(Counted::Rejected(Rejection::NoOwner));
        watching.upstream_took(Duration::from_secs(1));
        watching.begin();
        fencing.begin();
        fencing.count(Counted::Rejected(Rejection::NoOwner));
        fencing.count(Counted::Admitted);
        watching.end();
        check(
            &registry,
            &[
                r#"fencepost_requests_total{mode="shadow",reason="no-owner",route="shards",verdict="reject"} 1"#,
                r#"fencepost_requests_total{mode="enforce",reason="no-owner",route="shards",verdict="reject"} 1"#,
                r#"fencepost_requests_total{mode="enforce",reason="none",route="shards",verdict="admit"} 1"#,
                r#"fencepost_upstream_seconds_count{route="shards"} 1"#,
                r#"fencepost_in_flight{route="shards"} 1"#,
            ],
        );
        assert_eq!(
            (requests.in_flight(), requests.in_flight_on("shards"), requests.in_flight_on("other")),
            (1, 1, 0)
        );
    }
}
