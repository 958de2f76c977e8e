//! The way from one connection of a command to the proxy.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use fencepost_holder::{StampLayer, Standing};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Request, Response, StatusCode, Uri};
use http_body_util::{Either, Full};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::Outlet;
use crate::hold::proxy_link::{LinkError, TlsRefusal};

/// How long the proxy may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The proxy's answer, or a word of our own.
type Answer = Response<Either<Incoming, Full<Bytes>>>;

/// A connection to the proxy, made when it is needed, and kept for the next request.
pub(super) struct Line {
    outlet: Outlet,
    stamp: StampLayer,
    standing: watch::Receiver<Standing>,
    kept: Mutex<Option<Connection>>,
}

struct Connection {
    sender: SendRequest<Incoming>,
    driver: AbortHandle,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Line {
    pub(super) fn to(outlet: Outlet, stamp: StampLayer, standing: watch::Receiver<Standing>) -> Line {
        Line { outlet, stamp, standing, kept: Mutex::default() }
    }

    /// Sends a request on with the tenure's headers.
    pub(super) async fn forward(&self, mut request: Request<Incoming>) -> Answer {
        self.prepare(&mut request);
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut connection) = kept
            && connection.sender.ready().await.is_ok()
        {
            match self.send(connection, request).await {
                // Nothing of it went out: the proxy closed the connection just then.
                Err(Unsent::Request(unsent)) => request = *unsent,
                Err(Unsent::Answer(answer)) | Ok(answer) => return answer,
            }
        }
        let proxy = self.outlet.proxy();
        let connection = match timeout(CONNECT_TIMEOUT, self.connect()).await {
            Ok(Ok(connection)) => connection,
            Ok(Err(LinkError::Lost(error))) => {
                return refuse(StatusCode::BAD_GATEWAY, &format!("{proxy} cannot be reached: {error}"));
            }
            Ok(Err(LinkError::Tls(refusal))) => return self.no_tls(&refusal),
            Err(_) => return refuse(StatusCode::GATEWAY_TIMEOUT, &format!("{proxy} cannot be reached in time")),
        };
        match self.send(connection, request).await {
            Err(Unsent::Request(_)) => {
                refuse(StatusCode::BAD_GATEWAY, &format!("{proxy} has closed the connection; nothing was sent"))
            }
            Err(Unsent::Answer(answer)) | Ok(answer) => answer,
        }
    }

    async fn send(&self, mut connection: Connection, mut request: Request<Incoming>) -> Result<Answer, Unsent> {
        if let Err(over) = self.stamp.stamp(&mut request) {
            let why = format!("nothing was sent, since the tenure is over: {over}");
            return Err(Unsent::Answer(refuse(StatusCode::SERVICE_UNAVAILABLE, &why)));
        }
        match connection.sender.try_send_request(request).await {
            Ok(mut answer) => {
                *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection);
                remove_hop_by_hop(answer.headers_mut());
                Ok(answer.map(Either::Left))
            }
            Err(mut error) => match error.take_message() {
                Some(unsent) => Err(Unsent::Request(Box::new(unsent))),
                None => Ok(self.lost(&error.into_error())),
            },
        }
    }

    /// What is answered when nobody knows what the proxy has done.
    fn lost(&self, error: &hyper::Error) -> Answer {
        match TlsRefusal::behind(error) {
            Some(refusal) => self.no_tls(&refusal),
            None => {
                let why = format!("no answer, and it is not known what became of the request: {error}");
                refuse(StatusCode::BAD_GATEWAY, &why)
            }
        }
    }

    fn no_tls(&self, refusal: &TlsRefusal) -> Answer {
        self.outlet.complain(&format!("no TLS: {refusal}"));
        refuse(StatusCode::BAD_GATEWAY, &format!("{} cannot be reached: no TLS: {refusal}", self.outlet.proxy()))
    }

    async fn connect(&self) -> Result<Connection, LinkError> {
        let stream = self.outlet.proxy().connect(self.standing.clone()).await?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(std::io::Error::other)?;
        let driver = tokio::spawn(async move {
            // What goes wrong shows in the request that is under way.
            let _ = connection.await;
        });
        Ok(Connection { sender, driver: driver.abort_handle() })
    }

    /// Makes the request one to the proxy, without what the command may say of tenures itself.
    fn prepare(&self, request: &mut Request<Incoming>) {
        // Without a path it may have a query still: `http://host?x=1`.
        let target = request.uri().path_and_query().map_or("", |target| target.as_str());
        let target = if target.starts_with('/') || target == "*" { target.to_owned() } else { format!("/{target}") };
        *request.uri_mut() = target.parse().unwrap_or_else(|_| Uri::from_static("/"));
        let is_chunked = !request.body().is_end_stream() && request.body().size_hint().exact().is_none();
        let headers = request.headers_mut();
        if headers.contains_key(header::TRANSFER_ENCODING) {
            headers.remove(header::CONTENT_LENGTH);
        }
        remove_hop_by_hop(headers);
        // The answer to it comes from here, with the first piece of the body that is asked for.
        headers.remove(header::EXPECT);
        let claims: Vec<HeaderName> =
            headers.keys().filter(|name| name.as_str().starts_with("fence-")).cloned().collect();
        for name in claims {
            headers.remove(name);
        }
        if is_chunked {
            // Else hyper sends a GET without a body whose length it does not know.
            headers.insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
        headers.insert(header::HOST, self.outlet.proxy().address.host_header());
    }
}

/// What was not sent.
enum Unsent {
    /// The request, to be sent on another connection.
    Request(Box<Request<Incoming>>),
    /// What its sender is told instead.
    Answer(Answer),
}

/// Removes what concerns one connection only (RFC 9110, section 7.6.1). How a body is framed, hyper says anew.
fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
        .filter(|name| ![header::HOST, header::CONTENT_LENGTH].contains(name))
        .collect();
    let always = [header::CONNECTION, header::TRANSFER_ENCODING, header::UPGRADE, header::TE];
    let old = ["keep-alive", "proxy-connection"].map(HeaderName::from_static);
    for name in named.into_iter().chain(always).chain(old) {
        headers.remove(name);
    }
}

fn refuse(status: StatusCode, why: &str) -> Answer {
    let mut answer = Response::new(Either::Right(Full::from(format!("fencepost hold: {why}\n"))));
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    answer
}
