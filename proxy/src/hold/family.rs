//! The command and all that came of it: processes that it started, and those that lost their parent meanwhile.

use std::collections::BTreeSet;
use std::{fmt, io};

use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpgid, getpid, kill_process, kill_process_group, set_child_subreaper, wait,
};

use super::descent::{children, is_beyond, may_signal};

/// Has this process become the parent of all that lose theirs below it: nobody gets out of its sight. As process 1 it is that
/// anyway.
pub(super) fn adopt_orphans() -> io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// The command, running or ended, and what it has left.
#[derive(Debug)]
pub(super) struct Family {
    command: Pid,
    /// Whether the command leads a process group of its own.
    leads_group: bool,
    /// Children of ours that are none of the family.
    others: Vec<Pid>,
    status: Option<WaitStatus>,
    /// What was asked to end already: once is enough.
    asked: BTreeSet<i32>,
}

impl Family {
    /// That of a process that is a command, or is about to become one. It is waited for below, together with its orphans.
    pub(super) fn of(command: Pid, leads_group: bool, others: Vec<Pid>) -> Family {
        Family { command, leads_group, others, status: None, asked: BTreeSet::new() }
    }

    /// The command's process id.
    pub(super) fn command(&self) -> Pid {
        self.command
    }

    /// Whether the command leads a process group of its own.
    pub(super) fn leads_group(&self) -> bool {
        self.leads_group
    }

    /// How the command has ended, if it has.
    pub(super) fn status(&self) -> Option<WaitStatus> {
        self.status
    }

    /// Passes a signal on.
    pub(super) fn signal(&self, signal: Signal) {
        // Whoever is gone needs none.
        let _ = match (self.leads_group, self.status) {
            (true, _) => kill_process_group(self.command, signal),
            (false, None) => kill_process(self.command, signal),
            (false, Some(_)) => Ok(()),
        };
    }

    /// Asks all that are left to end, each once: many a program takes the second time for an order to end at once. Who wants that asks
    /// [anew](Family::ask_anew).
    pub(super) fn terminate(&mut self) {
        if self.asked.insert(self.command.as_raw_nonzero().get()) {
            self.signal(Signal::TERM);
        }
        for orphan in self.members().unwrap_or_default() {
            // Who is in the group was asked with it.
            if !self.has_in_group(orphan) && self.asked.insert(orphan.as_raw_nonzero().get()) {
                let _ = kill_process(orphan, Signal::TERM);
            }
        }
    }

    /// Whoever is asked to end from now on is asked once more.
    pub(super) fn ask_anew(&mut self) {
        self.asked.clear();
    }

    /// Ends all that are left. What has a parent that ends first is there to be ended afterwards: to be called again
    /// whenever a child has ended.
    pub(super) fn kill(&self) {
        self.signal(Signal::KILL);
        for child in self.members().unwrap_or_default() {
            let _ = kill_process(child, Signal::KILL);
        }
    }

    fn has_in_group(&self, pid: Pid) -> bool {
        self.leads_group && getpgid(Some(pid)) == Ok(self.command)
    }

    /// Takes note of how the command has ended.
    pub(super) fn command_ended(&mut self, status: WaitStatus) {
        self.status = Some(status);
    }

    /// Whether nothing is left: of those that this process may signal at all.
    ///
    /// # Errors
    /// If it cannot be looked: something may be left.
    pub(super) fn is_gone(&self) -> io::Result<bool> {
        Ok(self.status.is_some() && self.members()?.is_empty())
    }

    /// Whether the command runs as another user: no signal reaches it.
    pub(super) fn command_is_beyond(&self) -> bool {
        self.status.is_none() && is_beyond(self.command)
    }

    /// Whether something is left that runs as another user.
    pub(super) fn leaves_beyond(&self) -> bool {
        let children = children(getpid()).unwrap_or_default();
        children.into_iter().any(|pid| !self.others.contains(&pid) && is_beyond(pid))
    }

    /// What is left that this process may end: what runs under another user is not waited for either.
    fn members(&self) -> io::Result<Vec<Pid>> {
        let members = children(getpid())?.into_iter();
        Ok(members.filter(|pid| !self.others.contains(pid) && may_signal(*pid)).collect())
    }
}

/// Whom the end of a command reaches. The system lets nobody but root end what runs as another user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    All,
    /// The command, but not all that came of it.
    Some,
    /// The command itself is beyond it.
    Beyond,
}

impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reach::All => "ending the command",
            Reach::Some => {
                "ending the command, but for what runs as another user: that may run on beside the next holder's"
            }
            Reach::Beyond => {
                "the command runs as another user, cannot be ended, and may run on beside the next holder's"
            }
        })
    }
}

/// What was learnt of the children.
#[derive(Debug, Default)]
pub(super) struct Reaped {
    /// How the command has ended, if it has.
    pub(super) command: Option<WaitStatus>,
    /// Whether the command was stopped just now because it wanted something of a terminal in whose background it is.
    pub(super) wants_terminal: bool,
    /// Whether the watchdog has ended.
    pub(super) watchdog: bool,
}

/// Takes leave of all children that have ended, orphans included.
pub(super) fn reap(command: Option<Pid>, watchdog: Pid) -> Reaped {
    let mut reaped = Reaped::default();
    while let Ok(Some((child, status))) = wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
        if status.stopped() {
            let for_terminal = [Signal::TTIN, Signal::TTOU].map(Signal::as_raw);
            reaped.wants_terminal |=
                Some(child) == command && status.stopping_signal().is_some_and(|signal| for_terminal.contains(&signal));
            continue;
        }
        if Some(child) == command {
            reaped.command = Some(status);
        }
        reaped.watchdog |= child == watchdog;
    }
    reaped
}
