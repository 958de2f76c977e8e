//! The command and all that came of it: processes that it started, and those that lost their parent meanwhile.

use std::collections::BTreeSet;
use std::io;

use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, kill_process_group, set_child_subreaper, wait,
};

/// Has this process become the parent of all that lose theirs below it: nobody gets out of its sight. As process 1 it is that
/// anyway.
pub(super) fn adopt_orphans() -> io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// The children that this process has now. It may have been started with some: by a script that `exec`s it.
///
/// One that has ended counts until leave was taken of it. What it leaves behind is ours before it shows as ended: so whoever finds
/// nobody here has missed nobody.
pub(super) fn children() -> Vec<Pid> {
    // A kernel may be built without these lists.
    listed_children().unwrap_or_else(|_| searched_children())
}

/// By the kernel's own lists, one for each thread.
fn listed_children() -> io::Result<Vec<Pid>> {
    let mut children = Vec::new();
    for thread in std::fs::read_dir("/proc/self/task")? {
        // A thread that has ended since has left its children to another: an error here.
        let list = std::fs::read_to_string(thread?.path().join("children"))?;
        children.extend(list.split_whitespace().filter_map(pid));
    }
    Ok(children)
}

/// By looking at every process of the machine, which takes as long as there are many.
fn searched_children() -> Vec<Pid> {
    let me = getpid();
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| pid(entry.file_name().to_str()?));
    pids.filter(|&child| parent(child) == Some(me)).collect()
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

    /// Asks all that are left to end, each once.
    pub(super) fn terminate(&mut self) {
        if self.asked.insert(self.command.as_raw_nonzero().get()) {
            self.signal(Signal::TERM);
        }
        for orphan in self.members() {
            if self.asked.insert(orphan.as_raw_nonzero().get()) {
                let _ = kill_process(orphan, Signal::TERM);
            }
        }
    }

    /// Ends all that are left. What has a parent that ends first is there to be ended afterwards: to be called again
    /// whenever a child has ended.
    pub(super) fn kill(&self) {
        self.signal(Signal::KILL);
        for child in self.members() {
            let _ = kill_process(child, Signal::KILL);
        }
    }

    /// Takes note of how the command has ended.
    pub(super) fn command_ended(&mut self, status: WaitStatus) {
        self.status = Some(status);
    }

    /// Whether nothing is left: of those that this process may signal at all.
    pub(super) fn is_gone(&self) -> bool {
        self.status.is_some() && self.members().is_empty()
    }

    /// What is left that this process may end: what runs under another user is not waited for either.
    fn members(&self) -> Vec<Pid> {
        children().into_iter().filter(|pid| !self.others.contains(pid) && may_signal(*pid)).collect()
    }
}

/// Which of two children have ended.
#[derive(Debug, Default)]
pub(super) struct Reaped {
    /// How the command has, if it has.
    pub(super) command: Option<WaitStatus>,
    /// Whether the watchdog has.
    pub(super) watchdog: bool,
}

/// Takes leave of all children that have ended, orphans included.
pub(super) fn reap(command: Option<Pid>, watchdog: Pid) -> Reaped {
    let mut reaped = Reaped::default();
    while let Ok(Some((child, status))) = wait(WaitOptions::NOHANG) {
        if Some(child) == command {
            reaped.command = Some(status);
        }
        reaped.watchdog |= child == watchdog;
    }
    reaped
}

fn parent(child: Pid) -> Option<Pid> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.as_raw_nonzero())).ok()?;
    // The program's name stands in brackets and may hold anything; state and parent are the words after it.
    pid(stat.rsplit_once(") ")?.1.split(' ').nth(1)?)
}

fn pid(word: &str) -> Option<Pid> {
    Pid::from_raw(word.parse().ok()?)
}

fn may_signal(pid: Pid) -> bool {
    rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::PERM)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn children_are_found_by_either_way_and_count_until_leave_was_taken_of_them() {
        let mut lives = Command::new("sleep").arg("1000").spawn().unwrap();
        let mut ended = Command::new("true").spawn().unwrap();
        let (first, second) = (Pid::from_child(&lives), Pid::from_child(&ended));
        // It has ended, and nobody has asked how.
        rustix::process::waitid(
            rustix::process::WaitId::Pid(second),
            rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT,
        )
        .unwrap();
        for children in [listed_children().unwrap(), searched_children(), children()] {
            assert!(children.contains(&first) && children.contains(&second), "{children:?}");
        }
        lives.kill().unwrap();
        let _ = (lives.wait(), ended.wait());
        for children in [listed_children().unwrap(), searched_children(), children()] {
            assert!(!children.contains(&first) && !children.contains(&second), "{children:?}");
        }
    }
}
