//! What is read and written: in the clear, or by TLS.

use std::io;
use std::net::Shutdown;
use std::pin::Pin;

use super::tls::Tls;
use super::transport::{Io, Transport};

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
    pub(super) fn io(&mut self) -> Pin<&mut dyn Io> {
        match self {
            Stream::Clear(transport) => Pin::new(transport),
            Stream::Tls(tls) => Pin::new(&mut **tls),
        }
    }

    pub(super) fn transport(&self) -> &Transport {
        match self {
            Stream::Clear(transport) => transport,
            Stream::Tls(tls) => tls.transport(),
        }
    }

    /// What the other side has done, as far as the kernel knows. Of TLS, records that carry no
    /// bytes of ours, such as session tickets, are taken in.
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
