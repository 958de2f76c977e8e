//! The way from one connection of a command to the proxy.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::{StampLayer, Standing};
use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Either, Full};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};

use super::{HEADERS_MAX, Outlet};
use crate::command::proxy_link::{LinkError, TlsRefusal};

/// How long the proxy may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// For how long a connection to the proxy is kept without a request: half as long as the proxy keeps it by default (`idle_timeout`). What is sent
/// on one that the proxy closes just then may have been read or not, and nobody can send it again.
const IDLE_MAX: Duration = Duration::from_secs(30);

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
    /// When it was answered on last.
    used: Instant,
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
        let is_held_back = request.headers().contains_key(header::EXPECT);
        let (status, why) = if has_coding(request.headers()) {
            (StatusCode::NOT_IMPLEMENTED, "no other Transfer-Encoding than chunked can be sent on".to_owned())
        } else {
            self.prepare(&mut request);
            match self.send_on(request).await {
                Ok(answer) => return answer,
                Err(Unsent { request: unsent, status, why }) => {
                    request = *unsent;
                    (status, why)
                }
            }
        };
        // A command that writes everything before it reads would see a reset in place of the answer. What it holds back until it sees
        // `100 Continue` is not asked for.
        if !is_held_back {
            tokio::spawn(discard(request.into_body()));
        }
        refuse(status, &why)
    }

    async fn send_on(&self, mut request: Request<Incoming>) -> Result<Answer, Unsent> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut connection) = kept.filter(|connection| connection.used.elapsed() < IDLE_MAX)
            && connection.sender.ready().await.is_ok()
        {
            match self.send(connection, request).await {
                // Nothing of it went out: the proxy closed the connection just then.
                Err(unsent) => request = *unsent,
                Ok(answer) => return Ok(answer),
            }
        }
        let proxy = self.outlet.proxy();
        let unsent = |request, status, why| Unsent { request, status, why };
        let connection = match timeout(CONNECT_TIMEOUT, self.connect()).await {
            Ok(Ok(connection)) => connection,
            Ok(Err(LinkError::Lost(error))) => {
                let why = format!("{proxy} cannot be reached: {error}");
                return Err(unsent(Box::new(request), StatusCode::BAD_GATEWAY, why));
            }
            Ok(Err(LinkError::Tls(refusal))) => {
                return Err(unsent(Box::new(request), StatusCode::BAD_GATEWAY, self.no_tls(&refusal)));
            }
            Err(_) => {
                let why = format!("{proxy} cannot be reached in time");
                return Err(unsent(Box::new(request), StatusCode::GATEWAY_TIMEOUT, why));
            }
        };
        let sent = self.send(connection, request).await;
        sent.map_err(|request| {
            let why = format!("{proxy} has closed the connection; nothing was sent");
            unsent(request, StatusCode::BAD_GATEWAY, why)
        })
    }

    /// `Err` with the request if nothing of it went out.
    async fn send(
        &self,
        mut connection: Connection,
        mut request: Request<Incoming>,
    ) -> Result<Answer, Box<Request<Incoming>>> {
        if let Err(over) = self.stamp.stamp(&mut request) {
            let why = format!("nothing was sent, since the tenure is over: {over}");
            return Ok(refuse(StatusCode::SERVICE_UNAVAILABLE, &why));
        }
        match connection.sender.try_send_request(request).await {
            Ok(mut answer) => {
                connection.used = Instant::now();
                *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection);
                remove_hop_by_hop(answer.headers_mut());
                Ok(answer.map(Either::Left))
            }
            Err(mut error) => match error.take_message() {
                Some(unsent) => Err(Box::new(unsent)),
                None => Ok(self.lost(&error.into_error())),
            },
        }
    }

    /// What is answered when nobody knows what the proxy has done.
    fn lost(&self, error: &hyper::Error) -> Answer {
        match TlsRefusal::behind(error) {
            Some(refusal) => refuse(StatusCode::BAD_GATEWAY, &self.no_tls(&refusal)),
            None => {
                let why = format!("no answer, and it is not known what became of the request: {error}");
                refuse(StatusCode::BAD_GATEWAY, &why)
            }
        }
    }

    /// Says on standard error, too, that there is none, and returns what the command is told.
    fn no_tls(&self, refusal: &TlsRefusal) -> String {
        self.outlet.complain(&format!("no TLS: {refusal}"));
        format!("{} cannot be reached: no TLS: {refusal}", self.outlet.proxy())
    }

    async fn connect(&self) -> Result<Connection, LinkError> {
        let stream = self.outlet.proxy().connect(self.standing.clone()).await?;
        let handshake = http1::Builder::new().max_headers(HEADERS_MAX).handshake(TokioIo::new(stream));
        let (sender, connection) = handshake.await.map_err(std::io::Error::other)?;
        let driver = tokio::spawn(async move {
            // What goes wrong shows in the request that is under way.
            let _ = connection.await;
        });
        Ok(Connection { sender, driver: driver.abort_handle(), used: Instant::now() })
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

/// Whether the body has a coding beside the framing that every connection has anew: what it stands for would be lost.
fn has_coding(headers: &HeaderMap) -> bool {
    headers.get_all(header::TRANSFER_ENCODING).iter().any(|value| !value.as_bytes().eq_ignore_ascii_case(b"chunked"))
}

/// A request that was not sent, and what its sender is told.
struct Unsent {
    request: Box<Request<Incoming>>,
    status: StatusCode,
    why: String,
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

/// Reads a body to its end and drops it: 16 MiB at most, for 5 s at most.
async fn discard(mut body: Incoming) {
    let read = async {
        let mut left: usize = 16 << 20;
        while let Some(Ok(frame)) = body.frame().await {
            match left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) {
                Some(rest) => left = rest,
                None => return,
            }
        }
    };
    // A body that takes longer is dropped unread, and its connection closed.
    let _ = timeout(Duration::from_secs(5), read).await;
}
