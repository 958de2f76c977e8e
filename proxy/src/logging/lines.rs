//! Lines that a thread of their own writes, so that nobody waits for whoever takes them.

use std::convert::Infallible;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, channel, sync_channel};
use std::time::Instant;

use tracing_subscriber::fmt::MakeWriter;

/// How many lines wait to be written. Further ones are left out, and counted.
const LINES_MAX: usize = 8_192;

/// Where lines go. Clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Lines {
    queue: SyncSender<Vec<u8>>,
    lost: Lost,
    is_ending: Arc<AtomicBool>,
}

/// How many lines there was no room for, or could not be written. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Lost(Arc<AtomicU64>);

/// The thread that writes them, to wait for.
#[derive(Debug)]
pub(crate) struct Writing(Receiver<Infallible>);

impl Lines {
    /// Has a thread of that name write lines, each by one call. One that fails is counted as lost.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub(crate) fn begin(
        name: &str,
        lost: Lost,
        write: impl FnMut(&[u8]) -> io::Result<()> + Send + 'static,
    ) -> io::Result<(Lines, Writing)> {
        let (queue, waiting) = sync_channel(LINES_MAX);
        let (ending, ended) = channel();
        let is_ending = Arc::new(AtomicBool::new(false));
        let lines = Lines { queue, lost: lost.clone(), is_ending: Arc::clone(&is_ending) };
        std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            write_to_the_end(&waiting, &is_ending, &lost, write);
            drop(ending);
        })?;
        Ok((lines, Writing(ended)))
    }

    /// Never waits; a line that finds no room is counted as lost.
    pub(crate) fn add(&self, line: Vec<u8>) {
        if self.queue.try_send(line).is_err() {
            self.lost.one_more();
        }
    }

    /// Has its thread end when it has written what waits.
    pub(crate) fn end(&self) {
        self.is_ending.store(true, Ordering::SeqCst);
        // Where there is no room, it does not sleep.
        let _ = self.queue.try_send(Vec::new());
    }
}

fn write_to_the_end(
    waiting: &Receiver<Vec<u8>>,
    is_ending: &AtomicBool,
    lost: &Lost,
    mut write: impl FnMut(&[u8]) -> io::Result<()>,
) {
    loop {
        let next = match waiting.try_recv() {
            Err(TryRecvError::Empty) if !is_ending.load(Ordering::SeqCst) => waiting.recv().ok(),
            next => next.ok(),
        };
        match next {
            // It only wakes.
            Some(line) if line.is_empty() => {}
            Some(line) if write(&line).is_ok() => {}
            Some(_) => lost.one_more(),
            None => return,
        }
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = &'a Lines;

    fn make_writer(&'a self) -> &'a Lines {
        self
    }
}

impl Write for &Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.add(line.to_vec());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Lost {
    /// How many by now.
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn one_more(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Writing {
    /// Waits until it has ended, but no longer than until then: nobody may take what it writes. Says whether it has.
    pub(crate) fn ends_by(&self, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        self.0.recv_timeout(left) == Err(RecvTimeoutError::Disconnected)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(30)
    }

    #[test]
    fn what_waits_is_written_before_the_end_and_nothing_else_is_waited_for() {
        let (written, read) = mpsc::channel();
        let (lines, writing) = Lines::begin("lines", Lost::default(), move |line| {
            written.send(line.to_vec()).unwrap();
            Ok(())
        })
        .unwrap();
        for number in 0..100_u8 {
            lines.add(vec![number]);
        }
        lines.end();
        assert!(writing.ends_by(soon()));
        assert!(read.iter().eq((0..100_u8).map(|number| vec![number])));
    }

    #[test]
    fn a_line_that_cannot_be_written_is_lost_and_the_next_ones_are_written() {
        let (written, read) = mpsc::channel();
        let lost = Lost::default();
        let (lines, writing) = Lines::begin("lines", lost.clone(), move |line| {
            if line[0] < 3 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            written.send(line[0]).unwrap();
            Ok(())
        })
        .unwrap();
        (1..=5).for_each(|number| lines.add(vec![number]));
        lines.end();
        assert!(writing.ends_by(soon()));
        assert_eq!((lost.count(), read.iter().collect::<Vec<_>>()), (2, vec![3, 4, 5]));
    }

    #[test]
    fn a_writer_that_gets_nowhere_loses_what_finds_no_room_and_holds_nobody_up() {
        let (begun, has_begun) = mpsc::channel();
        let (go_on, gate) = mpsc::channel::<()>();
        let lost = Lost::default();
        let (lines, writing) = Lines::begin("lines", lost.clone(), move |_| {
            begun.send(()).unwrap();
            let _ = gate.recv();
            Ok(())
        })
        .unwrap();
        lines.add(vec![1]);
        has_begun.recv().unwrap();
        for _ in 0..LINES_MAX + 5 {
            lines.add(vec![1]);
        }
        assert_eq!(lost.count(), 5);
        lines.end();
        assert!(!writing.ends_by(Instant::now()));
        drop(go_on);
        assert!(writing.ends_by(soon()));
    }
}
