//! A store that is read over HTTP/1.1: one connection, one request after the other.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use fencepost_tls::ClientTls;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{HOST, HeaderName, HeaderValue};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::net::lookup_host;
use tokio::sync::Mutex;
use tokio_rustls::TlsConnector;

use crate::first_to_connect::first_to_connect;
use crate::secret;
use crate::store::{READ_BYTES_MAX, StoreError};

/// How long one address of a name may say nothing until the next is tried as well.
const SILENCE_MAX: Duration = Duration::from_millis(100);

/// Where a store is that is read over HTTP, and how it lets us in.
#[derive(Debug, Clone)]
pub struct HttpStoreOptions {
    /// Its host, without brackets, and its port.
    pub address: (String, u16),
    /// What the connection is made with; `None`: in cleartext.
    pub tls: Option<HttpStoreTls>,
    /// The file of the token: read with each connection. Up to 4 KiB.
    pub token_file: Option<PathBuf>,
}

/// What TLS connections to such a store are made with.
#[derive(Debug, Clone)]
pub struct HttpStoreTls {
    /// As what its files say when a connection is made; HTTP/1.1.
    pub client: ClientTls,
    /// The name that the store's certificate must have; `None`: the host that is connected to.
    pub server_name: Option<String>,
}

/// How a token is presented.
#[derive(Debug, Clone)]
pub(crate) struct TokenField {
    pub(crate) name: HeaderName,
    /// What stands before the token.
    pub(crate) prefix: &'static str,
}

/// A server that is asked one thing after the other.
#[derive(Debug)]
pub(crate) struct HttpServer {
    pub(crate) options: HttpStoreOptions,
    token_field: TokenField,
    connection: Mutex<Option<Connection>>,
}

#[derive(Debug)]
struct Connection {
    sender: SendRequest<Full<Bytes>>,
    token: Option<HeaderValue>,
}

impl HttpServer {
    /// The server there. Connects with the first request.
    pub(crate) fn new(options: HttpStoreOptions, token_field: TokenField) -> HttpServer {
        HttpServer { options, token_field, connection: Mutex::new(None) }
    }

    /// Sends a request and reads its answer. The caller has a deadline: a future that is dropped
    /// ends the connection, so that no answer is taken for that to another request.
    pub(crate) async fn ask(
        &self,
        method: Method,
        target: &str,
        body: String,
    ) -> Result<(StatusCode, Bytes), StoreError> {
        let mut connection = self.connection.lock().await;
        let mut kept = connection.take().filter(|open| !open.sender.is_closed());
        loop {
            let is_kept = kept.is_some();
            let mut open = match kept.take() {
                Some(open) => open,
                None => self.connect().await.map_err(unavailable)?,
            };
            let (status, answer) = self.send(&mut open, &method, target, &body).await?;
            let is_refused = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
            if is_refused && is_kept {
                continue; // The token may have been renewed since: it is read with each connection.
            }
            *connection = Some(open);
            return Ok((status, answer));
        }
    }

    async fn send(
        &self,
        open: &mut Connection,
        method: &Method,
        target: &str,
        body: &str,
    ) -> Result<(StatusCode, Bytes), StoreError> {
        let (host, port) = &self.options.address;
        let mut request =
            Request::builder().method(method).uri(target).header(HOST, format!("{host}:{port}"));
        if let Some(token) = &open.token {
            request = request.header(&self.token_field.name, token);
        }
        let request = request.body(Full::from(body.to_owned())).map_err(unavailable)?;
        open.sender.ready().await.map_err(unavailable)?;
        let answer = open.sender.send_request(request).await.map_err(unavailable)?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), READ_BYTES_MAX).collect().await;
        let body = body.map_err(|error| unavailable(format!("its answer: {error}")))?;
        Ok((status, body.to_bytes()))
    }

    async fn connect(&self) -> io::Result<Connection> {
        let HttpStoreOptions { address: (host, port), tls, token_file } = &self.options;
        let token = match token_file {
            None => None,
            Some(file) => {
                let named = |error: String| {
                    io::Error::other(format!("token_file {}: {error}", file.display()))
                };
                let text = secret::read(file).await.map_err(|error| named(error.to_string()))?;
                let value = HeaderValue::try_from(format!("{}{text}", self.token_field.prefix));
                // The error of a conversion would hold the token.
                let mut value = value.map_err(|_| named("it is no token".to_owned()))?;
                value.set_sensitive(true);
                Some(value)
            }
        };
        let addresses: Vec<_> = lookup_host((host.as_str(), *port)).await?.collect();
        let stream = first_to_connect(addresses, SILENCE_MAX, || Some(()), |_| Ok(())).await?;
        stream.set_nodelay(true)?;
        let sender = match tls {
            None => handshake(TokioIo::new(stream)).await?,
            Some(tls) => {
                let name = tls.server_name.clone().unwrap_or_else(|| host.clone());
                let name = ServerName::try_from(name).map_err(io::Error::other)?;
                let connector = TlsConnector::from(tls.client.config());
                handshake(TokioIo::new(connector.connect(name, stream).await?)).await?
            }
        };
        Ok(Connection { sender, token })
    }

    /// With which token it was asked, for those who have to put it right.
    pub(crate) fn token_in_words(&self) -> String {
        match &self.options.token_file {
            Some(file) => format!("the token in {}", file.display()),
            None => "no token (token_file)".to_owned(),
        }
    }
}

async fn handshake<T>(io: T) -> io::Result<SendRequest<Full<Bytes>>>
where
    T: hyper::rt::Read + hyper::rt::Write + Send + Unpin + 'static,
{
    let (sender, connection) = http1::handshake(io).await.map_err(io::Error::other)?;
    tokio::spawn(connection); // Its errors are those of its requests.
    Ok(sender)
}

pub(crate) fn unavailable(error: impl ToString) -> StoreError {
    StoreError::Unavailable(error.to_string().into())
}
