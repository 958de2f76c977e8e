//! What is known of each lock, and how each source is.

use std::sync::Arc;

use fencepost_policy::Revision;
use fencepost_sources::{LockDescription, LockSource, Member, StoreError, TrackedLock};
use http::StatusCode;
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::Admin;
use super::answers::{AdminAnswer, json_answer, text};

impl Admin {
    /// Costs the same however many locks there are.
    pub(super) fn sources(&self) -> AdminAnswer {
        let now = Instant::now();
        let sources = self.sources.iter().map(|source| source_json(source, now));
        json_answer(&json!({ "sources": sources.collect::<Vec<_>>() }))
    }

    pub(super) fn locks(&self) -> AdminAnswer {
        let now = Instant::now();
        let sources = self.sources.iter().map(|source| {
            let mut told = source_json(source, now);
            told["locks"] = source.locks().iter().map(|lock| lock_json(&lock.describe(now))).collect();
            told
        });
        json_answer(&json!({ "sources": sources.collect::<Vec<_>>() }))
    }

    /// The locks of that key, one in each source that tracks it, be it only for requests under way. The key is given percent-encoded or as it is; of
    /// `/locks//a/b` some clients make `/locks/a/b`, so without a lock `a/b` this means `/a/b`.
    ///
    /// # Errors
    /// What to answer if there is none.
    pub(super) fn find(&self, key: &str) -> Result<Vec<Arc<TrackedLock>>, AdminAnswer> {
        let Ok(key) = percent_decode_str(key).decode_utf8() else {
            return Err(text(StatusCode::BAD_REQUEST, "the lock key is not UTF-8\n".to_owned()));
        };
        let sources = self.fence.process.sources.all();
        let find = |key: &str| -> Vec<_> { sources.iter().filter_map(|source| source.find(key)).collect() };
        let mut found = find(&key);
        if found.is_empty() {
            found = find(&format!("/{key}"));
        }
        if found.is_empty() {
            return Err(text(StatusCode::NOT_FOUND, format!("no lock {key:?} is tracked\n")));
        }
        Ok(found)
    }

    pub(super) fn lock(&self, key: &str) -> AdminAnswer {
        let found = match self.find(key) {
            Ok(found) => found,
            Err(answer) => return answer,
        };
        let now = Instant::now();
        let described = found.iter().map(|lock| {
            let mut described = lock_json(&lock.describe(now));
            described["source"] = json!(lock.source());
            described
        });
        match described.collect::<Vec<Value>>().as_slice() {
            [only] => json_answer(only),
            several => json_answer(&json!(several)),
        }
    }
}

/// How a source is, and not which locks it has.
fn source_json(source: &LockSource, now: Instant) -> Value {
    let status = source.status(now);
    json!({
        "source": source.name(),
        "up": status.up,
        "age_seconds": status.age.map(|age| age.as_secs_f64()),
        "revision": status.revision.map(Revision::get),
        "distrusted_through": status.distrusted_through.map(Revision::get),
        "members": members_json(&status.members),
        "watch_restarts": status.watch_restarts,
        "last_error": status.last_error.as_deref().map(StoreError::to_string),
        "tracked_locks": status.static_locks + status.templated_locks,
    })
}

pub(crate) fn lock_json(lock: &LockDescription) -> Value {
    let LockDescription { key, layout, holder, as_of, reach, age, waiters, problem, gate, left_behind_for } = lock;
    let at_worker = gate
        .at_worker
        .iter()
        .map(|there| json!({ "tenure": there.tenure.get(), "running": there.running, "orphans": there.orphans }));
    json!({
        "key": key.as_str(),
        "layout": layout.name(),
        "owner": holder.as_ref().map(|(owner, ..)| owner.to_string()),
        "first": holder.as_ref().map(|(_, first, _)| first.get()),
        "last": holder.as_ref().map(|(.., last)| last.get()),
        "as_of": as_of.map(|revision| revision.get()),
        "reach": reach.map(|revision| revision.get()),
        "age_seconds": age.map(|age| age.as_secs_f64()),
        "waiters": waiters.iter().map(|waiter| json!({
            "owner": waiter.owner.to_string(),
            "created": waiter.created.get(),
        })).collect::<Vec<_>>(),
        "problem": problem.as_deref(),
        "gate": {
            "floor": gate.floor,
            "at_worker": at_worker.collect::<Vec<_>>(),
            "passed": gate.passed,
            "left_behind_seconds": left_behind_for.map(|left| left.as_secs_f64()),
        },
    })
}

fn members_json(members: &[Member]) -> Value {
    let member = |member: &Member| {
        json!({
            "endpoint": &*member.endpoint,
            "version": member.version.as_ref().ok().map(|version| version.to_string()),
            "error": member.version.as_ref().err().map(StoreError::to_string),
        })
    };
    members.iter().map(member).collect()
}
