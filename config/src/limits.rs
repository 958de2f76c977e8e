//! `[limits]`: what one process takes, and how long it waits.

use std::time::Duration;

use crate::problem::Notes;
use crate::reader::Table;
use crate::units::Unit::{Count, Size};
use crate::units::{HOUR, MINUTE, SECOND};

/// What one process takes and how long it waits. `Limits::read` has the ranges and defaults, and
/// docs/configuration.md says what happens at each limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Client connections at a time.
    pub connections_max: usize,
    /// Client connections from one IPv4 address or IPv6 /64 at a time.
    pub connections_per_client_max: usize,
    /// Requests on one connection, one after the other or at a time; `None`: as many as come.
    pub requests_per_connection_max: Option<u64>,
    /// Requests at a time of one client, by IPv4 address or IPv6 /64, that come by trusted proxies.
    pub requests_per_client_max: usize,
    /// Bytes of a request's head.
    pub header_bytes_max: usize,
    /// Header fields of a request.
    pub headers_max: usize,
    /// Requests at a time on one HTTP/2 connection.
    pub h2_streams_max: u32,
    /// Requests that an HTTP/2 client may reset within 10 s.
    pub h2_resets_max: u32,
    /// Frames without a part of a request that an HTTP/2 client may send within 10 s.
    pub h2_control_frames_max: u32,
    /// How long a client may take for the TLS handshake.
    pub handshake_timeout: Duration,
    /// How long a client may take for a request's head.
    pub header_timeout: Duration,
    /// How long a connection is kept without a request.
    pub idle_timeout: Duration,
    /// How long a client may be silent in the middle of its body, or leave its response unread.
    pub body_timeout: Duration,
    /// The least bytes per second, on average, at which a client sends its body and reads its
    /// response.
    pub body_rate_min: u64,
    /// Bytes of a request's body; `None`: as many as come.
    pub body_bytes_max: Option<u64>,
    /// How long connecting to a worker may take.
    pub connect_timeout: Duration,
    /// How often a connection to a worker that could not be opened is tried again.
    pub connect_retries: u32,
    /// How long an idle connection to a worker is kept.
    pub upstream_idle_timeout: Duration,
    /// Connections per worker thread and upstream.
    pub upstream_connections_max: usize,
    /// Header fields of a worker's response over HTTP/1.1.
    pub upstream_headers_max: usize,
    /// The largest body that is read whole before it is forwarded.
    pub buffer_body_max: usize,
    /// How long a request waits for the lock store at most.
    pub confirm_timeout: Duration,
    /// Templated locks kept in memory per source.
    pub tracked_locks_max: usize,
    /// How long a terminating process goes on accepting.
    pub drain_delay: Duration,
    /// How long a terminating process then waits for its requests.
    pub drain_timeout: Duration,
}

const MILLION: i64 = 1_000_000;

impl Limits {
    pub(crate) fn read(t: &mut Table<'_>) -> Limits {
        let connections_max = t.count("connections_max", 1..=MILLION, 10_000);
        let of_one = t.optional("connections_per_client_max", Count, 1..=MILLION);
        let requests = t.optional("requests_per_connection_max", Count, 1..=MILLION);
        let by_proxies = t.optional("requests_per_client_max", Count, 1..=MILLION);
        Limits {
            connections_max,
            connections_per_client_max: of_one.unwrap_or(Limits::all_but_a_few(connections_max)),
            requests_per_connection_max: requests,
            requests_per_client_max: by_proxies.unwrap_or(Limits::all_but_a_few(connections_max)),
            header_bytes_max: t.size("header_bytes_max", 8 << 10..=1 << 20, 64 << 10),
            headers_max: t.count("headers_max", 16..=1_000, 100),
            h2_streams_max: t.count("h2_streams_max", 1..=10_000, 128),
            h2_resets_max: t.count("h2_resets_max", 1..=100_000, 1_000),
            h2_control_frames_max: t.count("h2_control_frames_max", 100..=MILLION, 10_000),
            handshake_timeout: t.time("handshake_timeout", 100..=MINUTE, 5 * SECOND),
            header_timeout: t.time("header_timeout", 100..=10 * MINUTE, 10 * SECOND),
            idle_timeout: t.time("idle_timeout", 100..=HOUR, MINUTE),
            body_timeout: t.time("body_timeout", 100..=HOUR, 30 * SECOND),
            body_rate_min: t.size("body_rate_min", 0..=1 << 20, 128),
            body_bytes_max: t.optional("body_bytes_max", Size, 0..=1 << 40),
            connect_timeout: t.time("connect_timeout", 10..=MINUTE, 2 * SECOND),
            connect_retries: t.count("connect_retries", 0..=100, 3),
            upstream_idle_timeout: t.time("upstream_idle_timeout", 10..=10 * MINUTE, SECOND),
            upstream_connections_max: t.count("upstream_connections_max", 1..=100_000, 1_024),
            upstream_headers_max: t.count("upstream_headers_max", 100..=1_000, 100),
            buffer_body_max: t.size("buffer_body_max", 0..=16 << 20, 64 << 10),
            confirm_timeout: t.time("confirm_timeout", 10..=MINUTE, 2 * SECOND),
            tracked_locks_max: t.count("tracked_locks_max", 1..=10 * MILLION, 100_000),
            drain_delay: t.time("drain_delay", 0..=10 * MINUTE, 5 * SECOND),
            drain_timeout: t.time("drain_timeout", 0..=HOUR, 30 * SECOND),
        }
    }

    /// What one client address may have of so many connections, where nothing else is said: all but
    /// a hundredth, and at least one.
    pub fn all_but_a_few(connections_max: usize) -> usize {
        (connections_max - connections_max.div_ceil(100)).max(1)
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits::read(&mut Table::empty(&Notes::default(), "limits"))
    }
}
