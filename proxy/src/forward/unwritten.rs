//! What of a request HTTP/2 has been given and has not written.

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::VIA;
use http::{HeaderMap, HeaderValue, Request};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::http2::Http2Connection;
use super::request_body::RequestBody;

/// How long a request that was given up may take to leave a connection whose worker does not hold it back: it is gone when its task
/// has had its turn.
const LEAVE_MAX: Duration = Duration::from_millis(100);

/// What of a request HTTP/2 has been given and has not written: because the worker's window is shut, because it allows no more streams or
/// because it does not read.
///
/// It can't be taken back: hyper and h2 write it when they can, a head even after the request was given up, and the request may
/// have been answered long before.
#[derive(Clone)]
pub(super) struct Unwritten {
    handed_over: Arc<HandedOver>,
    connection: Rc<Http2Connection>,
}

/// Counts the pieces of a request that h2 has not put down to be written.
pub(super) struct HandedOver {
    left: AtomicUsize,
    /// Flushes of the connection so far.
    flushes: Arc<AtomicU64>,
    /// How many there had been when the last piece was put down. It is written with the next.
    put_down: AtomicU64,
    changed: Notify,
}

/// A piece of a request. h2 drops it when it has put it down to be written, or never will.
struct Piece {
    bytes: Bytes,
    handed_over: Arc<HandedOver>,
}

impl Unwritten {
    /// Counts what the request is made of.
    pub(super) fn count(request: &mut Request<RequestBody>, connection: &Rc<Http2Connection>) -> Unwritten {
        let handed_over = Arc::new(HandedOver::new(connection));
        handed_over.count_head(request.headers_mut());
        request.body_mut().count_unwritten(&handed_over);
        Unwritten { handed_over, connection: Rc::clone(connection) }
    }

    /// Whether there is nothing left to write.
    pub(super) fn is_nothing(&self) -> bool {
        let socket = self.connection.socket();
        // Outside of its turn, a connection that is not blocked has written all that was put down.
        self.handed_over.left.load(Ordering::Relaxed) == 0
            && (self.handed_over.are_flushed() || !socket.is_write_blocked() || socket.is_broken())
    }

    /// Waits until there is nothing left to write.
    pub(super) async fn nothing(&self) {
        loop {
            let mut changed = pin!(self.handed_over.changed.notified());
            changed.as_mut().enable(); // From here on, so that nothing is missed.
            tokio::select! {
                () = self.connection.turns().until(|| self.is_nothing()) => return,
                () = changed => {}
            }
        }
    }

    /// Sees to it that nothing more is written, soon. The request has been given up; if something of it stays behind, its connection ends.
    pub(super) async fn leave(&self) {
        if timeout(LEAVE_MAX, self.nothing()).await.is_err() {
            self.connection.socket().shut_both();
        }
    }
}

impl HandedOver {
    fn new(connection: &Http2Connection) -> HandedOver {
        let flushes = Arc::clone(connection.flushes());
        let put_down = AtomicU64::new(flushes.load(Ordering::Relaxed));
        HandedOver { left: AtomicUsize::new(0), flushes, put_down, changed: Notify::new() }
    }

    /// Counts some bytes for as long as they or any part of them are there.
    pub(super) fn count(self: &Arc<HandedOver>, bytes: Bytes) -> Bytes {
        self.left.fetch_add(1, Ordering::Relaxed);
        Bytes::from_owner(Piece { bytes, handed_over: Arc::clone(self) })
    }

    /// Counts the head, which h2 puts down as a whole. `Via` stands for it: each request has that. It is not to be kept in HPACK's
    /// table, hence never indexed (RFC 7541, section 6.2.3).
    fn count_head(self: &Arc<HandedOver>, headers: &mut HeaderMap) {
        let via = headers.entry(VIA).or_insert_with(|| HeaderValue::from_static("1.1 fencepost"));
        let counted = self.count(Bytes::copy_from_slice(via.as_bytes()));
        *via = HeaderValue::from_maybe_shared(counted).expect("what was a field's value is one");
        via.set_sensitive(true);
    }

    fn are_flushed(&self) -> bool {
        self.flushes.load(Ordering::Relaxed) > self.put_down.load(Ordering::Relaxed)
    }
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let handed_over = &*self.handed_over;
        if handed_over.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            handed_over.put_down.store(handed_over.flushes.load(Ordering::Relaxed), Ordering::Relaxed);
            handed_over.changed.notify_waiters();
        }
    }
}

#[cfg(test)]
#[path = "unwritten_tests.rs"]
mod tests;
