//! Prints the messages of `fencepost hold` on standard error, from a thread of its own.
//!
//! Nothing else waits for that thread but the end of the process, which has a limit: a reader that
//! has stopped reading must not keep the command from being ended in time. Messages that find the
//! queue full are lost.

use std::fmt::Arguments;
use std::io::{Write, stderr};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};

/// How many messages may wait for the thread.
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
    /// `None` is the last message.
    queue: SyncSender<Option<String>>,
    verbose: bool,
}

impl ConsoleWriter {
    /// Starts the thread.
    ///
    /// # Panics
    /// If the system gives no thread.
    pub(super) fn begin() -> ConsoleWriter {
        ConsoleWriter::to(|line| drop(stderr().write_all(line.as_bytes())))
    }

    fn to(mut write: impl FnMut(&str) + Send + 'static) -> ConsoleWriter {
        let (queue, messages) = sync_channel::<Option<String>>(MESSAGES_MAX);
        let (end, ended) = sync_channel(0);
        let print = move || {
            // A terminal stops a process that writes to it from the background (`stty tostop`), and
            // a stopped process ends no command. Only this thread blocks the signal, so child
            // processes do not inherit that.
            let mut stopping = SigSet::empty();
            stopping.add(Signal::SIGTTOU);
            let _ = stopping.thread_block();
            while let Ok(Some(line)) = messages.recv() {
                write(&line);
            }
            drop(end);
        };
        std::thread::Builder::new()
            .name("console".to_owned())
            .spawn(print)
            .expect("the system gives a thread");
        ConsoleWriter { console: Console { queue, verbose: false }, ended }
    }

    /// A console that prints through this.
    pub(super) fn console(&self, verbose: bool) -> Console {
        Console { verbose, ..self.console.clone() }
    }
}

impl Drop for ConsoleWriter {
    fn drop(&mut self) {
        // A full queue means that the reader has stopped: then there is nothing to wait for.
        if self.console.queue.try_send(None).is_ok() {
            let _ = self.ended.recv_timeout(END_MAX);
        }
    }
}

impl Console {
    /// Prints a message.
    pub(super) fn print(&self, message: Arguments<'_>) {
        // One write per line, so that the lines of several processes stay whole.
        let _ = self.queue.try_send(Some(format!("fencepost hold: {message}\n")));
    }

    /// Whether `--verbose` asks for all messages.
    pub(super) fn is_verbose(&self) -> bool {
        self.verbose
    }

    /// Prints a message that only `--verbose` asks for.
    pub(super) fn print_verbose(&self, message: Arguments<'_>) {
        if self.verbose {
            self.print(message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_has_stopped_holds_nobody_up() {
        let (reader, stopped) = sync_channel::<()>(0);
        let writer = ConsoleWriter::to(move |_| stopped.recv().unwrap_or_default());
        let console = writer.console(false);
        for _ in 0..2 * MESSAGES_MAX {
            console.print(format_args!("nobody reads this"));
        }
        drop(writer);
        drop(reader);
    }
}
