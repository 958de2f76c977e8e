//! An HTTP client on hyper, over HTTP/1.1 or HTTP/2, in the clear or by TLS. Keeps one connection,
//! and opens it again when it is closed. Does not pool.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use fencepost_tls::{ClientFiles, ClientTls, FileRole, IdentityFiles};
use futures_util::stream::{Once, once};
use http_body_util::{BodyExt, Either, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::header::{HOST, HeaderMap, HeaderValue};
use hyper::http::request::Builder;
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::cli::ProxyOptions;

/// How long connecting may take, the TLS handshake included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);
/// How long [`Connection::ask`] waits. fencepost itself gives up earlier, with an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) const OWNER: &str = "fence-owner";
pub(crate) const REVISION: &str = "fence-revision";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    owner: HeaderValue,
    revision: i64,
}

impl Token {
    pub(crate) fn new(owner: &str, revision: i64) -> Result<Token> {
        let is_visible = !owner.is_empty() && owner.bytes().all(|byte| byte.is_ascii_graphic());
        ensure!(is_visible, "the owner {owner:?} is not visible ASCII");
        Ok(Token { owner: HeaderValue::try_from(owner)?, revision })
    }

    pub(crate) fn owner(&self) -> &HeaderValue {
        &self.owner
    }

    pub(crate) fn owner_text(&self) -> &str {
        self.owner.to_str().expect("an owner is visible ASCII")
    }

    pub(crate) fn revision(&self) -> i64 {
        self.revision
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}, {})", self.owner_text(), self.revision)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    /// The fence's reason. In shadow mode with `verdict_header` it stands beside a served response.
    pub(crate) reason: Option<String>,
}

impl Answer {
    fn new(status: StatusCode, headers: &HeaderMap) -> Answer {
        let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        Answer { status, reason: headers.get("fence-reason").map(text) }
    }

    /// Whether the worker served the request, whatever the fence says of it.
    pub(crate) fn is_success(&self) -> bool {
        self.status.is_success()
    }

    /// Whether the request may have reached the worker.
    pub(crate) fn may_have_passed(&self) -> bool {
        self.is_success() || self.reason.is_none()
    }

    /// Whether the sender is to come again, which is no verdict on its token.
    pub(crate) fn is_put_off(&self) -> bool {
        self.status == StatusCode::SERVICE_UNAVAILABLE
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.status.as_str())?;
        self.reason.iter().try_for_each(|reason| write!(f, " {reason}"))
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Protocol {
    #[default]
    Http1,
    /// HTTP/2, in the clear by prior knowledge.
    Http2,
}

#[derive(Clone, Default)]
pub(crate) struct Target {
    address: Uri,
    authority: String,
    pub(crate) protocol: Protocol,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

impl Target {
    /// Fails if a PEM file is missing or unusable; the error names its option.
    pub(crate) fn new(
        address: &Uri,
        protocol: Protocol,
        files: Option<ClientFiles>,
    ) -> Result<Target> {
        let host = address.host().context("the host is missing")?;
        let is_secure = address.scheme_str() == Some("https");
        let port = address.port_u16().unwrap_or(if is_secure { 443 } else { 80 });
        let tls = match files.filter(|_| is_secure) {
            None => None,
            Some(files) => {
                let name = host.trim_start_matches('[').trim_end_matches(']').to_owned();
                let name = ServerName::try_from(name).context("--proxy: not a name for TLS")?;
                let alpn: &[u8] = match protocol {
                    Protocol::Http1 => b"http/1.1",
                    Protocol::Http2 => b"h2",
                };
                Some((TlsConnector::from(client_tls("proxy", files, alpn)?.config()), name))
            }
        };
        Ok(Target { address: address.clone(), authority: format!("{host}:{port}"), protocol, tls })
    }

    pub(crate) fn of(options: &ProxyOptions, protocol: Protocol) -> Result<Target> {
        let identity = options.proxy_cert.as_ref().zip(options.proxy_key.as_ref());
        let files = options.proxy_ca.as_deref().map(|ca| client_files(ca, identity));
        Target::new(&options.proxy, protocol, files)
    }

    pub(crate) fn request(&self, path: &str, token: &Token) -> Result<Builder> {
        let request = Request::builder()
            .header(OWNER, token.owner())
            .header(REVISION, HeaderValue::from(token.revision()));
        Ok(match self.protocol {
            Protocol::Http1 => request.uri(path).header(HOST, &self.authority),
            Protocol::Http2 => {
                let scheme = if self.tls.is_some() { "https" } else { "http" };
                let uri = Uri::builder().scheme(scheme).authority(&*self.authority);
                request.uri(uri.path_and_query(path).build()?)
            }
        })
    }

    async fn connect(&self) -> Result<Sender> {
        let late = || format!("{self} does not take the connection within {CONNECT_TIMEOUT:?}");
        let connecting = async {
            let stream = TcpStream::connect(&self.authority).await;
            let stream = stream
                .with_context(|| format!("cannot connect to {self}: does fencepost run there?"))?;
            stream.set_nodelay(true)?;
            let Some((connector, name)) = &self.tls else {
                return handshake(stream, self.protocol).await;
            };
            let stream = connector.connect(name.clone(), stream).await;
            let stream = stream.with_context(|| format!("no TLS with {self}"))?;
            // A server without ALPN speaks HTTP/1.1 (RFC 9113, section 3.2).
            let speaks_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            let is_agreed = speaks_http2 || self.protocol == Protocol::Http1;
            ensure!(is_agreed, "{self} does not speak HTTP/2 by TLS");
            handshake(stream, self.protocol).await
        };
        timeout(CONNECT_TIMEOUT, connecting).await.with_context(late)?
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.address.scheme_str().unwrap_or("http"), self.authority)
    }
}

/// TLS by files that the options `--proxy-...` or `--etcd-...` name. No session is resumed, so
/// every connection costs a whole handshake.
pub(crate) fn client_tls(peer: &str, files: ClientFiles, alpn: &[u8]) -> Result<ClientTls> {
    ClientTls::load(files, &[alpn]).map_err(|error| {
        let role = match error.role {
            FileRole::Certificate => "cert",
            FileRole::Key => "key",
            FileRole::Authorities | FileRole::Crl => "ca",
        };
        anyhow::Error::new(error).context(format!("--{peer}-{role}"))
    })
}

pub(crate) fn client_files(ca: &Path, identity: Option<(&PathBuf, &PathBuf)>) -> ClientFiles {
    let identity = identity.map(|(certificate, key)| IdentityFiles {
        certificate: certificate.clone(),
        key: key.clone(),
    });
    ClientFiles { ca: ca.to_owned(), crl: None, identity }
}

pub(crate) type Body = Either<Full<Bytes>, StreamBody<Once<Ready>>>;
type Ready = std::future::Ready<Result<Frame<Bytes>, std::convert::Infallible>>;

pub(crate) fn whole(bytes: Bytes) -> Body {
    Either::Left(Full::new(bytes))
}

pub(crate) fn chunked(bytes: Bytes) -> Body {
    Either::Right(StreamBody::new(once(std::future::ready(Ok(Frame::data(bytes))))))
}

enum Sender {
    Http1(http1::SendRequest<Body>),
    Http2(http2::SendRequest<Body>),
}

impl Sender {
    /// Waits until a request can be sent; false if the connection is closed.
    async fn is_ready(&mut self) -> bool {
        match self {
            Sender::Http1(sender) => sender.ready().await.is_ok(),
            Sender::Http2(sender) => sender.ready().await.is_ok(),
        }
    }
}

/// What breaks a connection shows at its requests, so the connection's own error is dropped.
async fn handshake<S>(stream: S, protocol: Protocol) -> Result<Sender>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let stream = TokioIo::new(stream);
    Ok(match protocol {
        Protocol::Http1 => {
            let (sender, connection) = http1::handshake(stream).await?;
            tokio::spawn(connection);
            Sender::Http1(sender)
        }
        Protocol::Http2 => {
            let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await?;
            tokio::spawn(connection);
            Sender::Http2(sender)
        }
    })
}

/// One connection. HTTP/2 sends many requests at a time on it, HTTP/1.1 one after the other.
pub(crate) struct Connection {
    target: Target,
    requests_max: Option<u64>,
    slot: Mutex<Slot>,
}

struct Slot {
    sender: Option<Sender>,
    requests: u64,
}

impl Connection {
    /// One that the first request opens.
    pub(crate) fn new(target: &Target, requests_max: Option<u64>) -> Connection {
        let slot = Mutex::new(Slot { sender: None, requests: 0 });
        Connection { target: target.clone(), requests_max, slot }
    }

    /// Fails if the proxy is not there, is not the one that TLS expects, or speaks another
    /// protocol.
    pub(crate) async fn open(target: &Target, requests_max: Option<u64>) -> Result<Connection> {
        let connection = Connection::new(target, requests_max);
        connection.slot.lock().await.sender = Some(target.connect().await?);
        Ok(connection)
    }

    /// Sends a POST, and waits for the answer, but not for ever.
    pub(crate) async fn ask(
        &self,
        path: &str,
        token: &Token,
        body: &'static str,
    ) -> Result<Answer> {
        let request = self.target.request(path, token)?.method(Method::POST);
        let sending = self.send(request.body(whole(Bytes::from_static(body.as_bytes())))?);
        let answer = timeout(ANSWER_TIMEOUT, sending).await;
        answer.with_context(|| format!("no answer from {} in {ANSWER_TIMEOUT:?}", self.target))?
    }

    /// Sends a request and reads the response to its end.
    pub(crate) async fn send(&self, mut request: Request<Body>) -> Result<Answer> {
        let mut is_retry = false;
        loop {
            let mut slot = self.ready().await?;
            let sent = match slot.sender.as_mut().context("the connection is closed")? {
                Sender::Http1(sender) => match sender.try_send_request(request).await {
                    // The slot stays locked until the response has ended.
                    Ok(response) => return finish(response).await,
                    Err(error) => Err(error),
                },
                Sender::Http2(sender) => {
                    let mut sender = sender.clone();
                    drop(slot);
                    sender.try_send_request(request).await
                }
            };
            let mut error = match sent {
                Ok(response) => return finish(response).await,
                Err(error) => error,
            };
            // hyper gives the request back when the proxy had closed the idle connection.
            request = match error.take_message().filter(|_| !is_retry) {
                Some(unsent) => unsent,
                None => {
                    let error = anyhow::Error::new(error.into_error());
                    return Err(error.context("the connection broke before the answer"));
                }
            };
            is_retry = true;
        }
    }

    /// The connection, opened again when it is closed or has had its number of requests. Over
    /// HTTP/2, requests on the replaced connection go on.
    async fn ready(&self) -> Result<MutexGuard<'_, Slot>> {
        let mut slot = self.slot.lock().await;
        if self.requests_max.is_some_and(|max| slot.requests >= max) {
            slot.sender = None;
        }
        let is_usable = match &mut slot.sender {
            Some(sender) => sender.is_ready().await,
            None => false,
        };
        if !is_usable {
            *slot = Slot { sender: None, requests: 0 };
            slot.sender = Some(self.target.connect().await?);
        }
        slot.requests += 1;
        Ok(slot)
    }
}

async fn finish(response: Response<Incoming>) -> Result<Answer> {
    let answer = Answer::new(response.status(), response.headers());
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        frame.context("the connection broke within the answer")?;
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_outside_visible_ascii_is_an_error() {
        assert_eq!(Token::new("/lock/694d", 7).unwrap().to_string(), "(/lock/694d, 7)");
        for owner in ["", "a b", "a\n", "ä"] {
            assert!(Token::new(owner, 7).is_err(), "{owner:?}");
        }
    }
}
