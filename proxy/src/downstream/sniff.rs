//! Tells HTTP/2 from HTTP/1 by the first bytes of a connection.

use bytes::Bytes;
use tokio::io::AsyncReadExt;

use super::connection::Protocol;
use crate::wire::Socket;

/// How every HTTP/2 connection begins, and no HTTP/1 request does: there is no method of that name.
const PREFACE: &[u8] = b"PRI ";

/// Reads the first bytes, tells the protocol by them and gives them back to the socket. `None` if the client closed.
///
/// hyper-util's own detection costs 8 KiB for each connection as long as it lives.
pub(super) async fn protocol(socket: &Socket) -> Option<Protocol> {
    let mut reader = socket.clone();
    let mut buffer = [0; 1024];
    let mut filled = 0;
    loop {
        let count = reader.read(&mut buffer[filled..]).await.ok().filter(|count| *count > 0)?;
        filled += count;
        let compared = filled.min(PREFACE.len());
        let alike = buffer[..compared] == PREFACE[..compared];
        if alike && compared < PREFACE.len() {
            continue;
        }
        socket.unread(Bytes::copy_from_slice(&buffer[..filled]));
        return Some(if alike { Protocol::Http2 } else { Protocol::Http1 });
    }
}
