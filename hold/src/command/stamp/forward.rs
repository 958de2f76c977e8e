//! Sends the requests of a command on to the proxy. hyper's client carries them, and keeps the
//! connections.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::{StampLayer, Standing};
use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Either, Full, Limited};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::sync::watch;
use tokio::time::timeout;

use super::Outlet;
use crate::command::exit::with_causes;
use crate::command::proxy_link::{ProxyClient, TlsRefusal};

/// How much of a request that is not sent is read and dropped, and for how long.
const DISCARDED_BYTES_MAX: usize = 16 << 20;
const DISCARDED_WITHIN: Duration = Duration::from_secs(5);

/// The proxy's answer, or one of our own.
type Answer = Response<Either<Incoming, Full<Bytes>>>;

/// The way of requests to a proxy under a tenure.
pub(super) struct Forwarder {
    outlet: Arc<Outlet>,
    stamp: StampLayer,
    client: ProxyClient<Upload>,
}

impl Forwarder {
    pub(super) fn new(
        outlet: &Arc<Outlet>,
        stamp: StampLayer,
        standing: watch::Receiver<Standing>,
    ) -> Forwarder {
        Forwarder { outlet: Arc::clone(outlet), stamp, client: outlet.link.client(standing) }
    }

    /// Sends a request on with the tenure's headers.
    pub(super) async fn forward(&self, request: Request<Incoming>) -> Answer {
        let has_coding = has_coding(request.headers());
        let mut request = self.prepared(request);
        if has_coding {
            return refuse(
                StatusCode::NOT_IMPLEMENTED,
                "no other Transfer-Encoding than chunked can be sent on",
            );
        }
        if let Err(over) = self.stamp.stamp(&mut request) {
            let why = format!("nothing was sent, since the tenure is over: {over}");
            return refuse(StatusCode::SERVICE_UNAVAILABLE, &why);
        }
        let error = match self.client.request(request).await {
            Ok(mut answer) => {
                remove_hop_by_hop(answer.headers_mut());
                return answer.map(Either::Left);
            }
            Err(error) => error,
        };
        let proxy = &self.outlet.link;
        let why = match TlsRefusal::behind(&error) {
            Some(refusal) => {
                self.outlet.complain(&format!("no TLS: {refusal}"));
                format!("{proxy} cannot be reached: no TLS: {refusal}")
            }
            None if error.is_connect() => {
                format!("{proxy} cannot be reached: {}", with_causes(&error))
            }
            None => format!(
                "no answer, and it is not known what became of the request: {}",
                with_causes(&error)
            ),
        };
        refuse(StatusCode::BAD_GATEWAY, &why)
    }

    /// Makes the request one to the proxy, without what the command says of tenures itself.
    fn prepared(&self, request: Request<Incoming>) -> Request<Upload> {
        let (mut head, body) = request.into_parts();
        // Without a path it may have a query still: `http://host?x=1`.
        let target = head.uri.path_and_query().map_or("", |target| target.as_str());
        let target = if target.starts_with('/') || target == "*" {
            target.to_owned()
        } else {
            format!("/{target}")
        };
        let address = &self.outlet.link.address;
        head.uri = address.uri(&target).or_else(|_| address.uri("/")).expect("it is a path");
        let is_chunked = !body.is_end_stream() && body.size_hint().exact().is_none();
        if head.headers.contains_key(header::TRANSFER_ENCODING) {
            head.headers.remove(header::CONTENT_LENGTH);
        }
        remove_hop_by_hop(&mut head.headers);
        // The answer to it comes from here, with the first piece of the body that is asked for.
        let is_held_back = head.headers.remove(header::EXPECT).is_some();
        head.headers.remove(header::HOST);
        let claims: Vec<HeaderName> = head
            .headers
            .keys()
            .filter(|name| name.as_str().starts_with("fence-"))
            .cloned()
            .collect();
        for name in claims {
            head.headers.remove(name);
        }
        if is_chunked {
            // Else hyper sends a GET without a body whose length it does not know.
            head.headers.insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
        Request::from_parts(head, Upload { body: Some(body), is_held_back })
    }
}

/// Whether the body has a coding beside the framing that every connection has anew: what it stands
/// for would be lost.
fn has_coding(headers: &HeaderMap) -> bool {
    headers
        .get_all(header::TRANSFER_ENCODING)
        .iter()
        .any(|value| !value.as_bytes().eq_ignore_ascii_case(b"chunked"))
}

/// The body of a command's request. What is not sent of it is read and dropped, since a command
/// that writes everything before it reads would see a reset in place of the answer.
pub(super) struct Upload {
    /// `None` once it was dropped.
    body: Option<Incoming>,
    /// Whether the command sends it only when it is asked for (`Expect: 100-continue`).
    is_held_back: bool,
}

impl Body for Upload {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        self.is_held_back = false;
        self.body.as_mut().map_or(Poll::Ready(None), |body| Pin::new(body).poll_frame(cx))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map(Body::size_hint).unwrap_or_default()
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if let Some(body) =
            self.body.take().filter(|body| !body.is_end_stream() && !self.is_held_back)
        {
            let mut rest = Limited::new(body, DISCARDED_BYTES_MAX);
            // A body that takes longer is dropped unread, and its connection closed.
            tokio::spawn(timeout(DISCARDED_WITHIN, async move {
                while let Some(Ok(_)) = rest.frame().await {}
            }));
        }
    }
}

/// Removes what concerns one connection only (RFC 9110, section 7.6.1). How a body is framed, hyper
/// says anew.
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
    answer
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    answer
}
