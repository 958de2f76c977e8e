//! What `fencepost hold` says, on standard error: the command has the rest.
//!
//! Whoever should read it may have stopped, and a command is to end in time all the same. So a thread writes it, and nobody waits for
//! that but the end of the process, which has a limit.

use std::fmt::Arguments;
use std::io::{Write, stderr};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, SigmaskHow, Signal};

use crate::logging::{Lines, Lost, Writing};

/// How long the end of the process waits for whoever reads what was said.
const END_MAX: Duration = Duration::from_secs(1);

/// All that a process says. What is not written yet is written when this goes.
pub(super) struct Speech {
    lines: Lines,
    writing: Writing,
}

/// Whoever is heard. Clones are the same one.
#[derive(Debug, Clone)]
pub(super) struct Voice {
    lines: Lines,
    verbose: bool,
}

impl Speech {
    /// Begins it.
    ///
    /// # Panics
    /// If the system gives no thread.
    pub(super) fn begin() -> Speech {
        let lost = Lost::default();
        let mut known = Known { lost: lost.clone(), count: 0 };
        let write = move |line: &[u8]| stderr().write_all(&known.before(line));
        // A terminal may stop whoever writes to it from its background (`stty tostop`), and who stands still ends no command. The thread that
        // writes has what is blocked as it begins; what this process starts has not.
        let mut stopping = SigSet::empty();
        stopping.add(Signal::SIGTTOU);
        let before = stopping.thread_swap_mask(SigmaskHow::SIG_BLOCK);
        let (lines, writing) = Lines::begin("voice", lost, write).expect("the system gives the voice a thread");
        let _ = before.and_then(|before| before.thread_set_mask());
        Speech { lines, writing }
    }

    /// One that is heard in it.
    pub(super) fn voice(&self, verbose: bool) -> Voice {
        Voice { lines: self.lines.clone(), verbose }
    }
}

impl Drop for Speech {
    fn drop(&mut self) {
        self.lines.end();
        self.writing.ends_by(Instant::now() + END_MAX);
    }
}

impl Voice {
    /// Says what must be said.
    pub(super) fn say(&self, what: Arguments<'_>) {
        // As one line, so that those of several processes stay whole.
        self.lines.add(format!("fencepost hold: {what}\n").into_bytes());
    }

    /// Says what only some want to hear.
    pub(super) fn step(&self, what: Arguments<'_>) {
        if self.verbose {
            self.say(what);
        }
    }
}

/// How much of what could not be said was owned up to.
struct Known {
    lost: Lost,
    count: u64,
}

impl Known {
    /// A line, after one that says how many are missing before it, if there are any that nobody knows of.
    fn before(&mut self, line: &[u8]) -> Vec<u8> {
        let missing = self.lost.count() - self.count;
        self.count += missing;
        let mut lines = match missing {
            0 => Vec::new(),
            _ => format!("fencepost hold: nobody took what was said: {missing} lines are missing\n").into_bytes(),
        };
        lines.extend_from_slice(line);
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_missing_are_owned_up_to_once() {
        let lost = Lost::default();
        let nowhere = |_: &[u8]| Err(std::io::ErrorKind::StorageFull.into());
        let (lines, writing) = Lines::begin("lines", lost.clone(), nowhere).unwrap();
        (0..2).for_each(|_| lines.add(b"lost\n".to_vec()));
        lines.end();
        assert!(writing.ends_by(Instant::now() + Duration::from_secs(30)));
        let mut known = Known { lost, count: 0 };
        assert_eq!(known.before(b"a\n"), b"fencepost hold: nobody took what was said: 2 lines are missing\na\n");
        assert_eq!(known.before(b"b\n"), b"b\n");
    }
}
