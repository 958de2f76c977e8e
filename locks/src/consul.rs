//! Consul: locks that sessions hold.
//!
//! The number of a tenure is the `ModifyIndex` of the write that took the lock. A holder that
//! writes its key again gets another number, and presents that from then on. `LockIndex` is no
//! number of a tenure: a write without a session sets it to 0 while the lock stays held, and a
//! restore gives it out twice.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use fencepost_policy::{Content, Owner, Revision, Seen, Sighting, Stamp};
use fencepost_tls::ClientTls;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::HOST;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde::Deserialize;
use serde_json::json;
use tokio::net::lookup_host;
use tokio::sync::Mutex;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::cache::{LockSpec, OwnerIn};
use crate::first_to_connect::first_to_connect;
use crate::record_store::{RecordAnswer, RecordStore};
use crate::store::{READ_BYTES_MAX, StoreError};

/// How long a read may take, with the connection that it may need.
const READ_TIMEOUT: Duration = Duration::from_secs(3);

/// How long one address of a name may say nothing until the next is tried as well.
const SILENCE_MAX: Duration = Duration::from_millis(100);

/// How many keys Consul reads in one transaction.
const OPERATIONS_MAX: usize = 64;

/// Where Consul is, and how it lets us in.
#[derive(Debug, Clone)]
pub struct ConsulOptions {
    /// The host of an agent or server, and its port.
    pub address: (String, u16),
    /// What the connection is made with; `None`: in cleartext.
    pub tls: Option<ConsulTls>,
    /// The file of the token: read with each connection. Up to 4 KiB.
    pub token_file: Option<PathBuf>,
}

/// What TLS connections to Consul are made with.
#[derive(Debug, Clone)]
pub struct ConsulTls {
    /// As what its files say when a connection is made; HTTP/1.1.
    pub client: ClientTls,
    /// The name that Consul's certificate must have; `None`: the host that is connected to.
    pub server_name: Option<String>,
}

/// Locks in Consul's key-value store.
#[derive(Debug)]
pub struct ConsulStore {
    options: ConsulOptions,
    connection: Mutex<Option<Connection>>,
}

#[derive(Debug)]
struct Connection {
    sender: SendRequest<Full<Bytes>>,
    token: Option<String>,
}

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
    /// The store there. Connects with the first read.
    pub fn new(options: ConsulOptions) -> ConsulStore {
        ConsulStore { options, connection: Mutex::new(None) }
    }

    /// What Consul has below these keys, by a consistent read: its leader asks a majority whether it
    /// still leads before it answers.
    async fn pairs(&self, locks: &[&LockSpec]) -> Result<Vec<Pair>, StoreError> {
        // A plain read of a key that is missing fails the whole transaction.
        let operations = locks
            .iter()
            .map(|lock| json!({ "KV": { "Verb": "get-tree", "Key": lock.key.as_str() } }));
        let body = serde_json::Value::from_iter(operations).to_string();
        let mut connection = self.connection.lock().await;
        // It stays only if the read ends well: no answer is taken for that to another read.
        let mut open = match connection.take().filter(|open| !open.sender.is_closed()) {
            Some(open) => open,
            None => self.connect().await.map_err(unavailable)?,
        };
        let (status, answer) = open.put(&self.options, body).await?;
        match status {
            StatusCode::OK => *connection = Some(open),
            StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED => {
                let text = String::from_utf8_lossy(&answer);
                let token = match &self.options.token_file {
                    Some(file) => format!("the token in {}", file.display()),
                    None => "no token (token_file)".to_owned(),
                };
                return Err(StoreError::Refused(format!("{}: {token}", text.trim()).into()));
            }
            other => {
                let text = String::from_utf8_lossy(&answer);
                return Err(unavailable(format!("Consul says {other}: {}", text.trim())));
            }
        }
        let answer: Answer = serde_json::from_slice(&answer).map_err(unavailable)?;
        Ok(answer.results.unwrap_or_default().into_iter().map(|found| found.kv).collect())
    }

    async fn connect(&self) -> io::Result<Connection> {
        let ConsulOptions { address: (host, port), tls, token_file } = &self.options;
        let token = match token_file {
            None => None,
            Some(file) => {
                let text = crate::secret::read(file).await;
                Some(text.map_err(|error| {
                    io::Error::new(error.kind(), format!("token_file {}: {error}", file.display()))
                })?)
            }
        };
        let addresses: Vec<_> = lookup_host((host.as_str(), *port)).await?.collect();
        let stream = first_to_connect(addresses, SILENCE_MAX, || Some(()), |_| Ok(())).await?;
        stream.set_nodelay(true)?;
        let sender = match tls {
            None => handshake(TokioIo::new(stream)).await?,
            Some(tls) => {
                let name = tls.server_name.clone().unwrap_or_else(|| host.clone());
                let name = ServerName::try_from(name).map_err(io::Error::other)?;
                let connector = TlsConnector::from(tls.client.config());
                handshake(TokioIo::new(connector.connect(name, stream).await?)).await?
            }
        };
        Ok(Connection { sender, token })
    }
}

async fn handshake<T>(io: T) -> io::Result<SendRequest<Full<Bytes>>>
where
    T: hyper::rt::Read + hyper::rt::Write + Send + Unpin + 'static,
{
    let (sender, connection) = http1::handshake(io).await.map_err(io::Error::other)?;
    tokio::spawn(connection); // Its errors are those of its requests.
    Ok(sender)
}

impl Connection {
    /// A read of many keys is a transaction, which Consul takes by PUT.
    async fn put(
        &mut self,
        options: &ConsulOptions,
        body: String,
    ) -> Result<(StatusCode, Bytes), StoreError> {
        let (host, port) = &options.address;
        let mut request = Request::put("/v1/txn?consistent").header(HOST, format!("{host}:{port}"));
        if let Some(token) = &self.token {
            request = request.header("x-consul-token", token);
        }
        let request = request.body(Full::from(body)).map_err(unavailable)?;
        self.sender.ready().await.map_err(unavailable)?;
        let answer = self.sender.send_request(request).await.map_err(unavailable)?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), READ_BYTES_MAX).collect().await;
        let body = body.map_err(|error| unavailable(format!("its answer: {error}")))?;
        Ok((status, body.to_bytes()))
    }
}

fn unavailable(error: impl ToString) -> StoreError {
    StoreError::Unavailable(error.to_string().into())
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
