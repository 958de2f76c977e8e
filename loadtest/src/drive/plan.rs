//! What a run sends, for how long and over how many connections.

use std::fmt;
use std::num::NonZeroU64;
use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use humantime::format_duration;
use hyper::{Method, Request, StatusCode};

use super::tenures::Presented;
use crate::cli::DriveOptions;
use crate::cli::values::{Share, Template};
use crate::client::{Body, Protocol, Target, chunked, whole};
use crate::worker::LOCK_NUMBER;

#[derive(Clone, Default)]
pub(crate) struct Plan {
    pub(crate) target: Target,
    pub(crate) connections: usize,
    /// Requests at a time on each connection; 1 with HTTP/1.1.
    pub(crate) streams: usize,
    /// After so many requests a connection is replaced.
    pub(crate) requests_per_connection: Option<u64>,
    pub(crate) method: Method,
    pub(crate) path: Template,
    pub(crate) lock_header: Option<Template>,
    pub(crate) body: Bytes,
    pub(crate) is_chunked: bool,
    /// Whether requests name their lock to the worker here by its number.
    pub(crate) tells_number: bool,
    pub(crate) worker_takes: Duration,
    pub(crate) locks: usize,
    pub(crate) handoff_every: Option<Duration>,
    pub(crate) stale: Share,
    pub(crate) refusal: StatusCode,
    /// Requests a second; `None` for a closed loop.
    pub(crate) rate: Option<NonZeroU64>,
    pub(crate) warm_up: Duration,
    pub(crate) duration: Duration,
    pub(crate) process: Option<u32>,
}

impl Plan {
    /// GET requests for one lock, one at a time on one connection, for no time at all.
    pub(crate) fn get(target: Target) -> Plan {
        let path = "/".parse().expect("a fixed path is a template");
        let refusal = StatusCode::PRECONDITION_FAILED;
        Plan { target, connections: 1, streams: 1, path, refusal, ..Plan::default() }
    }

    pub(crate) fn of(options: &DriveOptions, rate: Option<NonZeroU64>) -> Result<Plan> {
        let protocol = if options.h2 { Protocol::Http2 } else { Protocol::Http1 };
        let usual = if options.body.is_none() { Method::GET } else { Method::POST };
        let has_worker = options.proxy.worker_listen.is_some();
        Ok(Plan {
            connections: options.connections,
            streams: if options.h2 { options.streams } else { 1 },
            requests_per_connection: options.requests_per_connection,
            method: options.method.clone().unwrap_or(usual),
            path: options.proxy.path.clone(),
            lock_header: options.lock.lock.clone().filter(|_| options.lock_header),
            body: Bytes::from(vec![b'x'; options.body.unwrap_or(0)]),
            is_chunked: options.chunked,
            tells_number: has_worker,
            worker_takes: if has_worker { options.time_at_worker() } else { Duration::ZERO },
            locks: options.locks,
            handoff_every: options.handoff_every,
            stale: options.stale,
            refusal: options.stale_status,
            rate,
            warm_up: options.warm_up,
            duration: options.duration,
            process: options.proxy_pid,
            ..Plan::get(Target::of(&options.proxy, protocol)?)
        })
    }

    pub(crate) fn length(&self) -> Duration {
        self.warm_up + self.duration
    }

    pub(crate) fn request(&self, presented: &Presented) -> Result<Request<Body>> {
        let Presented { lock, token, .. } = presented;
        let mut request = self.target.request(&self.path.of(*lock), token)?;
        if let Some(key) = &self.lock_header {
            request = request.header("fence-lock", key.of(*lock));
        }
        if self.tells_number {
            request = request.header(LOCK_NUMBER, *lock);
        }
        let body = if self.is_chunked { chunked } else { whole };
        Ok(request.method(self.method.clone()).body(body(self.body.clone()))?)
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rate {
            Some(rate) => write!(f, "open loop at {rate} requests a second: ")?,
            None => f.write_str("closed loop: ")?,
        }
        write!(f, "{} {}", self.method, self.path)?;
        if !self.body.is_empty() {
            write!(f, " of {} bytes", self.body.len())?;
        }
        write!(f, " to {} for {} locks", self.target, self.locks)?;
        if !self.worker_takes.is_zero() {
            write!(f, ", each of which takes the worker {}", format_duration(self.worker_takes))?;
        }
        if !self.stale.is_none() {
            let status = self.refusal.as_str();
            write!(f, ", {} superseded, to be refused with {status}", self.stale)?;
        }
        if let Some(every) = self.handoff_every {
            let every = format_duration(every);
            write!(f, ", a lock handed over every {every} with two requests more each")?;
        }
        write!(f, ", {} connections", self.connections)?;
        if self.target.protocol == Protocol::Http2 {
            write!(f, " of HTTP/2 with {} streams each", self.streams)?;
        }
        let (duration, warm_up) = (format_duration(self.duration), format_duration(self.warm_up));
        write!(f, ", {duration} after {warm_up} of warm-up")
    }
}
