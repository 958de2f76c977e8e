//! The access log: a line for each request that has ended, answered or not, or for some of them.

mod line;
mod log;
mod target;

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::SystemTime;

use bytes::Bytes;
use http::StatusCode;
use http_body::{Body, Frame, SizeHint};

use crate::request_context::RequestContext;
use crate::server::{AnswerBody, Tunnel, TunnelEnd};
use crate::wire::Socket;

use line::Line;
pub use log::{AccessLog, Closing, OpenError};

/// An answer's body that leaves a line in the access log when it ends or is given up.
pub struct Logged<B: Body> {
    body: B,
    pending: Option<Box<Pending>>,
}

/// The line of a request that is under way. It is written when this is dropped: with no status if
/// the client left before there was an answer.
pub struct Pending {
    context: Rc<RequestContext>,
    status: Option<StatusCode>,
    sent: u64,
    has_ended: bool,
    /// Whether its client does not get the end.
    is_cut: bool,
    /// The connection that left HTTP, and how much had been written to it before.
    tunnel: Option<(Socket, u64)>,
}

impl Pending {
    /// Of a request that has arrived; `None` if there is no access log.
    pub fn of(context: &Rc<RequestContext>) -> Option<Box<Pending>> {
        context.share.generation.access_log.as_ref()?;
        let context = Rc::clone(context);
        let (has_ended, is_cut) = (false, false);
        Some(Box::new(Pending { context, status: None, sent: 0, has_ended, is_cut, tunnel: None }))
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let context = &*self.context;
        let Some(log) = &context.share.generation.access_log else { return };
        if !context.about.is_refused() && !log.takes() {
            return;
        }
        let in_tunnel =
            |(client, before): &(Socket, u64)| client.bytes_written().wrapping_sub(*before);
        log.write(&Line {
            at: SystemTime::now(),
            client: context.client,
            peer: context.peer.as_deref(),
            about: &context.about,
            queries: log.queries,
            route: &context.label().name,
            mode: context.label().mode,
            status: self.status,
            sent: self.tunnel.as_ref().map_or(self.sent, in_tunnel),
            complete: self.has_ended && !self.is_cut,
            duration: context.arrived.elapsed(),
        });
    }
}

/// Has the answer to a request leave its line in the access log, if it is to have one.
pub fn logged<B: Body>(
    answer: http::Response<B>,
    mut pending: Option<Box<Pending>>,
) -> http::Response<Logged<B>> {
    if let Some(pending) = &mut pending {
        pending.status = Some(answer.status());
    }
    answer.map(|body| Logged { body, pending })
}

impl<B: AnswerBody + Unpin> AnswerBody for Logged<B> {
    fn take_tunnel(&mut self) -> Option<Tunnel> {
        let tunnel = self.body.take_tunnel()?;
        let Some(mut pending) = self.pending.take() else { return Some(tunnel) };
        Some(Box::new(move |client, read_already| {
            pending.tunnel = Some((client.clone(), client.bytes_written()));
            let tunnel = tunnel(client, read_already);
            Box::pin(async move {
                let end = tunnel.await;
                pending.has_ended = end == TunnelEnd::Whole;
                end
            })
        }))
    }

    fn cut_off(&mut self, sent: u64) {
        self.body.cut_off(sent);
        if let Some(pending) = &mut self.pending {
            pending.sent = sent;
            pending.is_cut = true;
        }
    }
}

impl<B: AnswerBody + Unpin> Body for Logged<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if let (Some(pending), Poll::Ready(frame)) = (&mut self.pending, &polled) {
            match frame {
                Some(Ok(frame)) => pending.sent += frame.data_ref().map_or(0, Bytes::len) as u64,
                Some(Err(_)) => {}
                None => pending.has_ended = true,
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B: Body> Drop for Logged<B> {
    fn drop(&mut self) {
        if let Some(pending) = &mut self.pending {
            pending.has_ended |= self.body.is_end_stream();
        }
    }
}
