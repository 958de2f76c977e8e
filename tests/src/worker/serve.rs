//! How the worker speaks HTTP.

use std::future::pending;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, stream};
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body::{Body, Frame};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper::body::Incoming;
use hyper::rt::{Read, Write};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use super::Shared;
use super::behaviour::{Answer, Beat, Behaviour, Pace};
use super::delivery::{Delivery, Entry};
use super::log::{BodyEnd, Seen};

/// Gives each connection what it needs to know.
pub(super) struct Connections {
    shared: Arc<Shared>,
    accepted: usize,
}

/// What one connection needs to know.
pub(super) struct ConnectionContext {
    shared: Arc<Shared>,
    number: usize,
}

/// A second hold on a connection's socket, to make its end a reset.
pub(super) struct ResetHandle(Option<OwnedFd>);

/// What is spoken on a connection. On one of the two that hears the other, it ends.
pub(super) enum Speaks {
    /// What it begins with.
    WhatItHears,
    Http1,
    Http2,
}

impl Connections {
    pub(super) fn new(shared: Arc<Shared>) -> Connections {
        Connections { shared, accepted: 0 }
    }

    /// For a connection accepted now.
    pub(super) fn next(&mut self) -> ConnectionContext {
        let number = self.accepted;
        self.accepted += 1;
        ConnectionContext { shared: Arc::clone(&self.shared), number }
    }
}

impl ResetHandle {
    pub(super) fn of_tcp(stream: &TcpStream) -> ResetHandle {
        ResetHandle(Some(
            stream.as_fd().try_clone_to_owned().expect("an open socket can be cloned"),
        ))
    }

    pub(super) fn none() -> ResetHandle {
        ResetHandle(None)
    }

    /// Makes the socket's last close a reset.
    fn arm(self) {
        if let Some(socket) = self.0 {
            let linger = socket2::SockRef::from(&socket).set_linger(Some(Duration::ZERO));
            linger.expect("TCP has this option");
        }
    }
}

impl Speaks {
    /// What a handshake has settled.
    pub(super) fn settled(protocol: Option<&[u8]>) -> Speaks {
        if protocol == Some(b"h2") { Speaks::Http2 } else { Speaks::Http1 }
    }
}

/// Serves one connection to its end.
pub(super) async fn connection<S>(
    stream: S,
    reset: ResetHandle,
    speaks: Speaks,
    context: ConnectionContext,
) where
    S: Read + Write + Unpin + Send + 'static,
{
    let ConnectionContext { shared, number } = context;
    let is_to_be_reset = Arc::new(Notify::new());
    let service = service_fn(|request| {
        let entry = Entry::open(&shared, number, &request);
        handle(request, entry, Arc::clone(&is_to_be_reset))
    });
    let builder = auto::Builder::new(TokioExecutor::new());
    let builder = match speaks {
        Speaks::WhatItHears => builder,
        Speaks::Http1 => builder.http1_only(),
        Speaks::Http2 => builder.http2_only(),
    };
    let mut connection = pin!(builder.serve_connection_with_upgrades(stream, service));
    tokio::select! {
        // A connection that breaks is no fault of the worker's: the log has what there is to know.
        _ = connection.as_mut() => {}
        () = is_to_be_reset.notified() => reset.arm(),
    }
}

async fn handle(
    request: Request<Incoming>,
    entry: Entry,
    is_to_be_reset: Arc<Notify>,
) -> Result<Response<Delivery>, io::Error> {
    let behaviour = entry.shared.rules.behaviour_for(&entry.seen());
    let answer = match behaviour {
        Behaviour::Answer(answer) => {
            read(request, &entry).await?;
            answer
        }
        Behaviour::Hold(latch, answer) => {
            read(request, &entry).await?;
            latch.opened().await;
            answer
        }
        Behaviour::ReadLate(latch, answer) => {
            latch.opened().await;
            read(request, &entry).await?;
            answer
        }
        Behaviour::Early(answer) => {
            tokio::spawn(record_body(request.into_body(), Arc::clone(&entry.shared), entry.order));
            answer
        }
        Behaviour::Echo => return Ok(echo(request, entry)),
        Behaviour::Reset => {
            read(request, &entry).await?;
            return reset(&is_to_be_reset).await;
        }
        Behaviour::ResetEarly => return reset(&is_to_be_reset).await,
        Behaviour::UpgradeAndEcho => return Ok(upgrade(request, entry)),
    };
    Ok(respond(answer, entry, is_to_be_reset))
}

/// Reads a request's body to its end, on a task of its own: with the connection this future may be
/// dropped, and then the log would not say that the body was cut.
async fn read(request: Request<Incoming>, entry: &Entry) -> Result<(), io::Error> {
    let reading =
        tokio::spawn(record_body(request.into_body(), Arc::clone(&entry.shared), entry.order));
    match reading.await.map_err(io::Error::other)? {
        BodyEnd::Whole => Ok(()),
        BodyEnd::Cut => Err(io::Error::other("the request was cut")),
    }
}

async fn record_body(mut body: Incoming, shared: Arc<Shared>, order: usize) -> BodyEnd {
    loop {
        // After its answer has gone out, hyper keeps the end of a body of known length to itself
        // until the next request (seen with 1.12.0): what the length says must do.
        let frame = if body.is_end_stream() { None } else { body.frame().await };
        if let Some(end) = shared.log.change(order, |seen| record(seen, frame.as_ref())) {
            return end;
        }
    }
}

/// Writes down a piece of a body, or its end.
fn record(seen: &mut Seen, frame: Option<&Result<Frame<Bytes>, hyper::Error>>) -> Option<BodyEnd> {
    match frame {
        Some(Ok(frame)) => {
            if let Some(bytes) = frame.data_ref() {
                seen.add_body(bytes);
            } else if let Some(trailers) = frame.trailers_ref() {
                seen.trailers = trailers.clone();
            }
        }
        Some(Err(_)) => seen.body_end = Some(BodyEnd::Cut),
        None => seen.body_end = Some(BodyEnd::Whole),
    }
    seen.body_end
}

/// Has the connection reset; the future never ends, but goes with it.
async fn reset(is_to_be_reset: &Notify) -> Result<Response<Delivery>, io::Error> {
    is_to_be_reset.notify_one();
    pending().await
}

fn echo(request: Request<Incoming>, entry: Entry) -> Response<Delivery> {
    let (shared, order) = (Arc::clone(&entry.shared), entry.order);
    let frames = stream::unfold(request.into_body(), move |mut body| {
        let shared = Arc::clone(&shared);
        async move {
            let frame = body.frame().await;
            shared.log.change(order, |seen| record(seen, frame.as_ref()));
            Some((frame?.map_err(io::Error::other), body))
        }
    });
    Response::new(Delivery { body: StreamBody::new(frames).boxed_unsync(), entry: Some(entry) })
}

fn upgrade(mut request: Request<Incoming>, mut entry: Entry) -> Response<Delivery> {
    let protocol = request.headers().get(header::UPGRADE).cloned();
    let Some(protocol) = protocol else {
        return respond_plainly(StatusCode::UPGRADE_REQUIRED, entry);
    };
    let upgraded = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        // Fails if the client goes away before it has read the answer: the entry then ends
        // unanswered.
        let Ok(tunnel) = upgraded.await else { return };
        let (mut from, mut to) = tokio::io::split(TokioIo::new(tunnel));
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            entry.shared.log.change(entry.order, |seen| seen.add_body(&buffer[..count]));
            if to.write_all(&buffer[..count]).await.is_err() {
                return;
            }
        }
        if to.shutdown().await.is_ok() {
            entry.answered();
        }
    });
    let mut response = Response::new(Delivery { body: nothing(), entry: None });
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert(header::UPGRADE, protocol);
    response.headers_mut().insert(header::CONNECTION, header::HeaderValue::from_static("upgrade"));
    response
}

fn respond_plainly(status: StatusCode, entry: Entry) -> Response<Delivery> {
    let mut response = Response::new(Delivery { body: nothing(), entry: Some(entry) });
    *response.status_mut() = status;
    response
}

fn respond(answer: Answer, mut entry: Entry, is_to_be_reset: Arc<Notify>) -> Response<Delivery> {
    // The connection never asks for the body of an answer to HEAD.
    if entry.seen().method == Method::HEAD.as_str() {
        entry.answered();
    }
    let Answer { status, headers, body, trailers, pace, reset_before_its_end } = answer;
    let reset = reset_before_its_end.then_some(is_to_be_reset);
    let body = if trailers.is_none() && pace.is_none() && reset.is_none() {
        Full::new(body).map_err(|never| match never {}).boxed_unsync()
    } else {
        StreamBody::new(pieces(body, trailers, pace, reset)).boxed_unsync()
    };
    let mut response = Response::new(Delivery { body, entry: Some(entry) });
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// The frames of a body that is not given in one go.
fn pieces(
    body: Bytes,
    trailers: Option<HeaderMap>,
    pace: Option<Pace>,
    reset: Option<Arc<Notify>>,
) -> impl Stream<Item = io::Result<Frame<Bytes>>> {
    let whole = body.len();
    stream::unfold((body, trailers, reset), move |(mut body, mut trailers, reset)| {
        let pace = pace.clone();
        async move {
            let frame = if body.is_empty() {
                if let Some(is_to_be_reset) = &reset {
                    is_to_be_reset.notify_one();
                    pending::<()>().await;
                }
                Frame::trailers(trailers.take()?)
            } else {
                Frame::data(next_piece(&mut body, whole, pace).await)
            };
            Some((Ok(frame), (body, trailers, reset)))
        }
    })
}

async fn next_piece(body: &mut Bytes, whole: usize, pace: Option<Pace>) -> Bytes {
    match pace {
        None => std::mem::take(body),
        Some(Pace { piece_bytes, before_each: Beat::Every(pause) }) => {
            tokio::time::sleep(pause).await;
            body.split_to(piece_bytes.min(body.len()))
        }
        Some(Pace { piece_bytes, before_each: Beat::Latch(latch) }) => {
            if body.len() == whole {
                return body.split_to(piece_bytes.min(body.len()));
            }
            latch.opened().await;
            std::mem::take(body)
        }
    }
}

fn nothing() -> UnsyncBoxBody<Bytes, io::Error> {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}
