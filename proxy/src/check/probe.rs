//! Finds out what a worker speaks, for `fencepost check --live`. Sends no request of a client, and
//! of its own only `OPTIONS *`, which is for no resource.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::server::Protocol;
use crate::upstream::{Upstream, connect};
use crate::wire::Socket;

/// What a worker speaks on a connection in the clear.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spoken {
    /// HTTP of that version.
    Http(Protocol),
    /// HTTP/1.0.
    Http10,
    /// TLS: whatever is inside, it is not in the clear.
    Tls,
    /// Something else: it answers a request with what is no response.
    Other,
}

/// How long a worker may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(1);

/// How much of an answer is read: up to the status of HTTP/1.
const ANSWER_BYTES: u64 = 12;

const OPTIONS: &[u8] = b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

/// The beginning of HTTP/2 with prior knowledge, and an empty frame of settings (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// A ClientHello that no server can accept: a cipher of TLS 1.3 in a hello of TLS 1.2. What speaks
/// TLS answers with an alert.
const HELLO: [u8; 50] = {
    let mut hello = [7; 50];
    let head = [22, 3, 1, 0, 45, 1, 0, 0, 41, 3, 3];
    let tail = [0, 0, 2, 0x13, 1, 1, 0];
    hello.first_chunk_mut::<11>().expect("it is longer").copy_from_slice(&head);
    hello.last_chunk_mut::<7>().expect("it is longer").copy_from_slice(&tail);
    hello
};

/// What a worker speaks, `configured` being what it should; `None` if it cannot be told. Tries the
/// protocols in turn, until one is understood.
pub(super) async fn spoken(upstream: &Upstream, configured: Protocol) -> Option<Spoken> {
    let http2 = Some(Spoken::Http(Protocol::Http2));
    if configured == Protocol::Http2 && speaks_http2(upstream).await {
        return http2;
    }
    let answer = answer(upstream, OPTIONS).await;
    // Servers of TLS answer 400 to a request in the clear.
    let is_http10 = answer.starts_with(b"HTTP/1.0 ");
    let is_http1 = is_http10 || answer.starts_with(b"HTTP/1.1 ");
    if (!is_http1 || answer.ends_with(b"400")) && speaks_tls(upstream).await {
        return Some(Spoken::Tls);
    }
    if is_http1 {
        return Some(if is_http10 { Spoken::Http10 } else { Spoken::Http(Protocol::Http1) });
    }
    if configured == Protocol::Http1 && speaks_http2(upstream).await {
        return http2;
    }
    (!answer.is_empty()).then_some(Spoken::Other)
}

async fn speaks_tls(upstream: &Upstream) -> bool {
    // A message of the handshake, or an alert.
    matches!(*answer(upstream, &HELLO).await, [21 | 22, 3, ..])
}

async fn speaks_http2(upstream: &Upstream) -> bool {
    // A frame of settings, for the whole connection.
    matches!(*answer(upstream, PREFACE).await, [_, _, _, 4, _, 0, 0, 0, 0, ..])
}

/// The first bytes of what a worker answers to that, as far as they come in time.
async fn answer(upstream: &Upstream, said: &[u8]) -> Vec<u8> {
    let mut answer = Vec::new();
    let exchange = async {
        let mut socket = Socket::upstream(connect(upstream).await?);
        socket.write_all(said).await?;
        socket.flush().await?;
        let outcome = (&mut socket).take(ANSWER_BYTES).read_to_end(&mut answer).await;
        socket.end_in_order();
        outcome
    };
    // Whatever has come before an error, or the end of the time, is the answer.
    let _ = timeout(ANSWER_MAX, exchange).await;
    answer
}
