//! What has happened: decisions, and what routes in shadow mode would have refused.

use std::sync::Arc;
use std::time::SystemTime;

use http::{HeaderMap, StatusCode};
use serde_json::json;

use super::Admin;
use super::answers::{AdminAnswer, json_answer, text};
use super::paths;
use super::streams::follow_decisions;
use crate::dashboard::accepts;
use crate::metrics::Counted;
use crate::observe::filter::Query;
use crate::observe::shadow::Watched;
use crate::observe::{Observations, collector, millis};

/// The number of the last event that a client got before its connection broke.
const LAST_EVENT_ID: &str = "last-event-id";

impl Admin {
    /// All that has happened up to now.
    pub(super) fn observed(&self) -> &Arc<Observations> {
        let observations = &self.observations;
        collector::collect(observations, &self.generation.sources);
        observations
    }

    pub(super) fn decisions(&self, query: &str, headers: &HeaderMap) -> AdminAnswer {
        let now = SystemTime::now();
        let query = match Query::parse(query, now) {
            Ok(query) => query,
            Err(error) => return text(StatusCode::BAD_REQUEST, format!("{error}\n")),
        };
        let observations = self.observed();
        if wants_events(headers) {
            let last = headers.get(LAST_EVENT_ID).and_then(|id| id.to_str().ok());
            return self.stream(follow_decisions(Arc::clone(observations), query.filter, last));
        }
        let answer = observations.look(|book| {
            let found = book.decisions.newest(&query.filter, query.limit);
            json!({
                "now_ms": millis(now),
                "kept": book.decisions.kept(),
                "capacity": book.decisions.capacity(),
                "lost": observations.lost(),
                "not_all_until_ms": book.not_all_until.map(millis),
                "decisions": found.iter().map(|decision| decision.to_json()).collect::<Vec<_>>(),
            })
        });
        json_answer(&answer)
    }

    pub(super) fn shadow(&self, query: &str, headers: &HeaderMap) -> AdminAnswer {
        let as_text = match paths::parameter(query, "format").as_deref() {
            Some("text") => true,
            Some("json") => false,
            Some(other) => {
                return text(
                    StatusCode::BAD_REQUEST,
                    format!("unknown format {other:?}; there are text, json\n"),
                );
            }
            None => accepts(headers, "text/plain"),
        };
        let in_force = self.generation.routes.iter().filter(|route| route.label.mode == "shadow");
        let watched: Vec<Watched> = in_force
            .map(|route| {
                let admitted = route
                    .metrics
                    .requests
                    .of(Counted::Admitted)
                    .saturating_sub(route.label.admitted_before);
                Watched { label: Arc::clone(&route.label), admitted }
            })
            .collect();
        let observations = self.observed();
        let hints = &self.generation.process.layout_hints;
        observations.look(|book| match as_text {
            true => text(StatusCode::OK, book.shadow.to_text(&watched) + &hints.to_text()),
            false => {
                let mut report = book.shadow.to_json(&watched, SystemTime::now());
                report["layout_hints"] = hints.to_json();
                json_answer(&report)
            }
        })
    }
}

pub(super) fn wants_events(headers: &HeaderMap) -> bool {
    accepts(headers, "text/event-stream")
}
