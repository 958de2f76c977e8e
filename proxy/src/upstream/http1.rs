//! One HTTP/1.1 connection to a worker.

use std::any::Any;
use std::cell::Cell;
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
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::handed_over::{HeadFuture, Outgoing};
use super::quota::QuotaPermit;
use super::turns::Turns;
use crate::in_place::pinned;
use crate::wire::{HTTP1_BUFFER_BYTES, Socket};

/// What a worker may send up to the end of its response's head, interim answers (1xx) included.
const BEFORE_HEAD_BYTES_MAX: u64 = 1024 * 1024;

/// How many fields of a response hyper takes by itself.
const HYPER_HEADERS_MAX: usize = 100;

/// One HTTP/1.1 connection to a worker. Closed, it ends by a reset, unless all that was begun on it
/// has ended.
pub(super) struct Http1 {
    sender: SendRequest<Outgoing>,
    socket: Socket,
    turns: Rc<Turns>,
    /// How much had been read when a request went out whose response has no head yet.
    read_before_head: Rc<Cell<Option<u64>>>,
    driver: JoinHandle<Bytes>,
    /// When it was opened.
    pub(super) opened: Instant,
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
    _counted: (Rc<QuotaPermit>, Box<dyn Any>),
}

impl Http1 {
    /// Makes a socket a connection, which is ready for a request.
    pub(super) async fn new(
        socket: Socket,
        made_with: Option<Arc<ClientConfig>>,
        counted: (Rc<QuotaPermit>, Box<dyn Any>),
        headers_max: usize,
    ) -> hyper::Result<Box<Http1>> {
        let io = TokioIo::new(socket.clone());
        let mut builder = Builder::new();
        builder.max_buf_size(HTTP1_BUFFER_BYTES);
        // hyper joins the lines of a folded value by spaces: it has one reading then.
        builder.allow_obsolete_multiline_headers_in_responses(true);
        if headers_max > HYPER_HEADERS_MAX {
            builder.max_headers(headers_max); // Costs an allocation for each response.
        }
        let (mut sender, connection) = builder.handshake(io).await?;
        let (turns, read_before_head) = (Rc::<Turns>::default(), Rc::default());
        let driver = tokio::task::spawn_local(drive(
            connection,
            socket.clone(),
            Rc::clone(&turns),
            Rc::clone(&read_before_head),
        ));
        let ready = sender.ready().await;
        let (opened, is_clean) = (Instant::now(), true);
        let connection = Http1 {
            sender,
            socket,
            turns,
            read_before_head,
            driver,
            opened,
            idle_since: opened,
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
            && !self.turns.have_ended()
            && !self.is_spoilt
            && self.socket.is_quiet()
    }

    /// How its TLS was made.
    pub(super) fn made_with(&self) -> Option<&Arc<ClientConfig>> {
        self.made_with.as_ref()
    }

    pub(super) fn socket(&self) -> &Socket {
        &self.socket
    }

    pub(super) fn turns(&self) -> &Rc<Turns> {
        &self.turns
    }

    /// Hands a request to hyper, which writes it in the next turn.
    pub(super) fn send(&mut self, request: Request<Outgoing>) -> HeadFuture {
        self.is_clean = false;
        self.read_before_head.set(Some(self.socket.bytes_read()));
        pinned(|| self.sender.try_send_request(request))
    }

    /// The head of the response has come.
    pub(super) fn answered(&self) {
        self.read_before_head.set(None);
    }

    /// What hyper has read and not used, once it has ended.
    pub(super) async fn unread(&mut self) -> Bytes {
        (&mut self.driver).await.unwrap_or_default()
    }

    /// Whether it was kept after an earlier request, and has brought nothing for this one.
    pub(super) fn was_closed_while_kept(&self) -> bool {
        self.idle_since > self.opened
            && self.read_before_head.get() == Some(self.socket.bytes_read())
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
        self.socket.shut_write();
    }

    /// Has it end in order when it is closed: both sides have ended what was spoken after HTTP.
    pub(super) fn ends_in_order(&mut self) {
        self.is_clean = true;
    }

    /// The socket and what was read of it beyond HTTP, once hyper has left it after a `101`.
    pub(super) async fn leave_http(&mut self) -> (Socket, Bytes) {
        (self.socket.clone(), self.unread().await)
    }
}

impl Drop for Http1 {
    fn drop(&mut self) {
        // Not left to the file's end: others may have a handle of the socket.
        if self.is_clean {
            self.socket.end_in_order();
        } else {
            self.socket.reset();
        }
        self.driver.abort();
    }
}

/// Reads and writes until hyper has ended. Returns what hyper had read beyond HTTP.
async fn drive(
    mut connection: Connection<TokioIo<Socket>, Outgoing>,
    socket: Socket,
    turns: Rc<Turns>,
    read_before_head: Rc<Cell<Option<u64>>>,
) -> Bytes {
    // Also when this task is ended from outside.
    let turns = guard(turns, |turns| turns.end());
    poll_fn(|cx| {
        let polled = connection.poll_without_shutdown(cx);
        turns.end_one(!socket.is_write_blocked());
        // A worker that says more and more without having answered would keep the thread busy.
        let before = read_before_head.get();
        let babbles =
            before.is_some_and(|before| socket.bytes_read() - before > BEFORE_HEAD_BYTES_MAX);
        if babbles { Poll::Ready(()) } else { polled.map(drop) }
    })
    .await;
    connection.into_parts().read_buf
}
