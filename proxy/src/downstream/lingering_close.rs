//! Parting from a client that could not be understood, that asks for too much, or that sends what nobody reads.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::connection::Connection;
use super::limits::Limits;
use crate::wire::Socket;

/// HTTP/2's GOAWAY with ENHANCE_YOUR_CALM; any stream may have been looked at.
pub(super) const CALM_DOWN: &[u8] = b"\0\0\x08\x07\0\0\0\0\0\x7f\xff\xff\xff\0\0\0\x0b";

/// Whether the client has sent, or may send, what is not read any more, so that to close at once would reset the connection and its last
/// answer with it. `read_on` is what has been read behind the last request.
pub(super) fn is_written_to(connection: &Connection, read_on: &[u8]) -> bool {
    // Who was not asked for a body may send it all the same, after a wait.
    if connection.progress.rejected().is_some() || connection.unasked.get() > 0 {
        return true;
    }
    // What comes of a body that was not read to its end has had its time.
    !connection.progress.is_in_body_of(connection.requests.get())
        && (!read_on.is_empty() || connection.socket.has_sent())
}

/// Says a last word, if there is one, and leaves the client time to hear it, unless there is no place for others.
pub(super) async fn with_client(connection: &Connection, last_word: &[u8]) {
    tokio::select! {
        () = by(connection.socket.clone(), last_word, &connection.limits) => {}
        () = connection.seat.called() => {}
    }
}

/// Says a last word and ends our side, then leaves the client time to hear it: a connection that is closed while the client still
/// writes is reset, and the answer with it.
pub(super) async fn by(mut socket: Socket, last_word: &[u8], limits: &Limits) {
    let parting = async {
        if socket.write_all(last_word).await.is_err() || socket.flush().await.is_err() {
            return;
        }
        socket.shut_write();
        let mut buffer = [0; 4096];
        let mut left = limits.discard_bytes_max;
        while let Ok(count @ 1..) = socket.read(&mut buffer).await {
            let Some(rest) = left.checked_sub(count as u64) else { return };
            left = rest;
        }
    };
    // Whoever has not gone by then is left.
    let _ = tokio::time::timeout(limits.discard_timeout, parting).await;
}
