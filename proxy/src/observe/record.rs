//! A decision, as operators get to see it.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use fencepost_policy::{LockKey, Rejection, Revision};
use http::StatusCode;
use serde_json::{Value, json};
use smol_str::SmolStr;

use crate::decision::DecisionId;
use crate::server::ClientAddress;

/// A route, as far as its decisions are concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteLabel {
    /// Its name; `none` for what was refused before its route was known.
    pub name: String,
    /// The name of its mode.
    pub mode: &'static str,
    /// The name of the source of its lock, if it has one.
    pub source: Option<Arc<str>>,
    /// Since when it is in that mode.
    pub since: SystemTime,
    /// `since` by a monotonic clock, which tells the later of two labels.
    pub begun: Instant,
    /// How many requests had been admitted in that mode until then, in earlier periods of it.
    pub admitted_before: u64,
}

impl RouteLabel {
    /// Of a route that is in that mode from now on.
    pub fn new(
        name: &str,
        mode: &'static str,
        source: Option<&str>,
        admitted_before: u64,
    ) -> RouteLabel {
        let (name, source) = (name.to_owned(), source.map(Arc::from));
        RouteLabel {
            name,
            mode,
            source,
            since: SystemTime::now(),
            begun: Instant::now(),
            admitted_before,
        }
    }

    /// For what was refused before its route was known.
    pub fn unrouted() -> RouteLabel {
        RouteLabel::new("none", "enforce", None, 0)
    }
}

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It was refused.
    Refused(Rejection),
    /// It was forwarded, because its route only watches; it would have been refused.
    WouldBeRefused(Rejection),
    /// It was forwarded all the same, by a setting that weakens the fence.
    LetPast(Rejection),
    /// It was admitted.
    Admitted,
}

impl Outcome {
    /// One word for it.
    pub fn verdict(self) -> &'static str {
        match self {
            Outcome::Refused(_) | Outcome::WouldBeRefused(_) => "reject",
            Outcome::LetPast(_) => "pass",
            Outcome::Admitted => "admit",
        }
    }

    /// What speaks against the request, if anything does.
    pub fn rejection(self) -> Option<Rejection> {
        match self {
            Outcome::Refused(reason)
            | Outcome::WouldBeRefused(reason)
            | Outcome::LetPast(reason) => Some(reason),
            Outcome::Admitted => None,
        }
    }

    /// The code of what speaks against the request; `none` if nothing does.
    pub fn reason(self) -> &'static str {
        self.rejection().map_or("none", Rejection::code)
    }

    /// Whether the request went on to the worker.
    pub fn is_forwarded(self) -> bool {
        !matches!(self, Outcome::Refused(_))
    }
}

/// What was decided on a request, and on what grounds.
///
/// All text in it came from outside and is bounded: a decision keeps none of the request's own
/// buffers alive. Most of it is short, and then has no memory of its own.
#[derive(Debug, Clone)]
pub struct Decision {
    /// The id that the client was told.
    pub id: DecisionId,
    /// When it was decided, by the clock on the wall.
    pub at: SystemTime,
    /// The route that took the request.
    pub route: Arc<RouteLabel>,
    /// The lock that guards it, where one could be told.
    pub lock: Option<LockKey>,
    /// The owner that was presented, as it is shown.
    pub owner: Option<SmolStr>,
    /// The revision that was presented.
    pub revision: Option<Revision>,
    /// What became of it.
    pub outcome: Outcome,
    /// How old the news of the lock were.
    pub age: Option<Duration>,
    /// How long the request had been here, with all that it waited for.
    pub waited: Duration,
    /// Where it came from.
    pub client: ClientAddress,
    /// The names of its connection's certificate, as they are shown; `None` without a certificate.
    pub peer: Option<SmolStr>,
    /// Its method, as it is shown.
    pub method: SmolStr,
    /// Its path, without the query, as it is shown.
    pub path: SmolStr,
    /// The status that it was answered with, if it went no further.
    pub status: Option<StatusCode>,
    /// The trace that it belongs to (W3C Trace Context), as it was given.
    pub traceparent: Option<SmolStr>,
    /// Its id, from a trusted proxy or our own.
    pub request_id: Option<SmolStr>,
}

impl Decision {
    /// As JSON.
    pub fn to_json(&self) -> Value {
        json!({
            "id": self.id.to_string(),
            "time_ms": millis(self.at),
            "route": self.route.name,
            "mode": self.route.mode,
            "source": self.route.source.as_deref(),
            "lock": self.lock.as_ref().map(LockKey::as_str),
            "owner": self.owner.as_deref(),
            "revision": self.revision.map(Revision::get),
            "verdict": self.outcome.verdict(),
            "reason": self.outcome.reason(),
            "forwarded": self.outcome.is_forwarded(),
            "age_ms": self.age.map(whole_millis),
            "waited_ms": whole_millis(self.waited),
            "client": self.client.to_string(),
            "peer": self.peer.as_deref(),
            "method": &*self.method,
            "path": &*self.path,
            "status": self.status.map(|status| status.as_u16()),
            "traceparent": self.traceparent.as_deref(),
            "request_id": self.request_id.as_deref(),
        })
    }

    /// A refusal of that id.
    #[cfg(test)]
    pub fn for_tests(id: &str) -> Decision {
        let since = SystemTime::UNIX_EPOCH;
        let route = RouteLabel { since, ..RouteLabel::new("shards", "enforce", Some("main"), 0) };
        Decision {
            id: DecisionId::for_tests(id),
            at: SystemTime::UNIX_EPOCH,
            route: Arc::new(route),
            lock: LockKey::new("/shards/2/lock").ok(),
            owner: Some("shard-1".into()),
            revision: Revision::new(10),
            outcome: Outcome::Refused(Rejection::ReplayedTenure),
            age: Some(Duration::from_millis(240)),
            waited: Duration::from_micros(1_500),
            client: ClientAddress::Unix,
            peer: None,
            method: "POST".into(),
            path: "/shards/2/jobs".into(),
            status: Some(StatusCode::PRECONDITION_FAILED),
            traceparent: None,
            request_id: None,
        }
    }
}

/// Milliseconds since the Unix epoch; 0 before it.
pub fn millis(at: SystemTime) -> u64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Whole milliseconds, in a number that stays one in JSON: the log makes text of longer ones.
pub fn whole_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_has_the_fields_of_the_contract() {
        let decision = Decision {
            traceparent: Some("00-ab-cd-01".into()),
            ..Decision::for_tests("5f3a-0-1a")
        };
        let expected = json!({
            "id": "5f3a-0-1a", "time_ms": 0, "route": "shards", "mode": "enforce", "source": "main",
            "lock": "/shards/2/lock", "owner": "shard-1", "revision": 10, "verdict": "reject",
            "reason": "replayed-tenure", "forwarded": false, "age_ms": 240, "waited_ms": 1, "client": "unix", "peer": null,
            "method": "POST", "path": "/shards/2/jobs", "status": 412, "traceparent": "00-ab-cd-01", "request_id": null,
        });
        assert_eq!(decision.to_json(), expected);
    }

    #[test]
    fn only_a_refusal_is_not_forwarded() {
        let reason = Rejection::Unverifiable;
        for (outcome, verdict, code, forwarded) in [
            (Outcome::Refused(reason), "reject", "unverifiable", false),
            (Outcome::WouldBeRefused(reason), "reject", "unverifiable", true),
            (Outcome::LetPast(reason), "pass", "unverifiable", true),
            (Outcome::Admitted, "admit", "none", true),
        ] {
            assert_eq!(
                (outcome.verdict(), outcome.reason(), outcome.is_forwarded()),
                (verdict, code, forwarded)
            );
        }
    }
}
