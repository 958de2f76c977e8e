//! Consul: locks that sessions hold.
//!
//! The number of a tenure is the `ModifyIndex` of the write that took the lock. A holder that
//! writes its key again gets another number, and presents that from then on. `LockIndex` is no
//! number of a tenure: a write without a session sets it to 0 while the lock stays held, and a
//! restore gives it out twice.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use fencepost_policy::{Content, Owner, Revision, Seen, Sighting, Stamp};
use hyper::header::HeaderName;
use hyper::{Method, StatusCode};
use serde::Deserialize;
use serde_json::json;
use tokio::time::timeout;

use crate::cache::{LockSpec, OwnerIn};
use crate::http_store::{HttpServer, HttpStoreOptions, TokenField, unavailable};
use crate::record_store::{RecordAnswer, RecordStore};
use crate::store::StoreError;

/// How long a read may take, with the connection that it may need.
const READ_TIMEOUT: Duration = Duration::from_secs(3);

/// How many keys Consul reads in one transaction.
const OPERATIONS_MAX: usize = 64;

/// Locks in Consul's key-value store.
#[derive(Debug)]
pub struct ConsulStore(HttpServer);

/// A key in an answer.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Pair {
    key: String,
    value: Option<String>,
    modify_index: u64,
    session: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
struct Found {
    kv: Pair,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    results: Option<Vec<Found>>,
}

impl ConsulStore {
    /// The agent or server there. Connects with the first read.
    pub fn new(options: HttpStoreOptions) -> ConsulStore {
        let name = HeaderName::from_static("x-consul-token");
        ConsulStore(HttpServer::new(options, TokenField { name, prefix: "" }))
    }

    /// What Consul has below these keys, by a consistent read: its leader asks a majority whether it
    /// still leads before it answers.
    async fn pairs(&self, locks: &[&LockSpec]) -> Result<Vec<Pair>, StoreError> {
        // A plain read of a key that is missing fails the whole transaction.
        let operations = locks
            .iter()
            .map(|lock| json!({ "KV": { "Verb": "get-tree", "Key": lock.key.as_str() } }));
        let body = serde_json::Value::from_iter(operations).to_string();
        let (status, answer) = self.0.ask(Method::PUT, "/v1/txn?consistent", body).await?;
        let text = || String::from_utf8_lossy(&answer).trim().to_owned();
        match status {
            StatusCode::OK => {
                let answer: Answer = serde_json::from_slice(&answer).map_err(unavailable)?;
                Ok(answer.results.unwrap_or_default().into_iter().map(|found| found.kv).collect())
            }
            StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED => {
                let token = self.0.token_in_words();
                Err(StoreError::Refused(format!("{}: {token}", text()).into()))
            }
            other => Err(unavailable(format!("Consul says {other}: {}", text()))),
        }
    }
}

impl RecordStore for ConsulStore {
    async fn read(&self, locks: &[&LockSpec]) -> Result<Vec<RecordAnswer>, StoreError> {
        let mut answers = Vec::with_capacity(locks.len());
        let mut left = locks;
        // Without a lock, one transaction without an operation says whether Consul is there.
        loop {
            let (part, others) = left.split_at(left.len().min(OPERATIONS_MAX));
            let pairs = timeout(READ_TIMEOUT, self.pairs(part)).await;
            let pairs = pairs.unwrap_or_else(|_| {
                Err(unavailable(format!("not within {} s", READ_TIMEOUT.as_secs())))
            })?;
            answers.extend(
                part.iter().map(|lock| {
                    answer(lock, pairs.iter().find(|pair| pair.key == lock.key.as_str()))
                }),
            );
            left = others;
            if left.is_empty() {
                return Ok(answers);
            }
        }
    }
}

/// What a key says of its lock.
fn answer(lock: &LockSpec, pair: Option<&Pair>) -> RecordAnswer {
    let written = pair.and_then(|pair| Some((pair, Revision::new(pair.modify_index)?)));
    let (seen, problem) = match written {
        Some((pair, revision)) => match owner(lock, pair) {
            Ok(None) => (Seen::Free, None),
            Ok(Some(owner)) => {
                let stamp = Stamp::from(revision.get().to_be_bytes());
                (Seen::Held { owner, revision, stamp }, None)
            }
            Err(problem) => (Seen::Unreadable, Some(Arc::from(problem))),
        },
        None => (Seen::Free, None),
    };
    let reach = written.map(|(_, revision)| revision);
    let sighting = Sighting { lineage: 0, reach, seen, waiters: Arc::from([]) };
    RecordAnswer { sighting, problem }
}

/// Who holds the lock, if a session does.
fn owner(lock: &LockSpec, pair: &Pair) -> Result<Option<Owner>, String> {
    let Some(session) = pair.session.as_deref().filter(|session| !session.is_empty()) else {
        return Ok(None);
    };
    if lock.format.owner_in == OwnerIn::Session {
        return Ok(Some(Owner::new(session.as_bytes())));
    }
    let value = BASE64_STANDARD.decode(pair.value.as_deref().unwrap_or_default());
    let value =
        value.map_err(|_| format!("the value of {} is not as Consul sends it", lock.key))?;
    match lock.format.content(&Bytes::from(value)) {
        Ok(Content::Owner(owner)) => Ok(Some(owner)),
        Ok(Content::Free) => Ok(None),
        Ok(Content::Unreadable) => Err(format!("the record of {} cannot be read", lock.key)),
        Err(wrong) => Err(format!("the record of {} {wrong}", lock.key)),
    }
}
