//! Parting from a client whose request could not be read.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::connection::Connection;

/// What hyper does not say to a request whose framing is wrong: it closes without a word.
const BAD_REQUEST: &[u8] = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";

/// Says that the request could not be read, unless that was said, and leaves the client time to hear it: a connection
/// that is closed while the client still writes is reset, and the answer with it.
pub(super) async fn with_unreadable_client(connection: &Connection, answered: bool) {
    let mut socket = connection.socket.clone();
    let parting = async {
        if !answered && socket.write_all(BAD_REQUEST).await.is_err() {
            return;
        }
        if socket.flush().await.is_err() {
            return;
        }
        socket.shut_write();
        let mut buffer = [0; 4096];
        let mut left = connection.limits.discard_bytes_max;
        while let Ok(count @ 1..) = socket.read(&mut buffer).await {
            let Some(rest) = left.checked_sub(count as u64) else { return };
            left = rest;
        }
    };
    // Whoever has not gone by then is left.
    let _ = tokio::time::timeout(connection.limits.discard_timeout, parting).await;
}
