//! What is in force: each route with what it counts, and every setting.

use std::time::SystemTime;

use fencepost_config::{Freshness, Route};
use fencepost_policy::Rejection;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::Admin;
use super::answers::{AdminAnswer, json_answer};
use crate::metrics::{Bucket, Counted, RequestCounts};
use crate::observe::lately::SPAN;
use crate::observe::millis;
use crate::routes::ActiveRoute;

impl Admin {
    pub(super) fn routes(&self) -> AdminAnswer {
        let generation = &self.generation;
        let routes = generation
            .config
            .routes
            .iter()
            .zip(&generation.routes)
            .map(|(route, in_force)| self.route_json(route, in_force));
        let lately = self.observed().look(|book| book.lately.refusals(Instant::now()));
        json_answer(&json!({
            "now_ms": millis(SystemTime::now()),
            "process": self.process_json(),
            "generation": generation.number,
            "file_rejected": generation.process.metrics.config_rejected(),
            "rejected": generation.process.rejection(),
            "warnings": generation.config.warnings.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "state_dir_failing": generation.process.state_dir_fails(),
            "layout_hints": generation.process.layout_hints.to_json(),
            "refused_lately": {
                "seconds": SPAN.as_secs(),
                "reject": by_reason(|reason| lately.refused[reason as usize]),
                "would_reject": by_reason(|reason| lately.would_be[reason as usize]),
            },
            "routes": routes.collect::<Vec<_>>(),
        }))
    }

    /// Which process answers.
    fn process_json(&self) -> Value {
        json!({
            "host": rustix::system::uname().nodename().to_string_lossy(),
            "version": env!("CARGO_PKG_VERSION"),
            "commit": env!("FENCEPOST_COMMIT"),
            "started_ms": millis(self.generation.process.started),
            "configuration": &*self.configuration,
        })
    }

    fn route_json(&self, route: &Route, in_force: &ActiveRoute) -> Value {
        let metrics = &in_force.metrics;
        let lock = route.mode.lock();
        json!({
            "name": route.name,
            "path": route.path.as_str(),
            "host": route.host,
            "upstream": self.generation.config.places.shown(route.upstream.to_string()),
            "mode": route.mode.name(),
            "since_ms": millis(in_force.label.since),
            "freshness": match route.freshness {
                Freshness::Cached => "cached",
                Freshness::Linearizable => "linearizable",
            },
            "max_age_seconds": route.max_age.as_secs_f64(),
            "layout": lock.map(|lock| lock.record.layout_name()),
            "key": lock.map(|lock| lock.key.as_str()),
            "source": in_force.label.source.as_deref(),
            "requests": requests(&metrics.requests),
            "verdict_seconds": times(&metrics.requests.verdict_times()),
            "upstream_seconds": times(&metrics.requests.upstream_times()),
            "in_flight": self.generation.process.metrics.in_flight_on(&route.name),
            "passed": in_force.let_past.as_ref().map_or(0, |let_past| let_past.at_worker()),
            "waiting": metrics.waiting.get(),
            "orphans": metrics.orphans.get(),
            "handoffs": metrics.handoffs(),
            "cut": metrics.cut_requests.get(),
        })
    }

    /// No setting of this version is a secret.
    pub(super) fn config(&self) -> AdminAnswer {
        let mut tables: Map<String, Value> = Map::new();
        for (table, key, value) in self.generation.config.settings() {
            tables.entry(table).or_insert_with(|| json!({}))[key.as_ref()] = json!(value);
        }
        json_answer(&json!({
            "generation": self.generation.number,
            "file_rejected": self.generation.process.metrics.config_rejected(),
            "settings": tables,
        }))
    }
}

/// How many requests there were of each verdict, each of which counts once.
fn requests(counts: &RequestCounts) -> Value {
    let passed = [Counted::Exempt, Counted::Off, Counted::Unverified];
    json!({
        "admit": counts.of(Counted::Admitted),
        "reject": by_reason(|reason| counts.of(Counted::Rejected(reason))),
        "pass": passed.into_iter().map(|as_what| counts.of(as_what)).sum::<u64>(),
    })
}

/// `{"0.005": 12, ">30": 1}`: 12 requests took up to 5 ms and longer than the bound before, one
/// took more than 30 s.
fn times(times: &[(Bucket, u64)]) -> Map<String, Value> {
    let key = |bucket: &Bucket| match bucket {
        Bucket::UpTo(bound) => bound.to_string(),
        Bucket::Above(bound) => format!(">{bound}"),
    };
    times.iter().map(|(bucket, count)| (key(bucket), json!(count))).collect()
}

/// How many requests there were for each reason for which there were any.
fn by_reason(count: impl Fn(Rejection) -> u64) -> Map<String, Value> {
    let counts = Rejection::ALL.iter().map(|reason| (reason.code(), count(*reason)));
    counts
        .filter(|(_, count)| *count > 0)
        .map(|(code, count)| (code.to_owned(), json!(count)))
        .collect()
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;
    use crate::about::About;
    use crate::metrics::Metrics;

    /// It was told as admitted, and as let past.
    #[test]
    fn a_request_that_is_let_past_once_it_was_admitted_has_one_verdict() {
        let metrics = Metrics::new().unwrap().route("r", "enforce");
        let counts = &metrics.requests;
        let about = About::of(&Request::new(()), false);
        let let_past = |about: &About| {
            metrics.dangerous_admit.inc();
            about.count(|| counts.count(Counted::Unverified));
        };
        about.count(|| counts.count(Counted::Admitted));
        let_past(&about); // It could not be sent, and by then its lock could not be read.
        assert_eq!(requests(counts), json!({ "admit": 1, "reject": {}, "pass": 0 }));
        let_past(&About::of(&Request::new(()), false));
        assert_eq!(requests(counts), json!({ "admit": 1, "reject": {}, "pass": 1 }));
    }
}
