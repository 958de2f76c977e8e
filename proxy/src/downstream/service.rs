//! What hyper has the requests of a connection answered by.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;

use http::header::CONNECTION;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use tower::Service;

use super::answer::{AnswerBody, Counted, counted};
use super::client_body::{ClientBody, Leave};
use super::connection::{Asked, Connection, Protocol};
use super::drive::Thread;
use super::limits::Limits;
use super::serve::Stage;
use super::tally::Closing;
use crate::in_place::pinned;

/// An answer in the making.
///
/// Boxed: hyper keeps the room for one as long as the connection is open, and on HTTP/2 moves it nine times on its way into a task
/// and out of it, which is 5 % of what a GET costs.
type Answering<B> = Pin<Box<dyn Future<Output = Result<Response<Counted<B>>, h2::Error>>>>;

/// Answers the requests of one connection by the service of its thread.
///
/// A type of its own, since with a closure in `service_fn` each request would be copied twice more.
pub(super) struct ConnectionService<S> {
    service: S,
    thread: Rc<Thread>,
    connection: Rc<Connection>,
}

impl<S> ConnectionService<S> {
    pub(super) fn new(service: S, thread: Rc<Thread>, connection: Rc<Connection>) -> ConnectionService<S> {
        ConnectionService { service, thread, connection }
    }
}

impl<S, B> hyper::service::Service<Request<Incoming>> for ConnectionService<S>
where
    S: Service<Box<Request<ClientBody>>, Response = Response<B>, Error = Infallible> + Clone + 'static,
    B: AnswerBody + Unpin,
{
    type Response = Response<Counted<B>>;
    type Error = h2::Error;
    type Future = Answering<B>;

    /// Takes a request from hyper's hands. It is behind a pointer from here on.
    ///
    /// # Errors
    /// On HTTP/2, if as many requests of the connection are under way as may be, though their clients may have left.
    fn call(&self, request: Request<Incoming>) -> Answering<B> {
        let asked = Asked::begin(Rc::clone(&self.connection));
        let is_one_too_many = self.connection.protocol() == Protocol::Http2 && has_too_many(&self.connection);
        let request = if is_one_too_many {
            None
        } else {
            let (connection, number) = (Rc::clone(&self.connection), self.connection.requests.get());
            let leave = Leave::of(&request);
            // Not by `boxed`, whose closure the request would be copied into.
            let room = Box::new_uninit();
            Some(Box::write(room, request.map(|incoming| ClientBody::new(incoming, connection, number, leave))))
        };
        let (service, thread) = (self.service.clone(), Rc::clone(&self.thread));
        pinned(|| answer(request, service, thread, asked))
    }
}

/// One request, `None` if it was not taken: from hyper's hands through the service and back.
///
/// # Errors
/// If the request was not taken.
pub(super) async fn answer<S, B>(
    request: Option<Box<Request<ClientBody>>>,
    mut service: S,
    thread: Rc<Thread>,
    asked: Asked,
) -> Result<Response<Counted<B>>, h2::Error>
where
    S: Service<Box<Request<ClientBody>>, Response = Response<B>, Error = Infallible>,
    B: AnswerBody,
{
    let request = request.ok_or(h2::Reason::REFUSED_STREAM)?;
    // Who asks for a tunnel may write into it at once, so that what comes next may be no request.
    let is_last = request.method() == Method::CONNECT;
    let is_spent = asked.connection().is_spent();
    let version = request.version();
    let number = asked.connection().requests.get();
    let Ok(()) = poll_fn(|cx| service.poll_ready(cx)).await;
    let Ok(mut response) = service.call(request).await;
    let connection = asked.connection();
    connection.answered.set(number);
    let switches = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    // Whether what a client sends before it knows was meant for HTTP or for what comes after it, nobody can say.
    let spoke_early = switches && !(connection.progress.is_at_end_of(number) && connection.socket.is_quiet());
    if switches && !spoke_early {
        connection.progress.switch_protocol();
    }
    if spoke_early {
        *response.status_mut() = StatusCode::BAD_REQUEST;
        *response.headers_mut() = HeaderMap::new();
    }
    let has_no_next = connection.progress.has_rejected_body_of(number) || connection.unasked.get() == number;
    let is_last = is_last || is_spent || spoke_early || has_no_next;
    if (is_last || thread.stage() != Stage::Serving)
        && connection.protocol() == Protocol::Http1
        && (!switches || spoke_early)
    {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        if is_spent {
            connection.seat.close(Closing::Requests);
        }
    }
    Ok(counted(response, version, asked))
}

/// Whether the requests that are under way leave no stream for another: one that its client has reset goes on. Or whether it had more than it
/// may have, and as many again as it may have had under way when it was told that it has had all.
fn has_too_many(connection: &Connection) -> bool {
    let Limits { streams_max, requests_per_connection_max, .. } = &*connection.limits;
    let requests_max = requests_per_connection_max.map(|max| max.saturating_add(u64::from(*streams_max)));
    connection.seat.count_under_way() >= usize::try_from(*streams_max).unwrap_or(usize::MAX)
        || requests_max.is_some_and(|max| connection.requests.get() > max)
}
