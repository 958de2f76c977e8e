//! The life of a client connection, from its first byte to its last.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use http::{Request, Response};
use http1_strict::StrictReader;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::join;
use tokio::time::Instant;
use tower::Service;

use super::accept::{Accepted, CountedIn};
use super::activity::Activity;
use super::answer::AnswerBody;
use super::client::Protocol;
use super::connection::Connection;
use super::first_bytes::{Sender, first_bytes, register};
use super::frames::{FrameReader, MARKER_LIST_BYTES};
use super::limits::{Closing, Limits};
use super::lingering_close;
use super::request_body::ClientBody;
use super::sending::Streams;
use super::service::ConnectionService;
use super::thread::{Stage, Thread, UnreadHead, until};
use super::timeouts::ClientTimeout;
use crate::wire::HTTP1_BUFFER_BYTES;

/// How many fields of a head hyper reads by default. Any other number makes it clear as many slots
/// for each request.
const HEADERS_MAX: usize = 100;
/// How much of a body hyper writes ahead on one HTTP/2 stream.
const BUFFER_BYTES: usize = 64 * 1024;
/// What an HTTP/2 client may send ahead on one stream, and on its connection for each stream that
/// it may have: where that is less, a few uploads that wait keep all others of their connection
/// from being sent.
const WINDOW_BYTES: u32 = 256 * 1024;
/// What it may on a connection, however few streams that may have: h2 goes by it for how many small
/// frames it keeps.
const CONNECTION_WINDOW_BYTES_MIN: u32 = 4 * 1024 * 1024;
/// HTTP/2 streams that a client may have reset before they were looked at; one more ends its
/// connection.
const PENDING_RESETS_MAX: usize = 20;
/// The most that HTTP/2 has numbers for (RFC 9113, section 6.9.1).
const WINDOW_BYTES_MAX: u32 = (1 << 31) - 1;

/// How serving a connection ended.
enum End {
    /// By HTTP's rules: closed, or about to use another protocol.
    Served,
    /// By a request head that hyper could not read, and has answered.
    UnreadHead { is_too_large: bool },
    /// By us, since the client that was asked to leave did not.
    Overstayed,
    /// By an error, by us or for the client's silence.
    Dropped,
}

/// A connection whose first bytes are there.
struct Opened {
    connection: Rc<Connection>,
    since: Instant,
    _counted: CountedIn,
}

/// Serves one connection with `service` until it ends.
///
/// The beginning and HTTP/2 are boxed: an idle HTTP/1.1 connection is to take no more memory than
/// it needs.
pub(super) async fn serve_connection<S, B>(accepted: Box<Accepted>, service: S, thread: Rc<Thread>)
where
    S: Service<Box<Request<ClientBody>>, Response = Response<B>, Error = Infallible>
        + Clone
        + 'static,
    B: AnswerBody + Unpin,
{
    let Some(opened) = Box::pin(open(*accepted, &thread)).await else { return };
    match opened.connection.protocol() {
        Protocol::Http1 => serve_http1(opened, service, thread).await,
        Protocol::Http2 => Box::pin(serve_http2(opened, service, thread)).await,
    }
}

/// Waits for a connection's first bytes. `None` if the connection ends before.
async fn open(accepted: Accepted, thread: &Thread) -> Option<Opened> {
    let Accepted { socket, client, tls, proxies, is_trusted, counted, mut slot } = accepted;
    let mut transport = register(socket, client).ok()?;
    let mut sender = Sender { address: client, proxies, is_trusted };
    if sender.has_proxy_header()
        && let Err(why) = sender.take_proxy_header(&mut transport).await
    {
        if let Some(why) = why {
            (thread.on_unread_head)(client, UnreadHead::Unexpected(why));
        }
        return None;
    }
    if sender.address != client && !slot.rename(sender.address, sender.is_trusted) {
        return None;
    }
    let task = poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
    let activity = Activity::new(slot, task);
    let begun = tokio::select! {
        biased;
        begun = first_bytes(transport, sender, tls, &thread.limits) => begun,
        () = until(|| activity.is_evicted()) => Err(Some(Closing::Room)),
        () = until(|| thread.stage() >= Stage::Closing) => Err(None),
    };
    let (socket, client, since) = match begun {
        Ok(begun) => begun,
        Err(closing) => {
            closing.into_iter().for_each(|closing| activity.count_closing(closing));
            return None;
        }
    };
    activity.restart_idle_time(); // The handshake was no idleness.
    let connection = Connection::new(
        client,
        socket,
        Rc::clone(&thread.limits),
        thread.background.clone(),
        activity,
    );
    Some(Opened { connection, since, _counted: counted })
}

async fn serve_http1<S, B>(opened: Opened, service: S, thread: Rc<Thread>)
where
    S: Service<Box<Request<ClientBody>>, Response = Response<B>, Error = Infallible>
        + Clone
        + 'static,
    B: AnswerBody + Unpin,
{
    let connection = &opened.connection;
    let reader = StrictReader::new(connection.socket.clone(), connection.progress.clone());
    let io = TokioIo::new(join(reader, connection.socket.clone()));
    let service = ConnectionService::new(service, Rc::clone(&thread), Rc::clone(connection));
    let mut serving = http1_builder(&connection.limits).serve_connection(io, service);
    // Until the server closes, each response asks the client to leave. A connection that is closed
    // while it is idle may cost the client the request that it is just sending.
    let end =
        drive(&mut serving, http1::Connection::graceful_shutdown, &opened, &thread, Stage::Closing)
            .await;
    let rejected = connection.progress.rejected();
    // hyper answers what it cannot read itself.
    let has_failed = connection.progress.has_failed();
    let end = if has_failed { End::UnreadHead { is_too_large: false } } else { end };
    let mut last_word = Vec::new();
    if let End::UnreadHead { is_too_large } = end {
        let unclear = rejected.map_or(UnreadHead::Unknown, UnreadHead::Unclear);
        let unclear = connection.unexpected().map_or(unclear, UnreadHead::Unexpected);
        let why = if is_too_large { UnreadHead::TooLarge } else { unclear };
        let answer = (thread.on_unread_head)(connection.address(), why);
        // hyper reads a head once the response before it is written.
        if has_failed && !connection.socket.is_write_blocked() {
            last_word = lingering_close::last_answer(&answer);
        }
    } else if let Some(why) = rejected {
        // A body that could not be read is its request's affair.
        tracing::debug!(client = %connection.address(), %why, "a request could not be read");
    }
    match end {
        End::Served => {
            let parts = serving.into_parts();
            let tunnel = connection.state.borrow_mut().tunnel.take();
            if let Some(tunnel) = tunnel {
                tunnel(parts.io.into_inner().into_inner().0.into_inner(), parts.read_buf).await;
            } else if lingering_close::is_called_for(connection, &parts.read_buf) {
                Box::pin(lingering_close::with_client(connection, &[])).await;
            }
        }
        End::UnreadHead { .. } => {
            drop(serving);
            Box::pin(lingering_close::with_client(connection, &last_word)).await;
        }
        End::Overstayed | End::Dropped => {}
    }
}

async fn serve_http2<S, B>(opened: Opened, service: S, thread: Rc<Thread>)
where
    S: Service<Box<Request<ClientBody>>, Response = Response<B>, Error = Infallible>
        + Clone
        + 'static,
    B: AnswerBody + Unpin,
{
    let connection = &opened.connection;
    let reader = FrameReader::new(Rc::clone(connection));
    let io = TokioIo::new(join(reader, connection.socket.clone()));
    let service = ConnectionService::new(service, Rc::clone(&thread), Rc::clone(connection));
    let builder = http2_builder(&connection.limits, Streams(Rc::clone(connection)));
    let mut serving = builder.serve_connection(io, service);
    let end =
        drive(&mut serving, http2::Connection::graceful_shutdown, &opened, &thread, Stage::Leaving)
            .await;
    drop(serving);
    if matches!(end, End::Overstayed) {
        // It may be about to read the last response.
        lingering_close::with_client(connection, &[]).await;
    }
    let exceeded = connection.state.borrow().exceeded;
    if let Some(closing) = exceeded {
        connection.activity.count_closing(closing);
        // Behind a part of a frame, the client would read GOAWAY as the rest of that frame.
        let is_amid_frame = connection.socket.is_write_blocked();
        let last_word = if is_amid_frame { &[] } else { lingering_close::CALM_DOWN };
        lingering_close::with_client(connection, last_word).await;
    }
}

/// Drives hyper's connection until it ends. Asks the client to leave when the server has come to
/// `leaves_at`, when the client has had all its HTTP/2 requests, or when the answer to one of them
/// says so. Drops the connection when the
/// client does nothing for too long, or when others need its slot.
async fn drive<C>(
    serving: &mut C,
    ask_to_leave: impl Fn(Pin<&mut C>),
    opened: &Opened,
    thread: &Thread,
    leaves_at: Stage,
) -> End
where
    C: Future<Output = hyper::Result<()>> + Unpin,
{
    let (connection, activity) = (&*opened.connection, &opened.connection.activity);
    let is_http2 = connection.protocol() == Protocol::Http2;
    let mut client = ClientTimeout::new(opened.since);
    let mut leaves = false;
    loop {
        let closing = tokio::select! {
            biased;
            ended = &mut *serving => return match ended {
                Ok(()) => End::Served,
                Err(error) if error.is_parse() => End::UnreadHead { is_too_large: error.is_parse_too_large() },
                Err(_) => End::Dropped,
            },
            () = connection.client_left() => return End::Dropped,
            () = until(|| !leaves && (thread.stage() >= leaves_at || connection.is_to_leave())) => None,
            () = until(|| {
                // A response that its client has not read keeps the connection from making room.
                activity.set_write_blocked(connection.socket.is_write_blocked());
                activity.is_evicted()
            }) => Some(Closing::Room),
            closing = client.over(connection) => Some(closing),
        };
        match closing {
            None if is_http2 && connection.is_spent() => activity.count_closing(Closing::Requests),
            None => {}
            Some(Closing::Idle) if leaves => return End::Overstayed,
            // A client that is just sending a request hears that it was not looked at.
            Some(Closing::Idle) if is_http2 => activity.count_closing(Closing::Idle),
            Some(closing) => {
                activity.count_closing(closing);
                return End::Dropped;
            }
        }
        leaves = true;
        ask_to_leave(Pin::new(serving));
        client.leave();
    }
}

fn http1_builder(limits: &Limits) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        // hyper would drop a request whose client half-closes before the service is polled once, and
        // what a slow reader has yet to get. `drive` looks for the client's end.
        .half_close(true)
        // Not `pipeline_flush`: with it hyper takes a response's body as fast as the worker gives
        // it, and keeps all that the client does not read.
        .header_read_timeout(None) // `ClientTimeout` tells slow heads from idle connections.
        .max_header_size(limits.header_bytes_max)
        .max_buf_size(HTTP1_BUFFER_BYTES.max(limits.header_bytes_max));
    if limits.headers_max != HEADERS_MAX {
        builder.max_headers(limits.headers_max);
    }
    builder
}

fn http2_builder(limits: &Limits, streams: Streams) -> http2::Builder<Streams> {
    let mut builder = http2::Builder::new(streams);
    let window = WINDOW_BYTES.min(WINDOW_BYTES_MAX / limits.h2_streams_max.max(1));
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.h2_streams_max)
        .max_pending_accept_reset_streams(PENDING_RESETS_MAX)
        .max_header_list_size(
            u32::try_from(limits.header_bytes_max + MARKER_LIST_BYTES).unwrap_or(u32::MAX),
        )
        .initial_stream_window_size(window)
        .initial_connection_window_size(
            window.saturating_mul(limits.h2_streams_max).max(CONNECTION_WINDOW_BYTES_MIN),
        )
        // No PINGs: they wait behind all that a client has not read, and a slow reader would seem
        // to be gone. The kernel's keepalive asks instead.
        .max_send_buf_size(BUFFER_BYTES);
    builder
}
