//! Notices an HTTP/2 client that does not read an answer. Its connection cannot tell: it may be busy with other streams.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Buf, Bytes};
use pin_project_lite::pin_project;
use tokio::time::Instant;

use super::connection::{Connection, InFlight};
use super::limits::Limits;
use crate::wire::Alarm;

/// How much may be unread of an answer when its end is handed over. h2 takes the end of most answers with all of their data then: to keep it
/// back costs a frame, and another turn.
pub(super) const REST_BYTES_MAX: u64 = 4 * 1024;

/// How far an answer has been read, as far as h2 can tell: it puts down to be written what its client has room for. Until it has put
/// down all, the request is in flight.
pub(super) struct Unread {
    in_flight: InFlight,
    /// Bytes that hyper has been given and h2 has not put down.
    left: Cell<u64>,
    put_down: Cell<u64>,
    /// Since when h2 has put down nothing, while something is left.
    since: Cell<Option<Instant>>,
    /// How long it had something left before.
    waited: Cell<Duration>,
    /// Whether something was dropped that is not put down.
    is_cut: Cell<bool>,
    /// In which round of its connection's rests it has become one: it has ended for everybody but h2.
    rest_since: Cell<Option<Round>>,
    /// Whoever waits until nothing is left.
    waker: Cell<Option<Waker>>,
}

impl Unread {
    pub(super) fn new(in_flight: InFlight) -> Unread {
        Unread {
            in_flight,
            left: Cell::new(0),
            put_down: Cell::new(0),
            since: Cell::new(None),
            waited: Cell::new(Duration::ZERO),
            is_cut: Cell::new(false),
            rest_since: Cell::new(None),
            waker: Cell::new(None),
        }
    }

    pub(super) fn connection(&self) -> &Rc<Connection> {
        self.in_flight.connection()
    }

    pub(super) fn left(&self) -> u64 {
        self.left.get()
    }

    pub(super) fn put_down(&self) -> u64 {
        self.put_down.get()
    }

    pub(super) fn is_cut(&self) -> bool {
        self.is_cut.get()
    }

    /// Ready when nothing is left.
    pub(super) fn poll_put_down(&self, cx: &Context<'_>) -> Poll<()> {
        if self.left.get() == 0 {
            return Poll::Ready(());
        }
        self.waker.set(Some(cx.waker().clone()));
        Poll::Pending
    }

    /// What is left is h2's alone: no stream can be reset any more for its client's silence.
    pub(super) fn leave_behind(&self) {
        if self.left.get() > 0 {
            self.rest_since.set(Some(self.connection().rests.add()));
        }
    }

    fn gives(&self, bytes: u64) {
        if self.left.get() == 0 && bytes > 0 {
            self.since.set(Some(Instant::now()));
        }
        self.left.set(self.left.get() + bytes);
    }

    fn puts_down(&self, bytes: u64) {
        self.put_down.set(self.put_down.get() + bytes);
        self.subtract(bytes);
        let connection = self.connection();
        connection.pieces.set(connection.pieces.get() + 1);
        connection.rests.read_on(bytes);
    }

    fn drops(&self, bytes: u64) {
        self.is_cut.set(true);
        self.subtract(bytes);
    }

    fn subtract(&self, bytes: u64) {
        let left = self.left.get() - bytes;
        self.left.set(left);
        // Nobody asks for how long a rest has been one: not to read the clock is a part of what a short answer costs.
        if let Some(since) = self.since.take().filter(|_| self.rest_since.get().is_none()) {
            let now = Instant::now();
            self.waited.set(self.waited.get() + (now - since));
            self.since.set((left > 0).then_some(now));
        }
        if left == 0
            && let Some(waker) = self.waker.take()
        {
            waker.wake();
        }
    }

    /// When the client has kept us waiting for too long, if it does.
    fn due(&self, limits: &Limits) -> Option<Instant> {
        let since = self.since.get()?;
        let left = limits.patience(self.put_down.get()).map(|patience| patience.saturating_sub(self.waited.get()));
        Some(since + left.map_or(limits.body_timeout, |left| left.min(limits.body_timeout)))
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        if let Some(since) = self.rest_since.get() {
            self.connection().rests.take(since);
        }
    }
}

/// What h2 has left of answers that have ended for everybody else.
///
/// Each is held against its own time, without a clock or a list: short answers are such rests for a moment. Those that are left when a round
/// begins are looked at in it, until the last of them is gone; those that come meanwhile are in the next.
#[derive(Default)]
pub(super) struct Rests {
    count: Cell<usize>,
    round: Cell<Round>,
    /// Those that are left of those with which the round has begun.
    of_round: Cell<usize>,
    /// Bytes of answers, whichever, that have been put down since the round began.
    put_down: Cell<u64>,
    /// When it began; `None` before the first.
    began: Cell<Option<Instant>>,
}

/// The number of a round.
type Round = u64;

impl Rests {
    pub(super) fn are_left(&self) -> bool {
        self.count.get() > 0
    }

    /// Begins a round, if none goes on. When it has.
    pub(super) fn begin_round(&self) -> Option<Instant> {
        if self.of_round.get() > 0 {
            return None;
        }
        self.round.set(self.round.get() + 1);
        self.of_round.set(self.count.get());
        self.put_down.set(0);
        self.began.set(Some(Instant::now()));
        self.began.get()
    }

    /// For how long the round had gone on by then.
    pub(super) fn waited(&self, by: Instant) -> Duration {
        self.began.get().map_or(Duration::ZERO, |began| by.saturating_duration_since(began))
    }

    /// Bytes of the connection's answers that have been put down since the round began.
    pub(super) fn bytes_put_down(&self) -> u64 {
        self.put_down.get()
    }

    /// What of these each rest that the round waits for may have to its credit. That its client reads others pays for it, but for no more of
    /// them than if each were read.
    pub(super) fn bytes_for_each(&self) -> u64 {
        let waited_for = u64::try_from(self.of_round.get()).expect("no more than there are streams");
        self.put_down.get() / waited_for.max(1)
    }

    fn add(&self) -> Round {
        self.count.set(self.count.get() + 1);
        self.round.get()
    }

    fn take(&self, since: Round) {
        self.count.set(self.count.get() - 1);
        if since < self.round.get() {
            self.of_round.set(self.of_round.get() - 1);
        }
    }

    fn read_on(&self, bytes: u64) {
        self.put_down.set(self.put_down.get().wrapping_add(bytes));
    }
}

/// A piece of an answer. Over HTTP/2 it tells what of it is put down to be written: h2 takes it at once, and keeps what its client has no room for.
pub(super) struct Piece {
    bytes: Bytes,
    unread: Option<Rc<Unread>>,
}

impl Piece {
    pub(super) fn new(bytes: Bytes, unread: Option<&Rc<Unread>>) -> Piece {
        if let Some(unread) = unread {
            unread.gives(bytes.len() as u64);
        }
        Piece { bytes, unread: unread.map(Rc::clone) }
    }

    fn took(&self, bytes: usize) {
        if let Some(unread) = self.unread.as_ref().filter(|_| bytes > 0) {
            unread.puts_down(bytes as u64);
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
        self.took(count);
    }

    fn copy_to_bytes(&mut self, count: usize) -> Bytes {
        let bytes = self.bytes.split_to(count);
        self.took(count);
        bytes
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        if let Some(unread) = self.unread.as_ref().filter(|_| !self.bytes.is_empty()) {
            unread.drops(self.bytes.len() as u64);
        }
    }
}

/// Runs the streams of an HTTP/2 connection as tasks of this thread.
#[derive(Clone)]
pub(super) struct Streams(Rc<Connection>);

impl Streams {
    pub(super) fn of(connection: &Rc<Connection>) -> Streams {
        Streams(Rc::clone(connection))
    }
}

impl<F: Future + 'static> hyper::rt::Executor<F> for Streams {
    fn execute(&self, stream: F) {
        // hyper has just begun the request that this stream is for.
        let unread = self.0.newest.take();
        tokio::task::spawn_local(InTime { stream: Some(stream), unread, alarm: Alarm::new() });
    }
}

pin_project! {
    /// A stream that is reset, by being dropped, when its client does not read the answer.
    struct InTime<F> {
        #[pin]
        stream: Option<F>,
        unread: Option<Rc<Unread>>,
        alarm: Alarm,
    }
}

impl<F: Future> Future for InTime<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        let Some(stream) = this.stream.as_mut().as_pin_mut() else { return Poll::Ready(()) };
        if stream.poll(cx).is_ready() {
            return Poll::Ready(());
        }
        let Some(unread) = this.unread else { return Poll::Pending };
        let Some(due) = unread.due(&unread.connection().limits) else { return Poll::Pending };
        if this.alarm.poll(cx, due).is_ready() {
            this.stream.set(None);
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixStream;

    use super::*;
    use crate::wire::Socket;

    const SECOND: Duration = Duration::from_secs(1);

    async fn unread(limits: Limits) -> Rc<Unread> {
        let socket = Socket::downstream(UnixStream::pair().unwrap().0.into());
        Rc::new(Unread::new(InFlight::new(Connection::for_tests(limits, socket).await)))
    }

    fn piece(bytes: usize, unread: &Rc<Unread>) -> Piece {
        Piece::new(Bytes::from(vec![b'x'; bytes]), Some(unread))
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_given_up_after_a_silence_or_when_it_was_read_too_slowly_all_in_all() {
        let limits = Limits { body_timeout: 10 * SECOND, body_rate_min: 100, ..Limits::default() };
        let unread = unread(limits.clone()).await;
        assert_eq!(unread.due(&limits), None);
        let mut first = piece(500, &unread);
        assert_eq!(unread.due(&limits), Some(Instant::now() + 10 * SECOND));
        tokio::time::advance(9 * SECOND).await;
        first.advance(500);
        assert_eq!(unread.due(&limits), None, "the worker's time is not the client's");
        tokio::time::advance(100 * SECOND).await;
        let mut second = piece(200, &unread);
        // 10 s, and 5 s for 500 bytes, of which 9 s are used up.
        assert_eq!(unread.due(&limits), Some(Instant::now() + 6 * SECOND));
        second.advance(100);
        assert_eq!(unread.due(&limits), Some(Instant::now() + 7 * SECOND));
        let any_pace = Limits { body_rate_min: 0, ..limits };
        assert_eq!(unread.due(&any_pace), Some(Instant::now() + 10 * SECOND));
    }

    /// The time in which a piece drained was taken for a silence: of 20,000 bytes at 140 B/s, a client got 5,200.
    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_on_is_not_silent_however_long_a_piece_takes_it() {
        let limits = Limits { body_timeout: 10 * SECOND, body_rate_min: 100, ..Limits::default() };
        let unread = unread(limits.clone()).await;
        let mut piece = piece(20_000, &unread);
        while piece.has_remaining() {
            tokio::time::advance(9 * SECOND).await;
            assert!(
                unread.due(&limits).is_some_and(|due| due > Instant::now()),
                "{} bytes are left",
                piece.remaining()
            );
            piece.advance(1_000);
            assert!(unread.due(&limits).is_none_or(|due| due > Instant::now() + SECOND));
        }
    }

    #[tokio::test]
    async fn a_request_is_in_flight_until_the_last_of_its_answer_is_put_down() {
        let unread = unread(Limits::default()).await;
        let connection = Rc::clone(unread.connection());
        let mut piece = piece(100, &unread);
        unread.leave_behind();
        drop(unread);
        piece.advance(99);
        assert!(connection.rests.are_left());
        assert_eq!((connection.in_flight.get(), connection.rests.bytes_put_down()), (1, 99));
        assert!(connection.rests.begin_round().is_some() && connection.rests.begin_round().is_none());
        drop(piece);
        assert!(!connection.rests.are_left() && connection.rests.begin_round().is_some());
        assert_eq!(connection.in_flight.get(), 0);
    }
}
