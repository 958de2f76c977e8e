//! The access log: a line for each request that has ended, answered or not, or for some of them.

mod line;
mod log;
mod target;

use std::cell::Cell;
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

/// A line that is not written yet.
struct Pending {
    context: Rc<RequestContext>,
    status: StatusCode,
    sent: Cell<u64>,
    ended: Cell<bool>,
    /// Whether its client does not get the end.
    cut: Cell<bool>,
}

/// A request that has no answer yet. If it gets none, because its client leaves before, that is a
/// line too.
pub struct Unanswered(Option<Rc<RequestContext>>);

impl Unanswered {
    /// Of a request that has arrived; `None` if there is no access log.
    pub fn of(context: &Rc<RequestContext>) -> Option<Unanswered> {
        context.share.generation.access_log.is_some().then(|| Unanswered(Some(Rc::clone(context))))
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        if let Some(context) = self.0.take().filter(is_wanted) {
            write(&context, None, 0, false);
        }
    }
}

/// Has the answer to a request leave a line in the access log, if there is one and the request is
/// to be in it.
pub fn logged<B: Body>(
    answer: http::Response<B>,
    request: Option<Unanswered>,
) -> http::Response<Logged<B>> {
    let context = request.and_then(|mut request| request.0.take());
    let pending = context.filter(is_wanted).map(|context| {
        let (sent, ended, cut) = (Cell::new(0), Cell::new(false), Cell::new(false));
        Box::new(Pending { context, status: answer.status(), sent, ended, cut })
    });
    answer.map(|body| Logged { body, pending })
}

fn is_wanted(context: &Rc<RequestContext>) -> bool {
    let log = context.share.generation.access_log.as_ref();
    log.is_some_and(|log| context.about.is_refused() || log.takes())
}

impl<B: AnswerBody + Unpin> AnswerBody for Logged<B> {
    fn take_tunnel(&mut self) -> Option<Tunnel> {
        let tunnel = self.body.take_tunnel()?;
        let Some(pending) = self.pending.take() else { return Some(tunnel) };
        let mut tunnelled = Tunnelled { pending, to_client: None };
        Some(Box::new(move |client, read_already| {
            tunnelled.to_client = Some((client.clone(), client.bytes_written()));
            let tunnel = tunnel(client, read_already);
            Box::pin(async move {
                let end = tunnel.await;
                tunnelled.pending.ended.set(end == TunnelEnd::Whole);
                end
            })
        }))
    }

    fn cut_off(&mut self, sent: u64) {
        self.body.cut_off(sent);
        if let Some(pending) = &self.pending {
            pending.sent.set(sent);
            pending.cut.set(true);
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
        if let (Some(pending), Poll::Ready(frame)) = (&self.pending, &polled) {
            pending.note(frame.as_ref());
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
        let Some(pending) = self.pending.take() else { return };
        pending.write(self.body.is_end_stream());
    }
}

/// The line of a request whose connection leaves HTTP: it is written once that has ended, or never
/// comes about.
struct Tunnelled {
    pending: Box<Pending>,
    /// The connection, and how much had been written to it before.
    to_client: Option<(Socket, u64)>,
}

impl Drop for Tunnelled {
    fn drop(&mut self) {
        if let Some((client, before)) = &self.to_client {
            self.pending.sent.set(client.bytes_written().wrapping_sub(*before));
        }
        self.pending.write(false);
    }
}

impl Pending {
    fn note<E>(&self, frame: Option<&Result<Frame<Bytes>, E>>) {
        match frame {
            Some(Ok(frame)) => {
                self.sent.set(self.sent.get() + frame.data_ref().map_or(0, Bytes::len) as u64)
            }
            Some(Err(_)) => {}
            None => self.ended.set(true),
        }
    }

    fn write(&self, ended: bool) {
        let is_whole = (ended || self.ended.get()) && !self.cut.get();
        write(&self.context, Some(self.status), self.sent.get(), is_whole);
    }
}

fn write(context: &RequestContext, status: Option<StatusCode>, sent: u64, complete: bool) {
    let Some(log) = &context.share.generation.access_log else { return };
    let line = Line {
        at: SystemTime::now(),
        client: context.client,
        peer: context.peer.as_deref(),
        about: &context.about,
        queries: log.queries,
        route: &context.label().name,
        mode: context.label().mode,
        status,
        sent,
        complete,
        duration: context.arrived.elapsed(),
    };
    log.write(&line);
}
