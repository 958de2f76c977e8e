//! A request at the worker, from its first byte to the end of its response.

mod ending;
mod outgoing;

use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::Version;
use http::response::Parts;
use tokio::time::Instant;

pub(super) use outgoing::Outgoing;

use super::admitted::{Held, Permit, TenureWatch};
use super::body_state::BodyState;
use super::http1::First;
use super::pool::{Link, Pool};
use super::response_head;
use super::unwritten::Unwritten;
use super::upstream::Timeouts;
use super::vigil::Vigil;
use crate::downstream::{BodyFault, Protocol};

/// What a worker may send up to the end of its response's head, interim answers included.
const BEFORE_HEAD_BYTES_MAX: u64 = 1024 * 1024;

/// A request at the worker, from its first byte to the end of its response: its connection, its permit, its time. Boxed, since it is
/// handed on from the wait for a head to the body that follows.
pub(super) struct InFlight<P: Permit> {
    link: Link,
    pool: Pool,
    permit: Held<P>,
    /// `None` unless the request's body is streamed.
    body: Option<Rc<BodyState>>,
    /// `None` unless it goes over HTTP/2.
    unwritten: Option<Unwritten>,
    is_head: bool,
    has_body: bool,
    /// Whether it is cut when its tenure ends.
    is_endless: bool,
    /// Whether nobody waits for its end but its client.
    may_be_left: bool,
    /// Whether it is not read for ever once its client has left: it has no end of its own, with a tenure or without, or none that anybody
    /// waits for.
    is_left_in_time: bool,
    timeouts: Timeouts,
    started: Instant,
    /// Bytes that had been read of an HTTP/1.1 connection when it began.
    read_before: u64,
    /// Those that had been when that was last looked at, before there was a head.
    read_by_now: u64,
    /// Since when the worker owes us something.
    waiting_since: Option<Instant>,
    patience: Patience,
    /// Whether the worker has sent the head of its response.
    is_answered: bool,
    /// Whether the permit counts down: it is told then when the worker is heard of.
    is_lost: bool,
    /// Whether what HTTP/1.1 had been given and not written was cut.
    is_cut_short: bool,
    /// `None` as long as its tenure is not watched: most requests are over before that matters.
    vigil: Option<Box<Vigil>>,
}

/// For whom the end of the response is waited for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Patience {
    /// For the client.
    Attached,
    /// For the permit alone: the client has left.
    Detached {
        /// When it is closed, if it has no end of its own, or none that anybody waits for. Only then begins the time for which it counts
        /// as an orphan.
        closes_at: Option<Instant>,
    },
    /// For the permit alone, which has been told that it takes too long.
    Overdue {
        /// When the worker was last heard of, or found to be too slow.
        since: Instant,
        /// When it is closed, whatever the worker goes on to say.
        closes_at: Option<Instant>,
    },
}

impl<P: Permit> InFlight<P> {
    pub(super) fn new(
        link: Link,
        pool: Pool,
        permit: P,
        outgoing: Outgoing,
        timeouts: Timeouts,
        at: Instant,
    ) -> InFlight<P> {
        let Outgoing { body, unwritten, is_head, has_body } = outgoing;
        let read_before = match &link {
            Link::Http1(connection) => connection.socket().bytes_read(),
            Link::Http2(_) => 0,
        };
        let is_endless = permit.is_endless();
        InFlight {
            link,
            pool,
            is_endless,
            may_be_left: permit.may_be_left(),
            is_left_in_time: is_endless,
            permit: Held::new(permit),
            body,
            unwritten,
            is_head,
            has_body,
            timeouts,
            started: at,
            read_before,
            read_by_now: read_before,
            waiting_since: Some(at),
            patience: Patience::Attached,
            is_answered: false,
            is_lost: false,
            is_cut_short: false,
            vigil: None,
        }
    }

    /// Watches the tenure from here on, if the request depends on one. False if it does not.
    pub(super) fn watch_tenure(&mut self) -> bool {
        if self.vigil.is_none()
            && let Some(watch) = self.watch()
        {
            if let Some(body) = &self.body {
                body.depends_on(watch.clone());
            }
            self.vigil = Some(Box::new(Vigil::new(watch, self.body.clone())));
        }
        self.vigil.is_some()
    }

    /// The same for a tunnel, whose client's side is cut or paused like a body.
    pub(super) fn watch_tunnel(&mut self, inflow: &Rc<BodyState>) {
        if let Some(watch) = self.watch() {
            inflow.depends_on(watch.clone());
            self.vigil = Some(Box::new(Vigil::new(watch, Some(inflow.clone()))));
        }
    }

    /// For how long its worker is read on that has been silent for too long.
    pub(super) fn late(&self) -> Duration {
        self.timeouts.late
    }

    pub(super) fn is_watched(&self) -> bool {
        self.vigil.is_some()
    }

    /// The tenure that the request depends on. The same each time: it counts what is cut.
    fn watch(&self) -> Option<Rc<dyn TenureWatch>> {
        self.vigil.as_ref().map(|vigil| vigil.watch().clone()).or_else(|| self.permit.watch())
    }

    /// Whether the request is one that is cut when its tenure ends.
    pub(super) fn is_endless(&self) -> bool {
        self.is_endless
    }

    /// Whether nobody waits for its end but its client.
    pub(super) fn may_be_left(&self) -> bool {
        self.may_be_left
    }

    /// Ready once the tenure has ended. What the client has not sent by then is cut.
    pub(super) fn poll_seal(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(vigil) = &mut self.vigil else { return Poll::Pending };
        let sealed = vigil.poll_sealed(cx);
        if let Some(body) = &self.body
            && vigil.has_news_of_cut(body, cx)
        {
            self.permit.body_cut(self.last_bytes());
            self.be_lost();
            cx.waker().wake_by_ref(); // To be driven.
        }
        sealed
    }

    /// Ready when its response is to be read as fast as it comes: its tenure has ended, or its permit counts down, which what the worker says
    /// puts off. A worker that a client holds up says nothing.
    pub(super) fn poll_hurry(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let sealed = self.poll_seal(cx);
        if self.is_lost { Poll::Ready(()) } else { sealed }
    }

    /// Ready when its body was cut because the client did not send all of it.
    pub(super) fn poll_client_failed(&self, cx: &mut Context<'_>) -> Poll<BodyFault> {
        self.body.as_ref().map_or(Poll::Pending, |body| body.poll_client_failed(cx))
    }

    pub(super) fn protocol(&self) -> Protocol {
        match &self.link {
            Link::Http1(_) => Protocol::Http1,
            Link::Http2(_) => Protocol::Http2,
        }
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Reads and writes what can be, and polls `next`, which waits for what that brings; in which order, `first` says. HTTP/2
    /// connections read and write by themselves.
    pub(super) fn poll_driven<T>(
        &mut self,
        cx: &mut Context<'_>,
        first: First,
        mut next: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        self.look_before_writing();
        match &mut self.link {
            Link::Http1(connection) => connection.poll_driven(cx, first, next),
            Link::Http2(_) => next(cx),
        }
    }

    /// The worker has said something.
    pub(super) fn heard(&mut self) {
        self.waiting_since = None;
        if self.is_lost {
            self.permit.heard();
        }
        if let Patience::Overdue { since, .. } = &mut self.patience {
            *since = Instant::now();
        }
    }

    /// The worker has sent the head of its response. False if that may be read in two ways.
    pub(super) fn answered(&mut self, head: &Parts) -> bool {
        self.heard();
        self.is_answered = true;
        self.permit.answered(self.started.elapsed());
        let Link::Http1(connection) = &mut self.link else { return true };
        let is_ambiguous = response_head::is_ambiguous(&head.headers, head.status, self.is_head);
        // To a worker that has spoken HTTP/1.0 hyper speaks HTTP/1.0 from then on, which has no chunks: an upload of unknown length would
        // be sent without its body.
        if is_ambiguous || head.version == Version::HTTP_10 {
            connection.spoil();
        }
        !is_ambiguous
    }

    /// Looks whether the worker has said something that is no head yet: an interim answer (1xx), or a part of a head. It has been at the request
    /// until then, but what it owes it still owes. Over HTTP/2 that is not seen.
    pub(super) fn hear_before_head(&mut self) {
        let Link::Http1(connection) = &self.link else { return };
        let read = connection.socket().bytes_read();
        if std::mem::replace(&mut self.read_by_now, read) != read && self.is_lost {
            let waiting_since = self.waiting_since;
            self.heard();
            self.waiting_since = waiting_since;
        }
    }

    /// Whether the worker says more and more without having answered: interim answers (1xx) without end, which would keep this
    /// thread busy. Asked as long as there is no head.
    pub(super) fn is_babble(&self) -> bool {
        match &self.link {
            Link::Http1(connection) => connection.socket().bytes_read() - self.read_before > BEFORE_HEAD_BYTES_MAX,
            Link::Http2(_) => false, // It has a task of its own, which takes turns with others.
        }
    }

    /// Ready when the end is not waited for any longer. Asked whenever the worker owes us something.
    pub(super) fn poll_impatience(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let waiting_since = *self.waiting_since.get_or_insert_with(Instant::now);
        loop {
            let late = self.timeouts.late;
            let turn = self.body.as_ref().map_or(waiting_since, |body| body.worker_has_its_turn_since());
            let silent = waiting_since.max(turn) + self.timeouts.silence;
            let due = match self.patience {
                // Whether its client is still there changes nothing for a request at the worker.
                Patience::Attached | Patience::Detached { closes_at: None } => {
                    self.timeouts.total.map_or(silent, |total| silent.min(self.started + total))
                }
                Patience::Detached { closes_at: Some(closes_at) } => silent.min(closes_at),
                Patience::Overdue { since, closes_at } => {
                    let counts_until = self.permit.counts_until().unwrap_or(since + late);
                    closes_at.map_or(counts_until, |at| at.min(counts_until))
                }
            };
            ready!(self.link.alarm().poll(cx, due));
            match self.patience {
                Patience::Attached | Patience::Overdue { .. } => return Poll::Ready(()),
                Patience::Detached { closes_at: Some(closes_at) } if closes_at <= Instant::now() => {
                    self.patience = Patience::Overdue { since: closes_at, closes_at: Some(closes_at) };
                    return Poll::Ready(());
                }
                Patience::Detached { .. } if self.is_held_back() && !self.is_part() || self.is_upload() => {
                    return Poll::Ready(());
                }
                Patience::Detached { .. } => self.overdue(),
            }
        }
    }

    /// The permit counts down from now on, and what the worker says is looked for.
    fn be_lost(&mut self) {
        self.is_lost = true;
        self.take_back(); // Its head may not have gone out, nor be let out later.
        if let Link::Http1(connection) = &mut self.link {
            connection.drive_where_awaited();
        }
    }

    /// The client has left. What has no end that is waited for is not read for ever.
    pub(super) fn detach(&mut self) {
        if self.patience == Patience::Attached {
            let closes_at = self.is_left_in_time.then(|| Instant::now() + self.timeouts.late);
            self.patience = Patience::Detached { closes_at };
        }
    }

    /// Without a client, its answer, whose head has come, is not read for ever.
    pub(super) fn leave_in_time(&mut self) {
        self.is_left_in_time = true;
        let at = Instant::now() + self.timeouts.late;
        match &mut self.patience {
            Patience::Attached => {}
            Patience::Detached { closes_at } | Patience::Overdue { closes_at, .. } => {
                *closes_at = closes_at.or(Some(at))
            }
        }
    }

    /// The worker has taken too long; its end is waited for without the client, as long as it is heard of.
    pub(super) fn overdue(&mut self) {
        self.watch_tenure(); // With which its answer may have to be cut.
        self.stop_writing(); // From now on its time is bounded.
        self.be_lost();
        self.permit.overdue(self.last_bytes());
        let now = Instant::now();
        let total = self.timeouts.total.map(|total| now.max(self.started + total));
        let ends = if self.is_left_in_time { Some(now) } else { total };
        // Not before it ceases to count: what the worker says until then may end that sooner.
        let closes_at = ends.map(|at| (at + self.timeouts.late).max(self.permit.counts_until().unwrap_or(at)));
        self.patience = Patience::Overdue { since: now, closes_at };
        self.waiting_since = None;
    }

    /// Whether the permit has been told that it takes too long.
    pub(super) fn is_overdue(&self) -> bool {
        matches!(self.patience, Patience::Overdue { .. })
    }

    /// Its connection failed before there was an answer.
    pub(super) fn connection_failed(&self) {
        self.pool.lost(match &self.link {
            Link::Http1(connection) => connection.socket(),
            Link::Http2(stream) => stream.socket(),
        });
    }

    /// The client is too slow for a response that is not to wait for it, and is left behind.
    pub(super) fn leave_client(&mut self) {
        self.count_cut();
        self.detach();
    }

    fn count_cut(&self) {
        if let Some(vigil) = &self.vigil {
            vigil.watch().cut();
        }
    }

    /// Nothing was sent: the permit and the connection apart.
    pub(super) fn into_permit(self) -> P {
        self.permit.into_inner()
    }

    /// The connection, for whatever is spoken on it after HTTP.
    pub(super) fn link_mut(&mut self) -> &mut Link {
        &mut self.link
    }
}
