//! The way from one connection of a command to the proxy.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use fencepost_holder::StampLayer;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Request, Response, StatusCode, Uri};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::Authority;

/// How long the proxy may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The proxy's answer, or a word of our own.
type Answer = Response<Either<Incoming, Full<Bytes>>>;

/// A connection to the proxy, made when it is needed, and kept for the next request.
pub(super) struct Line {
    to: Arc<Authority>,
    stamp: StampLayer,
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
    pub(super) fn to(to: Arc<Authority>, stamp: StampLayer) -> Line {
        Line { to, stamp, kept: Mutex::default() }
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
        let connection = match timeout(CONNECT_TIMEOUT, self.connect()).await {
            Ok(Ok(connection)) => connection,
            Ok(Err(error)) => {
                return refuse(StatusCode::BAD_GATEWAY, &format!("{} cannot be reached: {error}", self.to.0));
            }
            Err(_) => return refuse(StatusCode::GATEWAY_TIMEOUT, &format!("{} cannot be reached in time", self.to.0)),
        };
        match self.send(connection, request).await {
            Err(Unsent::Request(_)) => {
                refuse(StatusCode::BAD_GATEWAY, &format!("{} has closed the connection; nothing was sent", self.to.0))
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
                None => {
                    let why =
                        format!("no answer, and it is not known what became of the request: {}", error.into_error());
                    Ok(refuse(StatusCode::BAD_GATEWAY, &why))
                }
            },
        }
    }

    async fn connect(&self) -> Result<Connection, Box<dyn std::error::Error + Send + Sync>> {
        let stream = TcpStream::connect(self.to.address()).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let driver = tokio::spawn(async move {
            // What goes wrong shows in the request that is under way.
            let _ = connection.await;
        });
        Ok(Connection { sender, driver: driver.abort_handle() })
    }

    /// Makes the request one to the proxy, without what the command may say of tenures itself.
    fn prepare(&self, request: &mut Request<Incoming>) {
        let target = request.uri().path_and_query().map_or("/", |target| target.as_str());
        *request.uri_mut() = target.parse().unwrap_or_else(|_| Uri::from_static("/"));
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
        if let Ok(host) = HeaderValue::from_str(&self.to.0) {
            headers.insert(header::HOST, host);
        }
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
