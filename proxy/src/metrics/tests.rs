use std::time::Duration;

use fencepost_locks::{LockSource, MemoryStore, SourceOptions};
use fencepost_policy::{Rejection, Revision};
use tokio::time::Instant;

use super::*;
use crate::refusal::Failure;

const ROUTES: &str = r#"
    [[listener]]
    address = "127.0.0.1:0"
    [source.main]
    kind = "memory"
    [[route]]
    name = "shards"
    path = "/shards"
    upstream = "http://127.0.0.1:1"
    max_age = "1500ms"
    lock = { source = "main", key = "a" }
    [[route]]
    name = "tried"
    path = "/tried"
    upstream = "http://127.0.0.1:1"
    mode = "shadow"
    lock = { source = "main", key = "b" }
    [[route]]
    name = "open"
    path = "/"
    upstream = "http://127.0.0.1:1"
    mode = "off"
"#;

fn text(metrics: &Metrics) -> String {
    text_with(metrics, &[])
}

fn text_with(metrics: &Metrics, sources: &[(&str, SourceStatus)]) -> String {
    let config =
        Config::from_toml("fencepost.toml", ROUTES).unwrap_or_else(|problems| panic!("{problems}"));
    String::from_utf8(metrics.text(&config, sources, None).unwrap()).unwrap()
}

#[test]
fn every_metric_of_a_route_is_there_before_the_first_request() {
    let metrics = Metrics::new().unwrap();
    let route = metrics.route("shards", "enforce");
    route.requests.count(Counted::Rejected(Rejection::ReplayedTenure));
    let (source, _) = LockSource::build("main", SourceOptions::default(), MemoryStore::new());
    let status = SourceStatus {
        up: Some(true),
        age: Some(Duration::from_millis(500)),
        watch_restarts: 2,
        static_locks: 1,
        templated_locks: 2,
        tenures: 4,
        distrusted_through: Revision::new(7),
        ..source.status(Instant::now())
    };
    let text = text_with(&metrics, &[("main", status)]);
    for line in [
        r#"fencepost_requests_total{mode="enforce",reason="none",route="shards",verdict="admit"} 0"#,
        r#"fencepost_requests_total{mode="enforce",reason="replayed-tenure",route="shards",verdict="reject"} 1"#,
        r#"fencepost_requests_total{mode="enforce",reason="unverifiable",route="shards",verdict="pass"} 0"#,
        r#"fencepost_confirms_total{outcome="failed",route="shards"} 0"#,
        r#"fencepost_failures_total{failure="worker-unreachable",route="shards"} 0"#,
        r#"fencepost_failures_total{failure="internal-error",route="shards"} 0"#,
        r#"fencepost_dangerous_total{route="shards",setting="on_unavailable"} 0"#,
        r#"fencepost_in_flight{route="shards"} 0"#,
        r#"fencepost_source_up{source="main"} 1"#,
        r#"fencepost_source_age_seconds{source="main"} 0.5"#,
        r#"fencepost_watch_restarts_total{source="main"} 2"#,
        r#"fencepost_tracked_locks{source="main"} 3"#,
        r#"fencepost_tenures_total{source="main"} 4"#,
        r#"fencepost_source_regressed{source="main"} 1"#,
        r#"fencepost_verdict_seconds_count{route="shards"} 0"#,
        r#"fencepost_upstream_seconds_count{route="shards"} 0"#,
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
}

/// A series that begins at 1 shows no rise: the first 417 of a process was in no alert.
#[test]
fn every_failure_is_there_before_the_first_one_comes() {
    let metrics = Metrics::new().unwrap();
    let _registered = [metrics.unrouted(), metrics.route("shards", "enforce")];
    let text = text(&metrics);
    let series = |route: &str, failure: Failure| {
        format!("fencepost_failures_total{{failure=\"{}\",route=\"{route}\"}} 0", failure.code())
    };
    let check = |series: String| {
        assert!(text.lines().any(|line| line == series), "{series} is not in\n{text}")
    };
    for failure in Failure::ALL {
        check(series("none", failure));
        if failure.may_be_on_a_route() {
            check(series("shards", failure));
        }
    }
    check(series("shards", Failure::BadTarget)); // A route may take a request before its `Host` is looked at.
}

#[test]
fn each_route_tells_its_mode_and_each_fenced_one_its_max_age() {
    let text = text(&Metrics::new().unwrap());
    let told =
        |name: &str| -> Vec<&str> { text.lines().filter(|line| line.starts_with(name)).collect() };
    assert_eq!(
        told("fencepost_route_info"),
        [
            r#"fencepost_route_info{mode="enforce",route="shards"} 1"#,
            r#"fencepost_route_info{mode="off",route="open"} 1"#,
            r#"fencepost_route_info{mode="shadow",route="tried"} 1"#,
        ]
    );
    assert_eq!(
        told("fencepost_max_age_seconds"),
        [
            r#"fencepost_max_age_seconds{route="shards",source="main"} 1.5"#,
            r#"fencepost_max_age_seconds{route="tried",source="main"} 5"#,
        ]
    );
}

/// The readme says how close.
#[test]
fn quantiles_span_microseconds_to_the_limits() {
    let metrics = Metrics::new().unwrap();
    let _registered = metrics.route("shards", "enforce");
    let text = text(&metrics);
    for (name, labels, lowest, highest) in [
        ("fencepost_verdict_seconds", r#"route="shards","#, 1e-6, 2.0),
        ("fencepost_handoff_wait_seconds", "", 5e-4, 60.0),
    ] {
        let prefix = format!("{name}_bucket{{{labels}le=\"");
        let bounds = text
            .lines()
            .filter_map(|line| line.strip_prefix(&prefix)?.split('"').next()?.parse().ok());
        let bounds: Vec<f64> = bounds.filter(|bound: &f64| bound.is_finite()).collect();
        assert_eq!((bounds.first(), bounds.last()), (Some(&lowest), Some(&highest)), "{name}");
        for pair in bounds.windows(2) {
            assert!(pair[1] / pair[0] <= 2.5 + 1e-9, "{name}: {pair:?}");
        }
    }
}
