//! What of a request's body HTTP/2 has been given and has not written.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::wire::Socket;

/// How long a body that was cut may take to leave a connection whose worker does not hold it back: it is gone when its task has
/// had its turn.
const LEAVE_MAX: Duration = Duration::from_millis(100);

/// What of a request's body HTTP/2 has been given and has not written, because the worker's window is shut.
///
/// It can't be taken back: hyper and h2 write it when the window opens, though the request may have been answered long before.
#[derive(Default)]
pub(super) struct Unwritten {
    pieces: AtomicUsize,
    written: Notify,
}

/// A piece of a body. It is dropped when it has been written, or never will be.
struct Piece {
    bytes: Bytes,
    unwritten: Arc<Unwritten>,
}

impl Unwritten {
    /// Counts a piece for as long as it or any part of it is there.
    pub(super) fn count(self: &Arc<Unwritten>, bytes: Bytes) -> Bytes {
        self.pieces.fetch_add(1, Ordering::Relaxed);
        Bytes::from_owner(Piece { bytes, unwritten: Arc::clone(self) })
    }

    /// Whether there is nothing left to write.
    pub(super) fn is_nothing(&self) -> bool {
        self.pieces.load(Ordering::Relaxed) == 0
    }

    /// Waits until there is nothing left to write.
    pub(super) async fn nothing(&self) {
        loop {
            let mut written = pin!(self.written.notified());
            written.as_mut().enable(); // From here on, so that nothing is missed.
            if self.is_nothing() {
                return;
            }
            written.await;
        }
    }

    /// Sees to it that nothing more is written, soon. The body has been cut; if something of it stays behind, its connection ends.
    pub(super) async fn leave(&self, connection: &Socket) {
        if timeout(LEAVE_MAX, self.nothing()).await.is_err() {
            connection.shut_both();
        }
    }
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        if self.unwritten.pieces.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.unwritten.written.notify_waiters();
        }
    }
}
