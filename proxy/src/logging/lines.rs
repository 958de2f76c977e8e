//! Writes lines on a thread of its own, so that no other thread waits for a slow reader.

use std::convert::Infallible;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{
    Receiver, RecvTimeoutError, SyncSender, TryRecvError, channel, sync_channel,
};
use std::time::Instant;

use tracing_subscriber::fmt::MakeWriter;

/// How many lines wait to be written. Further ones are left out, and counted.
const LINES_MAX: usize = 8_192;

/// How much of them is written by one call, unless a single line is longer: what a pipe takes as a
/// whole (`PIPE_BUF` of Linux, pipe(7)), so that nothing that others write to it comes between.
const WRITE_BYTES_MAX: usize = 4_096;

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
    /// Has a thread of that name write lines, as many of those that wait by one call as go into it
    /// whole. If it fails, each of them is counted as lost.
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
            self.lost.more(1);
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
    let mut found_no_room = None;
    while let Some(mut text) = found_no_room.take().or_else(|| next(waiting, is_ending)) {
        let mut lines = count(&text);
        while let Ok(line) = waiting.try_recv() {
            if text.len() + line.len() > WRITE_BYTES_MAX {
                found_no_room = Some(line);
                break;
            }
            lines += count(&line);
            text.extend_from_slice(&line);
        }
        if lines > 0 && write(&text).is_err() {
            lost.more(lines);
        }
    }
}

/// Waits for what is to be written next; `None` at the end.
fn next(waiting: &Receiver<Vec<u8>>, is_ending: &AtomicBool) -> Option<Vec<u8>> {
    match waiting.try_recv() {
        Err(TryRecvError::Empty) if !is_ending.load(Ordering::SeqCst) => waiting.recv().ok(),
        next => next.ok(),
    }
}

/// How many lines that is: an empty one only wakes.
fn count(line: &[u8]) -> u64 {
    u64::from(!line.is_empty())
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

    fn more(&self, lines: u64) {
        self.0.fetch_add(lines, Ordering::Relaxed);
    }
}

impl Writing {
    /// Waits until it has ended, but no longer than until then: nobody may take what it writes.
    /// Says whether it has.
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

    /// What goes by each call for these lines, all of which wait before anything is written, and
    /// how many lines are lost for whom calls that `fails` tells fail.
    fn check(waiting: &[Vec<u8>], fails: fn(&[u8]) -> bool) -> (Vec<Vec<u8>>, u64) {
        let (queue, ordered) = sync_channel(waiting.len() + 1);
        waiting.iter().for_each(|line| queue.send(line.clone()).unwrap());
        let (lost, mut calls) = (Lost::default(), Vec::new());
        write_to_the_end(&ordered, &AtomicBool::new(true), &lost, |text| {
            calls.push(text.to_vec());
            if fails(text) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
        });
        (calls, lost.count())
    }

    fn lines(lengths: &[usize]) -> Vec<Vec<u8>> {
        lengths.iter().zip(b'a'..).map(|(length, letter)| vec![letter; *length]).collect()
    }

    #[test]
    fn what_waits_is_written_before_the_end_and_nothing_else_is_waited_for() {
        let (written, read) = mpsc::channel();
        let (lines, writing) = Lines::begin("lines", Lost::default(), move |text| {
            written.send(text.to_vec()).unwrap();
            Ok(())
        })
        .unwrap();
        for number in 0..100_u8 {
            lines.add(vec![number]);
        }
        lines.end();
        assert!(writing.ends_by(soon()));
        assert!(read.iter().flatten().eq(0..100_u8));
    }

    #[test]
    fn lines_that_wait_are_written_by_one_call_as_far_as_a_pipe_takes_them_whole() {
        for (lengths, calls) in [
            (&[100; 26][..], &[2_600][..]),
            (&[4_000, 96, 1], &[4_096, 1]),
            (&[4_000, 97], &[4_000, 97]),
            (&[10, 5_000, 10, 10], &[10, 5_000, 20]),
            (&[5_000, 5_000], &[5_000, 5_000]),
            (&[0, 10, 0, 10, 0], &[20]),
            (&[0, 5_000, 0], &[5_000]),
            (&[0], &[]),
        ] {
            let waiting = lines(lengths);
            let (written, lost) = check(&waiting, |_| false);
            assert_eq!(written.iter().map(Vec::len).collect::<Vec<_>>(), calls, "{lengths:?}");
            assert_eq!((written.concat(), lost), (waiting.concat(), 0), "{lengths:?}");
        }
    }

    #[test]
    fn each_line_of_what_cannot_be_written_is_lost_and_the_next_ones_are_written() {
        let waiting = lines(&[2_000, 2_000, 90, 0, 4_000, 50, 60, 5_000]);
        let (written, lost) = check(&waiting, |text| text.len() == 4_090);
        assert_eq!((written.len(), lost), (4, 3));
        let (written, lost) = check(&waiting, |_| true);
        assert_eq!((written.len(), lost), (4, 7));
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
