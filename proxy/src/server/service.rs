//! Turns a request from hyper into one for the service of the thread, and the answer into a
//! response for hyper.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;

use http::header::CONNECTION;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use tower::Service;

use super::answer::AnswerBody;
use super::client::Protocol;
use super::connection::Connection;
use super::limits::{Closing, Limits};
use super::request_body::ClientBody;
use super::response_body::{ResponseBody, with_body};
use super::sending::Sending;
use super::thread::{Stage, Thread};
use crate::in_place::pinned;

/// A response in the making.
///
/// Boxed: hyper keeps the room for one as long as the connection is open, and on HTTP/2 moves it
/// nine times.
type Answering<B> = Pin<Box<dyn Future<Output = Result<Response<ResponseBody<B>>, h2::Error>>>>;

/// Answers the requests of one connection by the service of its thread.
pub(super) struct ConnectionService<S> {
    service: S,
    thread: Rc<Thread>,
    connection: Rc<Connection>,
}

impl<S> ConnectionService<S> {
    pub(super) fn new(
        service: S,
        thread: Rc<Thread>,
        connection: Rc<Connection>,
    ) -> ConnectionService<S> {
        ConnectionService { service, thread, connection }
    }
}

impl<S, B> hyper::service::Service<Request<Incoming>> for ConnectionService<S>
where
    S: Service<Box<Request<ClientBody>>, Response = Response<B>, Error = Infallible>
        + Clone
        + 'static,
    B: AnswerBody + Unpin,
{
    type Response = Response<ResponseBody<B>>;
    type Error = h2::Error;
    type Future = Answering<B>;

    /// # Errors
    /// On HTTP/2, if as many requests of the connection are under way as may be, though their
    /// clients may have left.
    fn call(&self, request: Request<Incoming>) -> Answering<B> {
        let sending = Sending::begin(&self.connection);
        let is_one_too_many =
            self.connection.protocol() == Protocol::Http2 && has_too_many(&self.connection);
        let request = (!is_one_too_many).then(|| ClientBody::of_request(request, &self.connection));
        let (service, thread) = (self.service.clone(), Rc::clone(&self.thread));
        pinned(|| answer(request, service, thread, sending))
    }
}

/// One request, `None` if it was not taken: from hyper's hands through the service and back. An
/// answer with `Connection: close` has its client leave, over HTTP/2 too.
///
/// # Errors
/// If the request was not taken.
pub(super) async fn answer<S, B>(
    request: Option<Box<Request<ClientBody>>>,
    mut service: S,
    thread: Rc<Thread>,
    sending: Rc<Sending>,
) -> Result<Response<ResponseBody<B>>, h2::Error>
where
    S: Service<Box<Request<ClientBody>>, Response = Response<B>, Error = Infallible>,
    B: AnswerBody,
{
    let request = request.ok_or(h2::Reason::REFUSED_STREAM)?;
    // A client that asks for a tunnel may write into it at once, so that what comes next may be no
    // request.
    let is_connect = request.method() == Method::CONNECT;
    let is_spent = sending.connection().is_spent();
    let (version, number) = (request.version(), sending.connection().requests());
    let Ok(()) = poll_fn(|cx| service.poll_ready(cx)).await;
    let Ok(mut response) = service.call(request).await;
    let connection = sending.connection();
    if connection.protocol() == Protocol::Http2 {
        // HTTP/2 has no such field; its word for that is GOAWAY.
        if response.headers_mut().remove(CONNECTION).is_some() {
            connection.state.borrow_mut().is_to_leave = true;
        }
        return Ok(with_body(response, version, sending));
    }
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        // What a client sent before it knew may be meant for HTTP or for the next protocol.
        if connection.progress.is_at_end_of(number) && connection.socket.is_quiet() {
            connection.progress.switch_protocol();
            return Ok(with_body(response, version, sending));
        }
        *response.status_mut() = StatusCode::BAD_REQUEST;
        *response.headers_mut() =
            HeaderMap::from_iter([(CONNECTION, HeaderValue::from_static("close"))]);
    }
    let has_no_next = connection.progress.has_rejected_body_of(number)
        || connection.state.borrow().unasked == number;
    if is_connect || is_spent || has_no_next || thread.stage() != Stage::Serving {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        if is_spent {
            connection.activity.count_closing(Closing::Requests);
        }
    }
    Ok(with_body(response, version, sending))
}

/// Whether the requests that are under way leave no stream for another: a request goes on when its
/// client has reset it. Or whether the client has had `requests_per_connection_max`, and as many
/// again as it could send before it saw GOAWAY.
fn has_too_many(connection: &Connection) -> bool {
    let Limits { h2_streams_max, requests_per_connection_max, .. } = *connection.limits;
    let requests_max =
        requests_per_connection_max.map(|max| max.saturating_add(u64::from(h2_streams_max)));
    connection.activity.count_under_way() >= usize::try_from(h2_streams_max).unwrap_or(usize::MAX)
        || requests_max.is_some_and(|max| connection.requests() > max)
}
