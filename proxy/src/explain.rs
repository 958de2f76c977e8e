//! `fencepost explain`: what would become of a request with this token, and why?
//!
//! The lock store is asked, not a running proxy: what is said is what a proxy would judge that has
//! just read the lock. A request that is admitted may still have to wait at a running proxy for
//! those of an earlier holder.

mod presented;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use fencepost_config::{Config, Freshness, Lock, OnUnavailable, Route};
use fencepost_locks::{EtcdStore, LockDescription, LockSource, Timing, TrackedLock, group_members};
use fencepost_policy::{FenceToken, LockKey, Rejection, Revision, Verdict};
use http::{HeaderValue, Method};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::check::lock_line;
use crate::cli::Question;
use crate::fencing::NAME_THE_LOCK;
use crate::generation::Generation;
use crate::layout_hint;
use crate::observe::text::owner_in_words;
use crate::process::Process;
use crate::refusal::{explanation, statuses};
use fencepost_fence::claim::Guard;

use presented::Presented;

/// How long the lock store may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// A question that makes sense for a configuration.
pub struct Asked<'c> {
    config: &'c Config,
    index: usize,
    /// The lock that the request names, or what it is refused for that names none; `None` if
    /// nothing guards the route.
    named: Option<Result<LockKey, Rejection>>,
    presented: Presented,
}

/// An answer.
#[derive(Debug, Clone)]
pub struct Explanation<'c> {
    route: &'c Route,
    presented: Presented,
    /// The lock, as the store has it; `None` if nothing guards the route, or if it could not be
    /// read.
    lock: Option<LockDescription>,
    /// Why it could not be read.
    cause: Option<String>,
    /// What its masters may do otherwise than the route says.
    hint: Option<String>,
    /// Whether a member of the group tells that its present tenure is clear; `None` without a group
    /// or a tenure.
    clear: Option<bool>,
    /// What enforcing the route would come to.
    verdict: Result<(), Rejection>,
}

impl<'c> Asked<'c> {
    /// Finds out what is asked.
    ///
    /// # Errors
    /// What is wrong with the question, the flag by name.
    pub fn of(config: &'c Config, question: Question) -> Result<Asked<'c>, String> {
        let index = route(config, question.route.as_deref())?;
        let lock = config.routes[index].mode.lock();
        let named = lock.map(|lock| key(lock, question.lock.as_deref())).transpose()?;
        let presented = Presented::of(question, &config.routes[index])?;
        Ok(Asked { config, index, named, presented })
    }

    /// Asks the lock store. Where it does not answer, what becomes of a request meanwhile is the
    /// answer.
    ///
    /// # Errors
    /// If the store can't be asked, such as for lack of a file.
    pub async fn answer(self) -> anyhow::Result<Explanation<'c>> {
        let Asked { config, index, named, presented } = self;
        let route = &config.routes[index];
        let mut explanation = Explanation {
            route,
            verdict: presented.token.as_ref().map(drop).map_err(|reason| *reason),
            presented,
            lock: None,
            cause: None,
            hint: None,
            clear: None,
        };
        match named {
            None => explanation.verdict = Ok(()),
            // Who claims to be somebody else is told that before the lock is looked at, and all
            // others this before their token is.
            Some(Err(_)) if explanation.verdict == Err(Rejection::IdentityMismatch) => {}
            Some(Err(reason)) => explanation.verdict = Err(reason),
            Some(Ok(key)) => {
                // Nothing is logged for a question, and the running proxy's file is none of its
                // business.
                let quiet = Config { access_log: None, ..config.clone() };
                let process = Arc::new(Process::alone()?);
                let Generation { sources, routes, .. } =
                    Generation::new(quiet, 1, Arc::clone(&process))?;
                let read = read(routes[index].guard.as_ref(), &key).await;
                sources.iter().for_each(LockSource::stop);
                match read {
                    Ok((lock, asked_at)) => {
                        if let Ok(token) = &explanation.presented.token {
                            explanation.verdict = judge(&lock, token, route, asked_at);
                        }
                        let described = lock.describe(Instant::now());
                        if let Some(store) = process.sources.etcd(lock.source()) {
                            explanation.hint = layout_hint::hint(&store, &described).await;
                            explanation.clear = is_clear(&store, config, &described).await;
                        }
                        explanation.lock = Some(described);
                    }
                    Err(error) => {
                        explanation.verdict = explanation.verdict.and(Err(Rejection::Unverifiable));
                        explanation.cause = Some(format!("{error:#}"));
                    }
                }
            }
        }
        Ok(explanation)
    }
}

/// Whether a member of the group tells that the present tenure of that lock is clear.
async fn is_clear(store: &EtcdStore, config: &Config, lock: &LockDescription) -> Option<bool> {
    let (_, first, last) = lock.holder.as_ref()?;
    let members = group_members(store, &config.group.as_ref()?.members_prefix()).await.ok()?;
    let mut told =
        members.iter().filter_map(|member| member.said.as_ref()).flat_map(|said| &said.clear);
    Some(
        told.any(|tenure| {
            tenure.lock.key == lock.key && (first..=last).contains(&&tenure.revision)
        }),
    )
}

/// The number of the route of that name; without a name, of the only one.
fn route(config: &Config, name: Option<&str>) -> Result<usize, String> {
    let names =
        || config.routes.iter().map(|route| route.name.as_str()).collect::<Vec<_>>().join(", ");
    match (name, &config.routes[..]) {
        (Some(name), routes) => routes
            .iter()
            .position(|route| route.name == name)
            .ok_or_else(|| format!("--route: there is no route {name:?}; there are: {}", names())),
        (None, [_]) => Ok(0),
        (None, _) => Err(format!("--route: say which of: {}", names())),
    }
}

/// The lock that a request is judged by which names this one, or none.
fn key(lock: &Lock, named: Option<&str>) -> Result<Result<LockKey, Rejection>, String> {
    let template = lock.key.as_str();
    match (named, lock.key.static_key()) {
        // Then the caller has to, whether or not there is a choice.
        (None, _) if lock.from_header => Ok(Err(Rejection::TokenMissing)),
        (None, Some(key)) => Ok(Ok(key.clone())),
        (None, None) => Err(format!("--lock: say which of the locks {template:?}")),
        (Some(named), _) => match lock.key.named(named) {
            Some(key) => LockKey::new(&key).map(Ok).map_err(|error| format!("--lock: {error}")),
            None => {
                Err(format!("--lock: {named:?} is none of the locks {template:?} of the route"))
            }
        },
    }
}

/// The lock, read since it was asked for, and when that was.
async fn read(guard: Option<&Guard>, key: &LockKey) -> anyhow::Result<(Arc<TrackedLock>, Instant)> {
    let asked_at = Instant::now();
    let deadline = asked_at + PATIENCE;
    let lock = match guard {
        Some(Guard::Static(lock)) => Arc::clone(lock),
        Some(Guard::Templated(locks)) => locks.load(key.as_str(), deadline).await?,
        None => bail!("nothing guards this route"),
    };
    lock.confirm(asked_at, deadline).await?;
    Ok((lock, asked_at))
}

fn judge(
    lock: &TrackedLock,
    token: &FenceToken<HeaderValue>,
    route: &Route,
    arrived: Instant,
) -> Result<(), Rejection> {
    let linearizable = route.freshness == Freshness::Linearizable;
    let timing = Timing {
        arrived,
        not_before: None,
        now: Instant::now(),
        max_age: route.max_age,
        linearizable,
    };
    match lock.view().judge(token, &timing) {
        Verdict::Admit => Ok(()),
        Verdict::Reject(reason) => Err(reason),
        Verdict::Confirm => Err(Rejection::Unverifiable),
    }
}

impl Explanation<'_> {
    /// What a refusal is answered with.
    fn status(&self) -> Option<u16> {
        let stale_status = self.route.stale_status.status();
        self.verdict.err().map(|reason| statuses(reason, stale_status).0.as_u16())
    }

    /// Whether the request goes on although its lock is unverifiable, because the route's operator
    /// has allowed that.
    fn is_let_past(&self) -> bool {
        self.route.on_unavailable == OnUnavailable::DangerousAdmit
            && self.verdict == Err(Rejection::Unverifiable)
    }

    /// As JSON, for programs.
    pub fn to_json(&self) -> Value {
        let Explanation { route, presented, lock, cause, hint, clear, verdict } = self;
        let Presented { owner, revision, proof, token: _ } = presented;
        json!({
            "route": route.name,
            "mode": route.mode.name(),
            "owner": owner,
            // As in the decisions of a proxy.
            "revision": revision.parse::<Revision>().ok().map(Revision::get),
            "peer": proof.as_ref().and_then(|proof| proof.names.as_deref()),
            "proved": proof.as_ref().map(|proof| &proof.owners),
            "lock": lock.as_ref().map(|lock| crate::admin::lock_json(lock, hint.clone())),
            "verdict": if verdict.is_ok() { "admit" } else { "reject" },
            "reason": verdict.err().map_or("none", Rejection::code),
            "action": verdict.err().map(|reason| reason.action().name()),
            "status": self.status(),
            "cause": cause,
            "clear": clear,
            "hint": hint,
            "exempt_methods": route.exempt_methods.iter().map(Method::as_str).collect::<Vec<_>>(),
            "let_past": self.is_let_past(),
        })
    }

    /// What follows from the verdict in the mode that the route is in.
    fn consequence(&self) -> String {
        match (self.route.mode.name(), self.verdict, self.status()) {
            ("off", ..) => "forwarded: the route is off, and no token is looked at".to_owned(),
            ("shadow", Err(reason), Some(status)) => {
                format!(
                    "forwarded, since the route is in shadow mode; enforced, it would be refused: {status} {reason}"
                )
            }
            _ if self.is_let_past() => {
                "forwarded unjudged: nothing can be said of the lock, and on_unavailable is dangerous_admit".to_owned()
            }
            (_, Err(reason), Some(status)) => format!("refused: {status} {reason}"),
            ("shadow", ..) => "forwarded; enforced, it would be admitted".to_owned(),
            _ => "admitted".to_owned(),
        }
    }

    /// What the verdict is about, beside the lock.
    fn why(&self) -> String {
        let claimed = self.presented.owner.as_ref().map(owner_in_words);
        let revision = &self.presented.revision;
        match (&self.cause, self.verdict) {
            (Some(cause), _) => format!("The lock store was asked, and {cause}."),
            (None, Err(Rejection::IdentityMismatch)) => unproved(claimed.as_deref()),
            (None, _) if self.lock.is_some() => {
                let owner = claimed.unwrap_or_else(|| "nobody".to_owned());
                format!("The request presents revision {revision} of {owner}.")
            }
            (None, Ok(())) => "Nothing guards the route.".to_owned(),
            (None, Err(_)) => {
                "The request names no lock (--lock), as it has to where the route says from_header."
                    .to_owned()
            }
        }
    }
}

fn unproved(claimed: Option<&str>) -> String {
    match claimed {
        Some(claimed) => format!(
            "The request claims to come from {claimed}, which its sender has not proved to be."
        ),
        None => "Of which owner the request comes cannot be told.".to_owned(),
    }
}

impl fmt::Display for Explanation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (route, mode) = (self.route, self.route.mode.name());
        writeln!(f, "route {} ({mode}): {}", route.name, self.consequence())?;
        if let Some(lock) = &self.lock {
            writeln!(f, "  {}", lock_line(lock))?;
        }
        if let Some(clear) = self.clear {
            let told = if clear {
                "Its tenure is clear: nothing of an earlier one can be at the worker through any member of the group."
            } else {
                "No member of the group tells that its tenure is clear: the first request waits until all have answered."
            };
            writeln!(f, "  {told}")?;
        }
        if let Some(hint) = &self.hint {
            writeln!(f, "  Look at its layout: {hint}.")?;
        }
        if let Some(proof) = &self.presented.proof {
            writeln!(f, "  {proof}")?;
        }
        let mut lines = vec![self.why()];
        if let Err(reason) = self.verdict {
            let names_none =
                reason == Rejection::TokenMissing && self.lock.is_none() && self.cause.is_none();
            let told = if names_none { NAME_THE_LOCK } else { explanation(reason).1 };
            lines.push(format!("The sender is told: {told} (action: {})", reason.action().name()));
        }
        if mode != "off" && !route.exempt_methods.is_empty() {
            let methods: Vec<&str> = route.exempt_methods.iter().map(Method::as_str).collect();
            lines.push(format!(
                "No token is looked at with {} (exempt_methods).",
                methods.join(", ")
            ));
        }
        write!(f, "  {}", lines.join("\n  "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
        [[listener]]
        address = "127.0.0.1:8080"
        [source.main]
        kind = "memory"
        [[route]]
        name = "shards"
        path = "/shards/{shard}/"
        upstream = "http://127.0.0.1:9000"
        lock = { source = "main", key = "/shards/{shard}/lock" }
        [[route]]
        name = "open"
        path = "/"
        upstream = "http://127.0.0.1:9000"
        mode = "off"
    "#;

    fn question(route: Option<&str>, lock: Option<&str>) -> Question {
        let [route, lock] = [route, lock].map(|text| text.map(str::to_owned));
        let owner = Some("a".to_owned());
        let (peer_uri, peer_dns, peer_cn) = (Vec::new(), Vec::new(), Vec::new());
        Question {
            route,
            lock,
            owner,
            revision: "7".to_owned(),
            peer_uri,
            peer_dns,
            peer_cn,
            json: false,
        }
    }

    fn asked(route: Option<&str>, lock: Option<&str>) -> Result<(), String> {
        let config = Config::from_toml("f.toml", FILE).unwrap();
        Asked::of(&config, question(route, lock)).map(drop)
    }

    #[test]
    fn a_question_that_makes_no_sense_is_answered_with_what_there_is() {
        let error = |route, lock| asked(route, lock).unwrap_err();
        assert_eq!(error(None, None), "--route: say which of: shards, open");
        assert_eq!(
            error(Some("shard"), None),
            "--route: there is no route \"shard\"; there are: shards, open"
        );
        assert_eq!(
            error(Some("shards"), None),
            "--lock: say which of the locks \"/shards/{shard}/lock\""
        );
        assert_eq!(
            error(Some("shards"), Some("/shards/a/b/lock")),
            "--lock: \"/shards/a/b/lock\" is none of the locks \"/shards/{shard}/lock\" of the route"
        );
        assert_eq!(asked(Some("shards"), Some("/shards/2/lock")), Ok(()));
        assert_eq!(asked(Some("open"), None), Ok(()));
    }
}
