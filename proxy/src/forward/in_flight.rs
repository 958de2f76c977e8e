//! A request at the worker, from its first byte to the end of its response.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::time::Instant;

use super::admitted::{Ending, Held, Permit};
use super::body_state::BodyState;
use super::pool::{Link, Pool};
use super::upstream::Timeouts;
use crate::downstream::Protocol;

/// A request at the worker, from its first byte to the end of its response: its connection, its permit, its time.
pub(super) struct InFlight<P: Permit> {
    link: Link,
    pool: Pool,
    permit: Held<P>,
    /// `None` unless the request's body is streamed.
    body: Option<Rc<BodyState>>,
    timeouts: Timeouts,
    started: Instant,
    /// Since when the worker owes us something.
    waiting_since: Option<Instant>,
    patience: Patience,
}

/// For whom the end of the response is waited for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Patience {
    /// For the client.
    Attached,
    /// For the permit alone: the client has left.
    Detached { since: Instant },
    /// For the permit alone, which has been told that it takes too long.
    Overdue { since: Instant },
}

impl<P: Permit> InFlight<P> {
    pub(super) fn new(
        link: Link,
        pool: Pool,
        permit: P,
        body: Option<Rc<BodyState>>,
        timeouts: Timeouts,
    ) -> InFlight<P> {
        let now = Instant::now();
        InFlight {
            link,
            pool,
            permit: Held::new(permit),
            body,
            timeouts,
            started: now,
            waiting_since: Some(now),
            patience: Patience::Attached,
        }
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

    /// Reads and writes what can be. HTTP/2 connections do that by themselves.
    pub(super) fn drive(&mut self, cx: &mut Context<'_>) {
        if let Link::Http1(connection) = &mut self.link {
            connection.drive(cx);
        }
    }

    /// The worker has said something.
    pub(super) fn heard(&mut self) {
        self.waiting_since = None;
    }

    /// Ready when the end is not waited for any longer. Asked whenever the worker owes us something.
    pub(super) fn poll_impatience(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let waiting_since = *self.waiting_since.get_or_insert_with(Instant::now);
        loop {
            let late = self.timeouts.late;
            let turn = self.body.as_ref().map_or(waiting_since, |body| body.worker_has_its_turn_since());
            let silent = waiting_since.max(turn) + self.timeouts.silence;
            let due = match self.patience {
                Patience::Attached => self.timeouts.total.map_or(silent, |total| silent.min(self.started + total)),
                Patience::Detached { since } => silent.min(since + late),
                Patience::Overdue { since } => since + late,
            };
            ready!(self.link.alarm().poll(cx, due));
            match self.patience {
                Patience::Attached | Patience::Overdue { .. } => return Poll::Ready(()),
                Patience::Detached { .. } => self.overdue(),
            }
        }
    }

    /// The client has left.
    pub(super) fn detach(&mut self) {
        if self.patience == Patience::Attached {
            self.patience = Patience::Detached { since: Instant::now() };
        }
    }

    /// The worker has taken too long; its end is waited for without the client.
    pub(super) fn overdue(&mut self) {
        self.permit.overdue();
        self.patience = Patience::Overdue { since: Instant::now() };
        self.waiting_since = None;
    }

    /// The response has ended whole. Waits for the rest of the request in the background, if there is any.
    pub(super) fn complete(self, cx: &mut Context<'_>) {
        if let Some(body) = self.body.clone().filter(|body| body.is_running()) {
            let background = self.pool.background().clone();
            background.spawn(self.finish_body(body));
            return;
        }
        self.settle(cx);
    }

    /// A worker may answer before it has read the whole request, and read on.
    async fn finish_body(self, body: Rc<BodyState>) {
        let _ = tokio::time::timeout(self.timeouts.late, body.ended()).await;
        body.cut_off(); // Nothing, if it has ended by itself.
        let mut this = Some(self);
        poll_fn(|cx| {
            if let Some(this) = this.take() {
                this.settle(cx);
            }
            Poll::Ready(())
        })
        .await;
    }

    fn settle(self, cx: &mut Context<'_>) {
        let InFlight { link, pool, permit, .. } = self;
        match link {
            Link::Http1(mut connection) => {
                // Otherwise it is closed here: before the permit goes, nothing more can be written.
                if connection.is_reusable(cx) {
                    pool.put_back(connection);
                }
            }
            Link::Http2(stream) => drop(stream),
        }
        permit.finished(Ending::Complete);
    }

    /// Both sides have ended what was spoken after HTTP.
    pub(super) fn ended(self) {
        self.close(Ending::Complete);
    }

    /// Whether the permit has been told that it takes too long.
    pub(super) fn is_overdue(&self) -> bool {
        matches!(self.patience, Patience::Overdue { .. })
    }

    /// The connection was lost.
    pub(super) fn lost(self) {
        let cut = self.body.as_ref().is_some_and(|body| body.is_cut());
        self.close(if cut { Ending::BodyCut } else { Ending::Reset });
    }

    /// The end was not waited for any longer.
    pub(super) fn gave_up(self) {
        self.close(Ending::TimedOut);
    }

    fn close(self, how: Ending) {
        let InFlight { link, permit, .. } = self;
        drop(link);
        permit.finished(how);
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
