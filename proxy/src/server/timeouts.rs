//! Notices a client that keeps its connection without using it. Request bodies have a timeout of
//! their own ([`ClientBody`](super::ClientBody)), and so have HTTP/2 streams
//! ([`Sending`](super::sending::Sending)).

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use http1_strict::Unfinished;
use tokio::time::Instant;

use super::client::Protocol;
use super::connection::Connection;
use super::limits::{Closing, Limits, patience};
use crate::wire::Alarm;

/// How long an idle client may keep its connection that was asked to leave. Over HTTP/2 it confirms
/// by answering a PING, and some never do.
const LEAVE_MAX: Duration = Duration::from_secs(5);

/// How much longer than a stream a connection may send nothing of its responses over HTTP/2.
const RESET_FIRST: Duration = Duration::from_millis(500);

/// What a connection waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WaitsFor {
    /// A request: it is idle.
    Request,
    /// The rest of a head.
    Head,
    /// A client that does not read what is written.
    Reader,
    /// On HTTP/2: a client that does not make room for what h2 has of responses.
    ReaderOverHttp2,
    /// Nothing from its client, or the rest of a body.
    Us,
}

impl WaitsFor {
    fn of(connection: &Connection) -> WaitsFor {
        if connection.socket.is_write_blocked() {
            return WaitsFor::Reader;
        }
        if connection.state.borrow().unsent > 0 {
            return WaitsFor::ReaderOverHttp2;
        }
        let is_answered = connection.activity.count_in_flight() == 0;
        match (connection.protocol(), connection.progress.unfinished()) {
            (Protocol::Http1, Unfinished::Head) if is_answered => WaitsFor::Head,
            // It was answered before it had come.
            (Protocol::Http1, Unfinished::Body) => WaitsFor::Us,
            (Protocol::Http1 | Protocol::Http2, _)
                if connection.activity.idle_since().is_some() =>
            {
                WaitsFor::Request
            }
            (Protocol::Http1 | Protocol::Http2, _) => WaitsFor::Us,
        }
    }

    /// What shows that the client goes on, by changing.
    fn progress(self, connection: &Connection) -> u64 {
        match self {
            WaitsFor::Reader => connection.socket.bytes_moved(),
            WaitsFor::ReaderOverHttp2 => connection.state.borrow().sent,
            // A head has to be there in time as a whole, and a connection is idle whatever else is
            // sent.
            WaitsFor::Request | WaitsFor::Head | WaitsFor::Us => connection.requests(),
        }
    }
}

/// Notices a client that keeps its connection without using it.
///
/// Polled with the connection, it looks at what has changed since: no request moves a registered
/// timer.
pub(super) struct ClientTimeout {
    waits_for: WaitsFor,
    progress: u64,
    /// Since when it waits for a head or a reader.
    since: Instant,
    /// When the client was asked to leave.
    leaves_since: Option<Instant>,
    /// How long the client has kept us waiting to write since the connection was last idle, and
    /// what was written by then.
    blocked: Duration,
    written_before: u64,
    alarm: Alarm,
}

impl ClientTimeout {
    /// The timeout of a connection that waits since then for its first request.
    pub(super) fn new(since: Instant) -> ClientTimeout {
        ClientTimeout {
            waits_for: WaitsFor::Head,
            progress: 0,
            since,
            leaves_since: None,
            blocked: Duration::ZERO,
            written_before: 0,
            alarm: Alarm::new(),
        }
    }

    /// The client was asked to leave.
    pub(super) fn leave(&mut self) {
        self.leaves_since = Some(Instant::now());
    }

    /// Waits until the client has kept us waiting for too long. Looks at what has changed each time
    /// that the connection's task is woken.
    pub(super) async fn over(&mut self, connection: &Connection) -> Closing {
        poll_fn(|cx| {
            self.note(connection);
            let Some((due, closing)) = self.due(connection) else { return Poll::Pending };
            self.alarm.poll(cx, due).map(|()| closing)
        })
        .await
    }

    /// Notes what the connection waits for by now, and whether the client has gone on.
    fn note(&mut self, connection: &Connection) {
        let waits_for = WaitsFor::of(connection);
        let progress = waits_for.progress(connection);
        if (waits_for, progress) == (self.waits_for, self.progress) {
            return;
        }
        if self.waits_for == WaitsFor::Reader {
            self.blocked += self.since.elapsed();
        }
        match waits_for {
            WaitsFor::Head | WaitsFor::Reader | WaitsFor::ReaderOverHttp2 => {
                self.since = Instant::now()
            }
            WaitsFor::Request => {
                (self.blocked, self.written_before) =
                    (Duration::ZERO, connection.socket.bytes_written());
            }
            WaitsFor::Us => {}
        }
        (self.waits_for, self.progress) = (waits_for, progress);
    }

    fn due(&self, connection: &Connection) -> Option<(Instant, Closing)> {
        let limits = &connection.limits;
        match self.waits_for {
            WaitsFor::Request => {
                let idle_since = connection.activity.idle_since()?;
                let due = match self.leaves_since {
                    Some(leaves) => leaves.max(idle_since) + limits.idle_timeout.min(LEAVE_MAX),
                    None => idle_since + limits.idle_timeout,
                };
                Some((due, Closing::Idle))
            }
            WaitsFor::Head => Some((self.since + limits.header_timeout, Closing::Header)),
            WaitsFor::Reader => {
                let written = connection.socket.bytes_written().wrapping_sub(self.written_before);
                let (limit, closing) = until_written(limits, written, self.blocked);
                Some((self.since + limit, closing))
            }
            // A stream that can be reset was by then.
            WaitsFor::ReaderOverHttp2 => {
                Some((self.since + limits.body_timeout + RESET_FIRST, Closing::Body))
            }
            WaitsFor::Us => None,
        }
    }
}

/// How long a client may read nothing that has read so many bytes and kept us waiting for so long.
fn until_written(limits: &Limits, written: u64, blocked: Duration) -> (Duration, Closing) {
    let left = patience(limits, written).map(|patience| patience.saturating_sub(blocked));
    match left.filter(|left| *left < limits.body_timeout) {
        Some(left) => (left, Closing::Pace),
        None => (limits.body_timeout, Closing::Body),
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use bytes::{Buf, Bytes};
    use tokio::net::UnixStream;
    use tokio::task::LocalSet;
    use tokio::time::{advance, timeout};

    use super::*;
    use crate::server::sending::{Piece, Sending};
    use crate::wire::Socket;

    const SECOND: Duration = Duration::from_secs(1);

    /// An HTTP/2 connection that was accepted just now, and may be idle for ten seconds.
    async fn accepted() -> Rc<Connection> {
        let limits = Limits { idle_timeout: 10 * SECOND, ..Limits::default() };
        Connection::for_tests(limits, Socket::downstream(UnixStream::pair().unwrap().0.into()))
            .await
    }

    async fn is_over(client: &mut ClientTimeout, connection: &Connection) -> bool {
        let over = client.over(connection);
        timeout(SECOND / 100, LocalSet::new().run_until(over)).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn connection_is_idle_from_the_end_of_its_last_request() {
        let connection = accepted().await;
        let mut client = ClientTimeout::new(Instant::now());
        assert!(!is_over(&mut client, &connection).await);
        advance(9 * SECOND).await;
        let (request, under_way) = (connection.activity.in_flight(), connection.under_way());
        advance(9 * SECOND).await;
        drop(request);
        assert!(!is_over(&mut client, &connection).await, "it goes on at the worker");
        advance(9 * SECOND).await;
        drop(under_way);
        advance(9 * SECOND).await;
        assert!(!is_over(&mut client, &connection).await, "there was a request nine seconds ago");
        advance(2 * SECOND).await;
        assert!(is_over(&mut client, &connection).await);
    }

    #[tokio::test(start_paused = true)]
    async fn idle_client_that_was_asked_to_leave_has_a_moment_for_it() {
        let connection = accepted().await;
        let mut client = ClientTimeout::new(Instant::now());
        assert!(!is_over(&mut client, &connection).await);
        client.leave();
        let request = connection.activity.in_flight();
        advance(2 * LEAVE_MAX).await;
        assert!(!is_over(&mut client, &connection).await, "it waits for us");
        drop(request);
        assert!(!is_over(&mut client, &connection).await, "it may not have heard of it yet");
        advance(LEAVE_MAX + SECOND).await;
        assert!(is_over(&mut client, &connection).await);
    }

    #[tokio::test(start_paused = true)]
    async fn client_may_not_leave_the_rest_of_a_response_unread() {
        let connection = accepted().await;
        let mut client = ClientTimeout::new(Instant::now());
        let sending = Sending::new(Rc::clone(&connection), connection.activity.in_flight());
        let mut piece = Piece::new(Bytes::from(vec![b'x'; 4_000]), &sending);
        drop(sending);
        for _ in 0..4 {
            assert!(!is_over(&mut client, &connection).await);
            advance(30 * SECOND).await;
            assert!(!is_over(&mut client, &connection).await, "it may be silent for 30 seconds");
            piece.advance(900);
        }
        assert!(!is_over(&mut client, &connection).await);
        advance(31 * SECOND).await;
        assert!(is_over(&mut client, &connection).await);
    }
}
