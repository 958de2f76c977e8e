//! The limits on clients, and which of them can close a connection.

use std::time::Duration;

use fencepost_fence::refusal::{DISCARD_BYTES_MAX, DISCARD_TIMEOUT};

/// The limits on clients.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Open client connections of the whole process. Beyond it the one that has been idle the
    /// longest is closed; if all have requests, clients wait in the kernel's queue.
    pub connections_max: usize,
    /// Open client connections from one IPv4 address or IPv6 /64. More are closed at once.
    pub connections_per_client_max: usize,
    /// Requests on one connection, if there is a limit.
    pub requests_per_connection_max: Option<u64>,
    /// From a connection's first moment to the end of its TLS handshake. Then it is closed.
    pub handshake_timeout: Duration,
    /// From a connection's first moment, or a request's first byte, to the end of its head. Then it
    /// is closed.
    pub header_timeout: Duration,
    /// How long a connection is kept without a request.
    pub idle_timeout: Duration,
    /// How long a client may stay silent in the middle of its body, or not read the response. Then
    /// it is closed.
    pub body_timeout: Duration,
    /// Bytes per second, on average after the first `body_timeout`, at which a client sends a body
    /// of known length and reads an response; 0 for any.
    pub body_rate_min: u64,
    /// Bytes of a request's body, if there is a limit.
    pub body_bytes_max: Option<u64>,
    /// Bytes of a request head. More is answered with 431.
    pub header_bytes_max: usize,
    /// Fields of a request head. More is answered with 431.
    pub headers_max: usize,
    /// HTTP/2 requests at a time on one connection.
    pub streams_max: u32,
    /// HTTP/2 streams that a client may have reset before they were looked at; one more ends its
    /// connection.
    pub pending_resets_max: usize,
    /// HTTP/2 streams that a client may reset within 10 s; one more ends its connection.
    pub resets_max: u32,
    /// HTTP/2 frames within 10 s that neither requests nor data call for; one more ends the
    /// connection.
    pub control_frames_max: u32,
    /// Bytes that are read and thrown away of an unwanted body before the connection is closed.
    pub discard_bytes_max: u64,
    /// How long an unwanted body is read before the connection is closed.
    pub discard_timeout: Duration,
}

impl Limits {
    /// How long a client may keep us waiting in all, in the middle of a body of which `bytes` have
    /// moved. `None`: for ever, as long as it is not silent.
    pub(super) fn patience(&self, bytes: u64) -> Option<Duration> {
        let millis = bytes.saturating_mul(1_000).checked_div(self.body_rate_min)?;
        Some(self.body_timeout.saturating_add(Duration::from_millis(millis)))
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections_max: 16_384,
            connections_per_client_max: 16_384,
            requests_per_connection_max: None,
            handshake_timeout: Duration::from_secs(5),
            header_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(75),
            body_timeout: Duration::from_secs(30),
            body_rate_min: 128,
            body_bytes_max: None,
            header_bytes_max: 32 * 1024,
            headers_max: 100,
            streams_max: 128,
            pending_resets_max: 20,
            resets_max: 1_000,
            control_frames_max: 10_000,
            discard_bytes_max: DISCARD_BYTES_MAX,
            discard_timeout: DISCARD_TIMEOUT,
        }
    }
}

/// The limit that closed a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closing {
    /// `connections_max`: it had been idle the longest, and another client waited.
    Room,
    /// `header_timeout`.
    Header,
    /// `idle_timeout`.
    Idle,
    /// `body_timeout`: its client read nothing of a response.
    Body,
    /// `body_rate_min`: its client read a response too slowly.
    Pace,
    /// `requests_per_connection_max`.
    Requests,
    /// `h2_resets_max`.
    Resets,
    /// `h2_control_frames_max`.
    ControlFrames,
}

impl Closing {
    /// All of them.
    pub const ALL: [Closing; 8] = [
        Closing::Room,
        Closing::Header,
        Closing::Idle,
        Closing::Body,
        Closing::Pace,
        Closing::Requests,
        Closing::Resets,
        Closing::ControlFrames,
    ];

    /// The key of the configuration that has the limit.
    pub fn limit(self) -> &'static str {
        match self {
            Closing::Room => "connections_max",
            Closing::Header => "header_timeout",
            Closing::Idle => "idle_timeout",
            Closing::Body => "body_timeout",
            Closing::Pace => "body_rate_min",
            Closing::Requests => "requests_per_connection_max",
            Closing::Resets => "h2_resets_max",
            Closing::ControlFrames => "h2_control_frames_max",
        }
    }
}
