//! The admin listener: is it alive, is it ready, what does it count, what does it know of each lock.
//!
//! Reading is by GET; whatever changes something is by POST.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use fencepost_policy::Revision;
use fencepost_sources::{LockDescription, LockSource, Member, StoreError, TrackedLock};
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::downstream::{AnswerBody, ClientBody, OpenConnections};
use crate::exchange::Fence;
use crate::metrics::SourceReading;

/// What the admin listener can see and do.
#[derive(Clone)]
pub struct Admin {
    /// The configuration in force.
    pub fence: Arc<Fence>,
    /// The lock sources.
    pub sources: Arc<[LockSource]>,
    /// Set as soon as the process is about to stop.
    pub leaving: Arc<AtomicBool>,
    /// How many client connections are open.
    pub connections: OpenConnections,
}

/// An answer of the admin listener.
pub type AdminAnswer = Response<Full<Bytes>>;

impl AnswerBody for Full<Bytes> {}

impl Admin {
    /// Answers a request.
    pub async fn answer(self, request: Request<ClientBody>) -> Result<AdminAnswer, Infallible> {
        let path = request.uri().path();
        let answer = match (request.method(), path) {
            (&Method::GET | &Method::HEAD, _) => self.get(path),
            (&Method::POST, _) => self.post(path).await,
            _ => not_allowed("GET, HEAD, POST"),
        };
        Ok(answer)
    }

    fn get(&self, path: &str) -> AdminAnswer {
        match path {
            "/livez" => text(StatusCode::OK, "alive\n".to_owned()),
            "/readyz" => self.readiness(),
            "/metrics" => self.metrics(),
            "/locks" => self.locks(),
            "/" => text(StatusCode::OK, INDEX.to_owned()),
            _ => match path.strip_prefix("/locks/") {
                Some(key) => self.lock(key),
                None if accepted_source(path).is_some() => not_allowed("POST"),
                None => text(StatusCode::NOT_FOUND, format!("There is nothing at this path.\n\n{INDEX}")),
            },
        }
    }

    async fn post(&self, path: &str) -> AdminAnswer {
        if let Some(key) = path.strip_prefix("/locks/").and_then(|path| path.strip_suffix("/clear-orphans")) {
            return self.clear_orphans(key);
        }
        let Some(name) = accepted_source(path) else {
            return not_allowed("GET, HEAD");
        };
        let Some(source) = self.sources.iter().find(|source| source.name() == name) else {
            return text(StatusCode::NOT_FOUND, format!("there is no source {name:?}\n"));
        };
        if source.status(Instant::now()).distrusted_through.is_none() {
            return text(StatusCode::OK, format!("source {name:?} has not gone back; nothing is changed\n"));
        }
        // Before the gates start anew, or one that is made meanwhile would begin with an old floor.
        if let Some(memory) = &self.fence.memory {
            memory.accept(name);
        }
        if let Err(error) = source.accept_regression().await {
            return text(StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n"));
        }
        tracing::warn!(source = name, "the operator accepted that the store went back; floors start anew");
        // For ever only now, or the old revisions would be noted again.
        if let Some(memory) = &self.fence.memory
            && let Err(error) = memory.forget(name).await
        {
            let lost = "accepted, but a restart will have to be told again";
            return text(StatusCode::SERVICE_UNAVAILABLE, format!("{lost}: {error}\n"));
        }
        text(StatusCode::OK, format!("the state of source {name:?} is accepted; floors start anew\n"))
    }

    /// Ends the orphans of a lock by hand: the operator knows that none of them is running.
    fn clear_orphans(&self, key: &str) -> AdminAnswer {
        let found = match self.find(key) {
            Ok(found) => found,
            Err(answer) => return answer,
        };
        let cleared: usize = found.iter().map(|(_, lock)| lock.clear_orphans()).sum();
        let key = found.first().map_or(key, |(_, lock)| lock.key().as_str());
        tracing::warn!(lock = key, cleared, "orphans ended by hand");
        text(StatusCode::OK, format!("{cleared} orphans of lock {key:?} no longer count\n"))
    }

    /// Ready once every lock that is named in the configuration has been read, until the process is about to stop.
    fn readiness(&self) -> AdminAnswer {
        if self.leaving.load(Ordering::Relaxed) {
            return text(StatusCode::SERVICE_UNAVAILABLE, "not ready: draining\n".to_owned());
        }
        let waiting: Vec<&str> =
            self.sources.iter().filter(|source| !source.ready()).map(|source| source.name()).collect();
        if waiting.is_empty() {
            text(StatusCode::OK, "ready\n".to_owned())
        } else {
            let sources = waiting.join(", ");
            text(StatusCode::SERVICE_UNAVAILABLE, format!("not ready: locks have not been read yet from: {sources}\n"))
        }
    }

    fn metrics(&self) -> AdminAnswer {
        let now = Instant::now();
        for source in &*self.sources {
            let status = source.status(now);
            let reading = SourceReading {
                up: status.up,
                age_seconds: status.age.map_or(f64::INFINITY, |age| age.as_secs_f64()),
                watch_restarts: status.watch_restarts,
                tracked_locks: (status.static_locks + status.templated_locks) as u64,
            };
            self.fence.metrics.set_source(source.name(), reading);
        }
        self.fence.metrics.set_connections(self.connections.count());
        match self.fence.metrics.text() {
            Ok(metrics) => answer(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", metrics),
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
        }
    }

    fn locks(&self) -> AdminAnswer {
        let now = Instant::now();
        let sources = self.sources.iter().map(|source| {
            let status = source.status(now);
            let locks: Vec<Value> = source.locks().iter().map(|lock| lock_json(&lock.describe(now))).collect();
            json!({
                "source": source.name(),
                "up": status.up,
                "age_seconds": status.age.map(|age| age.as_secs_f64()),
                "revision": status.revision.map(Revision::get),
                "distrusted_through": status.distrusted_through.map(Revision::get),
                "members": members_json(&status.members),
                "watch_restarts": status.watch_restarts,
                "last_error": status.last_error.as_deref().map(StoreError::to_string),
                "locks": locks,
            })
        });
        json_answer(&json!({ "sources": sources.collect::<Vec<_>>() }))
    }

    /// The locks of that key, one in each source that tracks it. The key is given percent-encoded or as it is; of
    /// `/locks//a/b` some clients make `/locks/a/b`, so without a lock `a/b` this means `/a/b`.
    ///
    /// # Errors
    /// What to answer if there is none.
    fn find(&self, key: &str) -> Result<Vec<(&str, Arc<TrackedLock>)>, AdminAnswer> {
        let Ok(key) = percent_decode_str(key).decode_utf8() else {
            return Err(text(StatusCode::BAD_REQUEST, "the lock key is not UTF-8\n".to_owned()));
        };
        let find = |key: &str| -> Vec<_> {
            self.sources.iter().filter_map(|source| Some((source.name(), source.find(key)?))).collect()
        };
        let mut found = find(&key);
        if found.is_empty() {
            found = find(&format!("/{key}"));
        }
        if found.is_empty() {
            return Err(text(StatusCode::NOT_FOUND, format!("no lock {key:?} is tracked\n")));
        }
        Ok(found)
    }

    fn lock(&self, key: &str) -> AdminAnswer {
        let found = match self.find(key) {
            Ok(found) => found,
            Err(answer) => return answer,
        };
        let now = Instant::now();
        let described = found.iter().map(|(source, lock)| {
            let mut lock = lock_json(&lock.describe(now));
            lock["source"] = json!(source);
            lock
        });
        match described.collect::<Vec<Value>>().as_slice() {
            [only] => json_answer(only),
            several => json_answer(&json!(several)),
        }
    }
}

const INDEX: &str = "fencepost admin\n\n\
    GET  /livez                              is the process alive?\n\
    GET  /readyz                             has every lock been read?\n\
    GET  /metrics                            for Prometheus\n\
    GET  /locks                              what is known of every lock\n\
    GET  /locks/{key}                        what is known of one\n\
    POST /locks/{key}/clear-orphans          none of its orphans is running any more\n\
    POST /sources/{name}/accept-regression   go on with a store that went back\n";

fn accepted_source(path: &str) -> Option<&str> {
    path.strip_prefix("/sources/")?.strip_suffix("/accept-regression")
}

fn lock_json(lock: &LockDescription) -> Value {
    let LockDescription { key, layout, holder, as_of, reach, age, waiters, problem, gate } = lock;
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

fn not_allowed(allowed: &'static str) -> AdminAnswer {
    let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, format!("this path takes {allowed}\n"));
    answer.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    answer
}

fn text(status: StatusCode, text: String) -> AdminAnswer {
    answer(status, "text/plain; charset=utf-8", text.into_bytes())
}

fn json_answer(value: &Value) -> AdminAnswer {
    let mut body = serde_json::to_vec_pretty(value).unwrap_or_default(); // A value of ours has only text for keys.
    body.push(b'\n');
    answer(StatusCode::OK, "application/json", body)
}

fn answer(status: StatusCode, kind: &'static str, body: Vec<u8>) -> AdminAnswer {
    let mut answer = Response::new(Full::new(Bytes::from(body)));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}
