//! An HTTP client with a connection of its own, HTTP/1.1 or HTTP/2.

use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::header::{HOST, HeaderName, HeaderValue};
use hyper::http::uri::PathAndQuery;
use hyper::{Method, Request, Response, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::time::timeout;

use crate::answer::Answer;
use crate::stream::Stream;
use crate::target::Target;
use crate::token::{OWNER, REVISION, Token};

/// How long an answer may take, connecting included. fencepost itself gives up earlier (504), and that is an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// What a connection speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    /// HTTP/2, in the clear without asking first.
    Http2,
}

/// One connection to the proxy. It is opened again if the proxy closes it between two requests.
#[derive(Debug)]
pub(crate) struct Client {
    target: Target,
    protocol: Protocol,
    sender: Sender,
}

#[derive(Debug)]
enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

impl Client {
    /// Connects.
    pub(crate) async fn connect(target: &Target, protocol: Protocol) -> anyhow::Result<Client> {
        let sender = Sender::open(target, protocol).await?;
        Ok(Client { target: target.clone(), protocol, sender })
    }

    /// Sends a request with this token, GET without a body and POST with one, and reads the answer to its end.
    pub(crate) async fn send(&mut self, path: &PathAndQuery, token: &Token, body: Bytes) -> anyhow::Result<Answer> {
        let method = if body.is_empty() { Method::GET } else { Method::POST };
        self.send_with(method, path, token, Vec::new(), body).await
    }

    /// The same by that method, and with more headers.
    pub(crate) async fn send_with(
        &mut self,
        method: Method,
        path: &PathAndQuery,
        token: &Token,
        more: Vec<(HeaderName, HeaderValue)>,
        body: Bytes,
    ) -> anyhow::Result<Answer> {
        let mut request = self.request(method, path, token, body)?;
        request.headers_mut().extend(more);
        timeout(ANSWER_TIMEOUT, self.exchange(request))
            .await
            .with_context(|| format!("no answer from {} within {ANSWER_TIMEOUT:?}", self.target))?
    }

    async fn exchange(&mut self, request: Request<Full<Bytes>>) -> anyhow::Result<Answer> {
        if !self.sender.ready().await {
            self.sender = Sender::open(&self.target, self.protocol).await?;
        }
        let response = self.sender.send(request).await.context("the connection broke before the answer")?;
        let answer = Answer::new(response.status(), response.headers());
        let mut body = response.into_body();
        while let Some(frame) = body.frame().await {
            frame.context("the connection broke within the answer")?;
        }
        Ok(answer)
    }

    fn request(
        &self,
        method: Method,
        path: &PathAndQuery,
        token: &Token,
        body: Bytes,
    ) -> anyhow::Result<Request<Full<Bytes>>> {
        let request = Request::builder()
            .method(method)
            .header(OWNER, token.owner())
            .header(REVISION, HeaderValue::from(token.revision()));
        let request = match self.protocol {
            Protocol::Http1 => request.uri(path.clone()).header(HOST, self.target.authority()),
            Protocol::Http2 => {
                let uri = Uri::builder().scheme(self.target.scheme()).authority(self.target.authority());
                request.uri(uri.path_and_query(path.clone()).build()?)
            }
        };
        Ok(request.body(Full::new(body))?)
    }
}

impl Sender {
    async fn open(target: &Target, protocol: Protocol) -> anyhow::Result<Sender> {
        let stream = TokioIo::new(Stream::open(target, protocol).await?);
        // What goes wrong on a connection shows at its requests.
        match protocol {
            Protocol::Http1 => {
                let (sender, connection) = http1::handshake(stream).await?;
                tokio::spawn(connection);
                Ok(Sender::Http1(sender))
            }
            Protocol::Http2 => {
                let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await?;
                tokio::spawn(connection);
                Ok(Sender::Http2(sender))
            }
        }
    }

    /// Waits until a request can be sent; false if the connection has been closed.
    async fn ready(&mut self) -> bool {
        match self {
            Sender::Http1(sender) => sender.ready().await.is_ok(),
            Sender::Http2(sender) => sender.ready().await.is_ok(),
        }
    }

    async fn send(&mut self, request: Request<Full<Bytes>>) -> hyper::Result<Response<Incoming>> {
        match self {
            Sender::Http1(sender) => sender.send_request(request).await,
            Sender::Http2(sender) => sender.send_request(request).await,
        }
    }
}
