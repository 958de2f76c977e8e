//! How a request's stay at the worker ends: what becomes of its connection, and when its permit hears of it.

use tokio::time::Instant;

use super::InFlight;
use crate::forward::admitted::{Ending, Permit};
use crate::forward::http1::Remains;
use crate::forward::pool::Link;

impl<P: Permit> InFlight<P> {
    /// The response has ended whole. Waits for the rest of the request in the background, if there is any, or for the worker that has only a
    /// part of it: it may have answered before it knew that.
    pub(in crate::forward) fn complete(self: Box<Self>) {
        if self.is_partial() && !self.may_be_left {
            let background = self.pool.background().clone();
            background.spawn(self.outlast());
            return;
        }
        let is_running = self.body.as_ref().is_some_and(|body| body.is_running());
        let is_held_back = self.is_held_back();
        if is_running || is_held_back || self.has_body && !self.is_cut_short && self.has_more_to_write() {
            let background = self.pool.background().clone();
            background.spawn(self.finish_body(is_running, is_held_back));
            return;
        }
        self.settle();
    }

    #[expect(clippy::boxed_local, reason = "taken apart where it is, instead of being moved as a whole")]
    pub(super) fn settle(self: Box<Self>) {
        let InFlight { link, pool, permit, has_body, .. } = *self;
        match link {
            // What is not put back is closed here: before the permit goes, nothing more can be written.
            Link::Http1(mut connection) => match connection.remains() {
                Remains::Usable => pool.put_back(connection),
                // Having answered, the worker has read the head. A body it may be reading yet.
                Remains::Spoilt if !has_body => connection.close_without_trace(),
                Remains::Spoilt | Remains::Broken => drop(connection),
            },
            Link::Http2(stream) => stream.ends(),
        }
        permit.finished(Ending::Complete, Instant::now());
    }

    /// Both sides have ended what was spoken after HTTP.
    pub(in crate::forward) fn ended(self) {
        self.close(Ending::Complete);
    }

    /// The connection was lost.
    pub(in crate::forward) fn lost(self) {
        let how = if self.is_partial() { Ending::BodyCut } else { Ending::Reset };
        self.close(how);
    }

    /// Cuts it: its tenure has ended, and it would not, or would go on being written.
    pub(in crate::forward) fn cut(self) {
        self.count_cut();
        self.close(Ending::Cut);
    }

    /// The end was not waited for any longer.
    pub(in crate::forward) fn gave_up(self) {
        let how = if self.is_upload() { Ending::BodyCut } else { Ending::TimedOut };
        self.close(how);
    }

    pub(super) fn close(self, how: Ending) {
        self.stop_writing();
        // Of these it counts as at the worker from now on for as long as that.
        let patience = if matches!(how, Ending::Cut | Ending::BodyCut) { self.patience_for_others() } else { None };
        let (held_back, last_bytes) = (self.held_back().cloned(), self.last_bytes().until);
        let undelivered_max = self.undelivered_max();
        let InFlight { link, pool, permit, .. } = self;
        let last_bytes = match &link {
            Link::Http1(_) => Instant::now(), // It is reset right here, unless nothing is left of the request.
            Link::Http2(_) => last_bytes,
        };
        drop(link); // An HTTP/2 connection goes on without this request.
        match (held_back, patience) {
            // Until then it may go out.
            (Some(unwritten), None) => pool.background().spawn(async move {
                unwritten.leave().await;
                let written = unwritten.last_write().map(|written| written + undelivered_max);
                permit.finished(how, written.map_or(last_bytes, |written| written.max(last_bytes)));
            }),
            (Some(unwritten), Some(patience)) => {
                pool.background().spawn(async move { _ = unwritten.leave_within(patience).await });
                permit.finished(how, last_bytes);
            }
            (None, _) => permit.finished(how, last_bytes),
        }
    }
}
