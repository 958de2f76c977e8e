//! Notices a client that keeps its connection without using it.

use std::task::{Context, Poll, ready};
use std::time::Duration;

use http1_strict::Unfinished;
use tokio::time::Instant;

use super::connection::{Connection, Protocol};
use super::limits::Limits;
use super::tally::Closing;
use crate::wire::Alarm;

/// Whose turn it is on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// The client has no request under way.
    Idle,
    /// The client has begun a request head.
    Head,
    /// The client has not sent its request body to the end.
    Body,
    /// The client does not read.
    Stalled,
    /// On HTTP/2: the client leaves lying what h2 has left of answers that have ended, whose streams can't be reset any more.
    Rest,
    /// We have something to answer; other limits hold.
    Ours,
}

/// How long a client may take that was asked to leave, has no request and answers no PING. Over HTTP/2 it is to answer one, so that what it had
/// sent by then is not lost, and some never do.
pub(super) const PARTING_MAX: Duration = Duration::from_secs(5);

/// Notices a client that keeps its connection without using it.
///
/// It is asked after each poll of the connection and looks at what changed since: no request moves a registered timer.
pub(super) struct Watch {
    turn: Turn,
    since: Instant,
    moved: u64,
    requests: u64,
    /// Whether the client was asked to leave.
    left: bool,
    /// For how long the client has not read, up to the present turn, and how much had been written when that was last nothing.
    stalled: Duration,
    written_before: u64,
    alarm: Alarm,
}

impl Watch {
    /// A watch over a connection that was accepted at `since`.
    pub(super) fn new(since: Instant) -> Watch {
        let (stalled, alarm) = (Duration::ZERO, Alarm::new());
        Watch { turn: Turn::Head, since, moved: 0, requests: 0, left: false, stalled, written_before: 0, alarm }
    }

    /// Ready when the client has kept us waiting for too long.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, connection: &Connection) -> Poll<Closing> {
        let turn = whose_turn(connection);
        let round = if turn == Turn::Rest { connection.rests.begin_round() } else { None };
        let moved = match turn {
            // A client may talk of other things, and still not read. What it reads of other answers may be all that it has room for.
            Turn::Rest => connection.rests.bytes_put_down(),
            Turn::Idle | Turn::Head | Turn::Body | Turn::Stalled | Turn::Ours => connection.socket.bytes_moved(),
        };
        let requests = connection.requests.get();
        // A head has to be there in time as a whole, and a connection is idle without a request, whatever else is sent.
        let whatever_moves = matches!(turn, Turn::Head | Turn::Idle) && requests == self.requests;
        let goes_on = turn == self.turn && round.is_none() && (whatever_moves || moved == self.moved);
        if !goes_on {
            let now = match turn {
                // While it is our turn, nobody asks since when.
                Turn::Ours if self.turn != Turn::Stalled => self.since,
                // Its last request has just read the clock.
                Turn::Idle => self.end_of_last_request(connection).unwrap_or_else(Instant::now),
                Turn::Rest => round.unwrap_or_else(Instant::now),
                Turn::Ours | Turn::Head | Turn::Body | Turn::Stalled => Instant::now(),
            };
            if self.turn == Turn::Stalled {
                self.stalled += now - self.since;
            }
            self.turn = turn;
            self.since = now;
        }
        (self.moved, self.requests) = (moved, requests);
        if matches!(turn, Turn::Head | Turn::Idle) {
            (self.stalled, self.written_before) = (Duration::ZERO, connection.socket.bytes_written());
        }
        let Some((limit, closing)) = self.limit(connection) else { return Poll::Pending };
        loop {
            ready!(self.alarm.poll(cx, self.since + limit));
            // Its request can still be told so, and what comes of the body then has its own time.
            let is_answerable = self.turn == Turn::Body && connection.answered.get() < connection.requests.get();
            if !is_answerable || !connection.awaited_body.give_up() {
                return Poll::Ready(closing);
            }
            self.since = Instant::now();
        }
    }

    /// When the last request ended; `None` if there was none since the turn began, or if it goes on at the worker.
    fn end_of_last_request(&self, connection: &Connection) -> Option<Instant> {
        connection.seat.waits_since().filter(|since| *since > self.since)
    }

    /// The client has been asked to leave: one that is idle has a moment for it from now on.
    pub(super) fn leave(&mut self, connection: &Connection) {
        self.left = true;
        connection.answers_pings.set(false);
        if self.turn == Turn::Idle {
            self.since = Instant::now();
        }
    }

    fn limit(&self, connection: &Connection) -> Option<(Duration, Closing)> {
        let limits = &connection.limits;
        match self.turn {
            Turn::Idle if self.left && !is_heard_of(connection) => {
                Some((limits.idle_timeout.min(PARTING_MAX), Closing::Idle))
            }
            Turn::Idle => Some((limits.idle_timeout, Closing::Idle)),
            Turn::Head => Some((limits.header_timeout, Closing::Header)),
            Turn::Body => Some((limits.body_timeout, Closing::Body)),
            Turn::Stalled => {
                let read = connection.socket.bytes_written().wrapping_sub(self.written_before);
                Some(until_read(limits, read, self.stalled))
            }
            Turn::Rest => {
                Some(until_read(limits, connection.rests.bytes_for_each(), connection.rests.waited(self.since)))
            }
            Turn::Ours => None,
        }
    }
}

/// For how long a client that has read so many bytes, and was waited for so long, may read nothing.
fn until_read(limits: &Limits, read: u64, waited: Duration) -> (Duration, Closing) {
    let left = limits.patience(read).map(|patience| patience.saturating_sub(waited));
    match left.filter(|left| *left < limits.body_timeout) {
        Some(left) => (left, Closing::Pace),
        None => (limits.body_timeout, Closing::Body),
    }
}

fn whose_turn(connection: &Connection) -> Turn {
    if connection.socket.is_write_blocked() {
        return Turn::Stalled;
    }
    match (connection.protocol(), connection.in_flight.get() > 0) {
        (Protocol::Http1, true) => turn_in_body(connection),
        (Protocol::Http1, false) => match connection.progress.unfinished() {
            Unfinished::Nothing => Turn::Idle,
            Unfinished::Head => Turn::Head,
            // It was answered before it had come, and goes on to the worker.
            Unfinished::Body => turn_in_body(connection),
        },
        (Protocol::Http2, true) if connection.rests.are_left() => Turn::Rest,
        (Protocol::Http2, true) => Turn::Ours,
        (Protocol::Http2, false) => Turn::Idle,
    }
}

/// Whether a client that was asked to leave says so, or has something under way at the worker. It may have the rest of an answer to read yet.
fn is_heard_of(connection: &Connection) -> bool {
    connection.answers_pings.get() || connection.seat.count_under_way() > 0
}

fn turn_in_body(connection: &Connection) -> Turn {
    if connection.awaited_body.is_awaited() { Turn::Body } else { Turn::Ours }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::rc::Rc;

    use bytes::{Buf, Bytes};
    use futures_util::FutureExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixStream;
    use tokio::task::LocalSet;
    use tokio::time::{advance, timeout};

    use super::*;
    use crate::downstream::connection::{Asked, InFlight};
    use crate::downstream::unread::{Piece, Unread};
    use crate::wire::Socket;

    const SECOND: Duration = Duration::from_secs(1);

    /// An HTTP/2 connection that was accepted just now, and may be idle for ten seconds.
    async fn accepted() -> Rc<Connection> {
        let limits = Limits { idle_timeout: 10 * SECOND, ..Limits::default() };
        Connection::for_tests(limits, Socket::downstream(UnixStream::pair().unwrap().0.into())).await
    }

    /// A request, as hyper has it once it has begun its stream.
    fn begun(connection: &Rc<Connection>) -> Asked {
        let asked = Asked::begin(Rc::clone(connection));
        connection.newest.take();
        asked
    }

    async fn is_over(watch: &mut Watch, connection: &Connection) -> bool {
        let over = poll_fn(|cx| watch.poll(cx, connection));
        timeout(SECOND / 100, LocalSet::new().run_until(over)).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_idle_from_the_end_of_its_handshake_and_then_from_that_of_its_last_request() {
        let connection = accepted().await;
        advance(9 * SECOND).await;
        let mut watch = Watch::new(Instant::now());
        assert!(!is_over(&mut watch, &connection).await);
        advance(9 * SECOND).await;
        assert!(!is_over(&mut watch, &connection).await, "the handshake was no idleness");
        let request = begun(&connection);
        assert!(!is_over(&mut watch, &connection).await, "it is our turn");
        advance(SECOND).await;
        drop(request);
        advance(9 * SECOND).await;
        assert!(!is_over(&mut watch, &connection).await, "there was a request nine seconds ago");
        advance(2 * SECOND).await;
        assert!(is_over(&mut watch, &connection).await);
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_asked_to_leave_and_has_no_request_has_a_moment_for_it_and_then_another_after_its_last_one() {
        let connection = accepted().await;
        let mut watch = Watch::new(Instant::now());
        assert!(!is_over(&mut watch, &connection).await);
        advance(9 * SECOND).await;
        watch.leave(&connection);
        let request = begun(&connection);
        assert!(!is_over(&mut watch, &connection).await, "it is our turn");
        advance(2 * PARTING_MAX).await;
        assert!(!is_over(&mut watch, &connection).await, "and still is");
        drop(request);
        assert!(!is_over(&mut watch, &connection).await, "it may not have heard of it yet");
        advance(PARTING_MAX + SECOND).await;
        assert!(is_over(&mut watch, &connection).await);
    }

    #[tokio::test(start_paused = true)]
    async fn who_answers_when_it_is_asked_to_leave_or_has_something_at_the_worker_may_be_idle_as_ever() {
        for answers in [true, false] {
            let connection = accepted().await;
            let mut watch = Watch::new(Instant::now());
            watch.leave(&connection);
            connection.answers_pings.set(answers);
            let under_way = (!answers).then(|| connection.seat.under_way());
            assert!(!is_over(&mut watch, &connection).await);
            advance(PARTING_MAX + SECOND).await;
            assert!(!is_over(&mut watch, &connection).await, "it answers: {answers}");
            drop(under_way);
        }
    }

    /// hyper had handed the answer's last piece to h2, which held it for a slow client: its connection was closed as an idle one.
    #[tokio::test(start_paused = true)]
    async fn a_client_that_has_something_left_to_read_is_not_idle_and_may_not_leave_that_lying_for_ever() {
        let connection = accepted().await;
        let mut watch = Watch::new(Instant::now());
        let unread = Rc::new(Unread::new(InFlight::new(Rc::clone(&connection))));
        let mut piece = Piece::new(Bytes::from(vec![b'x'; 4_000]), Some(&unread));
        unread.leave_behind();
        drop(unread);
        for _ in 0..4 {
            assert!(!is_over(&mut watch, &connection).await);
            advance(7 * SECOND).await;
            piece.advance(900);
        }
        assert!(!is_over(&mut watch, &connection).await, "it may be idle for ten seconds");
        advance(29 * SECOND).await;
        assert!(!is_over(&mut watch, &connection).await, "and silent for 30");
        advance(2 * SECOND).await;
        assert!(is_over(&mut watch, &connection).await);
    }

    /// An answer of so many bytes, all of which h2 has.
    fn left_behind(connection: &Rc<Connection>, bytes: usize) -> Piece {
        let unread = Rc::new(Unread::new(InFlight::new(Rc::clone(connection))));
        let piece = Piece::new(Bytes::from(vec![b'x'; bytes]), Some(&unread));
        unread.leave_behind();
        piece
    }

    /// A download at 20 KB/s was cut after half a minute, since there was always a small answer that waited for its turn.
    #[tokio::test(start_paused = true)]
    async fn answers_that_are_left_for_a_moment_each_are_not_one_that_is_left_for_ever() {
        let connection = accepted().await;
        let mut watch = Watch::new(Instant::now());
        let _large = begun(&connection);
        let mut small = left_behind(&connection, 2);
        for _ in 0..100 {
            assert!(!is_over(&mut watch, &connection).await);
            advance(SECOND).await;
            let next = left_behind(&connection, 2);
            small.advance(2);
            small = next;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_read_of_other_answers_pays_for_each_that_is_left_lying() {
        // Two that are left: they take 256 bytes a second.
        for (bytes, ends) in [(200, true), (300, false)] {
            let connection = accepted().await;
            let mut watch = Watch::new(Instant::now());
            let unread = Rc::new(Unread::new(InFlight::new(Rc::clone(&connection))));
            let _left = [left_behind(&connection, 100), left_behind(&connection, 4_000)];
            let mut seconds = 0;
            while !is_over(&mut watch, &connection).await && seconds < 1_000 {
                advance(SECOND).await;
                Piece::new(Bytes::from(vec![b'x'; bytes]), Some(&unread)).advance(bytes);
                seconds += 1;
            }
            assert_eq!(seconds < 1_000, ends, "{bytes} bytes a second of another: {seconds} s");
        }
    }

    /// Its time was added to that of a client that did not read at all, and all of it held against what it had read of small answers.
    #[tokio::test(start_paused = true)]
    async fn that_a_client_takes_its_time_to_read_is_not_held_against_a_small_answer_that_is_left() {
        let limits = Limits { idle_timeout: 10 * SECOND, ..Limits::default() };
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let connection = Connection::for_tests(limits, Socket::downstream(ours.into())).await;
        let mut watch = Watch::new(Instant::now());
        let _large = begun(&connection);
        let mut socket = connection.socket.clone();
        let large = vec![b'x'; 64 * 1024];
        for _ in 0..10 {
            while socket.write(&large).now_or_never().is_some() {}
            assert!(connection.socket.is_write_blocked());
            assert!(!is_over(&mut watch, &connection).await);
            advance(7 * SECOND).await;
            assert!(theirs.read(&mut vec![0; 1024 * 1024]).await.unwrap() > 0);
            socket.write_all(b"x").await.unwrap();
            assert!(!connection.socket.is_write_blocked());
            let mut small = left_behind(&connection, 2);
            assert!(!is_over(&mut watch, &connection).await);
            small.advance(2);
        }
    }
}
