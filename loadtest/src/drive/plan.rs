//! What a run sends.

use std::num::NonZeroU64;
use std::time::Duration;

use anyhow::ensure;
use bytes::Bytes;
use hyper::Method;
use hyper::header::{HeaderName, HeaderValue};
use serde_json::{Value, json};

use super::verdict::Expected;
use crate::cli::DriveSettings;
use crate::cli::values::{Share, Template};
use crate::client::Protocol;
use crate::target::Target;

/// What is sent, for how long and by how many.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) target: Target,
    pub(crate) protocol: Protocol,
    pub(crate) connections: usize,
    /// Requests at a time on each connection; 1 with HTTP/1.1.
    pub(crate) streams: usize,
    pub(crate) requests_per_connection: Option<NonZeroU64>,
    pub(crate) threads: usize,
    pub(crate) method: Method,
    pub(crate) path: Template,
    /// Says which lock a request is for: the key, in a `Fence-Lock` header.
    pub(crate) lock_header: Option<Template>,
    pub(crate) body: Bytes,
    /// Whether HTTP/1.1 sends it in a chunk.
    pub(crate) is_chunked: bool,
    /// Says it to a worker of ours: the number, in a header of its own.
    pub(crate) tells_number: bool,
    /// How long such a worker takes for each.
    pub(crate) worker_takes: Duration,
    /// How many locks requests are for.
    pub(crate) locks: usize,
    /// How often one of them changes hands.
    pub(crate) handoff_every: Option<Duration>,
    pub(crate) stale: Share,
    pub(crate) expected: Expected,
    /// Requests a second, over all threads; `None`: as fast as they are answered.
    pub(crate) rate: Option<NonZeroU64>,
    pub(crate) warm_up: Duration,
    pub(crate) duration: Duration,
    /// The CPUs that the threads stay on, one each in turn; wherever the system likes if there are none.
    pub(crate) cpus: Vec<usize>,
}

impl Plan {
    /// As the command line says.
    ///
    /// # Errors
    /// A file of the proxy's options is not what it should be.
    pub(crate) fn of(settings: &DriveSettings, rate: Option<NonZeroU64>) -> anyhow::Result<Plan> {
        let otherwise = if settings.body == 0 { Method::GET } else { Method::POST };
        let (protocol, streams) =
            if settings.h2 { (Protocol::Http2, settings.streams.get()) } else { (Protocol::Http1, 1) };
        Ok(Plan {
            target: settings.proxy.target()?,
            protocol,
            connections: settings.connections.get(),
            streams,
            requests_per_connection: settings.requests_per_connection,
            threads: settings.threads.get(),
            method: settings.method.clone().unwrap_or(otherwise),
            path: settings.path.clone(),
            lock_header: settings.lock.clone().filter(|_| settings.lock_header),
            body: Bytes::from(vec![b'x'; settings.body]),
            is_chunked: settings.chunked,
            tells_number: settings.worker_listen.is_some(),
            worker_takes: if settings.worker_listen.is_some() { settings.time_at_worker() } else { Duration::ZERO },
            locks: settings.locks.get(),
            handoff_every: settings.handoff_every,
            stale: settings.stale,
            expected: Expected::Fenced(settings.stale_status),
            rate,
            warm_up: settings.warm_up,
            duration: settings.duration,
            cpus: Vec::new(),
        })
    }

    /// How long requests are sent.
    pub(crate) fn length(&self) -> Duration {
        self.warm_up + self.duration
    }

    /// How many connections the thread of this number has.
    pub(crate) fn connections_of(&self, thread: usize) -> usize {
        self.connections / self.threads + usize::from(self.connections % self.threads > thread)
    }

    /// The headers of a request for that lock that are not its token, as HTTP/1.1 and HTTP/2 have them alike.
    pub(crate) fn more_headers(&self, lock: usize) -> anyhow::Result<Vec<(HeaderName, HeaderValue)>> {
        let mut headers = Vec::new();
        if let Some(key) = &self.lock_header {
            headers.push((HeaderName::from_static("fence-lock"), HeaderValue::try_from(key.of(lock))?));
        }
        if self.tells_number {
            headers.push((HeaderName::from_static(crate::worker::quick::LOCK_NUMBER), HeaderValue::from(lock)));
        }
        ensure!(headers.iter().all(|(_, value)| value.to_str().is_ok()), "the lock's name cannot be sent");
        Ok(headers)
    }

    /// For a program.
    pub(crate) fn as_json(&self) -> Value {
        json!({
            "rate": self.rate, "method": self.method.as_str(), "path": self.path.as_written(), "body_bytes": self.body.len(),
            "proxy": self.target.to_string(), "http": if self.protocol == Protocol::Http1 { "1.1" } else { "2" },
            "connections": self.connections, "streams": self.streams, "threads": self.threads,
            "requests_per_connection": self.requests_per_connection, "locks": self.locks, "stale": self.stale.to_string(),
            "handoff_every_seconds": self.handoff_every.map(|every| every.as_secs_f64()),
            "worker_takes_seconds": self.worker_takes.as_secs_f64(),
            "warm_up_seconds": self.warm_up.as_secs_f64(), "duration_seconds": self.duration.as_secs_f64(),
        })
    }

    /// In words.
    pub(crate) fn describe(&self) -> String {
        let pace = self.rate.map_or("closed loop".to_owned(), |rate| format!("open loop at {rate} requests a second"));
        let protocol = match self.protocol {
            Protocol::Http1 => "HTTP/1.1".to_owned(),
            Protocol::Http2 => format!("HTTP/2 with {} streams each", self.streams),
        };
        let threads = if self.threads == 1 { "1 thread".to_owned() } else { format!("{} threads", self.threads) };
        let churn = self.requests_per_connection.map_or(String::new(), |count| format!(", {count} requests on each"));
        let chunked = if self.is_chunked { " in a chunk" } else { "" };
        let body = if self.body.is_empty() { String::new() } else { format!(" of {} bytes{chunked}", self.body.len()) };
        let locks = if self.locks == 1 { String::new() } else { format!(", for {} locks", self.locks) };
        // Said, as throughput is above the rate by these, and percentiles have what a successor waited for.
        let moves = self.handoff_every.map_or(String::new(), |every| {
            format!(", a lock handed over every {} with two requests more each", humantime::format_duration(every))
        });
        let expected = match self.expected {
            Expected::Fenced(_) if self.stale.is_none() => String::new(),
            Expected::Fenced(refusal) => {
                format!(", {} of them superseded and to be refused with {}", self.stale, refusal.as_str())
            }
            Expected::Status(status) => format!(", each to be answered with {}", status.as_str()),
        };
        let takes = if self.worker_takes.is_zero() {
            String::new()
        } else {
            format!(", each of which takes the worker {}", humantime::format_duration(self.worker_takes))
        };
        format!(
            "{pace}: {} {}{body} to {}{locks}{takes}{expected}{moves}, {} connections of {protocol}{churn}, {threads}, {} after {} of warm-up",
            self.method,
            self.path.as_written(),
            self.target,
            self.connections,
            humantime::format_duration(self.duration),
            humantime::format_duration(self.warm_up),
        )
    }
}
