//! An access log: lines for a file or a stream, written by a thread of its own.
//! It does not know requests: [`Line`] has what a line shows.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fencepost_config::AccessLogFormat;

use super::line::Line;
use super::target::Target;
use crate::logging::{Lines, Lost, Writing};

/// How long the process waits at its end for the readers of its access logs.
const END_MAX: Duration = Duration::from_secs(2);

/// An access log, open for the whole process.
#[derive(Debug)]
pub struct AccessLog {
    format: AccessLogFormat,
    one_in: u64,
    pub(super) queries: bool,
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
    pub(super) path: String,
    pub(super) source: io::Error,
}

impl AccessLog {
    /// Opens what was configured. Lines are added to the end of a file that exists; those that are
    /// not written are counted as `lost`.
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
    pub(super) fn takes(&self) -> bool {
        self.one_in == 1
            || self.requests.fetch_add(1, Ordering::Relaxed).is_multiple_of(self.one_in)
    }

    pub(super) fn write(&self, line: &Line<'_>) {
        let mut text = match self.format {
            AccessLogFormat::Json => line.json(),
            AccessLogFormat::Combined => line.combined(),
        };
        text.push('\n');
        self.lines.add(text.into_bytes());
    }
}

impl Drop for AccessLog {
    /// Does not wait for the disk, because the last request of a configuration may run this. The
    /// writer thread writes the remaining lines.
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

    /// Waits until they are, none being open any more, or until it is clear that nobody takes what
    /// is written.
    pub fn finish(&self) {
        let ending =
            self.0.lock().map(|mut closing| std::mem::take(&mut *closing)).unwrap_or_default();
        let deadline = Instant::now() + END_MAX;
        let left = ending.iter().filter(|writing| !writing.ends_by(deadline)).count();
        if left > 0 {
            tracing::warn!("nobody takes the lines of the access log: the last ones are lost");
        }
    }
}
