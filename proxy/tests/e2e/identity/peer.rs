//! Clients that show certificates, over TLS of either version, in either version of HTTP.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use fencepost_tests::{Authority, Endpoint, Issued, Response};
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, HandshakeKind, RootCertStore, SupportedProtocolVersion};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// What a client speaks inside of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Http {
    One,
    Two,
}

/// A client, which keeps its sessions and would resume them.
pub(super) struct Peer {
    config: Arc<ClientConfig>,
    http: Http,
}

/// A connection of such a client.
pub(super) struct PeerLine {
    sender: Sender,
    pub(super) handshake: HandshakeKind,
}

enum Sender {
    One(http1::SendRequest<Full<Bytes>>),
    Two(http2::SendRequest<Full<Bytes>>),
}

impl Peer {
    /// A client that believes this authority and shows this certificate, if any.
    pub(super) fn new(authority: &Authority, certificate: Option<&Issued>, http: Http) -> Peer {
        Peer::speaking(authority, certificate, http, rustls::DEFAULT_VERSIONS)
    }

    /// A client like that of [`new`](Peer::new), which speaks these versions of TLS.
    pub(super) fn speaking(
        authority: &Authority,
        certificate: Option<&Issued>,
        http: Http,
        versions: &[&'static SupportedProtocolVersion],
    ) -> Peer {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(authority.certificate().as_bytes()).unwrap())
            .unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder =
            ClientConfig::builder_with_provider(provider).with_protocol_versions(versions).unwrap();
        let builder = builder.with_root_certificates(roots);
        let mut config = match certificate {
            None => builder.with_no_client_auth(),
            Some(issued) => {
                let chain =
                    vec![CertificateDer::from_pem_slice(issued.certificate.as_bytes()).unwrap()];
                let key = PrivateKeyDer::from_pem_slice(issued.key.as_bytes()).unwrap();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        };
        config.alpn_protocols = match http {
            Http::One => vec![b"http/1.1".to_vec()],
            Http::Two => vec![b"h2".to_vec()],
        };
        Peer { config: Arc::new(config), http }
    }

    /// Shakes hands; what is said then is up to the test.
    pub(super) async fn stream(&self, listener: &Endpoint) -> io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(address(listener)).await?;
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(Arc::clone(&self.config)).connect(name, stream).await
    }

    /// Whether the other side ends the connection for its certificate. By TLS 1.3 a client learns
    /// of that when it reads.
    pub(super) async fn gets_nothing(&self, listener: &Endpoint) -> bool {
        let Ok(mut stream) = self.stream(listener).await else { return true };
        stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await.ok();
        stream.read_u8().await.is_err()
    }

    pub(super) async fn connect(&self, listener: &Endpoint) -> io::Result<PeerLine> {
        let stream = self.stream(listener).await?;
        let handshake = stream.get_ref().1.handshake_kind().expect("the handshake is over");
        let io = TokioIo::new(stream);
        let sender = match self.http {
            Http::One => {
                let (sender, connection) = http1::handshake(io).await.map_err(io::Error::other)?;
                tokio::spawn(connection);
                Sender::One(sender)
            }
            Http::Two => {
                let (sender, connection) =
                    http2::handshake(TokioExecutor::new(), io).await.map_err(io::Error::other)?;
                tokio::spawn(connection);
                Sender::Two(sender)
            }
        };
        Ok(PeerLine { sender, handshake })
    }

    /// Sends a request on a connection of its own.
    pub(super) async fn send(
        &self,
        listener: &Endpoint,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
    ) -> Response {
        self.connect(listener).await.unwrap().send(method, path, headers).await
    }
}

impl PeerLine {
    /// Sends a request and reads its answer.
    pub(super) async fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
    ) -> Response {
        let request = Request::builder().method(method);
        let request = match &self.sender {
            Sender::One(_) => request.uri(path).header("host", "localhost"),
            Sender::Two(_) => request.uri(format!("https://localhost{path}")),
        };
        let request =
            headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let body: &[u8] = if method == "GET" { b"" } else { b"write" };
        let request = request.body(Full::new(Bytes::from_static(body))).unwrap();
        let answer = match &mut self.sender {
            Sender::One(sender) => {
                sender.ready().await.unwrap();
                sender.send_request(request).await
            }
            Sender::Two(sender) => {
                sender.ready().await.unwrap();
                sender.send_request(request).await
            }
        };
        let (head, body) = answer.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes().to_vec();
        Response {
            status: head.status.as_u16(),
            headers: head.headers,
            body,
            trailers: HeaderMap::new(),
        }
    }
}

fn address(listener: &Endpoint) -> SocketAddr {
    match listener {
        Endpoint::Tcp(address) => *address,
        Endpoint::Unix(path) => panic!("{path:?} is no address"),
    }
}
