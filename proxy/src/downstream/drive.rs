//! One client connection, from its first byte to its last.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use http::{Request, Response};
use http1_strict::StrictReader;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::join;
use tokio::time::Instant;
use tower::Service;

use super::accept::{Accepted, CountedIn};
use super::answer::AnswerBody;
use super::arrive::{Arrived, arrive};
use super::client_body::ClientBody;
use super::connection::{Connection, Protocol};
use super::frames;
use super::limits::Limits;
use super::lingering_close;
use super::seat::Waiting;
use super::serve::{OnUnreadHead, Stage};
use super::service::ConnectionService;
use super::serving::{ClientIo, Serving};
use super::strict_trailers::{MARKER_LIST_BYTES, StrictTrailers};
use super::tally::Closing;
use super::unread::Streams;
use super::unread_head::UnreadHead;
use super::watch::Watch;
use crate::wire::{Background, HTTP1_BUFFER_BYTES};

/// How many fields of a head hyper reads unless it is told. What it is told makes it clear as many slots one by one for each request,
/// which is 3 % of what a GET costs.
const HEADERS_MAX: usize = 100;
/// How much of a body hyper writes ahead on one HTTP/2 stream.
const BUFFER_BYTES: usize = 64 * 1024;
/// What an HTTP/2 client may send ahead on one stream, and on its connection for each stream that it may have: where that is less, a few
/// uploads that wait for their turn keep all others of their connection from being sent.
const WINDOW_BYTES: u32 = 256 * 1024;
/// What it may on a connection, however few streams that may have: h2 goes by it for how many small frames it keeps.
const CONNECTION_WINDOW_BYTES_MIN: u32 = 4 * 1024 * 1024;
/// The most that HTTP/2 has numbers for (RFC 9113, section 6.9.1).
const WINDOW_BYTES_MAX: u32 = (1 << 31) - 1;

/// What the connections of one worker thread share.
pub(super) struct Thread {
    limits: Rc<Limits>,
    background: Background,
    waiting: Rc<Waiting>,
    stage: Cell<Stage>,
    /// One for each connection, to tell it of a new stage. No connection asks for it but by its own waker.
    wakers: RefCell<HashMap<u64, Waker>>,
    next_id: Cell<u64>,
    on_unread_head: OnUnreadHead,
}

impl Thread {
    pub(super) fn new(
        limits: Limits,
        background: Background,
        waiting: Rc<Waiting>,
        on_unread_head: OnUnreadHead,
    ) -> Rc<Thread> {
        Rc::new(Thread {
            limits: Rc::new(limits),
            background,
            waiting,
            stage: Cell::new(Stage::Serving),
            wakers: RefCell::default(),
            next_id: Cell::new(0),
            on_unread_head,
        })
    }

    pub(super) fn stage(&self) -> Stage {
        self.stage.get()
    }

    pub(super) fn move_to(&self, stage: Stage) {
        self.stage.set(stage);
        for waker in self.wakers.borrow().values() {
            waker.wake_by_ref();
        }
    }
}

/// Wakes one connection's task when the stage changes.
struct StageWatch {
    thread: Rc<Thread>,
    id: u64,
}

impl StageWatch {
    async fn new(thread: Rc<Thread>) -> StageWatch {
        let id = thread.next_id.get();
        thread.next_id.set(id + 1);
        let waker = poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
        thread.wakers.borrow_mut().insert(id, waker);
        StageWatch { thread, id }
    }

    fn stage(&self) -> Stage {
        self.thread.stage()
    }

    /// Waits until nothing new is to begin.
    async fn closing(&self) {
        poll_fn(|_| if self.stage() >= Stage::Closing { Poll::Ready(()) } else { Poll::Pending }).await;
    }
}

impl Drop for StageWatch {
    fn drop(&mut self) {
        self.thread.wakers.borrow_mut().remove(&self.id);
    }
}

/// A connection whose first bytes are there.
struct Begun {
    connection: Rc<Connection>,
    stage: StageWatch,
    started: Instant,
    _counted: CountedIn,
}

/// Waits for a connection's first bytes; `None` if it has ended before.
async fn begin(accepted: Accepted, thread: Rc<Thread>) -> Option<Begun> {
    let Accepted { stream, tls, counted: _counted, place } = accepted;
    let seat = thread.waiting.seat(place);
    let stage = StageWatch::new(thread.clone()).await;
    let arrived = tokio::select! {
        biased;
        arrived = arrive(stream, tls, &thread.limits) => arrived,
        () = seat.called() => {
            seat.close(Closing::Room);
            return None;
        }
        () = stage.closing() => return None,
    };
    let Arrived { socket, address, protocol, tls, started } = match arrived {
        Ok(arrived) => arrived,
        Err(closing) => {
            closing.into_iter().for_each(|closing| seat.close(closing));
            return None;
        }
    };
    let (limits, background) = (thread.limits.clone(), thread.background.clone());
    let connection = Connection::new(address, protocol, tls, socket, limits, background, seat);
    Some(Begun { connection, stage, started, _counted })
}

/// Serves one connection with `service` until it ends, whoever ends it.
///
/// What is rare is boxed, and so is how it begins: an idle HTTP/1.1 connection is to cost no more than it needs.
pub(super) async fn serve_connection<S, B>(accepted: Box<Accepted>, service: S, thread: Rc<Thread>)
where
    S: Service<Box<Request<ClientBody>>, Response = Response<B>, Error = Infallible> + Clone + 'static,
    B: AnswerBody + Unpin,
{
    let Some(begun) = Box::pin(begin(*accepted, thread.clone())).await else { return };
    let Begun { connection, stage, .. } = &begun;
    let service = ConnectionService::new(service, thread, connection.clone());
    let limits = &connection.limits;
    match connection.protocol() {
        Protocol::Http1 => {
            let reader = StrictReader::new(connection.socket.clone(), connection.progress.clone());
            let io = TokioIo::new(join(reader, connection.socket.clone()));
            let mut serving = http1_builder(limits).serve_connection(io, service);
            // Until the server closes, each answer asks the client to leave. A connection that is closed while it is
            // idle may cost the client the request that it is just sending.
            let end = drive(&mut serving, &begun, Stage::Closing).await;
            match (unread_head(&end, connection), connection.progress.rejected()) {
                (Some(why), _) => (stage.thread.on_unread_head)(connection.address(), why),
                (None, Some(why)) => {
                    tracing::debug!(client = %connection.address(), %why, "a request could not be read");
                }
                (None, None) => {}
            }
            match end {
                End::Served => {
                    if let Some(rest) = beyond_http(serving.into_parts(), connection) {
                        rest.await;
                    }
                }
                // hyper has answered it.
                End::Unreadable { .. } => {
                    drop(serving);
                    Box::pin(lingering_close::with_client(connection, &[])).await;
                }
                End::Parted | End::Dropped => {}
            }
        }
        Protocol::Http2 => {
            let counted = frames::Counted::new(connection.socket.clone(), connection.clone());
            let strict = StrictTrailers::new(counted, limits.header_bytes_max);
            let io = TokioIo::new(join(strict, connection.socket.clone()));
            let mut serving = Box::new(http2_builder(limits, Streams::of(connection)).serve_connection(io, service));
            let end = drive(&mut *serving, &begun, Stage::Leaving).await;
            drop(serving);
            if matches!(end, End::Parted) {
                // It may be about to read what was said last.
                Box::pin(lingering_close::with_client(connection, &[])).await;
            }
            if let Some(closing) = connection.exceeded.get() {
                connection.seat.close(closing);
                // Behind a part of a frame, the client would read GOAWAY as the rest of that frame.
                let is_amid_frame = connection.socket.is_write_blocked();
                let last_word = if is_amid_frame { &[] } else { lingering_close::CALM_DOWN };
                Box::pin(lingering_close::with_client(connection, last_word)).await;
            }
        }
    }
}

fn http1_builder(limits: &Limits) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .half_close(false) // A client that has ended its side has left.
        // Not `pipeline_flush`: with it hyper takes an answer's body as fast as the worker gives it, and keeps all that
        // the client does not read.
        // Our own watch tells slow heads from idle connections; hyper's one timer would be both.
        .header_read_timeout(None)
        .max_header_size(limits.header_bytes_max)
        .max_buf_size(HTTP1_BUFFER_BYTES.max(limits.header_bytes_max));
    if limits.headers_max != HEADERS_MAX {
        builder.max_headers(limits.headers_max);
    }
    builder
}

fn http2_builder(limits: &Limits, streams: Streams) -> http2::Builder<Streams> {
    let mut builder = http2::Builder::new(streams);
    let window = WINDOW_BYTES.min(WINDOW_BYTES_MAX / limits.streams_max.max(1));
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams_max)
        .max_pending_accept_reset_streams(limits.pending_resets_max)
        .max_header_list_size(u32::try_from(limits.header_bytes_max + MARKER_LIST_BYTES).unwrap_or(u32::MAX))
        .initial_stream_window_size(window)
        .initial_connection_window_size(window.saturating_mul(limits.streams_max).max(CONNECTION_WINDOW_BYTES_MIN))
        // No PINGs: they lie behind what a client has not read, who then seems to be gone. The kernel asks whether it is.
        .max_send_buf_size(BUFFER_BYTES);
    builder
}

/// How serving a connection ended.
enum End {
    /// By HTTP's rules: closed, or about to speak another protocol.
    Served,
    /// By a request that could not be read.
    Unreadable { is_too_large: bool },
    /// By us, since the client that was to leave did not.
    Parted,
    /// By an error, by us or for the client's silence.
    Dropped,
}

/// Drives a connection until it ends, leaves it when the server has come to `leaves_at`, and drops it when the client
/// does nothing.
fn drive<'c, C: Serving>(serving: &'c mut C, begun: &'c Begun, leaves_at: Stage) -> Driven<'c, C> {
    Driven { serving, begun, leaves_at, watch: Watch::new(begun.started), left: false }
}

/// What [`drive`] does. No `async fn`, which would keep room for each argument twice.
struct Driven<'c, C> {
    serving: &'c mut C,
    begun: &'c Begun,
    leaves_at: Stage,
    watch: Watch,
    left: bool,
}

impl<C: Serving> Future for Driven<'_, C> {
    type Output = End;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<End> {
        let Begun { connection, stage, .. } = self.begun;
        if !self.left && (stage.stage() >= self.leaves_at || leaves_spent(connection)) {
            self.leave();
            if leaves_spent(connection) {
                connection.seat.close(Closing::Requests);
            }
        }
        if let Poll::Ready(ended) = Pin::new(&mut *self.serving).poll(cx) {
            return Poll::Ready(match ended {
                Ok(()) => End::Served,
                Err(error) if error.is_parse() => End::Unreadable { is_too_large: error.is_parse_too_large() },
                Err(_) => End::Dropped,
            });
        }
        if !self.left && leaves_spent(connection) {
            cx.waker().wake_by_ref();
        }
        let seat = &connection.seat;
        seat.set_held_up(connection.socket.is_write_blocked());
        let closing = match seat.poll_called(cx) {
            Poll::Ready(()) => Closing::Room,
            Poll::Pending => ready!(self.watch.poll(cx, connection)),
        };
        if !self.left && closing == Closing::Idle && connection.protocol() == Protocol::Http2 {
            // A client that is just sending a request hears that it was not looked at.
            self.leave();
            cx.waker().wake_by_ref();
            seat.close(closing);
            return Poll::Pending;
        }
        if self.left && closing == Closing::Idle {
            return Poll::Ready(End::Parted);
        }
        seat.close(closing);
        Poll::Ready(End::Dropped)
    }
}

impl<C: Serving> Driven<'_, C> {
    fn leave(&mut self) {
        self.left = true;
        self.serving.leave();
        self.watch.leave(&self.begun.connection);
    }
}

/// Why the last request of a connection never came to be one, if that is how it ended. Who closes amid a head has asked for nothing, and
/// a body that could not be read is its request's affair: for hyper that is no error of parsing.
fn unread_head(end: &End, connection: &Connection) -> Option<UnreadHead> {
    match end {
        End::Unreadable { is_too_large: true } => Some(UnreadHead::TooLarge),
        End::Unreadable { is_too_large: false } => {
            Some(connection.progress.rejected().map_or(UnreadHead::Unknown, UnreadHead::Unclear))
        }
        End::Served | End::Parted | End::Dropped => None,
    }
}

/// Whether to say GOAWAY: the connection has had all its requests. On HTTP/1.1 the last answer says so.
fn leaves_spent(connection: &Connection) -> bool {
    connection.protocol() == Protocol::Http2 && connection.is_spent()
}

/// What is left to be done on a connection that has left HTTP: to hand it over if its last answer switched protocols, or to part from a
/// client that may still be writing.
fn beyond_http<S>(
    parts: http1::Parts<TokioIo<ClientIo>, S>,
    connection: &Connection,
) -> Option<Pin<Box<dyn Future<Output = ()> + '_>>> {
    if let Some(tunnel) = connection.tunnel.take() {
        let tunnelled = tunnel(parts.io.into_inner().into_inner().0.into_inner(), parts.read_buf);
        return Some(Box::pin(async move { _ = tunnelled.await }));
    }
    if lingering_close::is_written_to(connection, &parts.read_buf) {
        return Some(Box::pin(lingering_close::with_client(connection, &[])));
    }
    None
}
