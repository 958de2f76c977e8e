//! The access log: a line for each request that has ended, answered or not, or for some of them.

mod line;
mod target;

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use fencepost_config::AccessLogFormat;
use http::StatusCode;
use http_body::{Body, Frame, SizeHint};

use crate::logging::{Lines, Lost, Writing};
use crate::request_context::RequestContext;
use crate::server::{AnswerBody, Tunnel, TunnelEnd};
use crate::wire::Socket;

use line::Line;
use target::Target;

/// How long the end of a process waits for whoever reads its access logs.
const END_MAX: Duration = Duration::from_secs(2);

/// An access log, open for the whole process.
#[derive(Debug)]
pub struct AccessLog {
    format: AccessLogFormat,
    one_in: u64,
    queries: bool,
    /// Requests so far that need not have a line.
    requests: AtomicU64,
    lines: Lines,
    /// Set for the file to be opened anew before the next line.
    reopen: Arc<AtomicBool>,
}

/// The file of an access log can't be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot open the access log {path}")]
pub struct OpenError {
    path: String,
    source: io::Error,
}

impl AccessLog {
    /// Opens what was configured. Lines are added to the end of a file that exists; those that are not written are counted as `lost`.
    ///
    /// # Errors
    /// If its file can't be opened for writing.
    pub fn open(
        configured: &fencepost_config::AccessLog,
        lost: Lost,
        closing: &Closing,
    ) -> Result<AccessLog, OpenError> {
        let fencepost_config::AccessLog { target, format, one_in, queries } = configured;
        let reopen = Arc::new(AtomicBool::new(false));
        let mut target = Target::open(target, Arc::clone(&reopen))?;
        let name = target.name.clone();
        let begun = Lines::begin("access-log", lost, move |lines| target.write(lines));
        let (lines, writing) = begun.map_err(|source| OpenError { path: name, source })?;
        closing.add(writing);
        Ok(AccessLog {
            format: *format,
            one_in: u64::from(one_in.get()),
            queries: *queries,
            requests: AtomicU64::new(0),
            lines,
            reopen,
        })
    }

    /// Opens its file anew before the next line: it may have been renamed, to begin another.
    pub fn reopen(&self) {
        self.reopen.store(true, Ordering::Relaxed);
    }

    /// Whether a request has a line that need not have one: one in so many, the first included.
    fn takes(&self) -> bool {
        self.one_in == 1 || self.requests.fetch_add(1, Ordering::Relaxed).is_multiple_of(self.one_in)
    }

    fn write(&self, line: &Line<'_>) {
        let mut text = match self.format {
            AccessLogFormat::Json => line.json(),
            AccessLogFormat::Combined => line.combined(),
        };
        text.push('\n');
        self.lines.add(text.into_bytes());
    }
}

impl Drop for AccessLog {
    /// What waits to be written is written elsewhere: whoever has the last request of a configuration waits for no disk.
    fn drop(&mut self) {
        self.lines.end();
    }
}

/// The access logs of a process, to be written to their ends.
#[derive(Debug, Default)]
pub struct Closing(Mutex<Vec<Writing>>);

impl Closing {
    fn add(&self, writing: Writing) {
        if let Ok(mut closing) = self.0.lock() {
            closing.retain(|writing| !writing.ends_by(Instant::now()));
            closing.push(writing);
        }
    }

    /// Waits until they are, none being open any more, or until it is clear that nobody takes what is written.
    pub fn finish(&self) {
        let ending = self.0.lock().map(|mut closing| std::mem::take(&mut *closing)).unwrap_or_default();
        let deadline = Instant::now() + END_MAX;
        let left = ending.iter().filter(|writing| !writing.ends_by(deadline)).count();
        if left > 0 {
            tracing::warn!("nobody takes the lines of the access log: the last ones are lost");
        }
    }
}

/// An answer's body that leaves a line in the access log when it ends or is given up.
pub struct Logged<B: Body> {
    body: B,
    pending: Option<Box<Pending>>,
}

/// A line that is not written yet.
struct Pending {
    context: Rc<RequestContext>,
    status: StatusCode,
    sent: Cell<u64>,
    ended: Cell<bool>,
    /// Whether its client does not get the end.
    cut: Cell<bool>,
}

/// A request that has no answer yet. If it gets none, because its client leaves before, that is a line too.
pub struct Unanswered(Option<Rc<RequestContext>>);

impl Unanswered {
    /// Of a request that has arrived; `None` if there is no access log.
    pub fn of(context: &Rc<RequestContext>) -> Option<Unanswered> {
        context.share.generation.access_log.is_some().then(|| Unanswered(Some(Rc::clone(context))))
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        if let Some(context) = self.0.take().filter(is_wanted) {
            write(&context, None, 0, false);
        }
    }
}

/// Has the answer to a request leave a line in the access log, if there is one and the request is to be in it.
pub fn logged<B: Body>(answer: http::Response<B>, request: Option<Unanswered>) -> http::Response<Logged<B>> {
    let context = request.and_then(|mut request| request.0.take());
    let pending = context.filter(is_wanted).map(|context| {
        let (sent, ended, cut) = (Cell::new(0), Cell::new(false), Cell::new(false));
        Box::new(Pending { context, status: answer.status(), sent, ended, cut })
    });
    answer.map(|body| Logged { body, pending })
}

fn is_wanted(context: &Rc<RequestContext>) -> bool {
    let log = context.share.generation.access_log.as_ref();
    log.is_some_and(|log| context.about.is_refused() || log.takes())
}

impl<B: AnswerBody + Unpin> AnswerBody for Logged<B> {
    fn take_tunnel(&mut self) -> Option<Tunnel> {
        let tunnel = self.body.take_tunnel()?;
        let Some(pending) = self.pending.take() else { return Some(tunnel) };
        let mut tunnelled = Tunnelled { pending, to_client: None };
        Some(Box::new(move |client, read_already| {
            tunnelled.to_client = Some((client.clone(), client.bytes_written()));
            let tunnel = tunnel(client, read_already);
            Box::pin(async move {
                let end = tunnel.await;
                tunnelled.pending.ended.set(end == TunnelEnd::Whole);
                end
            })
        }))
    }

    fn cut_off(&mut self, sent: u64) {
        self.body.cut_off(sent);
        if let Some(pending) = &self.pending {
            pending.sent.set(sent);
            pending.cut.set(true);
        }
    }
}

impl<B: AnswerBody + Unpin> Body for Logged<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if let (Some(pending), Poll::Ready(frame)) = (&self.pending, &polled) {
            pending.note(frame.as_ref());
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B: Body> Drop for Logged<B> {
    fn drop(&mut self) {
        let Some(pending) = self.pending.take() else { return };
        pending.write(self.body.is_end_stream());
    }
}

/// The line of a request whose connection leaves HTTP: it is written once that has ended, or never comes about.
struct Tunnelled {
    pending: Box<Pending>,
    /// The connection, and how much had been written to it before.
    to_client: Option<(Socket, u64)>,
}

impl Drop for Tunnelled {
    fn drop(&mut self) {
        if let Some((client, before)) = &self.to_client {
            self.pending.sent.set(client.bytes_written().wrapping_sub(*before));
        }
        self.pending.write(false);
    }
}

impl Pending {
    fn note<E>(&self, frame: Option<&Result<Frame<Bytes>, E>>) {
        match frame {
            Some(Ok(frame)) => self.sent.set(self.sent.get() + frame.data_ref().map_or(0, Bytes::len) as u64),
            Some(Err(_)) => {}
            None => self.ended.set(true),
        }
    }

    fn write(&self, ended: bool) {
        let is_whole = (ended || self.ended.get()) && !self.cut.get();
        write(&self.context, Some(self.status), self.sent.get(), is_whole);
    }
}

fn write(context: &RequestContext, status: Option<StatusCode>, sent: u64, complete: bool) {
    let Some(log) = &context.share.generation.access_log else { return };
    let line = Line {
        at: SystemTime::now(),
        client: context.client,
        peer: context.peer.as_deref(),
        about: &context.about,
        queries: log.queries,
        route: &context.label().name,
        mode: context.label().mode,
        status,
        sent,
        complete,
        duration: context.arrived.elapsed(),
    };
    log.write(&line);
}
