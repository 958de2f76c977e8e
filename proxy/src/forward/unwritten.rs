//! What of a request HTTP/2 has been given and has not written.

use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Context;
use std::time::Duration;

use bytes::Bytes;
use http::header::VIA;
use http::{HeaderMap, HeaderValue, Request};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

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
    /// Whether somebody has been waiting to hear if something is left.
    has_asked: Cell<bool>,
}

/// Counts the pieces of a request that h2 has not put down to be written.
pub(super) struct HandedOver {
    left: AtomicUsize,
    /// Flushes of the connection so far.
    flushes: Arc<AtomicU64>,
    /// How many there had been when the last piece was put down. It is written with the next.
    put_down: AtomicU64,
    /// When that was.
    put_down_at: Mutex<Instant>,
    /// Turns of the connection so far after which nothing was left to be written.
    clean_turns: Arc<AtomicU64>,
    /// How many it takes for the end to be written that is no part of a piece; 0 if there is none.
    end_needs: AtomicU64,
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
        let unwritten = Unwritten::new(connection);
        unwritten.handed_over.count_head(request.headers_mut());
        request.body_mut().count_unwritten(&unwritten.handed_over);
        unwritten
    }

    /// Of a request of which so far nothing is to be written.
    fn new(connection: &Rc<Http2Connection>) -> Unwritten {
        let handed_over = Arc::new(HandedOver::new(connection));
        Unwritten { handed_over, connection: Rc::clone(connection), has_asked: Cell::new(false) }
    }

    /// Whether there is nothing left to write.
    pub(super) fn is_nothing(&self) -> bool {
        let (handed_over, socket) = (&*self.handed_over, self.connection.socket());
        let has_ended = socket.is_broken() || self.connection.turns().have_ended();
        // Outside of its turn, a connection that is not blocked has written all that was put down.
        let is_written = handed_over.is_end_written() && (handed_over.are_flushed() || !socket.is_write_blocked());
        handed_over.left.load(Ordering::Relaxed) == 0 && (is_written || has_ended)
    }

    /// When the kernel at the latest took what is written of it, if it may deliver that late.
    pub(super) fn last_write(&self) -> Option<Instant> {
        self.connection.socket().written_by(self.handed_over.put_down_at())
    }

    /// Whether something is left to write although its connection has had its turn: it may be written much later. Who asks for the first
    /// time is told that nothing is, and `cx` is woken soon if that was wrong.
    pub(super) fn is_left(&self, cx: &Context<'_>) -> bool {
        let is_known = || self.has_asked.replace(true) || !self.connection.wake_if_left(&self.handed_over, cx);
        !self.is_nothing() && is_known()
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

    /// Sees to it that nothing more is written, soon. The request has been given up; if something of it stays behind, its connection ends, and
    /// this is false.
    pub(super) async fn leave(&self) -> bool {
        self.leave_within(Duration::ZERO).await
    }

    /// The same, but the connection may go on for so long for the sake of others that it has. Only for what may still be written in that time: a
    /// part of a body that will never be whole, of a request that counts as at the worker all the while. hyper has no way to reset the stream of
    /// a request whose answer has begun before there is room for more of its body.
    pub(super) async fn leave_within(&self, patience: Duration) -> bool {
        let _leaving = self.connection.take_no_more();
        let is_left = timeout(LEAVE_MAX, self.nothing()).await.is_err();
        let is_left = is_left
            && !tokio::select! {
                () = self.nothing() => true,
                () = self.connection.without_streams() => false,
                () = sleep(patience.saturating_sub(LEAVE_MAX)) => false,
            };
        if is_left {
            self.connection.socket().reset();
        }
        !is_left
    }
}

impl HandedOver {
    fn new(connection: &Http2Connection) -> HandedOver {
        let flushes = Arc::clone(connection.flushes());
        let put_down = AtomicU64::new(flushes.load(Ordering::Relaxed));
        let clean_turns = Arc::clone(connection.clean_turns());
        let (left, end_needs) = (AtomicUsize::new(0), AtomicU64::new(0));
        let put_down_at = Mutex::new(Instant::now());
        HandedOver { left, flushes, put_down, put_down_at, clean_turns, end_needs, changed: Notify::new() }
    }

    fn note_put_down(&self) {
        *self.put_down_at.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn put_down_at(&self) -> Instant {
        *self.put_down_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts some bytes for as long as they or any part of them are there.
    pub(super) fn count(self: &Arc<HandedOver>, bytes: Bytes) -> Bytes {
        self.left.fetch_add(1, Ordering::Relaxed);
        Bytes::from_owner(Piece { bytes, handed_over: Arc::clone(self) })
    }

    /// Counts the head, which h2 puts down as a whole. `Via` stands for it: each request has that. It is not to be kept in HPACK's
    /// table, hence never indexed (RFC 7541, section 6.2.3).
    fn count_head(self: &Arc<HandedOver>, headers: &mut HeaderMap) {
        self.count_value(headers.entry(VIA).or_insert_with(|| HeaderValue::from_static("1.1 fencepost")));
    }

    /// Counts trailers, which h2 writes even after their request was given up. One of them stands for all.
    pub(super) fn count_trailers(self: &Arc<HandedOver>, trailers: &mut HeaderMap) {
        trailers.values_mut().take(1).for_each(|value| self.count_value(value));
    }

    fn count_value(self: &Arc<HandedOver>, value: &mut HeaderValue) {
        let counted = self.count(Bytes::copy_from_slice(value.as_bytes()));
        *value = HeaderValue::from_maybe_shared(counted).expect("what was a field's value is one");
        value.set_sensitive(true);
    }

    /// The end is handed over now, by itself or with trailers. h2 says nothing of it: it is written when, after the connection's next
    /// turns, nothing is left to be.
    pub(super) fn ends(&self) {
        self.end_needs.store(self.clean_turns.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        self.note_put_down();
    }

    /// Whether h2 has put down all of it to be written.
    pub(super) fn is_put_down(&self) -> bool {
        self.left.load(Ordering::Relaxed) == 0 && self.is_end_written()
    }

    fn is_end_written(&self) -> bool {
        self.clean_turns.load(Ordering::Relaxed) >= self.end_needs.load(Ordering::Relaxed)
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
            handed_over.note_put_down();
            if handed_over.end_needs.load(Ordering::Relaxed) > 0 {
                handed_over.ends(); // Not written before what was before it.
            }
            handed_over.changed.notify_waiters();
        }
    }
}

#[cfg(test)]
#[path = "unwritten_tests.rs"]
mod tests;
