//! Resets HTTP/2 streams whose client has stopped reading the response, or reads it too slowly.
//! Works per stream, because other streams keep the connection busy. A stream whose end h2 has can't
//! be reset any more: [`ClientTimeout`](super::timeouts::ClientTimeout) looks after what is left of
//! that, for the connection as a whole.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::time::Instant;

use super::activity::InFlight;
use super::client::Protocol;
use super::connection::Connection;
use super::limits::patience;
use crate::wire::Alarm;

/// How much may be unsent of a response when its end is handed over. h2 takes the end of most
/// responses with all of their data then: to keep it back costs a frame.
const UNSENT_AT_END_MAX: u64 = 4 * 1024;

/// How far the response to a request is sent. Over HTTP/2, h2 puts into frames what the client has
/// room for; over HTTP/1, what hyper was given counts as sent.
///
/// The request is in flight until all of that is sent.
pub(super) struct Sending {
    connection: Rc<Connection>,
    _in_flight: InFlight,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    /// Bytes that hyper was given and h2 has not sent.
    unsent: u64,
    sent: u64,
    /// Since when h2 has sent nothing, while something is unsent.
    since: Option<Instant>,
    /// How long something was unsent before.
    waited: Duration,
    /// Whether something was dropped unsent.
    is_cut: bool,
    /// The task that waits until nothing is unsent.
    waker: Option<Waker>,
}

impl Sending {
    /// The response to a request that begins. On HTTP/2 the request's stream begins right after this.
    pub(super) fn begin(connection: &Rc<Connection>) -> Rc<Sending> {
        let sending = Sending::new(Rc::clone(connection), connection.activity.in_flight());
        let mut state = connection.state.borrow_mut();
        state.requests += 1;
        if connection.protocol() == Protocol::Http2 {
            state.newest = Some(Rc::clone(&sending));
        }
        sending
    }

    pub(super) fn new(connection: Rc<Connection>, in_flight: InFlight) -> Rc<Sending> {
        Rc::new(Sending { connection, _in_flight: in_flight, state: RefCell::default() })
    }

    pub(super) fn connection(&self) -> &Rc<Connection> {
        &self.connection
    }

    /// Whether so much is unsent that the response's end is to be kept back, so that the stream can
    /// be reset.
    pub(super) fn keeps_end(&self) -> bool {
        self.state.borrow().unsent > UNSENT_AT_END_MAX
    }

    /// Whether something was dropped unsent.
    pub(super) fn is_cut(&self) -> bool {
        self.state.borrow().is_cut
    }

    pub(super) fn sent(&self) -> u64 {
        self.state.borrow().sent
    }

    /// Ready when nothing is unsent.
    pub(super) fn poll_sent(&self, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.state.borrow_mut();
        if state.unsent == 0 {
            return Poll::Ready(());
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn give(&self, bytes: u64) {
        let mut state = self.state.borrow_mut();
        if state.unsent == 0 && bytes > 0 {
            state.since = Some(Instant::now());
        }
        state.unsent += bytes;
        self.connection.state.borrow_mut().unsent += bytes;
    }

    fn take(&self, bytes: u64, is_sent: bool) {
        let mut state = self.state.borrow_mut();
        let mut all = self.connection.state.borrow_mut();
        state.unsent -= bytes;
        all.unsent -= bytes;
        if is_sent {
            state.sent += bytes;
            all.sent = all.sent.wrapping_add(bytes);
            all.sent_pieces += 1;
        }
        state.is_cut |= !is_sent;
        if let Some(since) = state.since {
            let now = Instant::now();
            state.waited += now - since;
            state.since = (state.unsent > 0).then_some(now);
        }
        if state.unsent == 0
            && let Some(waker) = state.waker.take()
        {
            waker.wake();
        }
    }

    /// When the client has kept us waiting for too long, if it does.
    fn due(&self) -> Option<Instant> {
        let (state, limits) = (self.state.borrow(), &self.connection.limits);
        let patience =
            patience(limits, state.sent).map(|patience| patience.saturating_sub(state.waited));
        Some(state.since? + patience.unwrap_or(limits.body_timeout).min(limits.body_timeout))
    }
}

/// A piece of a response. Over HTTP/2 it notes what of it is sent.
pub(super) struct Piece {
    bytes: Bytes,
    sending: Option<Rc<Sending>>,
}

impl Piece {
    pub(super) fn new(bytes: Bytes, sending: &Rc<Sending>) -> Piece {
        if sending.connection.protocol() == Protocol::Http1 {
            return Piece { bytes, sending: None };
        }
        sending.give(bytes.len() as u64);
        Piece { bytes, sending: Some(Rc::clone(sending)) }
    }

    fn note(&self, bytes: usize, is_sent: bool) {
        if let Some(sending) = self.sending.as_ref().filter(|_| bytes > 0) {
            sending.take(bytes as u64, is_sent);
        }
    }
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        self.note(count, true);
    }

    fn copy_to_bytes(&mut self, count: usize) -> Bytes {
        let bytes = self.bytes.split_to(count);
        self.note(count, true);
        bytes
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.note(self.bytes.len(), false);
    }
}

/// Runs the streams of an HTTP/2 connection as tasks of this thread.
#[derive(Clone)]
pub(super) struct Streams(pub(super) Rc<Connection>);

impl<F: Future + 'static> hyper::rt::Executor<F> for Streams {
    fn execute(&self, stream: F) {
        // hyper has just begun the request that this stream is for.
        let sending = self.0.state.borrow_mut().newest.take();
        let (mut stream, mut alarm) = (Box::pin(stream), Alarm::new());
        tokio::task::spawn_local(poll_fn(move |cx| {
            if stream.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            // A client that does not read the response: the stream is reset, by being dropped.
            let due = sending.as_ref().and_then(|sending| sending.due());
            due.map_or(Poll::Pending, |due| alarm.poll(cx, due))
        }));
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixStream;

    use super::*;
    use crate::server::Limits;
    use crate::wire::Socket;

    const SECOND: Duration = Duration::from_secs(1);

    async fn sending(limits: Limits) -> Rc<Sending> {
        let socket = Socket::downstream(UnixStream::pair().unwrap().0.into());
        let connection = Connection::for_tests(limits, socket).await;
        let in_flight = connection.activity.in_flight();
        Sending::new(connection, in_flight)
    }

    fn piece(bytes: usize, sending: &Rc<Sending>) -> Piece {
        Piece::new(Bytes::from(vec![b'x'; bytes]), sending)
    }

    #[tokio::test(start_paused = true)]
    async fn response_is_due_after_a_silence_or_at_too_slow_a_pace() {
        let limits = Limits { body_timeout: 10 * SECOND, body_rate_min: 100, ..Limits::default() };
        let sending = sending(limits).await;
        assert_eq!(sending.due(), None);
        let mut first = piece(500, &sending);
        assert_eq!(sending.due(), Some(Instant::now() + 10 * SECOND));
        tokio::time::advance(9 * SECOND).await;
        first.advance(500);
        assert_eq!(sending.due(), None, "the worker's time is not the client's");
        tokio::time::advance(100 * SECOND).await;
        let mut second = piece(200, &sending);
        // 10 s, and 5 s for 500 bytes, of which 9 s are used up.
        assert_eq!(sending.due(), Some(Instant::now() + 6 * SECOND));
        second.advance(100);
        assert_eq!(sending.due(), Some(Instant::now() + 7 * SECOND));
    }

    /// Of 20,000 bytes at 140 B/s, a client got 5,200.
    #[tokio::test(start_paused = true)]
    async fn client_that_reads_on_may_take_long_for_one_piece() {
        let limits = Limits { body_timeout: 10 * SECOND, body_rate_min: 100, ..Limits::default() };
        let sending = sending(limits).await;
        let mut piece = piece(20_000, &sending);
        while piece.has_remaining() {
            tokio::time::advance(9 * SECOND).await;
            assert!(
                sending.due().is_some_and(|due| due > Instant::now()),
                "{} bytes are left",
                piece.remaining()
            );
            piece.advance(1_000);
            assert!(sending.due().is_none_or(|due| due > Instant::now() + SECOND));
        }
    }

    #[tokio::test]
    async fn request_is_in_flight_until_h2_has_sent_its_response() {
        let sending = sending(Limits::default()).await;
        let connection = Rc::clone(sending.connection());
        let mut piece = piece(100, &sending);
        drop(sending);
        piece.advance(99);
        assert_eq!(connection.state.borrow().unsent, 1);
        assert_eq!(
            (connection.activity.count_in_flight(), connection.state.borrow().sent),
            (1, 99)
        );
        drop(piece);
        assert_eq!(connection.state.borrow().unsent, 0);
        assert_eq!(connection.activity.count_in_flight(), 0);
    }
}
