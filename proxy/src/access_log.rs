//! The access log: a line for each request whose answer has ended, or for some of them.

mod line;

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::SystemTime;

use bytes::Bytes;
use fencepost_config::{AccessLogFormat, AccessLogTarget};
use http::StatusCode;
use http_body::{Body, Frame, SizeHint};
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, WorkerGuard};
use tracing_subscriber::fmt::MakeWriter;

use crate::downstream::{AnswerBody, Tunnel};
use crate::exchange::Place;
use crate::logging::without_waiting;

use line::Line;

/// An access log, open for the whole process.
#[derive(Debug)]
pub struct AccessLog {
    format: AccessLogFormat,
    one_in: u64,
    queries: bool,
    /// Requests so far that need not have a line.
    requests: AtomicU64,
    writer: NonBlocking,
    left_out: ErrorCounter,
    /// Set for the file to be opened anew before the next line.
    reopen: Arc<AtomicBool>,
    guard: Option<WorkerGuard>,
    closing: Closing,
}

/// The file of an access log can't be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot open the access log {path}")]
pub struct OpenError {
    path: String,
    source: io::Error,
}

impl AccessLog {
    /// Opens what was configured. Lines are added to the end of a file that exists.
    ///
    /// # Errors
    /// If its file can't be opened for writing.
    pub fn open(configured: &fencepost_config::AccessLog, closing: &Closing) -> Result<AccessLog, OpenError> {
        let fencepost_config::AccessLog { target, format, one_in, queries } = configured;
        let reopen = Arc::new(AtomicBool::new(false));
        let (writer, guard) = match target {
            AccessLogTarget::Stdout => without_waiting(io::stdout()),
            AccessLogTarget::Stderr => without_waiting(io::stderr()),
            AccessLogTarget::File(path) => {
                let file = LogFile { path: path.clone(), file: open(path)?, reopen: Arc::clone(&reopen) };
                without_waiting(file)
            }
        };
        Ok(AccessLog {
            format: *format,
            one_in: u64::from(one_in.get()),
            queries: *queries,
            requests: AtomicU64::new(0),
            left_out: writer.error_counter(),
            writer,
            reopen,
            guard: Some(guard),
            closing: closing.clone(),
        })
    }

    /// Opens its file anew before the next line: it may have been renamed, to begin another.
    pub fn reopen(&self) {
        self.reopen.store(true, Ordering::Relaxed);
    }

    /// How many lines were left out, because they could not be written as fast as they came.
    pub fn lines_left_out(&self) -> u64 {
        self.left_out.dropped_lines() as u64
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
        // Never waits; a line that finds no room is counted as left out.
        let _ = self.writer.make_writer().write_all(text.as_bytes());
    }
}

impl Drop for AccessLog {
    /// What waits to be written is written elsewhere: whoever has the last request of a configuration waits for no disk.
    fn drop(&mut self) {
        let guard = self.guard.take();
        let written = std::thread::Builder::new().name("log-end".to_owned()).spawn(move || drop(guard));
        if let (Ok(written), Ok(mut closing)) = (written, self.closing.0.lock()) {
            closing.retain(|thread| !thread.is_finished());
            closing.push(written);
        }
    }
}

/// The logs that are written to their ends. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Closing(Arc<Mutex<Vec<JoinHandle<()>>>>);

impl Closing {
    /// Waits until they are, which takes about a second for one that nobody reads.
    pub fn finish(&self) {
        let ending = self.0.lock().map(|mut closing| std::mem::take(&mut *closing)).unwrap_or_default();
        ending.into_iter().for_each(|thread| drop(thread.join()));
    }
}

/// A file that can be opened anew.
struct LogFile {
    path: PathBuf,
    file: File,
    reopen: Arc<AtomicBool>,
}

impl Write for LogFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.reopen.swap(false, Ordering::Relaxed) {
            match open(&self.path) {
                Ok(file) => self.file = file,
                // Lines go on into the old one.
                Err(error) => tracing::warn!(error = %error.source, "{error} anew"),
            }
        }
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

fn open(path: &Path) -> Result<File, OpenError> {
    let opened = OpenOptions::new().append(true).create(true).open(path);
    opened.map_err(|source| OpenError { path: path.display().to_string(), source })
}

/// An answer's body that leaves a line in the access log when it ends or is given up.
pub struct Logged<B: Body> {
    body: B,
    pending: Option<Box<Pending>>,
}

/// A line that is not written yet.
struct Pending {
    place: Rc<Place>,
    status: StatusCode,
    sent: Cell<u64>,
    ended: Cell<bool>,
}

/// Has the answer to a request leave a line in the access log, if there is one and the request is to be in it.
pub fn logged<B: Body>(answer: http::Response<B>, place: Option<&Rc<Place>>) -> http::Response<Logged<B>> {
    let wanted = |place: &&Rc<Place>| {
        let log = place.worker.fence.access_log.as_ref();
        log.is_some_and(|log| place.about.is_refused() || log.takes())
    };
    let pending = place.filter(wanted).map(|place| {
        let (sent, ended) = (Cell::new(0), Cell::new(false));
        Box::new(Pending { place: Rc::clone(place), status: answer.status(), sent, ended })
    });
    answer.map(|body| Logged { body, pending })
}

impl<B: AnswerBody + Unpin> AnswerBody for Logged<B> {
    fn take_tunnel(&mut self) -> Option<Tunnel> {
        self.body.take_tunnel()
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

impl Pending {
    fn note<E>(&self, frame: Option<&Result<Frame<Bytes>, E>>) {
        match frame {
            Some(Ok(frame)) => self.sent.set(self.sent.get() + frame.data_ref().map_or(0, Bytes::len) as u64),
            Some(Err(_)) => {}
            None => self.ended.set(true),
        }
    }

    fn write(&self, ended: bool) {
        let Some(log) = &self.place.worker.fence.access_log else { return };
        let line = Line {
            at: SystemTime::now(),
            client: self.place.client,
            peer: self.place.peer.as_deref(),
            about: &self.place.about,
            queries: log.queries,
            route: &self.place.label().name,
            mode: self.place.label().mode,
            status: self.status,
            sent: self.sent.get(),
            complete: ended || self.ended.get(),
            duration: self.place.arrived.elapsed(),
        };
        log.write(&line);
    }
}
