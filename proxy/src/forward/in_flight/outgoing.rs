//! What of a request is still on its way out, and how that is cut.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use tokio::time::timeout;

use super::InFlight;
use crate::forward::admitted::Permit;
use crate::forward::body_state::BodyState;
use crate::forward::pool::Link;
use crate::forward::unwritten::Unwritten;

/// What is still on its way out of a request.
pub(in crate::forward) struct Outgoing {
    /// `None` unless the request's body is streamed.
    pub(in crate::forward) body: Option<Rc<BodyState>>,
    /// `None` unless the request goes over HTTP/2.
    pub(in crate::forward) unwritten: Option<Unwritten>,
    /// Whether it asks for no more than a head.
    pub(in crate::forward) is_head: bool,
}

impl<P: Permit> InFlight<P> {
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
            self.pool.background().spawn(async move { unwritten.leave().await });
        }
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

    /// A worker may answer before it has read the whole request, and read on.
    pub(super) async fn finish_body(mut self: Box<Self>) {
        let (late, unwritten) = (self.timeouts.late, self.unwritten.clone());
        let ended = async {
            poll_fn(|cx| {
                if let Some(vigil) = &mut self.vigil {
                    let _ = vigil.poll_sealed(cx); // That cuts the body, which is all that is left.
                }
                self.body.as_ref().map_or(Poll::Ready(()), |body| body.poll_end(cx))
            })
            .await;
            if let Some(unwritten) = unwritten {
                unwritten.nothing().await;
            }
        };
        if timeout(late, ended).await.is_err() {
            if let Some(body) = &self.body {
                body.cut_off();
            }
            if let Some(unwritten) = self.held_back() {
                unwritten.leave().await;
            }
        }
        self.settle();
    }
}
