//! One HTTP/1.1 connection to a worker.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{Builder, Connection, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use tokio::io::AsyncReadExt as _;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::body_state::BodyState;
use super::pool::Place;
use super::request_body::RequestBody;
use crate::in_place::pinned;
use crate::wire::{Alarm, Gathered, HTTP1_BUFFER_BYTES, Nested, Outbox, Socket, Turns};

/// Of a connection whose last response ended so recently the runtime alone is asked whether the worker has closed it: the kernel may have
/// heard since the runtime's last look, but to ask it for each request is 2 % of what a GET costs. A worker that closes now is missed all
/// the same, as long as its word and our request may cross on the wire.
const JUST_NOW: Duration = Duration::from_millis(1);

/// What hyper gives for a request: a head, or the request back if nothing of it was sent.
///
/// Boxed, so that it can move to a task of its own when the client leaves.
pub(super) type HeadFuture =
    Pin<Box<dyn Future<Output = Result<Response<Incoming>, TrySendError<Request<RequestBody>>>>>>;

/// One HTTP/1.1 connection to a worker.
///
/// It has no task of its own: whoever waits for the response drives it, so that a request is written, its response read
/// and passed on without waking another task. Only while a body is streamed a task drives it, because then one direction
/// must go on while the other is held up.
pub(super) struct Http1 {
    sender: SendRequest<RequestBody>,
    driver: Driver,
    pub(super) alarm: Alarm,
    nested: Nested,
    /// When its last response ended; when it was opened, if there was none.
    pub(super) idle_since: Instant,
    /// `None`: without TLS.
    made_with: Option<Arc<ClientConfig>>,
    /// Whether its last response could be read in two ways, so that what comes behind it is not to be trusted.
    is_spoilt: bool,
    /// Whether its next request is not to wait for others.
    is_urgent: bool,
    place: Place,
}

/// What a connection is good for when a response on it has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Remains {
    /// Another request.
    Usable,
    /// Nothing, being spoilt, though the whole of the request was written before the response ended.
    Spoilt,
    /// Nothing.
    Broken,
}

/// Drives hyper's connection, and closes it at once when dropped.
struct Driver {
    seat: Rc<RefCell<Seat>>,
    socket: Socket,
    turns: Turns<Socket>,
    outbox: Outbox,
    /// Whether what is written waits for the end of the thread's turn.
    writes_with_others: bool,
    /// Whether all that was begun on it has ended, and nothing is left to be written: closed, it ends in order, and else by a reset.
    is_clean: bool,
    task: Option<JoinHandle<()>>,
}

/// What comes first when a connection is driven and somebody waits for what that brings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum First {
    /// Reading and writing.
    Drive,
    /// Asking for more, the connection having been driven just before: what is not asked for is not read. To drive it first all the
    /// same would be 2 % of what a GET costs.
    Ask,
}

enum Seat {
    Driven(Box<Connection<TokioIo<Gathered<Socket, Socket>>, RequestBody>>),
    /// hyper has ended. What it had read beyond HTTP is left.
    Ended {
        read_beyond: Bytes,
    },
}

impl Http1 {
    /// Makes a socket a connection. Nothing is exchanged yet.
    pub(super) async fn new(
        socket: Socket,
        made_with: Option<Arc<ClientConfig>>,
        place: Place,
        outbox: Outbox,
    ) -> hyper::Result<Http1> {
        let turns = Turns::new(socket.clone());
        let io = TokioIo::new(turns.gather(socket.clone()));
        let (sender, connection) = Builder::new().max_buf_size(HTTP1_BUFFER_BYTES).handshake(io).await?;
        let seat = Rc::new(RefCell::new(Seat::Driven(Box::new(connection))));
        let driver = Driver { seat, socket, turns, outbox, writes_with_others: true, is_clean: true, task: None };
        let (alarm, nested, idle_since) = (Alarm::new(), Nested::default(), Instant::now());
        let mut connection =
            Http1 { sender, driver, alarm, nested, idle_since, made_with, is_spoilt: false, is_urgent: false, place };
        // hyper takes no connection for ready that was never driven. One that is held while its request waits, or given up unused, would
        // be made once more, each in its turn.
        connection.drive_idle();
        Ok(connection)
    }

    /// Whether a request may be sent: the last response has ended, and the worker is not known to have closed.
    pub(super) fn is_usable(&self) -> bool {
        self.sender.is_ready() && self.driver.is_driven()
    }

    /// Whether the worker has neither closed nor said more.
    pub(super) fn is_quiet(&self, idle_for: Duration) -> bool {
        let socket = &self.driver.socket;
        if idle_for < JUST_NOW { socket.is_quiet_as_heard() } else { socket.is_quiet() }
    }

    /// How its TLS was made.
    pub(super) fn made_with(&self) -> Option<&Arc<ClientConfig>> {
        self.made_with.as_ref()
    }

    pub(super) fn socket(&self) -> &Socket {
        &self.driver.socket
    }

    /// Has the next request written as soon as it is sent.
    pub(super) fn write_at_once(&mut self) {
        self.is_urgent = true;
    }

    /// Hands a request to hyper. The next [`Http1::poll_driven`] writes it, or has the outbox do so, unless its body is streamed.
    pub(super) fn send(&mut self, request: Box<Request<RequestBody>>) -> HeadFuture {
        self.driver.is_clean = false;
        let state = request.body().state().cloned();
        let head = pinned(|| self.sender.try_send_request(*request));
        self.driver.writes_with_others = !std::mem::take(&mut self.is_urgent);
        if let Some(state) = state {
            state.goes_to(self.driver.socket.clone());
            self.driver.move_to_task(state);
        }
        head
    }

    /// Reads and writes what can be, and polls `next`, which waits for what that brings; in which order, `first` says.
    pub(super) fn poll_driven<T>(
        &mut self,
        cx: &mut Context<'_>,
        first: First,
        mut next: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        if self.driver.task.is_some() {
            return next(cx);
        }
        let mut drives = first == First::Drive;
        self.nested.poll(cx, |cx| {
            if std::mem::replace(&mut drives, true) {
                // Who waits for the response learns of the end by that.
                let _ = self.driver.poll(cx);
            }
            next(cx)
        })
    }

    /// Has it driven by whoever waits for the response from now on, nothing more being sent: what the worker says, they alone look for.
    pub(super) fn drive_where_awaited(&mut self) {
        self.driver.recall();
    }

    /// Reads and writes what can be while nobody waits for anything: whoever used it last is not to be woken when it is used next.
    pub(super) fn drive_idle(&mut self) {
        let _ = poll_seat(&self.driver.seat, &mut Context::from_waker(Waker::noop()));
    }

    /// Sees to it that no other request is sent over it.
    pub(super) fn spoil(&mut self) {
        self.is_spoilt = true;
    }

    /// Whether the worker has not taken all of what it was to be written by now, and may yet.
    pub(super) fn is_held_up(&self) -> bool {
        let socket = &self.driver.socket;
        (self.driver.turns.is_held_up() || socket.is_write_blocked()) && !socket.is_broken()
    }

    /// Whether there is something yet to be written, be it at the end of this turn.
    pub(super) fn has_more_to_write(&self) -> bool {
        let socket = &self.driver.socket;
        (!self.driver.turns.is_all_written() || socket.is_write_blocked()) && !socket.is_broken()
    }

    /// Writes what is left of a request whose response has ended. Ready when nothing is, or the worker has closed.
    pub(super) fn poll_written(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let _: Poll<()> = self.poll_driven(cx, First::Drive, |_| Poll::Pending);
        if !self.is_held_up() {
            self.driver.turns.write_out(cx); // The last piece does not wait for the end of the turn: the connection may be closed by then.
        }
        if self.has_more_to_write() && self.driver.is_driven() { Poll::Pending } else { Poll::Ready(()) }
    }

    /// Writes nothing more, if the worker has not taken all of the request.
    pub(super) fn stop_writing(&self) {
        if self.has_more_to_write() {
            self.driver.socket.cut_write();
        }
    }

    /// What it is good for, its response having ended.
    pub(super) fn remains(&mut self) -> Remains {
        self.driver.recall();
        self.nested.leave();
        // Asked first: driven, it would write what is left.
        let is_all_written = self.driver.turns.is_all_written();
        if !self.sender.is_ready() {
            self.drive_idle();
        }
        let socket = &self.driver.socket;
        let everything_is_written = is_all_written && !socket.is_write_blocked() && !socket.is_broken();
        self.driver.is_clean = everything_is_written;
        if !everything_is_written {
            Remains::Broken
        } else if self.is_spoilt {
            Remains::Spoilt
        } else if self.sender.is_ready() && self.driver.is_driven() {
            Remains::Usable
        } else {
            Remains::Broken
        }
    }

    /// Closes it by its end and a reset behind that, so that the kernel keeps nothing of it: the side that closes first would keep its port for
    /// a minute (TIME_WAIT), of which there are 28,000 to a worker. The worker must have read all that was written.
    pub(super) fn close_without_trace(mut self) {
        self.driver.is_clean = false;
        self.driver.socket.shut_write();
    }

    /// Has it end in order when it is closed: both sides have ended what was spoken after HTTP.
    pub(super) fn ends_in_order(&mut self) {
        self.driver.is_clean = true;
    }

    /// Completes when the worker has closed its side, or has been lost. Nothing more is written, and what the worker says is no answer to
    /// anything.
    pub(super) async fn closed(&mut self) {
        self.driver.leave_http();
        let mut said = [0; 1024];
        while let Ok(1..) = self.driver.socket.clone().read(&mut said).await {}
    }

    /// Its place in the pool, for another connection.
    pub(super) fn into_place(self) -> Place {
        self.place
    }

    /// The socket and what was read of it beyond HTTP, once hyper has left it after a `101`.
    pub(super) async fn leave_http(&mut self) -> (Socket, Bytes) {
        self.driver.recall();
        let seat = &self.driver.seat;
        poll_fn(|cx| poll_seat(seat, cx)).await;
        let read_beyond = match &mut *seat.borrow_mut() {
            Seat::Ended { read_beyond } => std::mem::take(read_beyond),
            Seat::Driven(_) => Bytes::new(),
        };
        (self.driver.socket.clone(), read_beyond)
    }
}

impl Driver {
    fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.writes_with_others {
            self.turns.poll(cx, &self.outbox, |cx| poll_seat(&self.seat, cx))
        } else {
            poll_seat(&self.seat, cx)
        }
    }

    fn is_driven(&self) -> bool {
        matches!(&*self.seat.borrow(), Seat::Driven(_))
    }

    fn move_to_task(&mut self, body: Rc<BodyState>) {
        let (seat, socket) = (self.seat.clone(), self.socket.clone());
        self.task = Some(tokio::task::spawn_local(poll_fn(move |cx| {
            // hyper writes what it has of the body before it asks for more.
            poll_seat_after(&seat, cx, || {
                if socket.is_write_blocked() && !socket.is_broken() {
                    body.look_before_writing();
                }
            })
        })));
    }

    fn recall(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
    }

    /// Drops hyper's connection, and with it the body that it may have of a client.
    fn leave_http(&mut self) {
        self.recall();
        // A task that was recalled still has the seat for a moment.
        *self.seat.borrow_mut() = Seat::Ended { read_beyond: Bytes::new() };
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // Not left to the file's end: others may have a handle of the socket.
        if self.is_clean {
            self.socket.end_in_order();
        } else {
            self.socket.reset();
        }
        self.leave_http();
    }
}

fn poll_seat(seat: &RefCell<Seat>, cx: &mut Context<'_>) -> Poll<()> {
    poll_seat_after(seat, cx, || ())
}

/// The same, after a look that may end our side of the connection.
fn poll_seat_after(seat: &RefCell<Seat>, cx: &mut Context<'_>, look: impl FnOnce()) -> Poll<()> {
    let mut seat = seat.borrow_mut();
    // It has no seat while it is driven: one that panics does not get it back, and whoever waits for its response hears the end.
    let mut connection = match std::mem::replace(&mut *seat, Seat::Ended { read_beyond: Bytes::new() }) {
        Seat::Driven(connection) => connection,
        ended @ Seat::Ended { .. } => {
            *seat = ended;
            return Poll::Ready(());
        }
    };
    look();
    if connection.poll_without_shutdown(cx).is_pending() {
        *seat = Seat::Driven(connection);
        return Poll::Pending;
    }
    *seat = Seat::Ended { read_beyond: connection.into_parts().read_buf };
    Poll::Ready(())
}

#[cfg(test)]
#[path = "http1_tests.rs"]
mod tests;
