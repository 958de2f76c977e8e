//! Where the lines of an access log are written to.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use fencepost_config::AccessLogTarget;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use super::log::OpenError;
use crate::logging::Complaints;

/// Where lines are written to.
pub(super) struct Target {
    /// What it is called in the log.
    pub(super) name: String,
    output: Box<dyn Write + Send>,
    /// Where its file is to be opened anew, and whether it is to be now.
    path: Option<PathBuf>,
    reopen: Arc<AtomicBool>,
    /// Whether it could not be when that was last tried.
    fails_to_open: bool,
    /// Lines that could not be written.
    failures: Complaints,
}

impl Target {
    pub(super) fn open(
        target: &AccessLogTarget,
        reopen: Arc<AtomicBool>,
    ) -> Result<Target, OpenError> {
        let (name, output, path): (_, Box<dyn Write + Send>, _) = match target {
            // Not by the lock and the buffer of the standard library's: whoever waits for its
            // reader may have both for ever.
            AccessLogTarget::Stdout => {
                let descriptor = io::stdout().as_fd().try_clone_to_owned();
                let descriptor =
                    descriptor.map_err(|source| OpenError { path: "stdout".to_owned(), source })?;
                ("stdout".to_owned(), Box::new(File::from(descriptor)), None)
            }
            // Its lines are to stand whole among those of the log.
            AccessLogTarget::Stderr => ("stderr".to_owned(), Box::new(io::stderr()), None),
            AccessLogTarget::File(path) => {
                (path.display().to_string(), Box::new(open(path)?), Some(path.clone()))
            }
        };
        let (fails_to_open, failures) = (false, Complaints::default());
        Ok(Target { name, output, path, reopen, fails_to_open, failures })
    }

    pub(super) fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        if let Some(path) = &self.path
            && self.reopen.swap(false, Ordering::Relaxed)
        {
            match open(path) {
                Ok(file) => {
                    self.output = Box::new(file);
                    self.fails_to_open = false;
                }
                // Lines go on into the old one, until it can be.
                Err(error) => {
                    self.reopen.store(true, Ordering::Relaxed);
                    if !std::mem::replace(&mut self.fails_to_open, true) {
                        tracing::warn!(error = %error.source, "{error} anew: what is logged goes on into the old one until it can be");
                    }
                }
            }
        }
        self.output.write_all(lines).inspect_err(|error| {
            let ends = lines.iter().filter(|byte| **byte == b'\n'); // No text in a line has any of its own.
            if let Some(lines) = self.failures.more(ends.count() as u64, Instant::now()) {
                tracing::warn!(path = self.name, lines, %error, "lines could not be written to the access log");
            }
        })
    }
}

fn open(path: &Path) -> Result<File, OpenError> {
    open_at_once(path).map_err(|source| OpenError { path: path.display().to_string(), source })
}

/// Opens a file without waiting, although a FIFO may have no reader yet. Writes to it may wait.
fn open_at_once(path: &Path) -> io::Result<File> {
    let at_once = OFlags::NONBLOCK.bits().cast_signed();
    let opened = OpenOptions::new().append(true).create(true).custom_flags(at_once).open(path);
    let file = opened.map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::NXIO) => {
            io::Error::new(error.kind(), "it is a FIFO that nobody reads, or a socket")
        }
        _ => error,
    })?;
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It was not tried again before the next reload, and lines went on into the file that had been
    /// renamed.
    #[test]
    fn a_file_that_could_not_be_opened_anew_is_as_soon_as_it_can_be() {
        let directory = tempfile::tempdir().unwrap();
        let (logs, moved) = (directory.path().join("logs"), directory.path().join("moved"));
        std::fs::create_dir(&logs).unwrap();
        let path = logs.join("access.log");
        let reopen = Arc::new(AtomicBool::new(false));
        let mut target =
            Target::open(&AccessLogTarget::File(path.clone()), Arc::clone(&reopen)).unwrap();
        target.write(b"a\n").unwrap();
        std::fs::rename(&logs, &moved).unwrap();
        reopen.store(true, Ordering::Relaxed);
        target.write(b"b\n").unwrap();
        target.write(b"c\n").unwrap();
        std::fs::create_dir(&logs).unwrap();
        target.write(b"d\n").unwrap();
        target.write(b"e\n").unwrap();
        let written = |path: &Path| std::fs::read_to_string(path).unwrap();
        assert_eq!(
            (written(&moved.join("access.log")).as_str(), written(&path).as_str()),
            ("a\nb\nc\n", "d\ne\n")
        );
        assert!(!reopen.load(Ordering::Relaxed));
    }
}
