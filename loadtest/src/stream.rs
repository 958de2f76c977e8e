//! A connection to the proxy, below HTTP.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context as Turn, Poll};
use std::time::Duration;

use anyhow::{Context, ensure};
use futures_util::FutureExt;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::coop::unconstrained;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::client::Protocol;
use crate::target::Target;

/// How long connecting may take, the handshake of TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// A connection, in the clear or by TLS.
pub(crate) enum Stream {
    Clear(TcpStream),
    Secure(Box<TlsStream<TcpStream>>),
}

impl Stream {
    /// Connects to speak that.
    ///
    /// # Errors
    /// Nobody is there, or not who should be, or speaks something else, or nothing at all in time.
    pub(crate) async fn open(target: &Target, protocol: Protocol) -> anyhow::Result<Stream> {
        let opened = timeout(CONNECT_TIMEOUT, Stream::connect(target, protocol)).await;
        opened.with_context(|| format!("{target} does not take the connection within {CONNECT_TIMEOUT:?}"))?
    }

    async fn connect(target: &Target, protocol: Protocol) -> anyhow::Result<Stream> {
        let stream = TcpStream::connect(target.authority()).await;
        let stream = stream.with_context(|| format!("cannot connect to {target}: does fencepost run there?"))?;
        stream.set_nodelay(true)?;
        let Some(tls) = target.tls() else { return Ok(Stream::Clear(stream)) };
        let connector = TlsConnector::from(tls.config(protocol));
        let stream = connector.connect(tls.server_name(), stream).await;
        let stream = stream.with_context(|| format!("no TLS with {target}"))?;
        // Without ALPN, HTTP/1.1 is what is spoken (RFC 9113, section 3.2).
        let speaks_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        ensure!(speaks_http2 || protocol == Protocol::Http1, "{target} does not speak HTTP/2 by TLS");
        Ok(Stream::Secure(Box::new(stream)))
    }

    /// Whether nothing has come since the last answer: neither the connection's end nor what nobody asked for.
    pub(crate) fn is_quiet(&mut self) -> bool {
        // Outside of the task's budget: without any left, every connection would look quiet.
        unconstrained(self.read(&mut [0])).now_or_never().is_none()
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, turn: &mut Turn<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Clear(stream) => Pin::new(stream).poll_read(turn, buffer),
            Stream::Secure(stream) => Pin::new(stream).poll_read(turn, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, turn: &mut Turn<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Clear(stream) => Pin::new(stream).poll_write(turn, bytes),
            Stream::Secure(stream) => Pin::new(stream).poll_write(turn, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        turn: &mut Turn<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Clear(stream) => Pin::new(stream).poll_write_vectored(turn, slices),
            Stream::Secure(stream) => Pin::new(stream).poll_write_vectored(turn, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Stream::Clear(stream) => stream.is_write_vectored(),
            Stream::Secure(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, turn: &mut Turn<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Clear(stream) => Pin::new(stream).poll_flush(turn),
            Stream::Secure(stream) => Pin::new(stream).poll_flush(turn),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, turn: &mut Turn<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Clear(stream) => Pin::new(stream).poll_shutdown(turn),
            Stream::Secure(stream) => Pin::new(stream).poll_shutdown(turn),
        }
    }
}
