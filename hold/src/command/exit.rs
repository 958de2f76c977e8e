//! What `fencepost hold` exits with.

use crate::Over;
use rustix::process::Signal;

use super::console::Console;

/// Failed to run: etcd does not answer, or refuses; the proxy refuses to fence.
const FAILED: u8 = 1;
/// Wrong usage (EX_USAGE of sysexits.h).
const USAGE: u8 = 64;
/// The lock is held by somebody else, with `--try` (EX_TEMPFAIL).
pub(super) const CONFLICT: u8 = 75;
/// The lock was lost, with `--once`.
const LOST: u8 = 76;
/// The command cannot be run, as shells say it.
const NOT_EXECUTABLE: u8 = 126;
/// There is no such command, as shells say it.
const NOT_FOUND: u8 = 127;
/// Plus a signal's number: ended by it, as shells say it.
const SIGNAL: u8 = 128;

/// How it ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Exit {
    /// As the command did.
    Command(u8),
    /// By a signal before the command was started.
    Signal(Signal),
    /// The command can't be started.
    NoCommand { is_missing: bool, why: String },
    /// The lock is held by somebody else.
    Conflict { code: u8, owner: String },
    /// The lock was lost.
    Lost(Over),
    /// Something else went wrong.
    Failed(String),
    /// It makes no sense.
    Usage(String),
}

impl Exit {
    /// Prints why, and returns the exit code.
    pub(super) fn report(&self, console: &Console) -> u8 {
        match self {
            // The command has said what it had to say.
            Exit::Command(_) | Exit::Signal(_) => {}
            Exit::NoCommand { why, .. } => console.print(format_args!("{why}")),
            Exit::Conflict { owner, .. } => console.print(format_args!("the lock is held by {owner}")),
            Exit::Lost(over) => console.print(format_args!("the lock was lost: {over}")),
            Exit::Failed(why) | Exit::Usage(why) => console.print(format_args!("{why}")),
        }
        self.code()
    }

    pub(super) fn code(&self) -> u8 {
        match self {
            Exit::Command(code) => *code,
            Exit::Signal(signal) => SIGNAL.saturating_add(u8::try_from(signal.as_raw()).unwrap_or(0)),
            Exit::NoCommand { is_missing, .. } => {
                if *is_missing {
                    NOT_FOUND
                } else {
                    NOT_EXECUTABLE
                }
            }
            Exit::Conflict { code, .. } => *code,
            Exit::Lost(_) => LOST,
            Exit::Failed(_) => FAILED,
            Exit::Usage(_) => USAGE,
        }
    }

    /// The exit of a command that has ended so.
    pub(super) fn of_command(status: rustix::process::WaitStatus) -> Exit {
        let code = match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => u8::try_from(code & 0xff).unwrap_or(FAILED),
            (None, Some(signal)) => SIGNAL.saturating_add(u8::try_from(signal).unwrap_or(0)),
            (None, None) => FAILED,
        };
        Exit::Command(code)
    }
}
