//! Sending a request on a connection that is ready for it.

use std::rc::Rc;

use http::header::CONNECTION;
use http::{HeaderValue, Method, Request};
use http_body::Body;
use tokio::sync::oneshot::{self, error::RecvError};
use tokio::time::Instant;

use super::at_worker::{AtWorker, Outcome, Sent};
use super::error::{Forwarded, SendError};
use super::handed_over::{HandedOver, Outgoing};
use super::link::Link;
use super::permit::{Admitted, Permit};
use super::pool::ReadyConnection;
use super::request_body::RequestBody;
use super::request_form;
use super::target::{Timeouts, Wants};
use super::turns::Turns;
use crate::wire::Socket;

const CLOSE: HeaderValue = HeaderValue::from_static("close");

/// Waits for the head of a response.
///
/// If it is dropped, because the client has left, the response is read to its end all the same:
/// closing the connection would cancel nothing at the worker.
#[must_use = "the answer is lost"]
pub struct AwaitedHead<P: Permit> {
    outcome: oneshot::Receiver<Outcome<P>>,
    socket: Socket,
    turns: Rc<Turns>,
    written_before: u64,
}

impl ReadyConnection {
    /// Sends the request for whose wants the connection was got ready, at most once. hyper has it
    /// when this returns. `timeouts` begin at `at`, which is now.
    pub fn send<P: Permit>(
        self,
        admitted: Admitted<Box<Request<RequestBody>>, P>,
        timeouts: Timeouts,
        at: Instant,
    ) -> AwaitedHead<P> {
        let (mut link, pool, wants) = self.take();
        let (mut request, permit) = admitted.into_parts();
        let (is_head, has_body) =
            (request.method() == Method::HEAD, !request.body().is_end_stream());
        let upload = request.body().upload().cloned();
        let copy = match &link {
            Link::Http1(_) => {
                request_form::for_http1(&mut request);
                if !pool.upstream().keepalive && wants == Wants::Either {
                    request.headers_mut().insert(CONNECTION, CLOSE);
                }
                None
            }
            Link::Http2(stream) => {
                request_form::for_http2(&mut request, stream.scheme());
                copy_of(&request)
            }
        };
        let (socket, turns) = (link.socket().clone(), Rc::clone(link.turns()));
        let written_before = socket.bytes_written();
        let handed_over = Rc::new(HandedOver::new(socket.clone(), Rc::clone(&turns)));
        let outgoing = |body| Outgoing::new(body, link.protocol(), Rc::clone(&handed_over));
        let request = request.map(outgoing);
        let head = link.send(request);
        let (tell, outcome) = oneshot::channel();
        let sent = Sent { head, copy, asks_to_upgrade: wants == Wants::Http1, is_head };
        let given = (handed_over, upload, has_body);
        let at_worker = AtWorker::new(link, pool, permit, tell, given, (timeouts, at));
        tokio::task::spawn_local(at_worker.run(sent));
        AwaitedHead { outcome, socket, turns, written_before }
    }
}

impl<P: Permit> AwaitedHead<P> {
    /// Waits for the head.
    pub async fn head(self) -> Outcome<P> {
        known(self.outcome.await)
    }

    /// Waits for the head. `place` is dropped once something of the request has been written, or
    /// the worker holds that up.
    pub async fn head_in_turn(self, place: impl Sized) -> Outcome<P> {
        let AwaitedHead { mut outcome, socket, turns, written_before } = self;
        let has_begun = turns.until(|| {
            let has_written = socket.bytes_written() != written_before;
            has_written || socket.is_write_blocked() || turns.have_ended()
        });
        tokio::select! {
            biased;
            outcome = &mut outcome => return known(outcome),
            () = has_begun => drop(place),
        }
        known(outcome.await)
    }
}

/// What the task of the request has said. It is gone without a word only if it has panicked.
fn known<P: Permit>(outcome: Result<Outcome<P>, RecvError>) -> Outcome<P> {
    let lost = SendError::NoAnswer { forwarded: Forwarded::Unknown, source: None };
    outcome.unwrap_or(Err(lost))
}

/// The request once more, where hyper would not give it back although the worker has refused it.
fn copy_of(request: &Request<RequestBody>) -> Option<Box<Request<RequestBody>>> {
    let mut copy = Request::new(request.body().copy()?);
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.version_mut() = request.version();
    *copy.headers_mut() = request.headers().clone();
    Some(Box::new(copy))
}
