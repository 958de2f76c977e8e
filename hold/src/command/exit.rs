//! The exit code of `fencepost hold`, and why.

use std::error::Error;

use crate::Over;
use rustix::process::{Signal, WaitStatus};

use super::console::Console;

/// The default of `--conflict-exit-code` (EX_TEMPFAIL of sysexits.h).
pub(super) const CONFLICT: u8 = 75;

/// Failed to run: etcd does not answer, or refuses; the proxy refuses to fence.
const FAILED: u8 = 1;
/// Wrong usage (EX_USAGE of sysexits.h).
const USAGE: u8 = 64;
/// The lock was lost, with `--once`.
const LOST: u8 = 76;
/// A signal ended the command: this plus the signal's number, as in shells.
const SIGNAL: u8 = 128;

/// How this process ends.
#[derive(Debug)]
pub(super) struct Exit {
    code: u8,
    /// `None` if the user knows already: from the command, or by a signal.
    why: Option<String>,
}

impl Exit {
    pub(super) fn new(code: u8, why: impl Into<String>) -> Exit {
        Exit { code, why: Some(why.into()) }
    }

    pub(super) fn failed(why: impl Into<String>) -> Exit {
        Exit::new(FAILED, why)
    }

    pub(super) fn usage(why: impl Into<String>) -> Exit {
        Exit::new(USAGE, why)
    }

    pub(super) fn lost(over: Over) -> Exit {
        Exit::new(LOST, format!("the lock was lost: {over}"))
    }

    /// A signal came before the command was started.
    pub(super) fn signalled(signal: Signal) -> Exit {
        Exit::by_signal(signal.as_raw())
    }

    /// The exit of a command that has ended so.
    pub(super) fn of_command(status: WaitStatus) -> Exit {
        match (status.exit_status(), status.terminating_signal()) {
            (None, Some(signal)) => Exit::by_signal(signal),
            (code, _) => Exit {
                code: code.and_then(|code| u8::try_from(code).ok()).unwrap_or(FAILED),
                why: None,
            },
        }
    }

    fn by_signal(signal: i32) -> Exit {
        Exit { code: SIGNAL.saturating_add(u8::try_from(signal).unwrap_or(0)), why: None }
    }

    /// Prints why, and returns the exit code.
    pub(super) fn report(&self, console: &Console) -> u8 {
        if let Some(why) = &self.why {
            console.print(format_args!("{why}"));
        }
        self.code
    }
}

/// An error and its causes, in one line.
pub(super) fn with_causes(error: &(dyn Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| (*error).source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
