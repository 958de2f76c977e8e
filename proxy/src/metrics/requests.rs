//! What every request counts: its verdict, how long that took, how long the worker took, and that it is in flight.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencepost_policy::Rejection;
use prometheus::core::{Collector, Desc};
use prometheus::proto::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType};

use super::by_thread::{Part, Totals, add_to};
use crate::observe::lately::Refusals;

const MICROS: Duration = Duration::from_micros(1);

// Each bound is at most two and a half times the one before: that close a quantile can be read off. Verdicts take microseconds, or the
// milliseconds of a confirming read.
const VERDICT_MICROS: [u32; 20] = [
    1, 2, 5, 10, 20, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 2_000_000,
];
const UPSTREAM_MICROS: [u32; 16] = [
    250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000,
    10_000_000, 30_000_000,
];

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
    /// It was refused.
    Refused(Rejection),
    /// Its route only watches, and would have refused it.
    WouldBeRefused(Rejection),
}

// Where the numbers of a route stand in their row.
const REFUSED: usize = 0;
const WOULD_BE_REFUSED: usize = REFUSED + Rejection::ALL.len();
const ADMITTED: usize = WOULD_BE_REFUSED + Rejection::ALL.len();
const EXEMPT: usize = ADMITTED + 1;
const OFF: usize = EXEMPT + 1;
const UNVERIFIED: usize = OFF + 1;
const IN_FLIGHT: usize = UNVERIFIED + 1;
const VERDICT_SECONDS: Seconds =
    Seconds { first: IN_FLIGHT + 1, bounds_micros: &VERDICT_MICROS, unit: Duration::from_nanos(1) };
// Nanoseconds would come to their end within weeks where ten thousand requests wait all the time.
const UPSTREAM_SECONDS: Seconds =
    Seconds { first: VERDICT_SECONDS.end(), bounds_micros: &UPSTREAM_MICROS, unit: MICROS };
const NUMBERS: usize = UPSTREAM_SECONDS.end();

impl Counted {
    fn number(self) -> usize {
        match self {
            Counted::Admitted => ADMITTED,
            Counted::Exempt => EXEMPT,
            Counted::Off => OFF,
            Counted::Unverified => UNVERIFIED,
            Counted::Refused(reason) => REFUSED + reason as usize,
            Counted::WouldBeRefused(reason) => WOULD_BE_REFUSED + reason as usize,
        }
    }
}

/// A histogram in a row of numbers: a count for each bound and one for what is beyond them all, and the sum of what was observed.
#[derive(Clone, Copy)]
struct Seconds {
    first: usize,
    bounds_micros: &'static [u32],
    /// Of the sum.
    unit: Duration,
}

impl Seconds {
    const fn sum(self) -> usize {
        self.first + self.bounds_micros.len() + 1
    }

    const fn end(self) -> usize {
        self.sum() + 1
    }

    fn observe(self, part: &Part, took: Duration) {
        let bucket = self.bounds_micros.iter().position(|bound| took <= MICROS * *bound);
        part.add(self.first + bucket.unwrap_or(self.bounds_micros.len()), 1);
        part.add(self.sum(), u64::try_from(took.as_nanos() / self.unit.as_nanos()).unwrap_or(u64::MAX));
    }

    fn histogram(self, row: &[u64]) -> Histogram {
        let mut count = 0;
        let buckets = self.bounds_micros.iter().enumerate().map(|(index, bound)| {
            count += row[self.first + index];
            let mut bucket = Bucket::default();
            bucket.set_cumulative_count(count);
            bucket.set_upper_bound((MICROS * *bound).as_secs_f64());
            bucket
        });
        let buckets = buckets.collect();
        let mut histogram = Histogram::default();
        histogram.set_bucket(buckets);
        histogram.set_sample_count(count + row[self.first + self.bounds_micros.len()]);
        histogram.set_sample_sum(row[self.sum()] as f64 * self.unit.as_secs_f64());
        histogram
    }
}

/// What the requests of a route in one mode have counted, on all threads.
#[derive(Debug)]
pub struct RequestTotals(Arc<Totals>);

impl RequestTotals {
    /// What one thread counts.
    pub fn part(&self) -> RequestCounts {
        RequestCounts(self.0.part())
    }

    /// How many were counted as that.
    pub fn of(&self, as_what: Counted) -> u64 {
        self.0.row()[as_what.number()]
    }

    /// How many were refused, or would have been, for that reason.
    pub fn rejected(&self, reason: Rejection) -> u64 {
        self.of(Counted::Refused(reason)) + self.of(Counted::WouldBeRefused(reason))
    }
}

/// What the requests of a route have counted on one thread.
#[derive(Debug)]
pub struct RequestCounts(Part);

impl RequestCounts {
    /// Counts what was decided on a request.
    pub fn count(&self, as_what: Counted) {
        self.0.add(as_what.number(), 1);
    }

    /// Notes how long it took from a request's arrival to the first verdict on it, which need not count: it may go no further.
    pub fn verdict_took(&self, took: Duration) {
        VERDICT_SECONDS.observe(&self.0, took);
    }

    /// Notes how long it took from a request's first byte upstream to the head of its response.
    pub fn upstream_took(&self, took: Duration) {
        UPSTREAM_SECONDS.observe(&self.0, took);
    }

    /// A request has arrived.
    pub fn begin(&self) {
        self.0.add(IN_FLIGHT, 1);
    }

    /// Its response has ended.
    pub fn end(&self) {
        self.0.subtract(IN_FLIGHT, 1);
    }
}

/// Shows what the requests of all routes have counted. Clones show the same.
#[derive(Debug, Clone)]
pub(super) struct Requests {
    routes: Arc<Mutex<Routes>>,
    total: Desc,
    verdict_seconds: Desc,
    upstream_seconds: Desc,
    in_flight: Desc,
}

/// By the name of the route and that of its mode.
type Routes = BTreeMap<(String, String), Arc<Totals>>;

impl Requests {
    pub(super) fn new() -> Result<Requests, prometheus::Error> {
        let desc = |name: &str, help: &str, labels: &[&str]| {
            let labels = labels.iter().map(|label| (*label).to_owned()).collect();
            Desc::new(name.to_owned(), help.to_owned(), labels, HashMap::new())
        };
        Ok(Requests {
            routes: Arc::default(),
            total: desc("fencepost_requests_total", "Requests by verdict.", &["route", "verdict", "reason", "mode"])?,
            verdict_seconds: desc(
                "fencepost_verdict_seconds",
                "From a request's arrival to the first verdict on it.",
                &[],
            )?,
            upstream_seconds: desc(
                "fencepost_upstream_seconds",
                "From a request's first byte upstream to the response head.",
                &["route"],
            )?,
            in_flight: desc(
                "fencepost_in_flight",
                "Requests between arrival and the end of their response.",
                &["route"],
            )?,
        })
    }

    /// Those of a route. One that comes back under its name goes on counting.
    pub(super) fn route(&self, route: &str, mode: &str) -> RequestTotals {
        let totals = Arc::clone(
            self.routes().entry((route.to_owned(), mode.to_owned())).or_insert_with(|| Totals::new(NUMBERS)),
        );
        RequestTotals(totals)
    }

    /// How many were refused, or would have been, since the start, on all routes there were.
    pub(super) fn refused(&self) -> Refusals {
        let row = sum(self.routes().values());
        let reasons = |first| std::array::from_fn(|reason| row[first + reason]);
        Refusals { refused: reasons(REFUSED), would_be: reasons(WOULD_BE_REFUSED) }
    }

    /// Requests in flight on all routes.
    pub(super) fn in_flight(&self) -> u64 {
        sum(self.routes().values())[IN_FLIGHT]
    }

    /// Requests in flight on a route, also those that came when it had another mode.
    pub(super) fn in_flight_on(&self, route: &str) -> u64 {
        let routes = self.routes();
        let of_route = routes.iter().filter(|((name, _), _)| name == route);
        sum(of_route.map(|(_, totals)| totals))[IN_FLIGHT]
    }

    fn routes(&self) -> MutexGuard<'_, Routes> {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn sum<'t>(totals: impl Iterator<Item = &'t Arc<Totals>>) -> [u64; NUMBERS] {
    let mut sum = [0; NUMBERS];
    totals.for_each(|totals| add_to(&mut sum, totals.row().iter().copied()));
    sum
}

impl Collector for Requests {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.total, &self.verdict_seconds, &self.upstream_seconds, &self.in_flight]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let routes = self.routes();
        let by_verdict = routes.iter().flat_map(|((route, mode), totals)| by_verdict(route, mode, &totals.row()));
        let mut verdicts = Metric::default();
        verdicts.set_histogram(VERDICT_SECONDS.histogram(&sum(routes.values())));
        let mut by_route = BTreeMap::new();
        for ((route, _), totals) in &*routes {
            add_to(by_route.entry(route.as_str()).or_insert([0; NUMBERS]), totals.row().iter().copied());
        }
        let upstream = by_route.iter().map(|(route, row)| {
            let mut metric = Metric::from_label(labels([("route", route)]));
            metric.set_histogram(UPSTREAM_SECONDS.histogram(row));
            metric
        });
        let in_flight = by_route.iter().map(|(route, row)| {
            let mut gauge = Gauge::default();
            gauge.set_value(row[IN_FLIGHT] as f64);
            let mut metric = Metric::from_label(labels([("route", route)]));
            metric.set_gauge(gauge);
            metric
        });
        vec![
            family(&self.total, MetricType::COUNTER, by_verdict.collect()),
            family(&self.verdict_seconds, MetricType::HISTOGRAM, vec![verdicts]),
            family(&self.upstream_seconds, MetricType::HISTOGRAM, upstream.collect()),
            family(&self.in_flight, MetricType::GAUGE, in_flight.collect()),
        ]
    }
}

fn by_verdict(route: &str, mode: &str, row: &[u64]) -> Vec<Metric> {
    let counter = |verdict, reason, count: u64| {
        let labels = labels([("mode", mode), ("reason", reason), ("route", route), ("verdict", verdict)]);
        let mut counter = Counter::default();
        counter.set_value(count as f64);
        let mut metric = Metric::from_label(labels);
        metric.set_counter(counter);
        metric
    };
    let rejected = Rejection::ALL.iter().map(|reason| {
        let (refused, would_be) = (Counted::Refused(*reason), Counted::WouldBeRefused(*reason));
        counter("reject", reason.code(), row[refused.number()] + row[would_be.number()])
    });
    let others = [
        counter("admit", "none", row[ADMITTED]),
        counter("pass", "exempt", row[EXEMPT]),
        counter("pass", "off", row[OFF]),
        counter("pass", Rejection::Unverifiable.code(), row[UNVERIFIED]),
    ];
    others.into_iter().chain(rejected).collect()
}

fn family(desc: &Desc, kind: MetricType, metrics: Vec<Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(desc.fq_name.clone());
    family.set_help(desc.help.clone());
    family.set_field_type(kind);
    family.set_metric(metrics);
    family
}

/// In the order of their names.
fn labels<const N: usize>(labels: [(&str, &str); N]) -> Vec<LabelPair> {
    let pair = |(name, value): (&str, &str)| {
        let mut pair = LabelPair::default();
        pair.set_name(name.to_owned());
        pair.set_value(value.to_owned());
        pair
    };
    labels.map(pair).into()
}

#[cfg(test)]
mod tests {
    use prometheus::{Encoder, Registry, TextEncoder};

    use super::*;

    fn text(requests: &Requests) -> String {
        let registry = Registry::new();
        registry.register(Box::new(requests.clone())).unwrap();
        let mut text = Vec::new();
        TextEncoder::new().encode(&registry.gather(), &mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    fn check(text: &str, lines: &[&str]) {
        for line in lines {
            assert!(text.lines().any(|found| found == *line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn durations_are_counted_at_the_first_bound_that_they_do_not_exceed() {
        let requests = Requests::new().unwrap();
        let counts = requests.route("shards", "enforce").part();
        for nanos in [0, 1_000, 1_001, 2_000_000_000, 2_000_000_001, 60_000_000_000] {
            counts.verdict_took(Duration::from_nanos(nanos));
        }
        counts.upstream_took(Duration::from_millis(1));
        check(
            &text(&requests),
            &[
                r#"fencepost_verdict_seconds_bucket{le="0.000001"} 2"#,
                r#"fencepost_verdict_seconds_bucket{le="0.000002"} 3"#,
                r#"fencepost_verdict_seconds_bucket{le="1"} 3"#,
                r#"fencepost_verdict_seconds_bucket{le="2"} 4"#,
                r#"fencepost_verdict_seconds_bucket{le="+Inf"} 6"#,
                "fencepost_verdict_seconds_count 6",
                "fencepost_verdict_seconds_sum 64.000002002",
                r#"fencepost_upstream_seconds_bucket{route="shards",le="0.0005"} 0"#,
                r#"fencepost_upstream_seconds_bucket{route="shards",le="0.001"} 1"#,
            ],
        );
    }

    #[test]
    fn a_route_is_one_in_whatever_mode_where_its_mode_is_not_told_apart() {
        let requests = Requests::new().unwrap();
        let [watched, fenced] = ["shadow", "enforce"].map(|mode| requests.route("shards", mode));
        let (watching, fencing) = (watched.part(), fenced.part());
        watching.count(Counted::WouldBeRefused(Rejection::NoOwner));
        watching.upstream_took(Duration::from_secs(1));
        watching.begin();
        fencing.begin();
        fencing.count(Counted::Refused(Rejection::NoOwner));
        fencing.count(Counted::Admitted);
        watching.end();
        check(
            &text(&requests),
            &[
                r#"fencepost_requests_total{mode="shadow",reason="no-owner",route="shards",verdict="reject"} 1"#,
                r#"fencepost_requests_total{mode="enforce",reason="no-owner",route="shards",verdict="reject"} 1"#,
                r#"fencepost_requests_total{mode="enforce",reason="none",route="shards",verdict="admit"} 1"#,
                r#"fencepost_upstream_seconds_count{route="shards"} 1"#,
                r#"fencepost_in_flight{route="shards"} 1"#,
            ],
        );
        let counted = requests.refused();
        let no_owner = Rejection::NoOwner as usize;
        assert_eq!((counted.refused[no_owner], counted.would_be[no_owner]), (1, 1));
        watching.begin();
        assert_eq!((requests.in_flight(), requests.in_flight_on("shards"), requests.in_flight_on("others")), (2, 2, 0));
        assert_eq!(requests.route("shards", "enforce").of(Counted::Admitted), 1, "it goes on counting");
    }
}
