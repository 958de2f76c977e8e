//! What a client may take and how long it may take for it.

use std::time::Duration;

/// What a client may take and how long it may take for it.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Open client connections of the whole process. Beyond it nothing is accepted; clients wait in the kernel's queue.
    pub connections_max: usize,
    /// From a connection's first moment to the end of its TLS handshake. Then it is closed.
    pub handshake_timeout: Duration,
    /// From a connection's first moment, or a request's first byte, to the end of its head. Then it is closed.
    pub header_timeout: Duration,
    /// How long a connection is kept without a request.
    pub idle_timeout: Duration,
    /// How long a client may stay silent in the middle of its body, or not read the answer. Then it is closed.
    pub body_timeout: Duration,
    /// Bytes of a request head. More is answered with 431.
    pub header_bytes_max: usize,
    /// Fields of a request head. More is answered with 431.
    pub headers_max: usize,
    /// HTTP/2 requests at a time on one connection.
    pub streams_max: u32,
    /// HTTP/2 streams that a client may have reset before they were looked at; one more ends its connection.
    pub pending_resets_max: usize,
    /// What is read and thrown away of a body that nobody wants, before the connection is closed.
    pub discard_bytes_max: u64,
    /// How long a body that nobody wants is read, before the connection is closed.
    pub discard_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections_max: 16_384,
            handshake_timeout: Duration::from_secs(5),
            header_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(75),
            body_timeout: Duration::from_secs(30),
            header_bytes_max: 32 * 1024,
            headers_max: 100,
            streams_max: 128,
            pending_resets_max: 20,
            discard_bytes_max: 16 * 1024 * 1024,
            discard_timeout: Duration::from_secs(5),
        }
    }
}
