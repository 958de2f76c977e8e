//! Closes a connection whose client may still be writing: our side ends first, and what the client
//! sends is read for a while. Closed at once, the connection would be reset, and the last response
//! lost.

use bytes::Bytes;
use fencepost_fence::refusal::{DISCARD_BYTES_MAX, DISCARD_TIMEOUT};
use http::header::CONTENT_LENGTH;
use http::{HeaderValue, Response};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::connection::Connection;
use super::thread::until;
use crate::wire::Socket;

/// HTTP/2's GOAWAY with ENHANCE_YOUR_CALM; any stream may have been looked at.
pub(super) const CALM_DOWN: &[u8] = b"\0\0\x08\x07\0\0\0\0\0\x7f\xff\xff\xff\0\0\0\x0b";

/// A response as the last of an HTTP/1 connection. Its status is 400.
pub(super) fn last_answer(response: &Response<Bytes>) -> Vec<u8> {
    let mut bytes = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n".to_vec();
    let length = HeaderValue::from(response.body().len());
    let fields = response.headers().iter().filter(|(name, _)| *name != CONTENT_LENGTH);
    for (name, value) in fields.chain([(&CONTENT_LENGTH, &length)]) {
        bytes.extend_from_slice(name.as_str().as_bytes());
        bytes.extend_from_slice(b": ");
        bytes.extend_from_slice(value.as_bytes());
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(response.body());
    bytes
}

/// Whether the client has sent, or may send, what is not read any more. `read_on` is what was read
/// behind the last request.
pub(super) fn is_called_for(connection: &Connection, read_on: &[u8]) -> bool {
    // A client that was not asked for a body may send it all the same, after a wait.
    if connection.progress.rejected().is_some() || connection.state.borrow().unasked > 0 {
        return true;
    }
    // What comes of a body that was not read to its end has had its time.
    !connection.progress.is_in_body_of(connection.requests())
        && (!read_on.is_empty() || connection.socket.has_sent())
}

/// Writes a last word, if there is one, and lingers until others need the connection's slot.
pub(super) async fn with_client(connection: &Connection, last_word: &[u8]) {
    tokio::select! {
        () = linger(connection.socket.clone(), last_word) => {}
        () = until(|| connection.activity.is_evicted()) => {}
    }
}

/// Writes a last word and ends our side, then reads what the client sends until it closes, or a
/// limit is reached.
pub(super) async fn linger(mut socket: Socket, last_word: &[u8]) {
    let lingering = async {
        if socket.write_all(last_word).await.is_err() || socket.flush().await.is_err() {
            return;
        }
        socket.shut_write();
        let mut buffer = [0; 4096];
        let mut left = DISCARD_BYTES_MAX;
        while let Ok(count @ 1..) = socket.read(&mut buffer).await {
            let Some(rest) = left.checked_sub(count as u64) else { return };
            left = rest;
        }
    };
    let _ = tokio::time::timeout(DISCARD_TIMEOUT, lingering).await; // A client that is still there then is reset.
}
