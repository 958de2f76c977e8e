//! Notices a client that keeps its connection without using it.

use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::Instant;

use super::connection::{Connection, Protocol};
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
    /// We have something to answer; other limits hold.
    Ours,
}

/// Notices a client that keeps its connection without using it.
///
/// It is asked after each poll of the connection and looks at what changed since: no request moves a registered timer.
pub(super) struct Watch {
    turn: Turn,
    since: Instant,
    moved: u64,
    alarm: Alarm,
}

impl Watch {
    /// A watch over a connection that was accepted at `since`.
    pub(super) fn new(since: Instant) -> Watch {
        Watch { turn: Turn::Head, since, moved: 0, alarm: Alarm::new() }
    }

    /// Ready when the client has kept us waiting for too long.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, connection: &Connection) -> Poll<()> {
        let turn = whose_turn(connection);
        let moved = connection.socket.bytes_moved();
        // A head has to be there in time as a whole: a byte now and then does not help it.
        let goes_on = turn == self.turn && (turn == Turn::Head || moved == self.moved);
        if !goes_on {
            self.turn = turn;
            self.since = Instant::now();
        }
        self.moved = moved;
        let Some(limit) = limit(turn, connection) else { return Poll::Pending };
        ready!(self.alarm.poll(cx, self.since + limit));
        Poll::Ready(())
    }
}

fn whose_turn(connection: &Connection) -> Turn {
    if connection.socket.is_write_blocked() {
        return Turn::Stalled;
    }
    match (connection.protocol(), connection.in_flight.get() > 0) {
        (Protocol::Http1, true) if connection.bodies_awaited.get() > 0 => Turn::Body,
        (Protocol::Http1 | Protocol::Http2, true) => Turn::Ours,
        (Protocol::Http1, false) if connection.socket.bytes_read() > connection.read_when_idle.get() => Turn::Head,
        (Protocol::Http1 | Protocol::Http2, false) => Turn::Idle,
    }
}

fn limit(turn: Turn, connection: &Connection) -> Option<Duration> {
    let limits = &connection.limits;
    match turn {
        Turn::Idle => Some(limits.idle_timeout),
        Turn::Head => Some(limits.header_timeout),
        Turn::Body | Turn::Stalled => Some(limits.body_timeout),
        Turn::Ours => None,
    }
}
