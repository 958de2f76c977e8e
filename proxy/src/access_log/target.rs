//! Where the lines of an access log are written to.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
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
    /// Whether what was written last ends within a line, as where a disk was full: what is written
    /// next begins on a new one.
    is_torn: bool,
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
        let is_torn = path.as_deref().is_some_and(ends_within_a_line);
        Ok(Target {
            name,
            output,
            path,
            reopen,
            fails_to_open: false,
            is_torn,
            failures: Complaints::default(),
        })
    }

    pub(super) fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        if let Some(path) = &self.path
            && self.reopen.swap(false, Ordering::Relaxed)
        {
            match open(path) {
                Ok(file) => {
                    self.output = Box::new(file);
                    self.is_torn = ends_within_a_line(path);
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
        self.write_whole(lines).inspect_err(|error| {
            let ends = lines.iter().filter(|byte| **byte == b'\n'); // No text in a line has any of its own.
            if let Some(lines) = self.failures.more(ends.count() as u64, Instant::now()) {
                tracing::warn!(path = self.name, lines, %error, "lines could not be written to the access log");
            }
        })
    }

    /// Writes all of the lines, by one call if its output takes them, and notes where it ends if it
    /// can't.
    fn write_whole(&mut self, lines: &[u8]) -> io::Result<()> {
        let on_a_new_line = self.is_torn.then(|| [b"\n", lines].concat());
        let mut left = on_a_new_line.as_deref().unwrap_or(lines);
        while !left.is_empty() {
            match self.output.write(left) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    self.is_torn = left[written - 1] != b'\n';
                    left = &left[written..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Whether a file that was not begun by us has the beginning of a line at its end. Of what is no
/// file, or can't be read, nobody knows.
fn ends_within_a_line(path: &Path) -> bool {
    let last = || {
        let mut file =
            path.metadata().ok().filter(Metadata::is_file).and_then(|_| File::open(path).ok())?;
        file.seek(SeekFrom::End(-1)).ok()?;
        let mut last = [0];
        file.read_exact(&mut last).ok().map(|()| last)
    };
    last().is_some_and(|last| last != *b"\n")
}

fn open(path: &Path) -> Result<File, OpenError> {
    open_at_once(path).map_err(|source| OpenError { path: path.display().to_string(), source })
}

/// Opens a file without waiting: whoever opens a FIFO waits for its reader otherwise. Who writes to
/// it may wait.
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
    use std::sync::Mutex;
    use std::sync::atomic::AtomicU64;

    use super::*;

    /// A disk with room for so many bytes more.
    #[derive(Clone, Default)]
    struct Disk {
        written: Arc<Mutex<Vec<u8>>>,
        room: Arc<AtomicU64>,
    }

    impl Write for Disk {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            let room = self.room.load(Ordering::Relaxed);
            let taken = text.len().min(usize::try_from(room).unwrap());
            if taken == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.room.store(room - taken as u64, Ordering::Relaxed);
            self.written.lock().unwrap().extend_from_slice(&text[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What stands on a disk that had room for so many bytes at each of these writes.
    fn check(writes: &[(u64, &str, bool)], stands: &str) {
        let disk = Disk::default();
        let mut target = Target {
            name: "disk".to_owned(),
            output: Box::new(disk.clone()),
            path: None,
            reopen: Arc::default(),
            fails_to_open: false,
            is_torn: false,
            failures: Complaints::default(),
        };
        for (room, lines, is_whole) in writes {
            disk.room.store(*room, Ordering::Relaxed);
            assert_eq!(
                target.write(lines.as_bytes()).is_ok(),
                *is_whole,
                "{lines:?} of {writes:?}"
            );
        }
        assert_eq!(
            String::from_utf8(disk.written.lock().unwrap().clone()).unwrap(),
            stands,
            "{writes:?}"
        );
    }

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

    /// It was glued to what there had been room for, and was in no count of lost lines.
    #[test]
    fn the_line_after_one_that_was_not_written_whole_stands_alone() {
        check(&[(99, "aa\n", true), (99, "bb\n", true)], "aa\nbb\n");
        check(&[(1, "aa\n", false), (99, "bb\n", true), (99, "cc\n", true)], "a\nbb\ncc\n");
        check(&[(1, "aa\n", false), (0, "bb\n", false), (99, "cc\n", true)], "a\ncc\n");
        check(&[(1, "aa\n", false), (1, "bb\n", false), (99, "cc\n", true)], "a\ncc\n");
        check(&[(1, "aa\n", false), (2, "bb\n", false), (99, "cc\n", true)], "a\nb\ncc\n");
        check(&[(0, "aa\n", false), (99, "bb\n", true)], "bb\n");
        check(&[(3, "aa\nbb\n", false), (99, "cc\n", true)], "aa\ncc\n");
    }
}
