//! A connection that can be looked at and shut while hyper owns it.

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;
use tokio_rustls::{TlsStream, client, server};

use super::stream::{News, Stream};
use super::tls::Tls;
use super::transport::Transport;

/// A TCP or unix socket, in the clear or by TLS, with several handles on one thread: hyper reads
/// and writes through one, the others look at it or shut it.
///
/// The file is closed with the last handle.
#[derive(Clone)]
pub struct Socket {
    shared: Rc<Shared>,
}

struct Shared {
    stream: RefCell<Stream>,
    /// Bytes that were read before hyper got the socket, and are to be read first.
    unread: RefCell<Bytes>,
    state: Cell<State>,
    on_write_error: OnWriteError,
}

#[derive(Clone, Copy, Default)]
struct State {
    /// Since when the other side's reading holds up our writing, if it does.
    write_blocked_since: Option<Instant>,
    /// Bytes written.
    written: u64,
    /// When the kernel last took any of them.
    last_write: Option<Instant>,
    /// Bytes read.
    read: u64,
    /// Whether nothing that is written arrives any more.
    is_broken: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum OnWriteError {
    Report,
    ReadOn,
}

impl Socket {
    /// A client's connection in the clear.
    pub fn downstream(transport: Transport) -> Socket {
        Socket::new(Stream::Clear(transport), OnWriteError::Report)
    }

    /// A connection to a worker.
    ///
    /// A worker may answer before it has read the whole request, and close. What is written after
    /// that fails, while its answer waits to be read. So here a failed write is no error: the rest
    /// of the request goes nowhere, and the reading side tells whether there is an answer.
    pub fn upstream(transport: Transport) -> Socket {
        Socket::new(Stream::Clear(transport), OnWriteError::ReadOn)
    }

    /// A client's connection whose handshake is done.
    pub fn downstream_tls(stream: server::TlsStream<Transport>) -> Socket {
        Socket::new(
            Stream::Tls(Box::new(Tls::new(TlsStream::Server(stream)))),
            OnWriteError::Report,
        )
    }

    /// A connection to a worker whose handshake is done; see [`Socket::upstream`].
    pub fn upstream_tls(stream: client::TlsStream<Transport>) -> Socket {
        Socket::new(
            Stream::Tls(Box::new(Tls::new(TlsStream::Client(stream)))),
            OnWriteError::ReadOn,
        )
    }

    fn new(stream: Stream, on_write_error: OnWriteError) -> Socket {
        Socket {
            shared: Rc::new(Shared {
                stream: RefCell::new(stream),
                unread: RefCell::new(Bytes::new()),
                state: Cell::default(),
                on_write_error,
            }),
        }
    }

    /// Gives back bytes that were read: they are read again, first.
    pub fn unread(&self, bytes: Bytes) {
        *self.shared.unread.borrow_mut() = bytes;
    }

    /// Whether the other side has neither sent anything nor closed. Asks the kernel: what it says
    /// is newer than what the runtime has heard.
    pub fn is_quiet(&self) -> bool {
        self.news() == News::Nothing
    }

    /// Whether the other side has sent something that was not read. Asks the kernel.
    pub fn has_sent(&self) -> bool {
        self.news() == News::Bytes
    }

    /// Whether the other side has not closed, as far as can be seen before what it sent is read.
    pub fn is_open(&self) -> bool {
        self.news() != News::End
    }

    /// What has ended TLS, if it is TLS and has ended by a fault. hyper and h2 do not always pass
    /// it on.
    pub fn tls_failure(&self) -> Option<rustls::Error> {
        self.shared.stream.borrow_mut().tls_failure()
    }

    /// Ready when the other side has ended. Does not look behind bytes that are unread.
    pub fn poll_end(&self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(self.shared.stream.borrow().transport().poll_readable(cx));
            match self.news() {
                News::End => return Poll::Ready(()),
                News::Bytes => return Poll::Pending,
                News::Nothing => self.shared.stream.borrow().transport().is_drained(),
            }
        }
    }

    fn news(&self) -> News {
        self.shared.stream.borrow_mut().news()
    }

    /// Ends our side: the other side reads the end after what was flushed, and nothing more is ever
    /// written.
    pub fn shut_write(&self) {
        self.shared.change(|state| state.is_broken = true);
        self.shared.stream.borrow_mut().end_write();
    }

    /// Ends our side in the middle of what was being written, and nothing more is ever written. By
    /// TLS, the other side sees that something is missing.
    pub fn cut_write(&self) {
        self.shared.change(|state| state.is_broken = true);
        self.shared.stream.borrow().transport().shut(Shutdown::Write);
    }

    /// Resets the connection, whatever other handles there are: the kernel delivers nothing more of
    /// what was written. A unix socket is shut down both ways.
    pub fn reset(&self) {
        self.shared.change(|state| state.is_broken = true);
        self.shared.stream.borrow().transport().reset();
    }

    /// Ends a worker's connection in order: the kernel delivers all that was written, and the end
    /// behind it, after the socket is closed. Any other connection to a worker is reset when it is
    /// closed.
    ///
    /// # Contract
    ///
    /// Only for a connection on which all that was begun has ended: no request, no orphan, nothing
    /// cut, and nothing unwritten.
    pub fn end_in_order(&self) {
        self.deliver_when_closed();
        self.shut_write();
    }

    /// Like [`end_in_order`](Self::end_in_order), where somebody else writes the end.
    pub fn deliver_when_closed(&self) {
        self.shared.stream.borrow().transport().deliver_when_closed();
    }

    /// When the kernel last took bytes that it may deliver late. `None` if it took none, or
    /// delivers at once, as on a unix socket.
    pub fn last_write(&self) -> Option<Instant> {
        let last_write = self.shared.state.get().last_write;
        // By TLS, a write that is not finished may have begun: the kernel has a part of it.
        let last_write = if self.is_write_blocked() { Some(Instant::now()) } else { last_write };
        last_write.filter(|_| self.shared.stream.borrow().transport().may_deliver_late())
    }

    /// Has the other side see a reset when this is closed, not an end. Unix sockets know no
    /// difference.
    pub fn end_by_reset(&self) {
        self.shared.stream.borrow().transport().reset_when_closed();
    }

    /// Has the kernel ask the other side, when nothing has moved for some time, whether it is still
    /// there. Without an answer the connection is lost. On a unix socket it does nothing.
    pub fn keep_alive(&self) {
        self.shared.stream.borrow().transport().keep_alive();
    }

    /// Whether the last write could not be finished because the other side does not read.
    pub fn is_write_blocked(&self) -> bool {
        self.write_blocked_since().is_some()
    }

    /// Since when no write could be finished because the other side does not read.
    pub fn write_blocked_since(&self) -> Option<Instant> {
        self.shared.state.get().write_blocked_since
    }

    /// Whether nothing that is written arrives any more.
    pub fn is_broken(&self) -> bool {
        self.shared.state.get().is_broken
    }

    /// Bytes moved either way over the wire so far, those of TLS itself among them: a change shows
    /// that the connection goes on.
    pub fn bytes_moved(&self) -> u64 {
        self.shared.stream.borrow().transport().bytes_moved()
    }

    /// Bytes written so far.
    pub fn bytes_written(&self) -> u64 {
        self.shared.state.get().written
    }

    /// Bytes read so far.
    pub fn bytes_read(&self) -> u64 {
        self.shared.state.get().read
    }

    /// Takes down what a write came to, and what the writer is to believe.
    fn wrote(&self, wanted: usize, result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        let shared = &*self.shared;
        match result {
            Poll::Ready(Ok(written)) => {
                let is_behind = shared.stream.borrow().is_behind();
                shared.change(|state| {
                    state.block_writes(is_behind);
                    state.written = state.written.wrapping_add(written as u64);
                    if shared.on_write_error == OnWriteError::ReadOn {
                        state.last_write = Some(Instant::now());
                    }
                });
                Poll::Ready(Ok(written))
            }
            Poll::Ready(Err(error)) if shared.on_write_error == OnWriteError::Report => {
                Poll::Ready(Err(error))
            }
            Poll::Ready(Err(_)) => {
                shared.change(|state| {
                    state.block_writes(false);
                    state.is_broken = true;
                });
                Poll::Ready(Ok(wanted))
            }
            Poll::Pending => {
                shared.change(|state| state.block_writes(true));
                Poll::Pending
            }
        }
    }

    fn swallows_writes(&self) -> bool {
        self.is_broken() && self.shared.on_write_error == OnWriteError::ReadOn
    }
}

impl Shared {
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.get();
        change(&mut state);
        self.state.set(state);
    }
}

impl State {
    fn block_writes(&mut self, is_blocked: bool) {
        if is_blocked != self.write_blocked_since.is_some() {
            self.write_blocked_since = is_blocked.then(Instant::now);
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let shared = &*self.shared;
        let before = buffer.filled().len();
        let mut unread = shared.unread.borrow_mut();
        if unread.is_empty() {
            ready!(shared.stream.borrow_mut().io().poll_read(cx, buffer))?;
        } else {
            let count = unread.len().min(buffer.remaining());
            buffer.put_slice(&unread[..count]);
            unread.advance(count);
            if unread.is_empty() {
                *unread = Bytes::new(); // Gives the memory back: most connections have read this once and for all.
            }
        }
        let count = (buffer.filled().len() - before) as u64;
        shared.change(|state| state.read = state.read.wrapping_add(count));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.swallows_writes() {
            return Poll::Ready(Ok(bytes.len()));
        }
        let result = self.shared.stream.borrow_mut().io().poll_write(cx, bytes);
        self.wrote(bytes.len(), result)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wanted = slices.iter().map(|slice| slice.len()).sum();
        if self.swallows_writes() {
            return Poll::Ready(Ok(wanted));
        }
        let result = self.shared.stream.borrow_mut().io().poll_write_vectored(cx, slices);
        self.wrote(wanted, result)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Otherwise the kernel has it already.
        if self.shared.stream.borrow().is_behind() && !self.swallows_writes() {
            let flushed = self.shared.stream.borrow_mut().io().poll_flush(cx);
            ready!(self.wrote(0, flushed.map_ok(|()| 0)))?;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = self.shared.stream.borrow_mut().io().poll_shutdown(cx);
        let lenient = self.shared.on_write_error == OnWriteError::ReadOn;
        result.map(|ended| if lenient { Ok(()) } else { ended })
    }
}
