//! Prints the messages of `fencepost hold` on standard error, from a thread of its own.
//!
//! Nothing else waits for that thread but the end of the process, which has a limit: a reader that has stopped reading must not
//! keep the command from being ended in time.

use std::fmt::Arguments;
use std::io::{self, Write, stderr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use nix::sys::signal::{SigSet, SigmaskHow, Signal};

/// How many messages may wait for the thread. It counts what comes beyond that as lost.
const MESSAGES_MAX: usize = 1_024;

/// How long the end of the process waits for the reader.
const END_MAX: Duration = Duration::from_secs(1);

/// The thread that prints. When this is dropped, it prints what waits, for at most a second.
pub(super) struct ConsoleWriter {
    console: Console,
    /// The thread's end closes it.
    ended: Receiver<()>,
}

/// Where messages go. Clones print to the same console.
#[derive(Debug, Clone)]
pub(super) struct Console {
    queue: SyncSender<Message>,
    lost: Arc<AtomicU64>,
    verbose: bool,
}

#[derive(Debug)]
enum Message {
    Line(String),
    /// Nothing comes behind it.
    End,
}

impl ConsoleWriter {
    /// Starts the thread.
    ///
    /// # Panics
    /// If the system gives no thread.
    pub(super) fn begin() -> ConsoleWriter {
        // A terminal stops a process that writes to it from the background (`stty tostop`), and a stopped process ends no command. The
        // thread inherits the blocked signal; child processes do not.
        let mut stopping = SigSet::empty();
        stopping.add(Signal::SIGTTOU);
        let before = stopping.thread_swap_mask(SigmaskHow::SIG_BLOCK);
        let writer = ConsoleWriter::to(|line| stderr().write_all(line));
        let _ = before.and_then(|before| before.thread_set_mask());
        writer
    }

    fn to(write: impl FnMut(&[u8]) -> io::Result<()> + Send + 'static) -> ConsoleWriter {
        let (queue, messages) = sync_channel(MESSAGES_MAX);
        let (end, ended) = sync_channel(0);
        let lost = Arc::<AtomicU64>::default();
        let console = Console { queue, lost: Arc::clone(&lost), verbose: false };
        let print = move || {
            print_all(&messages, &lost, write);
            drop(end);
        };
        std::thread::Builder::new().name("console".to_owned()).spawn(print).expect("the system gives a thread");
        ConsoleWriter { console, ended }
    }

    /// A console that prints through this.
    pub(super) fn console(&self, verbose: bool) -> Console {
        Console { verbose, ..self.console.clone() }
    }
}

impl Drop for ConsoleWriter {
    fn drop(&mut self) {
        // A full queue means that the reader has stopped: then there is nothing to wait for.
        if self.console.queue.try_send(Message::End).is_ok() {
            let _ = self.ended.recv_timeout(END_MAX);
        }
    }
}

impl Console {
    /// Prints a message.
    pub(super) fn print(&self, message: Arguments<'_>) {
        // One write per line, so that the lines of several processes stay whole.
        let line = format!("fencepost hold: {message}\n");
        if self.queue.try_send(Message::Line(line)).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Prints a message that only `--verbose` asks for.
    pub(super) fn print_verbose(&self, message: Arguments<'_>) {
        if self.verbose {
            self.print(message);
        }
    }
}

fn print_all(messages: &Receiver<Message>, lost: &AtomicU64, mut write: impl FnMut(&[u8]) -> io::Result<()>) {
    while let Ok(Message::Line(line)) = messages.recv() {
        let missing = lost.swap(0, Ordering::Relaxed);
        let line = match missing {
            0 => line,
            _ => format!("fencepost hold: {missing} messages are missing, because they were not read in time\n{line}"),
        };
        if write(line.as_bytes()).is_err() {
            lost.fetch_add(missing + 1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn messages_that_could_not_be_printed_are_counted_once() {
        let printed = Arc::<Mutex<Vec<String>>>::default();
        let (sink, mut failures) = (Arc::clone(&printed), 2);
        let writer = ConsoleWriter::to(move |line| {
            if failures > 0 {
                failures -= 1;
                return Err(io::ErrorKind::StorageFull.into());
            }
            sink.lock().unwrap().push(String::from_utf8(line.to_vec()).unwrap());
            Ok(())
        });
        let console = writer.console(false);
        for message in ["lost", "lost", "a", "b"] {
            console.print(format_args!("{message}"));
        }
        console.print_verbose(format_args!("not asked for"));
        drop(writer);
        let missing = "fencepost hold: 2 messages are missing, because they were not read in time\n";
        assert_eq!(printed.lock().unwrap().concat(), format!("{missing}fencepost hold: a\nfencepost hold: b\n"));
    }

    #[test]
    fn a_reader_that_has_stopped_holds_nobody_up() {
        let (reader, stopped) = sync_channel::<()>(0);
        let writer = ConsoleWriter::to(move |_| {
            let _ = stopped.recv();
            Ok(())
        });
        let console = writer.console(false);
        for _ in 0..2 * MESSAGES_MAX {
            console.print(format_args!("nobody reads this"));
        }
        assert!(console.lost.load(Ordering::Relaxed) >= 1);
        drop(writer);
        drop(reader);
    }
}
