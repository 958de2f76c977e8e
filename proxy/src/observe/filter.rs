//! Which decisions somebody wants to see: the query of `/decisions`.

use std::time::{Duration, SystemTime};

use fencepost_policy::Rejection;

use super::record::{Decision, Outcome};
use crate::server::ClientAddress;

/// What a decision has to be. The default takes every one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    route: Option<String>,
    lock: Option<String>,
    reason: Option<String>,
    owner: Option<String>,
    mode: Option<String>,
    verdict: Option<String>,
    forwarded: Option<bool>,
    client: Option<String>,
    id: Option<String>,
    since: Option<SystemTime>,
}

/// A query, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Query {
    /// Which decisions.
    pub filter: Filter,
    /// How many at most.
    pub limit: usize,
}

/// The parameters of a query.
const PARAMETERS: &str =
    "route, lock, reason, owner, mode, verdict, forwarded, client, id, since and limit";

/// The modes of routes. One that is off has decisions too: what still waits when the process ends.
const MODES: [&str; 3] = ["enforce", "shadow", "off"];

/// What [`Outcome::verdict`] can be.
const VERDICTS: [&str; 3] = ["admit", "reject", "pass"];

/// How `forwarded` is asked for: what is rejected was forwarded all the same in shadow mode.
const FORWARDED: [&str; 2] = ["true", "false"];

impl Query {
    const LIMIT: usize = 100;
    const LIMIT_MAX: usize = 1_000;

    /// Takes a query apart, `now` being what a duration back counts from.
    ///
    /// # Errors
    /// What is wrong with it, the parameter by name.
    pub fn parse(query: &str, now: SystemTime) -> Result<Query, String> {
        let mut parsed = Query { filter: Filter::default(), limit: Query::LIMIT };
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            // A form sends every field, and an empty one asks for nothing.
            if value.is_empty() {
                continue;
            }
            let (filter, value) = (&mut parsed.filter, value.into_owned());
            match &*name {
                "route" => filter.route = Some(value),
                "lock" => filter.lock = Some(value),
                "owner" => filter.owner = Some(value),
                "client" => filter.client = Some(value),
                "id" => filter.id = Some(value),
                "reason" => filter.reason = Some(one_of("reason", value, &reasons())?),
                "mode" => filter.mode = Some(one_of("mode", value, &MODES)?),
                "verdict" => filter.verdict = Some(one_of("verdict", value, &VERDICTS)?),
                "forwarded" => {
                    filter.forwarded = Some(one_of("forwarded", value, &FORWARDED)? == "true")
                }
                "since" => {
                    let since = time(&value, now).ok_or_else(|| {
                        format!(
                            "since={value:?} is neither milliseconds since the epoch, nor RFC 3339, nor a duration back, like 5m"
                        )
                    })?;
                    filter.since = Some(since);
                }
                "limit" => {
                    let limit =
                        value.parse().ok().filter(|limit| (1..=Query::LIMIT_MAX).contains(limit));
                    parsed.limit = limit.ok_or_else(|| {
                        format!("limit={value:?} is not a number from 1 to {}", Query::LIMIT_MAX)
                    })?;
                }
                _ => return Err(format!("unknown filter {name:?}; there are {PARAMETERS}")),
            }
        }
        Ok(parsed)
    }
}

impl Filter {
    /// Whether it asks for the past.
    pub fn asks_for_the_past(&self) -> bool {
        self.since.is_some()
    }

    /// Whether the decision is as recent as it has to be.
    pub fn is_since(&self, decision: &Decision) -> bool {
        self.since.is_none_or(|since| decision.at >= since)
    }

    /// Whether the decision is what it has to be.
    pub fn passes(&self, decision: &Decision) -> bool {
        let Filter { route, lock, reason, owner, mode, verdict, forwarded, client, id, since: _ } =
            self;
        let is = |wanted: &Option<String>, text: Option<&str>| {
            wanted.as_deref().is_none_or(|it| text == Some(it))
        };
        is(route, Some(&decision.route.name))
            && is(lock, decision.lock.as_ref().map(|lock| lock.as_str()))
            && is(reason, Some(decision.outcome.reason()))
            && is(owner, decision.owner.as_deref())
            && is(mode, Some(decision.route.mode))
            && is(verdict, Some(decision.outcome.verdict()))
            && forwarded.is_none_or(|wanted| wanted == decision.outcome.is_forwarded())
            && client.as_deref().is_none_or(|wanted| is_from(wanted, decision.client))
            && (id.is_none() || is(id, Some(&decision.id.to_string())))
            && self.is_since(decision)
    }
}

/// What [`Outcome::reason`] can be.
fn reasons() -> Vec<&'static str> {
    Rejection::ALL.iter().map(|reason| reason.code()).chain([Outcome::Admitted.reason()]).collect()
}

/// A text that has to be one of these: a wrong one would find nothing, which says that there was
/// nothing.
fn one_of(name: &str, value: String, known: &[&str]) -> Result<String, String> {
    if known.contains(&value.as_str()) {
        Ok(value)
    } else {
        Err(format!("unknown {name} {value:?}; there are {}", known.join(", ")))
    }
}

/// Whether a client is that one: an address with its port, or without for every port of it.
fn is_from(wanted: &str, client: ClientAddress) -> bool {
    client.ip().is_some_and(|address| wanted == address.to_string()) || wanted == client.to_string()
}

/// A time: milliseconds since the epoch, RFC 3339, or a duration back from `now`.
fn time(text: &str, now: SystemTime) -> Option<SystemTime> {
    if let Ok(millis) = text.parse() {
        return SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(millis));
    }
    if let Ok(time) = humantime::parse_rfc3339(text) {
        return Some(time);
    }
    now.checked_sub(humantime::parse_duration(text).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(query: &str) -> bool {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(60);
        let query = Query::parse(query, now).unwrap_or_else(|error| panic!("{error}"));
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(30);
        query.filter.passes(&Decision { at, ..Decision::for_tests("d-1") })
    }

    #[test]
    fn a_decision_has_to_be_all_that_is_asked_for() {
        for query in [
            "",
            "owner=",
            "route=shards",
            "lock=%2Fshards%2F2%2Flock",
            "lock=/shards/2/lock&owner=shard-1&reason=replayed-tenure&mode=enforce&verdict=reject&forwarded=false&client=unix&id=d-1",
            "since=30000",
            "since=1970-01-01T00:00:30Z",
            "since=30s",
            "since=1m",
        ] {
            assert!(passes(query), "{query}");
        }
        for query in [
            "route=other",
            "route=shards&owner=shard-2",
            "lock=/shards/2",
            "reason=none",
            "mode=shadow",
            "verdict=admit",
            "forwarded=true",
            "client=127.0.0.1:1",
            "id=d-2",
            "since=30001",
            "since=29s",
        ] {
            assert!(!passes(query), "{query}");
        }
    }

    #[test]
    fn a_client_is_known_by_its_address_with_and_without_the_port() {
        let client = ClientAddress::Tcp("127.0.0.1:51234".parse().unwrap());
        let decision = Decision { client, ..Decision::for_tests("d") };
        let passes = |client: &str| {
            let query = Query::parse(&format!("client={client}"), SystemTime::UNIX_EPOCH).unwrap();
            query.filter.passes(&decision)
        };
        assert_eq!(
            ["127.0.0.1", "127.0.0.1:51234", "127.0.0.2", "127.0.0.1:5"].map(passes),
            [true, true, false, false]
        );
    }

    #[test]
    fn a_wrong_query_names_its_parameter() {
        let error = |query: &str| Query::parse(query, SystemTime::UNIX_EPOCH).unwrap_err();
        assert!(error("rout=a").contains("unknown filter \"rout\""));
        assert!(error("since=yesterday").contains("since=\"yesterday\""));
        let reasons = error("reason=stale");
        assert!(reasons.starts_with("unknown reason \"stale\"; there are "), "{reasons}");
        for reason in Rejection::ALL.iter().map(|reason| reason.code()).chain(["none"]) {
            assert!(reasons.contains(reason), "{reason} is not in {reasons}");
            assert!(
                Query::parse(&format!("reason={reason}"), SystemTime::UNIX_EPOCH).is_ok(),
                "{reason}"
            );
        }
        assert_eq!(
            error("mode=enforced"),
            "unknown mode \"enforced\"; there are enforce, shadow, off"
        );
        assert_eq!(
            error("verdict=refused"),
            "unknown verdict \"refused\"; there are admit, reject, pass"
        );
        assert_eq!(error("forwarded=no"), "unknown forwarded \"no\"; there are true, false");
        for limit in ["0", "1001", "-1", "many"] {
            assert!(
                error(&format!("limit={limit}")).contains("not a number from 1 to 1000"),
                "{limit}"
            );
        }
        assert_eq!(Query::parse("limit=1000", SystemTime::UNIX_EPOCH).unwrap().limit, 1000);
    }
}
