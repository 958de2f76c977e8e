//! Where requests go, and what may be spent on it.

use std::sync::Arc;
use std::time::Duration;

use fencepost_config::UpstreamAddress;
use fencepost_tls::ClientTls;
use http::header::UPGRADE;
use http::{HeaderValue, Request};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::time::Instant;

use super::quota::ConnectionQuota;
use super::request_body::RequestBody;
use crate::server::Protocol;

/// A worker, or several behind one address.
#[derive(Debug, Clone)]
pub struct Upstream {
    /// Where it listens. A host is looked up when a connection is opened and none was a second ago.
    pub address: UpstreamAddress,
    /// What it speaks.
    pub speaks: Speaks,
    /// Open connections of one worker thread.
    pub connections_max: usize,
    /// Open connections of all threads, to this and other upstreams.
    pub quota: ConnectionQuota,
    /// How often a connection that could not be opened is tried again.
    pub connect_retries: u32,
    /// Fields of a response over HTTP/1.1; 100 at least.
    pub headers_max: usize,
    /// Whether an HTTP/1.1 connection carries another request after its first. If not, requests ask
    /// the worker to close, and TLS offers HTTP/1.1 only.
    pub keepalive: bool,
    /// A connection that has been open for so long gets no more requests.
    pub connection_age_max: Option<Duration>,
    /// Requests of one worker thread that may wait for a connection. Further requests fail at once.
    /// A wait costs little.
    pub waiting_max: usize,
    /// HTTP/2 requests at a time on one connection, where the worker does not allow fewer.
    pub streams_max: usize,
    /// How long a connection without a request is kept. Short, because a request that is sent while
    /// the worker closes has an unknown fate.
    pub idle_timeout: Duration,
    /// How long the kernel may try to deliver what was written to a worker that does not
    /// acknowledge it. The connection is lost then (tcp(7), `TCP_USER_TIMEOUT`). Unix sockets have
    /// no such time.
    pub unacknowledged_max: Duration,
    /// `Host` for requests that came without.
    pub authority: HeaderValue,
}

/// What a worker speaks.
#[derive(Debug, Clone)]
pub enum Speaks {
    /// This protocol, in cleartext.
    Cleartext(Protocol),
    /// The protocol that it picks for each connection, over TLS.
    Tls(UpstreamTls),
}

/// TLS to a worker.
#[derive(Debug, Clone)]
pub struct UpstreamTls {
    /// Whom we believe, and what we show. Asked for each connection, so that it may change.
    pub identity: ClientTls,
    /// Who the worker has to be.
    pub server_name: ServerName<'static>,
}

impl Upstream {
    /// An upstream with the usual limits.
    pub fn new(address: UpstreamAddress, speaks: Speaks) -> Upstream {
        let authority = match &address {
            UpstreamAddress::Tcp(_) => HeaderValue::try_from(address.to_string()).ok(),
            UpstreamAddress::Unix(_) => None,
        };
        Upstream {
            address,
            speaks,
            connections_max: 1024,
            quota: ConnectionQuota::unlimited(),
            connect_retries: 3,
            headers_max: 100,
            keepalive: true,
            connection_age_max: None,
            waiting_max: 10_000, // As many as there are clients, by default.
            streams_max: 100,
            idle_timeout: Duration::from_secs(1),
            unacknowledged_max: Timeouts::default().late / 2,
            authority: authority.unwrap_or(HeaderValue::from_static("localhost")),
        }
    }

    /// Whether there may be one more HTTP/2 connection beside so many.
    pub(super) fn has_room_for_http2(&self, has: usize) -> bool {
        has < self.connections_max && self.quota.has_room(has)
    }

    /// Whether a connection that was opened then gets no more requests.
    pub(super) fn is_aged(&self, opened: Instant) -> bool {
        self.connection_age_max.is_some_and(|age_max| opened.elapsed() >= age_max)
    }

    /// Whether a connection to it may speak that.
    pub(super) fn may_speak(&self, protocol: Protocol) -> bool {
        match &self.speaks {
            Speaks::Cleartext(spoken) => *spoken == protocol,
            Speaks::Tls(_) => true,
        }
    }

    /// Whether a connection that was made so would be made so now, too. `None`: without TLS.
    pub(super) fn is_current(&self, made_with: Option<&Arc<ClientConfig>>) -> bool {
        match (&self.speaks, made_with) {
            (Speaks::Cleartext(_), _) => true,
            (Speaks::Tls(tls), Some(made_with)) => Arc::ptr_eq(made_with, &tls.identity.config()),
            (Speaks::Tls(_), None) => false,
        }
    }
}

/// How long a worker may take for a request.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// From the request's last byte to the response's head.
    pub silence: Duration,
    /// Between two pieces of the response's body. `None`: as long as it takes.
    pub stream_idle: Option<Duration>,
    /// For the whole of it. `None`: as long as it takes.
    pub total: Option<Duration>,
    /// How long a worker's connection is still read after that, and after the client has left.
    pub late: Duration,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            silence: Duration::from_secs(30),
            stream_idle: Some(Duration::from_secs(300)),
            total: None,
            late: Duration::from_secs(30),
        }
    }
}

/// What a request needs of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wants {
    /// Whatever the worker speaks.
    Either,
    /// HTTP/1.1, because it is to be switched to another protocol.
    Http1,
}

impl Wants {
    /// What a request needs that was made by [`outgoing_request`](super::outgoing_request).
    pub fn of(request: &Request<RequestBody>) -> Wants {
        if request.headers().contains_key(UPGRADE) { Wants::Http1 } else { Wants::Either }
    }
}
