//! How a request's stay at the worker ends, and what becomes of its connection.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use http::Response;
use scopeguard::ScopeGuard;
use tokio::time::{Instant, timeout, timeout_at};

use super::AtWorker;
use crate::server::Protocol;
use crate::upstream::link::Link;
use crate::upstream::permit::{Ending, Permit};
use crate::upstream::response_body::ResponseBody;
use crate::upstream::upload::Broken;

/// How long a request that was given up may take to leave a connection whose worker takes what is
/// written: its reset goes out when its task has had its turn.
const LEAVE_MAX: Duration = Duration::from_millis(100);

impl<P: Permit> AtWorker<P> {
    /// The response has ended whole, with that answer if its client waits for one. The request
    /// leaves the gate now if it is written. A worker may answer before it has read the whole
    /// request, and read on.
    pub(super) async fn complete(mut self: Box<Self>, answer: Option<Response<ResponseBody>>) {
        let is_over = |this: &Self| this.handed_over.is_settled() && !this.is_upload();
        // Over HTTP/2, the worker has read a head that it has answered.
        if self.handed_over.is_written() || !self.has_body {
            return self.settle(answer).await;
        }
        self.client.take().finish(answer);
        self.note_client_has_left();
        self.is_endless = false; // Nothing of it is left to be cut.
        self.silence_max = Some(self.timeouts.silence);
        self.watch_tenure();
        if matches!(self.link, Link::Http2(_)) {
            let handed_over = Rc::clone(&self.handed_over);
            let settled = handed_over.turns().until(|| is_over(&self));
            if timeout(LEAVE_MAX, settled).await.is_err() {
                self.leave_connection();
                self.overdue();
            }
        }
        loop {
            let event = poll_fn(|cx| {
                if is_over(&self) {
                    return Poll::Ready(None);
                }
                self.handed_over.turns().wake_after_next(cx);
                self.poll_event(cx, true).map(Some)
            });
            let Some(event) = event.await else { break };
            if let Some((_, ending)) = self.react(event) {
                return self.end(ending).await;
            }
        }
        // Over HTTP/2, a worker that has answered may reset the rest of its request: it is done
        // with it.
        let is_broken = self.upload.as_ref().is_some_and(|upload| upload.broken().is_some());
        let is_reset =
            matches!(self.link, Link::Http2(_)) && !self.handed_over.is_lost() && !is_broken;
        if self.handed_over.is_written() || is_reset {
            return self.settle(None).await;
        }
        self.end(Ending::BodyCut).await;
    }

    /// Request and response have come to their ends: the permit is told before the client is. The
    /// connection goes back to its pool.
    async fn settle(self: Box<Self>, answer: Option<Response<ResponseBody>>) {
        let AtWorker { link, pool, permit, client, has_body, .. } = *self;
        let connection = match link {
            Link::Http1(connection) => connection.end_exchange(has_body),
            Link::Http2(stream) => {
                stream.ends();
                None
            }
        };
        let later = match connection {
            Some(connection) if connection.is_ready() => {
                pool.put_back(connection); // At once, for the next request.
                None
            }
            later => later,
        };
        ScopeGuard::into_inner(permit).finished(Ending::Complete, Instant::now());
        client.finish(answer);
        // hyper may not have seen yet that this was the end.
        if let Some(connection) = later
            && let Some(connection) = connection.until_ready().await
        {
            pool.put_back(connection);
        }
    }

    /// The request is given up. Its permit is told when nothing more of it can be written.
    pub(super) async fn end(mut self: Box<Self>, how: Ending) {
        self.note_client_has_left();
        if let Some(upload) = &self.upload {
            upload.break_off(Broken::Cut);
        }
        let undelivered_max = self.pool.upstream().unacknowledged_max;
        if matches!(self.link, Link::Http2(_)) && !self.handed_over.is_settled() {
            let handed_over = Rc::clone(&self.handed_over);
            let settled = handed_over.turns().until(|| handed_over.is_settled());
            if timeout(LEAVE_MAX, settled).await.is_err() {
                self.leave_connection();
                self.lose(how);
                let closes_at = self
                    .permit
                    .counts_until()
                    .unwrap_or_else(|| Instant::now() + self.timeouts.late);
                let is_left =
                    || matches!(&self.link, Link::Http2(stream) if stream.is_left_by_all());
                let left = handed_over.turns().until(|| handed_over.is_settled() || is_left());
                let _ = timeout_at(closes_at, left).await;
                if !handed_over.is_settled() {
                    self.connection.reset();
                }
            }
        }
        let AtWorker { link, permit, handed_over, .. } = *self;
        let now = Instant::now();
        let last_bytes = match &link {
            Link::Http1(_) => now, // It is reset right here.
            Link::Http2(_) => {
                handed_over.last_write().map_or(now, |written| now.max(written + undelivered_max))
            }
        };
        drop(link);
        ScopeGuard::into_inner(permit).finished(how, last_bytes);
    }

    /// Over HTTP/2: no more requests go by this connection as long as this one has not left it, and
    /// if it can't, the connection ends.
    fn leave_connection(&mut self) {
        if let Link::Http2(stream) = &mut self.link {
            stream.leaves();
        }
    }

    /// Cuts it, since its tenure has ended.
    pub(super) fn cut(&self) -> Ending {
        self.watch.iter().for_each(|watch| watch.cut());
        if self.is_upload() { Ending::BodyCut } else { Ending::Cut }
    }

    pub(super) fn gave_up(&self) -> Ending {
        if self.is_upload() && self.link.protocol() == Protocol::Http1 {
            Ending::BodyCut
        } else {
            Ending::TimedOut
        }
    }

    /// The connection was lost.
    pub(super) fn loss(&self) -> Ending {
        let is_partial = self.upload.as_ref().is_some_and(|upload| !upload.is_whole());
        if is_partial { Ending::BodyCut } else { Ending::Reset }
    }
}
