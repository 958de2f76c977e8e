//! What is read and written: in the clear, or by TLS.

use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::tls::Tls;
use super::transport::Transport;

/// A stream of bytes in the clear or by TLS, whichever side of it we are.
pub(super) enum Stream {
    Clear(Transport),
    /// Boxed: it is many times larger.
    Tls(Box<Tls>),
}

/// What the other side has done that was not read yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum News {
    Nothing,
    Bytes,
    /// It has ended its side, or the connection is lost.
    End,
}

impl Stream {
    pub(super) fn transport(&self) -> &Transport {
        match self {
            Stream::Clear(transport) => transport,
            Stream::Tls(tls) => tls.transport(),
        }
    }

    /// What the other side has done, as far as the kernel knows. Of TLS, records that carry no bytes of ours, such as
    /// session tickets, are taken in.
    pub(super) fn news(&mut self) -> News {
        match self {
            Stream::Clear(transport) => match transport.peek() {
                Ok(0) => News::End,
                Ok(_) => News::Bytes,
                Err(error) => nothing_or_end(&error),
            },
            Stream::Tls(tls) => tls.news(),
        }
    }

    /// What has ended TLS, if it is TLS and has ended by a fault.
    pub(super) fn tls_failure(&mut self) -> Option<rustls::Error> {
        match self {
            Stream::Clear(_) => None,
            Stream::Tls(tls) => tls.failure(),
        }
    }

    /// Whether something that was written waits for the other side to read.
    pub(super) fn is_behind(&self) -> bool {
        match self {
            Stream::Clear(_) => false,
            Stream::Tls(tls) => tls.is_behind(),
        }
    }

    /// Ends our side. What was flushed arrives before the end.
    pub(super) fn end_write(&mut self) {
        if let Stream::Tls(tls) = self {
            tls.say_end();
        }
        self.transport().shut(Shutdown::Write);
    }
}

pub(super) fn nothing_or_end(error: &io::Error) -> News {
    if error.kind() == io::ErrorKind::WouldBlock { News::Nothing } else { News::End }
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Stream::Clear(transport) => Pin::new(transport).poll_read(cx, buffer),
            Stream::Tls(tls) => Pin::new(tls).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut *self {
            Stream::Clear(transport) => Pin::new(transport).poll_write(cx, bytes),
            Stream::Tls(tls) => Pin::new(tls).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut *self {
            Stream::Clear(transport) => Pin::new(transport).poll_write_vectored(cx, slices),
            Stream::Tls(tls) => Pin::new(tls).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Stream::Clear(transport) => Pin::new(transport).poll_flush(cx),
            Stream::Tls(tls) => Pin::new(tls).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Stream::Clear(transport) => Pin::new(transport).poll_shutdown(cx),
            Stream::Tls(tls) => Pin::new(tls).poll_shutdown(cx),
        }
    }
}
