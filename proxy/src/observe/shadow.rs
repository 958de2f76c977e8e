//! What routes in shadow mode would have refused: of what reason, by which owner, first and last
//! time. Where no owner is presented, by which client.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use fencepost_policy::LockKey;
use serde_json::{Value, json};
use smol_str::SmolStr;

use super::record::{Decision, Outcome, RouteLabel, millis};
use super::text::owner_in_words;
use crate::decision::DecisionId;
use crate::server::ClientAddress;

/// How many kinds of refusals are told apart on one route. Those of further kinds are only counted.
const KINDS_MAX: usize = 1_000;

/// The report, route by route.
#[derive(Debug, Default)]
pub struct ShadowReport {
    routes: BTreeMap<String, RouteReport>,
}

#[derive(Debug)]
struct RouteReport {
    /// The route as it was: what it did in another mode, or before, is not part of this.
    label: Arc<RouteLabel>,
    kinds: HashMap<Kind, Refusals>,
    /// Refusals of kinds that were too many to tell apart.
    other: u64,
}

/// Refusals that look alike.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Kind {
    reason: &'static str,
    owner: Option<SmolStr>,
    lock: Option<LockKey>,
    /// Who is to be told, where no owner says so. `None` otherwise, and of unix sockets.
    client: Option<IpAddr>,
}

#[derive(Debug)]
struct Refusals {
    count: u64,
    first: SystemTime,
    /// The latest of them, as are the next four.
    last: SystemTime,
    client: ClientAddress,
    method: SmolStr,
    path: SmolStr,
    decision: DecisionId,
}

/// A route of the report as it is shown, with what is counted elsewhere.
#[derive(Debug, Clone)]
pub struct Watched {
    /// The route.
    pub label: Arc<RouteLabel>,
    /// Requests whose token would have been admitted, since the route is in that mode.
    pub admitted: u64,
}

impl ShadowReport {
    /// Notes a decision, if it is one of a route that only watches.
    pub fn note(&mut self, decision: &Decision) {
        let Outcome::WouldBeRefused(reason) = decision.outcome else { return };
        let route = self
            .routes
            .entry(decision.route.name.clone())
            .or_insert_with(|| RouteReport::new(decision));
        match decision.route.begun.cmp(&route.label.begun) {
            // Of a request that came before: its period has ended.
            Ordering::Less => return,
            Ordering::Equal => {}
            Ordering::Greater => *route = RouteReport::new(decision),
        }
        let client = decision.client.ip().filter(|_| decision.owner.is_none());
        let kind = Kind {
            reason: reason.code(),
            owner: decision.owner.clone(),
            lock: decision.lock.clone(),
            client,
        };
        let before = route.kinds.get(&kind).map(|before| (before.count, before.first));
        if before.is_none() && route.kinds.len() >= KINDS_MAX {
            route.other += 1;
            return;
        }
        let (count, first) = before.unwrap_or((0, decision.at));
        let latest = Refusals {
            count: count + 1,
            first,
            last: decision.at,
            client: decision.client,
            method: decision.method.clone(),
            path: decision.path.clone(),
            decision: decision.id.clone(),
        };
        route.kinds.insert(kind, latest);
    }

    /// The report on these routes as JSON, the most frequent refusals first.
    pub fn to_json(&self, routes: &[Watched], now: SystemTime) -> Value {
        let routes: Vec<Value> = routes.iter().map(|watched| self.route_json(watched)).collect();
        json!({ "now_ms": millis(now), "routes": routes })
    }

    fn route_json(&self, watched: &Watched) -> Value {
        let (kinds, other) = self.of(watched);
        let refusals = kinds.iter().map(|(kind, refusals)| {
            json!({
                "reason": kind.reason,
                "owner": kind.owner.as_deref(),
                "lock": kind.lock.as_ref().map(LockKey::as_str),
                "client": refusals.client.to_string(),
                "method": &*refusals.method,
                "path": &*refusals.path,
                "count": refusals.count,
                "first_ms": millis(refusals.first),
                "last_ms": millis(refusals.last),
                "decision": refusals.decision.to_string(),
            })
        });
        json!({
            "route": watched.label.name,
            "mode": watched.label.mode,
            "since_ms": millis(watched.label.since),
            "admitted": watched.admitted,
            "refused": total(&kinds) + other,
            "refusals": refusals.collect::<Vec<_>>(),
            "other": other,
        })
    }

    /// The report on these routes as text for people.
    pub fn to_text(&self, routes: &[Watched]) -> String {
        if routes.is_empty() {
            return "No route is in shadow mode.\n".to_owned();
        }
        let mut text = String::new();
        for watched in routes {
            let (kinds, other) = self.of(watched);
            let since = humantime::format_rfc3339_seconds(watched.label.since);
            let refused = total(&kinds) + other;
            let _ = writeln!(
                text,
                "Route {} has been in shadow mode since {since}: {} would have been admitted, {} refused.",
                watched.label.name,
                requests(watched.admitted),
                requests(refused),
            );
            for (kind, refusals) in &kinds {
                let _ = writeln!(text, "  {}", sentence(kind, refusals));
            }
            if other > 0 {
                let _ = writeln!(
                    text,
                    "  {} of further owners and locks, too many to tell apart.",
                    requests(other)
                );
            }
        }
        text
    }

    /// What is known of a route in its present mode.
    fn of(&self, watched: &Watched) -> (Vec<(&Kind, &Refusals)>, u64) {
        let Some(route) = self
            .routes
            .get(&watched.label.name)
            .filter(|route| route.label.begun == watched.label.begun)
        else {
            return (Vec::new(), 0);
        };
        let mut kinds: Vec<_> = route.kinds.iter().collect();
        kinds.sort_by(|(one, a), (other, b)| b.count.cmp(&a.count).then_with(|| one.cmp(other)));
        (kinds, route.other)
    }
}

impl RouteReport {
    fn new(decision: &Decision) -> RouteReport {
        RouteReport { label: Arc::clone(&decision.route), kinds: HashMap::new(), other: 0 }
    }
}

/// `1 request`, `2 requests`.
fn requests(count: u64) -> String {
    format!("{count} request{}", if count == 1 { "" } else { "s" })
}

/// What there is to say of refusals that look alike.
fn sentence(kind: &Kind, refusals: &Refusals) -> String {
    let Refusals { count, first, last, client, method, path, decision } = refusals;
    let [first, last] = [*first, *last].map(humantime::format_rfc3339_seconds);
    let owner = kind.owner.as_ref().map_or_else(
        || "without an owner".to_owned(),
        |owner| format!("of owner {}", owner_in_words(owner)),
    );
    let lock = kind.lock.as_ref().map_or_else(String::new, |lock| format!(" for lock {lock}"));
    let when = match *count {
        1 => format!("at {last}: "),
        _ => format!("from {first} to {last}, the latest of them "),
    };
    format!(
        "{} {owner}{lock} would have been refused as {} {when}{method} {path} from {client} (decision {decision}).",
        requests(*count),
        kind.reason,
    )
}

fn total(kinds: &[(&Kind, &Refusals)]) -> u64 {
    kinds.iter().map(|(_, refusals)| refusals.count).sum()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fencepost_policy::Rejection;

    use super::*;

    fn label(mode: &'static str, since: u64) -> Arc<RouteLabel> {
        let since = SystemTime::UNIX_EPOCH + Duration::from_secs(since);
        Arc::new(RouteLabel { since, ..RouteLabel::new("shards", mode, None, 0) })
    }

    fn would_be_refused(owner: &str, second: u64, label: &Arc<RouteLabel>) -> Decision {
        Decision {
            at: SystemTime::UNIX_EPOCH + Duration::from_secs(second),
            route: Arc::clone(label),
            owner: Some(owner.into()),
            outcome: Outcome::WouldBeRefused(Rejection::StaleTenure),
            ..Decision::for_tests(&format!("d-{second}"))
        }
    }

    fn report(report: &ShadowReport, label: &Arc<RouteLabel>) -> Value {
        let watched = [Watched { label: Arc::clone(label), admitted: 7 }];
        report.to_json(&watched, SystemTime::UNIX_EPOCH)["routes"][0].clone()
    }

    #[test]
    fn alike_refusals_are_one_line_with_first_and_last_time() {
        let (mut shadow, label) = (ShadowReport::default(), label("shadow", 0));
        for (owner, second) in [("a", 1), ("b", 2), ("b", 3), ("b", 5), ("", 6)] {
            shadow.note(&would_be_refused(owner, second, &label));
        }
        shadow.note(&Decision::for_tests("a refusal that was one"));
        let found = report(&shadow, &label);
        assert_eq!((&found["admitted"], &found["refused"]), (&json!(7), &json!(5)));
        assert_eq!(
            found["refusals"][0],
            json!({ "reason": "stale-tenure", "owner": "b", "lock": "/shards/2/lock", "client": "unix",
                    "method": "POST", "path": "/shards/2/jobs", "count": 3, "first_ms": 2000, "last_ms": 5000, "decision": "d-5" })
        );
        assert_eq!([&found["refusals"][1]["owner"], &found["refusals"][2]["owner"]], ["", "a"]);
        let text = shadow.to_text(&[Watched { label, admitted: 7 }]);
        assert!(
            text.starts_with("Route shards has been in shadow mode since 1970-01-01T00:00:00Z: 7 requests would have been admitted, 5 requests refused.\n"),
            "{text}"
        );
        for sentence in [
            r#"1 request of owner "" for lock /shards/2/lock would have been refused as stale-tenure at 1970-01-01T00:00:06Z: POST"#,
            "3 requests of owner b for lock /shards/2/lock would have been refused as stale-tenure from 1970-01-01T00:00:02Z \
             to 1970-01-01T00:00:05Z, the latest of them POST /shards/2/jobs from unix (decision d-5).\n",
        ] {
            assert!(text.contains(sentence), "{sentence} in {text}");
        }
    }

    #[test]
    fn requests_without_owner_are_told_apart_by_client() {
        let (mut shadow, label) = (ShadowReport::default(), label("shadow", 0));
        for client in ["10.0.0.7:1", "10.0.0.7:2", "10.0.0.8:1"] {
            let decision = Decision {
                owner: None,
                client: ClientAddress::Tcp(client.parse().unwrap()),
                outcome: Outcome::WouldBeRefused(Rejection::TokenMissing),
                ..would_be_refused("", 1, &label)
            };
            shadow.note(&decision);
        }
        let found = report(&shadow, &label);
        let of = |index: usize| {
            (&found["refusals"][index]["client"], &found["refusals"][index]["count"])
        };
        assert_eq!(
            [of(0), of(1)],
            [(&json!("10.0.0.7:2"), &json!(2)), (&json!("10.0.0.8:1"), &json!(1))]
        );
        let text = shadow.to_text(&[Watched { label, admitted: 0 }]);
        let says = "2 requests without an owner for lock /shards/2/lock would have been refused as token-missing";
        assert!(text.contains(says) && text.contains("/shards/2/jobs from 10.0.0.7:2 ("), "{text}");
    }

    #[test]
    fn a_route_that_is_put_in_shadow_mode_again_starts_anew() {
        let (mut shadow, before, after) =
            (ShadowReport::default(), label("shadow", 0), label("shadow", 9));
        shadow.note(&would_be_refused("a", 1, &before));
        assert_eq!(report(&shadow, &after)["refused"], 0);
        shadow.note(&would_be_refused("a", 10, &after));
        assert_eq!(report(&shadow, &after)["refused"], 1);
        // Of a request that came under the configuration before.
        shadow.note(&would_be_refused("a", 11, &before));
        assert_eq!(report(&shadow, &after)["refused"], 1);
    }

    #[test]
    fn made_up_owners_cost_no_memory_without_end() {
        let (mut shadow, label) = (ShadowReport::default(), label("shadow", 0));
        for number in 0..KINDS_MAX + 10 {
            shadow.note(&would_be_refused(&number.to_string(), 1, &label));
        }
        let found = report(&shadow, &label);
        assert_eq!(found["refusals"].as_array().unwrap().len(), KINDS_MAX);
        assert_eq!((&found["other"], &found["refused"]), (&json!(10), &json!(KINDS_MAX + 10)));
        assert_eq!(ShadowReport::default().to_text(&[]), "No route is in shadow mode.\n");
    }
}
