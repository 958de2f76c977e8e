//! What operators count. Registered once, handed down; label values come from enums and the
//! configuration, never from requests.

mod active_config;
mod group;
mod requests;
mod route;
mod sources;
#[cfg(test)]
mod tests;
mod tls;

use std::time::SystemTime;

use fencepost_config::Config;
use fencepost_locks::{Membership, SourceStatus};
use prometheus::core::Collector;
use prometheus::process_collector::ProcessCollector;
use prometheus::{
    Encoder, Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
    Opts, Registry, TextEncoder,
};

pub use requests::{Bucket, Counted, RequestCounts};
pub use route::{OneMore, RouteMetrics};
pub use tls::{HandshakeCounters, TlsMetrics, TlsReload, TlsUse};

use crate::server::Closing;

/// Every metric of the process.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Registry,
    requests: requests::Requests,
    /// Not in the registry, where these requests count as in flight. The admin listener's view of
    /// the routes shows it.
    waiting: IntGaugeVec,
    confirms: IntCounterVec,
    dangerous: IntCounterVec,
    cut_requests: IntCounterVec,
    orphans: IntGaugeVec,
    orphans_expired: IntCounterVec,
    handoffs: IntCounterVec,
    handoff_wait_seconds: Histogram,
    failures: IntCounterVec,
    connections: IntGauge,
    panics: IntCounter,
    connections_refused: IntCounter,
    connections_closed: IntCounterVec,
    decisions_lost: IntCounter,
    log_lines_lost: IntCounterVec,
    state_dir_failing: IntGauge,
    config_generation: IntGauge,
    config_rejected: IntGauge,
    config_reloads: IntCounterVec,
    config_last_success_seconds: Gauge,
    tls: TlsMetrics,
}

impl Metrics {
    /// All of them, at zero.
    ///
    /// # Errors
    /// Never in practice: names and labels are constants.
    pub fn new() -> Result<Metrics, prometheus::Error> {
        let registry = Registry::new();
        let made = Registering(&registry);
        // As close as those of verdicts; a handoff takes what the worker takes for one request.
        let handoff_buckets = vec![
            5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
            25.0, 60.0,
        ];
        let build_info =
            made.gauges("fencepost_build_info", "The running version.", &["version", "commit"])?;
        build_info.with_label_values(&[env!("CARGO_PKG_VERSION"), env!("FENCEPOST_COMMIT")]).set(1);
        registry.register(Box::new(ProcessCollector::for_self()))?;
        let config_reloads = made.counters(
            "fencepost_config_reloads_total",
            "Reloads of the configuration by what came of them.",
            &["outcome"],
        )?;
        // From 0, so that the first counts.
        for outcome in ["applied", "unchanged", "rejected"] {
            config_reloads.with_label_values(&[outcome]);
        }
        Ok(Metrics {
            requests: requests::Requests::new(&made)?,
            waiting: gauges("waiting", "Those of them that wait at a barrier.", &["route"])?,
            confirms: made.counters(
                "fencepost_confirms_total",
                "Requests that needed a confirming read.",
                &["route", "outcome"],
            )?,
            dangerous: made.counters(
                "fencepost_dangerous_total",
                "Requests let past by a setting that weakens the fence.",
                &["route", "setting"],
            )?,
            cut_requests: made.counters(
                "fencepost_cut_requests_total",
                "Requests of which something was cut because their tenure had ended, or might have.",
                &["route"],
            )?,
            orphans: made.gauges(
                "fencepost_orphans",
                "Requests that may be running at the worker, their end not having been seen.",
                &["route"],
            )?,
            orphans_expired: made.counters(
                "fencepost_orphans_expired_total",
                "Orphans that counted for the whole of orphan_timeout.",
                &["route"],
            )?,
            handoffs: made.counters(
                "fencepost_handoffs_total",
                "Requests that had to wait for those of an earlier tenure.",
                &["route"],
            )?,
            handoff_wait_seconds: made.add(Histogram::with_opts(
                HistogramOpts::new(
                    "fencepost_handoff_wait_seconds",
                    "How long requests waited for those of an earlier tenure.",
                )
                .buckets(handoff_buckets),
            ))?,
            failures: made.counters(
                "fencepost_failures_total",
                "Requests that the worker did not answer, or that went nowhere.",
                &["route", "failure"],
            )?,
            connections: made.gauge("fencepost_connections", "Open client connections.")?,
            panics: made
                .counter("fencepost_panics_total", "Defects of the program that ended a request or a task of it.")?,
            connections_refused: made.counter(
                "fencepost_connections_refused_total",
                "Client connections closed at once, their client having connections_per_client_max.",
            )?,
            connections_closed: made.counters(
                "fencepost_connections_closed_total",
                "Client connections ended by a limit, by its key.",
                &["limit"],
            )?,
            decisions_lost: made.counter(
                "fencepost_decisions_lost_total",
                "Decisions and changes of tenures that came faster than they are kept for operators to look at.",
            )?,
            log_lines_lost: made.counters(
                "fencepost_log_lines_lost_total",
                "Lines that are missing in a log because they could not be written, or not as fast as they came.",
                &["log"],
            )?,
            state_dir_failing: made.gauge(
                "fencepost_state_dir_failing",
                "Whether the state_dir did not take what was last written to it, or not in time.",
            )?,
            config_generation: made
                .gauge("fencepost_config_generation", "How many configurations this process has had in force.")?,
            config_rejected: made.gauge(
                "fencepost_config_rejected",
                "Whether the configuration file, as it was last read, was rejected.",
            )?,
            config_reloads,
            config_last_success_seconds: made.add(Gauge::new(
                "fencepost_config_last_success_timestamp_seconds",
                "When the configuration file was last read and found right, in seconds since the epoch.",
            ))?,
            tls: TlsMetrics::new(&made)?,
            registry,
        })
    }

    /// Notes which configuration is in force, and that its file was right at that time.
    pub fn set_config(&self, generation: u64, at: SystemTime) {
        self.config_generation.set(i64::try_from(generation).unwrap_or(i64::MAX));
        let since_epoch = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.config_last_success_seconds.set(since_epoch.as_secs_f64());
    }

    /// The metrics of TLS.
    pub fn tls(&self) -> &TlsMetrics {
        &self.tls
    }

    /// Counts a reload.
    pub fn reloaded(&self, outcome: &'static str) {
        self.config_reloads.with_label_values(&[outcome]).inc();
    }

    /// Notes whether the configuration file, as it was just read, was rejected.
    pub fn set_config_rejected(&self, rejected: bool) {
        self.config_rejected.set(rejected.into());
    }

    /// Whether the configuration file, as it was last read, was rejected: it is not what is in
    /// force.
    pub fn config_rejected(&self) -> bool {
        self.config_rejected.get() != 0
    }

    /// Requests in flight on all routes.
    pub fn in_flight(&self) -> u64 {
        self.requests.in_flight()
    }

    /// Requests in flight on a route, also those that came when it had another mode.
    pub fn in_flight_on(&self, route: &str) -> u64 {
        self.requests.in_flight_on(route)
    }

    /// Notes how many client connections are open.
    pub fn set_connections(&self, open: usize) {
        self.connections.set(i64::try_from(open).unwrap_or(i64::MAX));
    }

    /// Notes how many panics there have been.
    pub fn set_panics(&self, panics: u64) {
        raise(&self.panics, panics);
    }

    /// Notes how many client connections limits have ended by now: those turned away at once, and
    /// each limit's.
    pub fn set_connections_ended(&self, refused: u64, closed: impl Fn(Closing) -> u64) {
        raise(&self.connections_refused, refused);
        for closing in Closing::ALL {
            raise(&self.connections_closed.with_label_values(&[closing.limit()]), closed(closing));
        }
    }

    /// Notes how many decisions, and how many lines of each log, are lost by now.
    pub fn set_lost(&self, decisions: u64, lines: u64, access_lines: u64) {
        raise(&self.decisions_lost, decisions);
        raise(&self.log_lines_lost.with_label_values(&["log"]), lines);
        raise(&self.log_lines_lost.with_label_values(&["access_log"]), access_lines);
    }

    /// Notes whether the `state_dir` takes what is written to it.
    pub fn set_state_dir_failing(&self, failing: bool) {
        self.state_dir_failing.set(failing.into());
    }

    /// The Prometheus text format, version 0.0.4; with what this configuration says of its routes,
    /// and what is known of its sources.
    ///
    /// # Errors
    /// Never in practice: every metric has a name and values.
    pub fn text(
        &self,
        config: &Config,
        sources: &[(&str, SourceStatus)],
        group: Option<&Membership>,
    ) -> Result<Vec<u8>, prometheus::Error> {
        let mut text = Vec::with_capacity(16 << 10);
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        TextEncoder::new().encode(&active_config::info(config)?, &mut text)?;
        TextEncoder::new().encode(&sources::families(sources)?, &mut text)?;
        if let Some(group) = group {
            TextEncoder::new().encode(&group::families(group)?, &mut text)?;
            text.extend_from_slice(group::clear_seconds(group).as_bytes());
        }
        Ok(text)
    }
}

/// Raises a counter to what was counted elsewhere.
fn raise(counter: &IntCounter, to: u64) {
    counter.inc_by(to.saturating_sub(counter.get()));
}

/// Makes metrics that stand in the registry from then on, so that none can be forgotten there.
struct Registering<'r>(&'r Registry);

impl Registering<'_> {
    fn counter(&self, name: &str, help: &str) -> Result<IntCounter, prometheus::Error> {
        self.add(IntCounter::new(name, help))
    }

    fn counters(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<IntCounterVec, prometheus::Error> {
        self.add(IntCounterVec::new(Opts::new(name, help), labels))
    }

    fn gauge(&self, name: &str, help: &str) -> Result<IntGauge, prometheus::Error> {
        self.add(IntGauge::new(name, help))
    }

    fn gauges(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<IntGaugeVec, prometheus::Error> {
        self.add(gauges(name, help, labels))
    }

    fn add<C: Collector + Clone + 'static>(
        &self,
        made: Result<C, prometheus::Error>,
    ) -> Result<C, prometheus::Error> {
        let collector = made?;
        self.0.register(Box::new(collector.clone()))?;
        Ok(collector)
    }
}

fn gauges(name: &str, help: &str, labels: &[&str]) -> Result<IntGaugeVec, prometheus::Error> {
    IntGaugeVec::new(Opts::new(name, help), labels)
}
