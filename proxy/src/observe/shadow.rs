//! What routes in shadow mode would have refused: of what reason, by which owner, first and last
//! time.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::SystemTime;

use fencepost_policy::LockKey;
use serde_json::{Value, json};
use smol_str::SmolStr;

use super::record::{Decision, Outcome, RouteLabel, millis};
use super::text::owner_in_words;
use crate::decision::DecisionId;

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
}

#[derive(Debug)]
struct Refusals {
    count: u64,
    first: SystemTime,
    last: SystemTime,
    /// The latest of them.
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
        let kind = Kind {
            reason: reason.code(),
            owner: decision.owner.clone(),
            lock: decision.lock.clone(),
        };
        if let Some(refusals) = route.kinds.get_mut(&kind) {
            refusals.count += 1;
            refusals.last = decision.at;
            refusals.decision = decision.id.clone();
        } else if route.kinds.len() < KINDS_MAX {
            let (first, last) = (decision.at, decision.at);
            route
                .kinds
                .insert(kind, Refusals { count: 1, first, last, decision: decision.id.clone() });
        } else {
            route.other += 1;
        }
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

    /// The same for people.
    pub fn to_text(&self, routes: &[Watched]) -> String {
        if routes.is_empty() {
            return "No route is in shadow mode.\n".to_owned();
        }
        let mut text = String::new();
        for watched in routes {
            let (kinds, other) = self.of(watched);
            let since = humantime::format_rfc3339_seconds(watched.label.since);
            let (name, admitted, refused) =
                (&watched.label.name, watched.admitted, total(&kinds) + other);
            let _ = writeln!(
                text,
                "route {name}, in shadow mode since {since}: {admitted} requests would have been admitted, {refused} refused"
            );
            for (kind, refusals) in &kinds {
                let [first, last] =
                    [refusals.first, refusals.last].map(humantime::format_rfc3339_seconds);
                let owner = kind.owner.as_ref().map_or_else(|| "-".to_owned(), owner_in_words);
                let lock = kind.lock.as_ref().map_or("-", LockKey::as_str);
                let (count, reason, id) = (refusals.count, kind.reason, &refusals.decision);
                let _ = writeln!(
                    text,
                    "  {count:>8}  {reason:<18} owner {owner}  lock {lock}  first {first}  last {last}  latest decision {id}"
                );
            }
            if other > 0 {
                let _ = writeln!(
                    text,
                    "  {other:>8}  of further owners and locks, too many to tell apart"
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
            json!({ "reason": "stale-tenure", "owner": "b", "lock": "/shards/2/lock", "count": 3, "first_ms": 2000,
                    "last_ms": 5000, "decision": "d-5" })
        );
        assert_eq!([&found["refusals"][1]["owner"], &found["refusals"][2]["owner"]], ["", "a"]);
        let text = shadow.to_text(&[Watched { label, admitted: 7 }]);
        assert!(text.contains("7 requests would have been admitted, 5 refused"), "{text}");
        assert!(
            text.contains(r#" owner ""  lock /shards/2/lock  "#),
            "an empty name could not be seen: {text}"
        );
        assert!(
            text.contains(
                "first 1970-01-01T00:00:02Z  last 1970-01-01T00:00:05Z  latest decision d-5"
            ),
            "{text}"
        );
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
