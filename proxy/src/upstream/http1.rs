//! One HTTP/1.1 connection to a worker.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use http::Request;
use hyper::client::conn::http1::{Builder, Connection, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use scopeguard::guard;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::handed_over::{HeadFuture, Outgoing};
use super::quota::QuotaPermit;
use super::turns::Turns;
use crate::in_place::pinned;
use crate::wire::{HTTP1_BUFFER_BYTES, Socket};

/// What a worker may send up to the end of its response's head, interim answers (1xx) included.
const BEFORE_HEAD_BYTES_MAX: u64 = 1024 * 1024;

/// One HTTP/1.1 connection to a worker. Closed, it ends by a reset, unless all that was begun on it
/// has ended.
pub(super) struct Http1 {
    sender: SendRequest<Outgoing>,
    driven: Rc<Driven>,
    driver: AbortHandle,
    /// When its last response ended; when it was opened, if there was none.
    pub(super) idle_since: Instant,
    /// `None`: without TLS.
    made_with: Option<Arc<ClientConfig>>,
    /// Whether its last response could be read in two ways. What comes after such a response is not
    /// trusted.
    is_spoilt: bool,
    /// Whether all that was begun on it has ended, and nothing is left to be written.
    is_clean: bool,
    /// Count the connection in its pool and in all.
    _counted: (QuotaPermit, Box<dyn Any>),
}

/// What the connection and the task that drives it share.
struct Driven {
    socket: Socket,
    turns: Rc<Turns>,
    /// How much had been read when a request went out whose response has no head yet.
    read_before_head: Cell<Option<u64>>,
    /// What hyper had read beyond HTTP when it ended.
    read_beyond: RefCell<Bytes>,
}

impl Http1 {
    /// Makes a socket a connection, which is ready for a request.
    pub(super) async fn new(
        socket: Socket,
        made_with: Option<Arc<ClientConfig>>,
        counted: (QuotaPermit, Box<dyn Any>),
    ) -> hyper::Result<Box<Http1>> {
        let io = TokioIo::new(socket.clone());
        let (mut sender, connection) =
            Builder::new().max_buf_size(HTTP1_BUFFER_BYTES).handshake(io).await?;
        let driven = Rc::new(Driven {
            socket,
            turns: Rc::default(),
            read_before_head: Cell::new(None),
            read_beyond: RefCell::default(),
        });
        let driver = tokio::task::spawn_local(drive(connection, Rc::clone(&driven))).abort_handle();
        let ready = sender.ready().await;
        let (idle_since, is_clean) = (Instant::now(), true);
        let connection = Http1 {
            sender,
            driven,
            driver,
            idle_since,
            made_with,
            is_spoilt: false,
            is_clean,
            _counted: counted,
        };
        ready.map(|()| Box::new(connection))
    }

    /// Whether a request may be sent: the last response has ended, and the worker has neither
    /// closed nor said more.
    pub(super) fn is_usable(&self) -> bool {
        self.sender.is_ready()
            && !self.driven.turns.have_ended()
            && !self.is_spoilt
            && self.socket().is_quiet()
    }

    /// How its TLS was made.
    pub(super) fn made_with(&self) -> Option<&Arc<ClientConfig>> {
        self.made_with.as_ref()
    }

    pub(super) fn socket(&self) -> &Socket {
        &self.driven.socket
    }

    pub(super) fn turns(&self) -> &Rc<Turns> {
        &self.driven.turns
    }

    /// Hands a request to hyper, which writes it in the next turn.
    pub(super) fn send(&mut self, request: Request<Outgoing>) -> HeadFuture {
        self.is_clean = false;
        self.driven.read_before_head.set(Some(self.socket().bytes_read()));
        pinned(|| self.sender.try_send_request(request))
    }

    /// The head of the response has come.
    pub(super) fn answered(&self) {
        self.driven.read_before_head.set(None);
    }

    /// Sees to it that no other request is sent over it.
    pub(super) fn spoil(&mut self) {
        self.is_spoilt = true;
    }

    /// The request is written and its response has ended. `None` if it can carry no other: it is
    /// closed then, in order.
    pub(super) fn end_exchange(mut self: Box<Self>, has_body: bool) -> Option<Box<Http1>> {
        self.is_clean = true;
        self.idle_since = Instant::now();
        if !self.is_spoilt {
            return Some(self);
        }
        // Having answered, the worker has read the head. A body it may be reading yet.
        if !has_body {
            self.close_without_trace();
        }
        None
    }

    /// Whether hyper has seen the end of the last exchange.
    pub(super) fn is_ready(&self) -> bool {
        self.sender.is_ready()
    }

    /// Waits for that. `None` if hyper ends the connection instead.
    pub(super) async fn until_ready(mut self: Box<Self>) -> Option<Box<Http1>> {
        self.sender.ready().await.ok().map(|()| self)
    }

    /// Closes it by its end and a reset behind that, so that the kernel keeps nothing of it: the
    /// side that closes first would keep its port for a minute (TIME_WAIT), of which there are
    /// 28,000 to a worker. The worker must have read all that was written.
    fn close_without_trace(&mut self) {
        self.is_clean = false;
        self.socket().shut_write();
    }

    /// Has it end in order when it is closed: both sides have ended what was spoken after HTTP.
    pub(super) fn ends_in_order(&mut self) {
        self.is_clean = true;
    }

    /// The socket and what was read of it beyond HTTP, once hyper has left it after a `101`.
    pub(super) async fn leave_http(&mut self) -> (Socket, Bytes) {
        let turns = &self.driven.turns;
        turns.until(|| turns.have_ended()).await;
        (self.driven.socket.clone(), self.driven.read_beyond.take())
    }
}

impl Drop for Http1 {
    fn drop(&mut self) {
        // Not left to the file's end: others may have a handle of the socket.
        if self.is_clean {
            self.socket().end_in_order();
        } else {
            self.socket().reset();
        }
        self.driver.abort();
    }
}

impl Driven {
    /// Whether the worker says more and more without having answered, which would keep the thread
    /// busy.
    fn is_babble(&self) -> bool {
        let before = self.read_before_head.get();
        before.is_some_and(|before| self.socket.bytes_read() - before > BEFORE_HEAD_BYTES_MAX)
    }
}

/// Reads and writes until hyper has ended.
async fn drive(mut connection: Connection<TokioIo<Socket>, Outgoing>, driven: Rc<Driven>) {
    // Also when this task is ended from outside.
    let driven = guard(driven, |driven| driven.turns.end());
    poll_fn(|cx| {
        let polled = connection.poll_without_shutdown(cx);
        driven.turns.end_one(!driven.socket.is_write_blocked());
        if driven.is_babble() { Poll::Ready(()) } else { polled.map(drop) }
    })
    .await;
    *driven.read_beyond.borrow_mut() = connection.into_parts().read_buf;
}
