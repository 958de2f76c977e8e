//! What of a request is still on its way out, and how that is cut.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, timeout, timeout_at};

use super::InFlight;
use crate::forward::admitted::{Ending, LastBytes, Permit, TenureState};
use crate::forward::body_state::BodyState;
use crate::forward::http1::Http1;
use crate::forward::pool::Link;
use crate::forward::stalled::Stalls;
use crate::forward::unwritten::Unwritten;

/// How long before a request ceases to count as at the worker nothing more of it goes out.
const BEFORE_THE_END: Duration = Duration::from_secs(1);

/// What is still on its way out of a request.
pub(in crate::forward) struct Outgoing {
    /// `None` unless the request's body is streamed.
    pub(in crate::forward) body: Option<Rc<BodyState>>,
    /// `None` unless the request goes over HTTP/2.
    pub(in crate::forward) unwritten: Option<Unwritten>,
    /// Whether it asks for no more than a head.
    pub(in crate::forward) is_head: bool,
    /// Whether there is more of it than a head.
    pub(in crate::forward) has_body: bool,
}

impl<P: Permit> InFlight<P> {
    /// How the worker may still get something of it from here on, if nothing more is written.
    pub(super) fn last_bytes(&self) -> LastBytes {
        let (written, connection) = match &self.link {
            Link::Http1(connection) => (connection.socket().last_write(), Some(connection.socket().downgrade())),
            Link::Http2(_) => (self.unwritten.as_ref().and_then(Unwritten::last_write), None),
        };
        let now = Instant::now();
        let until = written.map_or(now, |written| now.max(written + self.undelivered_max()));
        LastBytes { until, connection }
    }

    /// For how long the kernel at most goes on delivering what it was given.
    pub(super) fn undelivered_max(&self) -> Duration {
        self.pool.upstream().unacknowledged_max
    }

    /// Whether a part of its body is still to be sent over HTTP/1.1. Given up, it ends with its connection at once.
    pub(in crate::forward) fn is_upload(&self) -> bool {
        matches!(self.link, Link::Http1(_)) && self.body.as_ref().is_some_and(|body| body.is_running())
    }

    /// Sees to it that an upload gives way to those who wait for its connection, if it is one that does and has that for itself.
    pub(in crate::forward) fn give_way(&self) {
        if let Some(body) = &self.body
            && matches!(self.link, Link::Http1(_))
            && self.permit.gives_way()
        {
            self.pool.may_stall(Rc::downgrade(body) as Weak<dyn Stalls>);
        }
    }

    /// Sees to it that the worker does not get the whole of the request later on. Of a body that can be cut a part may still go
    /// out, and a reset behind it. What HTTP/2 has been given, see [`Self::take_back`].
    pub(super) fn stop_writing(&self) {
        if let Some(body) = &self.body {
            body.cut_off();
        }
        if let Link::Http1(connection) = &self.link
            && self.body.as_ref().is_none_or(|body| !body.is_cut())
        {
            connection.stop_writing();
        }
    }

    /// Sees to it that what HTTP/2 has been given does not go out later on: it goes now, or its connection ends.
    pub(super) fn take_back(&self) {
        if let Some(unwritten) = self.held_back().cloned() {
            let patience = self.patience_for_others().unwrap_or_default();
            self.pool.background().spawn(async move { _ = unwritten.leave_within(patience).await });
        }
    }

    /// For how long others may go on with its HTTP/2 connection though some of the request is left there: not at all unless that is a part
    /// of a body that was cut, and what comes meanwhile has another connection. It ends before the request ceases to count.
    pub(super) fn patience_for_others(&self) -> Option<Duration> {
        let is_cut = self.body.as_ref().is_some_and(|body| body.is_cut());
        let patience = self.timeouts.late.checked_sub(BEFORE_THE_END)?;
        (is_cut && self.is_part() && self.pool.has_place_for_http2()).then_some(patience)
    }

    /// Whether what HTTP/2 has of it is a part of a body, whose head the worker has, since it has answered.
    pub(super) fn is_part(&self) -> bool {
        self.is_answered && self.body.as_ref().is_some_and(|body| !body.is_whole())
    }

    /// What HTTP/2 was given and has not written, if there is any.
    pub(super) fn held_back(&self) -> Option<&Unwritten> {
        self.unwritten.as_ref().filter(|unwritten| !unwritten.is_nothing())
    }

    /// Whether there is something that HTTP/2 was given and has not written.
    pub(in crate::forward) fn is_held_back(&self) -> bool {
        self.held_back().is_some()
    }

    /// Whether its body was cut, and HTTP/2 was given some of it that it has not written.
    pub(in crate::forward) fn is_cut_and_held_back(&self) -> bool {
        self.body.as_ref().is_some_and(|body| body.is_cut()) && self.is_held_back()
    }

    /// Watches the tenure if something of the request was not written when it had its turn: it may have ended by the time that this could be.
    pub(in crate::forward) fn watch_if_left(&mut self, cx: &mut Context<'_>) {
        if !self.is_watched() && self.is_left(cx) {
            self.watch_tenure();
        }
    }

    /// Whether something of the request was not written when it had its turn, and may be yet. Where that is not known so soon, `cx` is woken
    /// as soon as it is.
    fn is_left(&self, cx: &Context<'_>) -> bool {
        match &self.link {
            Link::Http1(connection) => connection.is_held_up(),
            Link::Http2(_) => self.unwritten.as_ref().is_some_and(|unwritten| unwritten.is_left(cx)),
        }
    }

    /// Cuts what is left of a request whose tenure has ended. Ready if that takes its answer with it: over HTTP/2 the request has to be given
    /// up. What the client has not sent is cut by then.
    pub(in crate::forward) fn poll_cut_left(&mut self, cx: &Context<'_>) -> Poll<()> {
        match &self.link {
            Link::Http1(_) => {
                self.cut_short();
                Poll::Pending
            }
            Link::Http2(_) if self.body.as_ref().is_some_and(|body| body.is_cut()) => Poll::Pending,
            Link::Http2(_) => {
                if self.is_left(cx) {
                    Poll::Ready(())
                } else {
                    Poll::Pending
                }
            }
        }
    }

    /// Looks at the tenure before more is written of what was left, as a body does before each piece.
    pub(super) fn look_before_writing(&mut self) {
        if self.is_held_up() {
            self.watch_tenure();
        }
        if self.vigil.as_ref().is_none_or(|vigil| !self.has_more_to_write() || !vigil.has_ended()) {
            return;
        }
        match &self.link {
            // All of it is cut by whoever hears of the end, right behind this.
            Link::Http1(connection) if self.is_endless() => connection.stop_writing(),
            Link::Http1(_) | Link::Http2(_) => self.cut_short(),
        }
    }

    /// Cuts what HTTP/1.1 has been given and has not written: the worker reads the end of our side in the middle of the message, and may
    /// still answer. What the client has not sent yet is cut before that, and this with it.
    fn cut_short(&mut self) {
        let has_all = self.body.as_ref().is_none_or(|body| body.is_whole());
        if has_all && self.has_more_to_write() {
            self.stop_writing();
            self.count_cut();
            (self.is_cut_short, self.is_lost) = (true, true);
            self.permit.body_cut(self.last_bytes());
        }
    }

    /// Whether it has been cut, and the worker has only a part of it.
    pub(super) fn is_partial(&self) -> bool {
        self.is_cut_short || self.body.as_ref().is_some_and(|body| body.is_partial())
    }

    /// Whether its permit has been told of that.
    fn cut_was_told(&self) -> bool {
        self.is_cut_short || self.vigil.as_ref().is_some_and(|vigil| vigil.cut_was_told())
    }

    /// Whether HTTP/1.1 has something yet to be written.
    pub(super) fn has_more_to_write(&self) -> bool {
        matches!(&self.link, Link::Http1(connection) if connection.has_more_to_write())
    }

    pub(super) fn is_held_up(&self) -> bool {
        matches!(&self.link, Link::Http1(connection) if connection.is_held_up())
    }

    /// A worker may answer before it has read the whole request, and read on. What it has not got when the tenure ends, it never does.
    /// How it was before this is polled: by then it may have been cut, or its connection lost.
    pub(super) async fn finish_body(mut self: Box<Self>, was_running: bool, was_held_back: bool) {
        self.watch_tenure();
        let late = self.timeouts.late;
        let InFlight { link, body, unwritten, vigil, .. } = &mut *self;
        let watch = vigil.as_ref().map(|vigil| Rc::clone(vigil.watch()));
        let is_over = || watch.as_ref().is_some_and(|watch| watch.standing() == TenureState::Ended);
        let ended = async {
            poll_fn(|cx| body.as_ref().map_or(Poll::Ready(()), |body| body.poll_end(cx))).await;
            match (link, unwritten) {
                (Link::Http1(connection), _) if body.as_ref().is_none_or(|body| body.is_whole()) => {
                    connection.drive_where_awaited();
                    // Looked at before more is written: nobody may have been told yet. As soon as somebody is, `sealed` says so.
                    let is_kept = |connection: &Http1| connection.has_more_to_write() && is_over();
                    poll_fn(|cx| if is_kept(connection) { Poll::Pending } else { connection.poll_written(cx) }).await;
                }
                (Link::Http2(_), Some(unwritten)) => unwritten.nothing().await,
                (Link::Http1(_) | Link::Http2(_), _) => {}
            }
        };
        let sealed = poll_fn(|cx| vigil.as_mut().map_or(Poll::Pending, |vigil| vigil.poll_sealed(cx)));
        let is_sealed = tokio::select! {
            biased;
            () = ended => None,
            sealed = timeout(late, sealed) => Some(sealed.is_ok()),
        };
        // It was answered before: what the worker has of it it may be at still.
        let is_left_in_part = match (is_sealed, &self.body) {
            // hyper does not write to its end what a worker has answered that then closes.
            (None, _) if self.has_more_to_write() => self.take_rest(false).await,
            (None, _) => was_held_back && self.has_lost_connection(),
            (Some(_), Some(body)) if !body.is_whole() => {
                body.cut_off(); // It is already if its tenure has ended.
                false // Unless it is cut only now: below.
            }
            (Some(is_sealed), _) => self.take_rest(is_sealed).await,
        };
        let is_cut = was_running && self.body.as_ref().is_some_and(|body| body.is_partial());
        if (is_cut || is_left_in_part) && !self.may_be_left {
            return self.outlast().await;
        }
        if let Some(unwritten) = self.held_back() {
            unwritten.leave().await;
        }
        self.settle();
    }

    /// Whether its HTTP/2 connection has ended, whoever ended it: what it was given and had not written is lost.
    fn has_lost_connection(&self) -> bool {
        matches!(&self.link, Link::Http2(stream) if stream.has_lost_connection())
    }

    /// Keeps the rest of a body that was handed over whole from going out, its tenure having ended or its time. Whether the worker has only a part
    /// of it now.
    async fn take_rest(&self, is_sealed: bool) -> bool {
        let is_left = self.is_held_back() || self.has_more_to_write();
        if is_left && is_sealed {
            self.count_cut();
        }
        match (&self.link, self.held_back()) {
            (Link::Http2(_), Some(unwritten)) => !unwritten.leave().await,
            (Link::Http2(_), None) => false,
            (Link::Http1(connection), _) => {
                connection.stop_writing();
                is_left
            }
        }
    }

    /// The worker has answered before it knew that its request was cut, or may have, and may still be at what it has of it, which may lie in the
    /// kernel. Over HTTP/1.1 it is seen to have come to the end: then it closes. Over HTTP/2 it resets the stream, which is not to be told from a
    /// connection that fails but by looking at that.
    pub(super) async fn outlast(mut self: Box<Self>) {
        let (late, cut_was_told, last_bytes) = (self.timeouts.late, self.cut_was_told(), self.last_bytes());
        let InFlight { link, permit, body, .. } = &mut *self;
        let ending = match link {
            Link::Http1(connection) => {
                let mut closed = pin!(connection.closed());
                // It may have been the worker that cut it, by closing.
                if poll_fn(|cx| Poll::Ready(closed.as_mut().poll(cx).is_pending())).await {
                    if !cut_was_told {
                        permit.body_cut(last_bytes);
                    }
                    let until = permit.counts_until().unwrap_or_else(|| Instant::now() + late);
                    let in_time = timeout_at(until, closed).await;
                    if in_time.is_ok() { Ending::Complete } else { Ending::TimedOut }
                } else {
                    Ending::Complete
                }
            }
            Link::Http2(stream)
                if !stream.has_lost_connection()
                    && !stream.socket().is_write_blocked() // Else it may be about to end.
                    && body.as_ref().is_some_and(|body| body.is_unwanted()) =>
            {
                Ending::Complete
            }
            Link::Http2(_) => Ending::BodyCut,
        };
        self.close(ending);
    }
}

#[cfg(test)]
#[path = "outgoing_tests.rs"]
mod tests;
