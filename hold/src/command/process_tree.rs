//! The command and the processes that came of it: finds them in /proc, and ends them.
//!
//! It does not decide when: `under_lock` and the watchdog do.

use std::collections::HashSet;
use std::io::{self, ErrorKind};
use std::iter;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpgid, getpid, kill_process, kill_process_group,
    set_child_subreaper, test_kill_process, wait,
};

/// How long processes may take to stop before they are killed as they are. A process that waits
/// inside the kernel may take any time.
const STOPPED_WITHIN: Duration = Duration::from_millis(50);

/// The limit for processes that run or wait for a processor. They may be in the middle of a fork,
/// which takes a while on a busy machine.
const RUNNING_STOPPED_WITHIN: Duration = Duration::from_secs(1);

/// How long to leave the processor to those that are to stop.
const STOP_PAUSE: Duration = Duration::from_millis(1);

/// How often the list of a process's children is read anew while its threads end.
const LOOKS_MAX: usize = 100;

/// Has this process become the parent of all processes below it that lose theirs, as process 1 is
/// anyway.
pub(super) fn adopt_orphans() -> io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// The command, running or ended, and what it has left.
#[derive(Debug)]
pub(super) struct ProcessTree {
    command: Pid,
    /// Whether the command leads a process group of its own.
    leads_group: bool,
    /// Children of this process that have nothing to do with the command.
    others: Vec<Pid>,
    status: Option<WaitStatus>,
    /// The processes that were asked to end. Many programs take a second SIGTERM for an order to
    /// end at once.
    asked: HashSet<Pid>,
}

impl ProcessTree {
    /// The tree of a process that becomes a command.
    pub(super) fn of(command: Pid, leads_group: bool, others: Vec<Pid>) -> ProcessTree {
        ProcessTree { command, leads_group, others, status: None, asked: HashSet::new() }
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
        // A process that is gone needs no signal.
        let _ = match (self.leads_group, self.status) {
            (true, _) => kill_process_group(self.command, signal),
            (false, None) => kill_process(self.command, signal),
            (false, Some(_)) => Ok(()),
        };
    }

    /// Asks all that are left to end, each once until [`ask_anew`](ProcessTree::ask_anew).
    pub(super) fn terminate(&mut self) {
        if self.asked.insert(self.command) {
            self.signal(Signal::TERM);
        }
        for orphan in self.members().unwrap_or_default() {
            let was_asked_with_group =
                self.leads_group && getpgid(Some(orphan)) == Ok(self.command);
            if !was_asked_with_group && self.asked.insert(orphan) {
                let _ = kill_process(orphan, Signal::TERM);
            }
        }
    }

    /// Forgets who was asked to end.
    pub(super) fn ask_anew(&mut self) {
        self.asked.clear();
    }

    /// Kills all that are left. A killed process leaves its children to this one, so call it again
    /// whenever a child has ended.
    pub(super) fn kill(&self) {
        self.signal(Signal::KILL);
        for child in self.members().unwrap_or_default() {
            let _ = kill_process(child, Signal::KILL);
        }
    }

    /// Notes how the command has ended.
    pub(super) fn command_ended(&mut self, status: WaitStatus) {
        self.status = Some(status);
    }

    /// Whether nothing is left that this process may signal.
    ///
    /// # Errors
    /// If the processes cannot be listed: something may be left.
    pub(super) fn is_gone(&self) -> io::Result<bool> {
        Ok(self.status.is_some() && self.members()?.is_empty())
    }

    /// Whether something is left that runs as another user, and that this process may not signal.
    pub(super) fn leaves_strangers(&self) -> bool {
        let children = children(getpid()).unwrap_or_default();
        children.into_iter().any(|pid| !self.others.contains(&pid) && !may_signal(pid))
    }

    fn members(&self) -> io::Result<Vec<Pid>> {
        let members = children(getpid())?.into_iter();
        Ok(members.filter(|pid| !self.others.contains(pid) && may_signal(*pid)).collect())
    }
}

/// What was learnt of the children that have ended or stopped.
#[derive(Debug, Default)]
pub(super) struct Reaped {
    /// How the command has ended, if it has.
    pub(super) command: Option<WaitStatus>,
    /// Whether the command was stopped just now, since it used the terminal from the background.
    pub(super) wants_terminal: bool,
    /// Whether the watchdog has ended.
    pub(super) watchdog: bool,
}

/// Reaps all children that have ended, adopted ones included.
pub(super) fn reap(command: Option<Pid>, watchdog: Pid) -> Reaped {
    let mut reaped = Reaped::default();
    while let Ok(Some((child, status))) = wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
        let is_command = Some(child) == command;
        if status.stopped() {
            let for_terminal = [Signal::TTIN, Signal::TTOU].map(Signal::as_raw);
            let signal = status.stopping_signal();
            reaped.wants_terminal |=
                is_command && signal.is_some_and(|signal| for_terminal.contains(&signal));
            continue;
        }
        if is_command {
            reaped.command = Some(status);
        }
        reaped.watchdog |= child == watchdog;
    }
    reaped
}

/// The children of a process, by the kernel's lists, one for each of its threads. Needs a kernel
/// with `CONFIG_PROC_CHILDREN`.
///
/// A process that has ended counts until it is reaped. Its children are its heir's by then, so an
/// heir without children has nobody left.
///
/// # Errors
/// If the lists cannot be read, as when no descriptor is left. There may be any children then.
pub(super) fn children(of: Pid) -> io::Result<Vec<Pid>> {
    let mut looks = (0..LOOKS_MAX).map(|_| children_by_thread(of));
    // A thread that ends while its list is read leaves its children to another thread, whose list
    // may have been read by then.
    let settled = looks.by_ref().find(|look| !look.as_ref().is_err_and(is_missing));
    settled
        .unwrap_or_else(|| Err(io::Error::other("the system does not list a process's children")))
}

fn children_by_thread(of: Pid) -> io::Result<Vec<Pid>> {
    let threads = match std::fs::read_dir(format!("/proc/{of}/task")) {
        // It is gone, and its children are another's.
        Err(error) if is_missing(&error) => return Ok(Vec::new()),
        threads => threads?,
    };
    let mut children = Vec::new();
    for thread in threads {
        let list = std::fs::read_to_string(thread?.path().join("children"))?;
        children
            .extend(list.split_whitespace().filter_map(|word| Pid::from_raw(word.parse().ok()?)));
    }
    Ok(children)
}

/// Whether a process or a thread was gone when its file was read.
fn is_missing(error: &io::Error) -> bool {
    error.kind() == ErrorKind::NotFound || Errno::from_io_error(error) == Some(Errno::SRCH)
}

/// Kills these processes and their descendants. Descendants whose parent has ended count only as
/// roots.
///
/// All are stopped first, because a killed process leaves its children to an heir, and a running
/// one may fork meanwhile.
pub(super) fn kill_with_descendants(roots: impl Fn() -> Vec<Pid>) {
    let begun = Instant::now();
    let (mut found, mut stopping) = (HashSet::new(), Vec::new());
    loop {
        // Before the search: once nobody can fork, the search misses nobody.
        let may_fork = stopping.iter().any(|&pid| is_to_stop(pid, begun.elapsed()));
        let new: Vec<Pid> = with_descendants(roots()).filter(|pid| found.insert(*pid)).collect();
        match (new.is_empty(), may_fork) {
            (true, false) => break,
            (true, true) => sleep(STOP_PAUSE),
            // A process that cannot be told to stop is not waited for.
            (false, _) => stopping
                .extend(new.into_iter().filter(|pid| kill_process(*pid, Signal::STOP).is_ok())),
        }
    }
    // Children first: the kernel continues a stopped group that loses its last parent outside of
    // it.
    for pid in stopping.into_iter().rev() {
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// Whether this process may signal that one. It may, if that one is gone.
pub(super) fn may_signal(pid: Pid) -> bool {
    test_kill_process(pid) != Err(Errno::PERM)
}

/// These and those below them, as they are now.
pub(super) fn with_descendants(roots: Vec<Pid>) -> impl Iterator<Item = Pid> {
    let (mut waiting, mut seen) = (roots, HashSet::new());
    iter::from_fn(move || {
        loop {
            let next = waiting.pop()?;
            // A number that was given to another process meanwhile must not lead round in a circle.
            if seen.insert(next) {
                waiting.extend(children(next).unwrap_or_default());
                return Some(next);
            }
        }
    })
}

/// Whether one of its threads has still to stop, and is waited for, so long after all were told to.
fn is_to_stop(pid: Pid, since: Duration) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    threads.flatten().filter_map(|thread| state(&thread.path().join("stat"))).any(|state| {
        match state {
            // Stopped, or traced and stopped; dead, and not reaped.
            'T' | 't' | 'X' | 'Z' => false,
            'R' => since < RUNNING_STOPPED_WITHIN,
            _ => since < STOPPED_WITHIN,
        }
    })
}

/// The state of a thread; `None` if it is gone.
fn state(file: &Path) -> Option<char> {
    let stat = std::fs::read_to_string(file).ok()?;
    // The program's name stands in brackets and may hold anything.
    stat.rsplit_once(") ")?.1.chars().next()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn children_count_until_they_are_reaped() {
        let mut lives = Command::new("sleep").arg("1000").spawn().unwrap();
        let mut ended = Command::new("true").spawn().unwrap();
        let (first, second) = (Pid::from_child(&lives), Pid::from_child(&ended));
        // It has ended, and is not reaped.
        rustix::process::waitid(
            rustix::process::WaitId::Pid(second),
            rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT,
        )
        .unwrap();
        let found = children(getpid()).unwrap();
        assert!(found.contains(&first) && found.contains(&second), "{found:?}");
        lives.kill().unwrap();
        let _ = (lives.wait(), ended.wait());
        let found = children(getpid()).unwrap();
        assert!(!found.contains(&first) && !found.contains(&second), "{found:?}");
        assert_eq!(children(first).unwrap(), [], "of one that is gone");
    }

    /// Each one has a child as soon as it runs: who looks once, and then kills, misses the newest.
    #[test]
    fn nobody_forks_faster_than_it_is_found() {
        let forks =
            r#"f() { if [ "$1" -gt 0 ]; then (f $(($1 - 1)); :); fi; sleep 1; }; f 200; : "$0""#;
        for count in (10..=100).step_by(10) {
            let mark = format!("forks-{}-{count}", getpid());
            let mut first = Command::new("sh").args(["-c", forks, &mark]).spawn().unwrap();
            let root = Pid::from_child(&first);
            while with_descendants(vec![root]).count() < count {
                std::thread::yield_now();
            }
            kill_with_descendants(|| vec![root]);
            first.wait().unwrap();
            until_gone(&mark);
        }
    }

    /// Waits until no process has that in its arguments.
    fn until_gone(mark: &str) {
        let deadline = Instant::now() + Duration::from_secs(10);
        let runs = || {
            let entries = std::fs::read_dir("/proc").unwrap().flatten();
            let mut arguments = entries
                .filter_map(|entry| std::fs::read_to_string(entry.path().join("cmdline")).ok());
            arguments.any(|arguments| arguments.contains(mark))
        };
        while runs() {
            assert!(Instant::now() < deadline, "a descendant runs on");
            std::thread::yield_now();
        }
    }
}
