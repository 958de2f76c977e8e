//! The command and the processes that came of it: finds them in /proc, and ends them.
//!
//! It does not decide when: `under_lock` and the watchdog do.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::thread::sleep;
use std::time::{Duration, Instant};
use std::{fmt, iter};

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpgid, getpid, kill_process, kill_process_group, set_child_subreaper,
    test_kill_process, wait,
};

/// How long processes may take to stop before they are killed as they are. Whoever waits inside of the system may take any time.
const STOPPED_WITHIN: Duration = Duration::from_millis(50);

/// The same for those that have a processor or wait for one: they are about to stop, and may be in the middle of a fork, which on a busy
/// machine takes a while. Nothing is lost by waiting: who has stopped does nothing.
const RUNNING_STOPPED_WITHIN: Duration = Duration::from_secs(1);

/// How long to leave the processor to those that are to stop.
const STOP_PAUSE: Duration = Duration::from_millis(1);

/// Has this process become the parent of all that lose theirs below it: nobody gets out of its sight. As process 1 it is that
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
    /// Children of ours that are none of the processes.
    others: Vec<Pid>,
    status: Option<WaitStatus>,
    /// What was asked to end already: once is enough.
    asked: BTreeSet<i32>,
}

impl ProcessTree {
    /// That of a process that is a command, or is about to become one. It is waited for below, together with its orphans.
    pub(super) fn of(command: Pid, leads_group: bool, others: Vec<Pid>) -> ProcessTree {
        ProcessTree { command, leads_group, others, status: None, asked: BTreeSet::new() }
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

    /// Asks all that are left to end, each once: many a program takes the second time for an order to end at once. Who wants that asks
    /// [anew](ProcessTree::ask_anew).
    pub(super) fn terminate(&mut self) {
        if self.asked.insert(self.command.as_raw_nonzero().get()) {
            self.signal(Signal::TERM);
        }
        for orphan in self.members().unwrap_or_default() {
            // A member of the group was asked together with the group.
            if !self.has_in_group(orphan) && self.asked.insert(orphan.as_raw_nonzero().get()) {
                let _ = kill_process(orphan, Signal::TERM);
            }
        }
    }

    /// Processes that are asked to end from now on are asked again, though they were asked before.
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

/// The children that a process has now. This one may have been started with some: by a script that `exec`s it.
///
/// One that has ended counts until leave was taken of it. What it leaves behind is its heir's before it shows as ended: so who finds no
/// child of a heir has missed nobody.
///
/// # Errors
/// If it cannot be looked: where nothing more can be opened, say. There may be any then.
pub(super) fn children(of: Pid) -> io::Result<Vec<Pid>> {
    // A kernel may be built without these lists.
    listed_children(of).or_else(|_| searched_children(of))
}

/// By the kernel's own lists, one for each thread.
fn listed_children(of: Pid) -> io::Result<Vec<Pid>> {
    let threads = match std::fs::read_dir(format!("/proc/{of}/task")) {
        // It is gone, and its children are another's.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        threads => threads?,
    };
    let mut children = Vec::new();
    for thread in threads {
        // A thread that has ended since has left its children to another: an error here.
        let list = std::fs::read_to_string(thread?.path().join("children"))?;
        children.extend(list.split_whitespace().filter_map(pid));
    }
    Ok(children)
}

/// By looking at every process of the machine, which takes as long as there are many.
fn searched_children(of: Pid) -> io::Result<Vec<Pid>> {
    let mut children = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        if let Some(child) = entry?.file_name().to_str().and_then(pid)
            && parent(child)? == Some(of)
        {
            children.push(child);
        }
    }
    Ok(children)
}

/// Kills these processes and all that came of them: but for those whose parent has ended, unless they are named.
///
/// All are stopped first. Who is killed leaves its children to a heir, where nobody finds them; and who runs may have one more meanwhile.
/// Returns whom this process may not signal: they run on.
pub(super) fn kill_with_descendants(roots: impl Fn() -> Vec<Pid>) -> Vec<Pid> {
    let begun = Instant::now();
    let mut found = BTreeSet::new();
    let (mut stopping, mut beyond) = (Vec::new(), Vec::new());
    loop {
        // Before it is looked who there is: once nobody can fork, nobody is missed.
        let may_fork = stopping.iter().any(|&pid| is_to_stop(pid, begun.elapsed()));
        let new: Vec<Pid> = with_descendants(roots()).filter(|pid| found.insert(pid.as_raw_nonzero())).collect();
        match (new.is_empty(), may_fork) {
            (true, false) => break,
            (true, true) => sleep(STOP_PAUSE),
            (false, _) => {
                for pid in new {
                    match kill_process(pid, Signal::STOP) {
                        Ok(()) => stopping.push(pid),
                        // Who may not be told to stop is not waited for.
                        Err(_) if is_beyond(pid) => beyond.push(pid),
                        Err(_) => {}
                    }
                }
            }
        }
    }
    // Children first: a group that loses its last parent outside of it would be told to go on.
    for pid in stopping.into_iter().rev() {
        // Who has ended already is not to be ended.
        let _ = kill_process(pid, Signal::KILL);
    }
    beyond
}

/// Whether this process may signal it: it may, if it is gone.
pub(super) fn may_signal(pid: Pid) -> bool {
    test_kill_process(pid) != Err(Errno::PERM)
}

/// Whether it runs, as another user, so that this process may not signal it.
pub(super) fn is_beyond(pid: Pid) -> bool {
    // Nor may it signal one that has ended, as long as nobody has taken leave of it.
    let has_ended = || matches!(stat(format!("/proc/{pid}/stat").as_ref()), Ok(Some(Stat { state: 'X' | 'Z', .. })));
    !may_signal(pid) && !has_ended()
}

/// These and those below them, as they are now.
pub(super) fn with_descendants(roots: Vec<Pid>) -> impl Iterator<Item = Pid> {
    let mut waiting = roots;
    let mut seen = BTreeSet::new();
    iter::from_fn(move || {
        loop {
            let next = waiting.pop()?;
            // A number that was given to another process meanwhile must not lead round in a circle.
            if seen.insert(next.as_raw_nonzero()) {
                // Of whom it can't be seen, none are found.
                waiting.extend(children(next).unwrap_or_default());
                return Some(next);
            }
        }
    })
}

/// Whether one of its threads has still to stop, and is waited for though all were told to that long ago.
fn is_to_stop(pid: Pid, since: Duration) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    let states = threads.flatten().filter_map(|thread| stat(&thread.path().join("stat")).ok().flatten());
    states.into_iter().any(|stat| match stat.state {
        // Stopped, or traced and stopped; dead, and nobody has taken leave of it.
        'T' | 't' | 'X' | 'Z' => false,
        'R' => since < RUNNING_STOPPED_WITHIN,
        _ => since < STOPPED_WITHIN,
    })
}

/// What the system says of a process or a thread.
struct Stat {
    state: char,
    parent: Option<Pid>,
}

/// `None` if it is gone.
fn stat(file: &std::path::Path) -> io::Result<Option<Stat>> {
    let stat = match std::fs::read_to_string(file) {
        Err(error) if error.kind() == ErrorKind::NotFound || Errno::from_io_error(&error) == Some(Errno::SRCH) => {
            return Ok(None);
        }
        stat => stat?,
    };
    // The program's name stands in brackets and may hold anything; state and parent are the words after it.
    let words = stat.rsplit_once(") ").map(|(_, words)| words.split(' '));
    let stat =
        words.and_then(|mut words| Some(Stat { state: words.next()?.chars().next()?, parent: pid(words.next()?) }));
    Ok(stat)
}

fn parent(child: Pid) -> io::Result<Option<Pid>> {
    Ok(stat(format!("/proc/{child}/stat").as_ref())?.and_then(|stat| stat.parent))
}

fn pid(word: &str) -> Option<Pid> {
    Pid::from_raw(word.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// What the kernel lists, as soon as no thread of another test ends while it is looked at.
    fn listed(of: Pid) -> Vec<Pid> {
        let looks = std::iter::repeat_with(|| listed_children(of)).take(1_000);
        looks.flatten().next().expect("this kernel has lists of children")
    }

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
        let me = getpid();
        for children in [listed(me), searched_children(me).unwrap(), children(me).unwrap()] {
            assert!(children.contains(&first) && children.contains(&second), "{children:?}");
        }
        lives.kill().unwrap();
        let _ = (lives.wait(), ended.wait());
        for children in [listed(me), searched_children(me).unwrap(), children(me).unwrap()] {
            assert!(!children.contains(&first) && !children.contains(&second), "{children:?}");
        }
        assert_eq!(listed(first), [], "of one that is gone");
    }

    /// Each one has a child as soon as it runs: who looks once, and then kills, misses the newest.
    #[test]
    fn nobody_forks_faster_than_it_is_found() {
        let forks = r#"f() { if [ "$1" -gt 0 ]; then (f $(($1 - 1)); :); fi; sleep 1; }; f 200; : "$0""#;
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
            let mut arguments = entries.filter_map(|entry| std::fs::read_to_string(entry.path().join("cmdline")).ok());
            arguments.any(|arguments| arguments.contains(mark))
        };
        while runs() {
            assert!(Instant::now() < deadline, "a descendant runs on");
            std::thread::yield_now();
        }
    }
}
