//! A second process that ends the command where the first can't: when that one was killed, or stands still.
//!
//! It is told over its standard input whom to end and when, each time the lock was renewed. If nothing comes, it ends them at
//! that moment; if its input ends, as soon as the first process is gone. Both go by the same clock, CLOCK_BOOTTIME.

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::str::FromStr;
use std::time::Duration;

use crate::{Alarm, BootInstant};
use rustix::process::{Pid, Signal, getpid, getppid, kill_process_group};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::time::sleep;

use super::console::{Console, ConsoleWriter};
use super::exit::Exit;
use super::process_tree::{ProcessTree, Reach};
use super::process_tree::{children, kill_with_descendants, with_descendants};
use super::signals::Signals;

/// How long to leave the processor to a holder that is about to end.
const GONE_PAUSE: Duration = Duration::from_millis(1);

/// The hidden subcommand that a watchdog is started with.
const SUBCOMMAND: &str = "hold-watchdog";

/// The watchdog, as the first process has it. If that ends in whatever way, the watchdog acts.
#[derive(Debug)]
pub(super) struct Watchdog {
    process: Child,
    orders: ChildStdin,
    /// The last one.
    told: Order,
}

impl Watchdog {
    /// Starts one. The others are children of this process that are none of its business.
    pub(super) fn start(others: &[Pid]) -> io::Result<Watchdog> {
        let mut command = Command::new(std::env::current_exe()?);
        // In a group of its own: what a terminal sends to its foreground is not for it.
        command.arg(SUBCOMMAND).arg(getpid().to_string()).args(others.iter().map(Pid::to_string));
        command.stdin(Stdio::piped()).stdout(Stdio::null()).process_group(0);
        Watchdog::of(command.spawn()?)
    }

    fn of(mut process: Child) -> io::Result<Watchdog> {
        let orders = process.stdin.take().expect("its standard input is piped");
        rustix::io::ioctl_fionbio(&orders, true)?;
        Ok(Watchdog { process, orders, told: Order::Nobody })
    }

    pub(super) fn id(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    /// From now on, the processes is ended at that moment, or as soon as this process has ended.
    pub(super) fn guard(&mut self, processes: &ProcessTree, kill_at: BootInstant) {
        let (command, at) = (processes.command(), kill_at);
        let target = if processes.leads_group() { Target::Group(command) } else { Target::Process(command) };
        self.tell(Order::End { target, at });
    }

    /// From now on, nobody is to be ended.
    pub(super) fn stand_down(&mut self) {
        self.tell(Order::Nobody);
    }

    /// Ends the watchdog itself, even if it stands still.
    pub(super) fn end(mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    fn tell(&mut self, order: Order) {
        if order == self.told {
            return;
        }
        self.told = order;
        // A line is short enough for a pipe to take it whole or not at all. If the watchdog has ended, its parent learns that from the
        // system.
        let written = self.orders.write(format!("{order}\n").as_bytes());
        if written.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            // It has stood still for as long as it takes to fill a pipe with orders: it would be of no use, and must not hold us up.
            let _ = self.process.kill();
        }
    }
}

/// Whom to end, and when: a line of the watchdog's input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Nobody,
    End { target: Target, at: BootInstant },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Group(Pid),
    Process(Pid),
}

impl std::fmt::Display for Order {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Order::Nobody => f.write_str("nobody"),
            Order::End { target, at } => {
                let (kind, pid) = match target {
                    Target::Group(pid) => ("group", pid),
                    Target::Process(pid) => ("process", pid),
                };
                write!(f, "{kind} {} {}", pid.as_raw_nonzero(), at.since_boot().as_nanos())
            }
        }
    }
}

impl FromStr for Order {
    type Err = NoOrder;

    fn from_str(line: &str) -> Result<Order, NoOrder> {
        let mut words = line.split(' ');
        let kind = words.next();
        if kind == Some("nobody") {
            return Ok(Order::Nobody);
        }
        // Not 0 and nothing below it: to the system these are whole sets of processes.
        let number = words.next().and_then(|number| number.parse().ok()).filter(|number| *number > 0);
        let pid = number.and_then(Pid::from_raw).ok_or(NoOrder)?;
        let at = words.next().and_then(|at| at.parse().ok()).ok_or(NoOrder)?;
        let target = match kind {
            Some("group") => Target::Group(pid),
            Some("process") => Target::Process(pid),
            _ => return Err(NoOrder),
        };
        Ok(Order::End { target, at: BootInstant::from_boot(Duration::from_nanos(at)) })
    }
}

/// A line that is no order.
#[derive(Debug, PartialEq, Eq)]
struct NoOrder;

/// The first process, as the watchdog knows it.
#[derive(Debug)]
struct Holder {
    id: Pid,
    /// Children of it that are none of the command's processes.
    others: Vec<Pid>,
}

impl Holder {
    /// Ends the command and all that came of it, and of those that are `known` to have; returns whom that has reached.
    fn end(&self, target: Target, known: Vec<Pid>) -> Reach {
        // Whoever has ended already is not to be ended.
        let signal_group = |signal| match target {
            Target::Group(leader) => drop(kill_process_group(leader, signal)),
            Target::Process(_) => {}
        };
        // Looked for before anybody is stopped: should that end some, their children are not found by them any more.
        let seen: Vec<Pid> = with_descendants([known, self.roots(target)].concat()).collect();
        signal_group(Signal::STOP);
        let beyond = kill_with_descendants(|| [seen.clone(), self.roots(target)].concat());
        signal_group(Signal::KILL);
        let (Target::Group(command) | Target::Process(command)) = target;
        match beyond.contains(&command) {
            true => Reach::Beyond,
            false if beyond.is_empty() => Reach::All,
            false => Reach::Some,
        }
    }

    /// Waits until the holder, which is about to end, is gone, or until that moment. Returns whom it leaves, as they were when it was last
    /// there: the command, what it had adopted, and all that came of them.
    ///
    /// A process that ends closes its files, of which we hear, and gives its children to another only then. If a process group
    /// loses its last parent outside of it by that, and one in it is stopped, the system tells all in it to hang up and to go on (POSIX,
    /// "orphaned process group"). So a command that was stopped before would end of itself, and what it had started would be
    /// nobody's that we know.
    async fn until_gone(&self, target: Target, at: BootInstant) -> Vec<Pid> {
        let mut left = Vec::new();
        loop {
            let seen = with_descendants(self.roots(target)).collect();
            if !self.is_there() {
                return left;
            }
            left = seen;
            if BootInstant::now() >= at {
                return left;
            }
            sleep(GONE_PAUSE).await;
        }
    }

    /// The command, and what else is the holder's.
    fn roots(&self, target: Target) -> Vec<Pid> {
        let (Target::Group(command) | Target::Process(command)) = target;
        let mut roots = self.adopted();
        roots.push(command);
        roots
    }

    /// Whether it has not ended, or not to the last: as long as that, it is our parent.
    fn is_there(&self) -> bool {
        getppid() == Some(self.id)
    }

    /// What has lost its parent and become the holder's, as long as that one is there.
    fn adopted(&self) -> Vec<Pid> {
        let children = children(self.id).unwrap_or_default();
        // Looked at afterwards: whoever is our parent has been it all the time, and has not left its number to another.
        match self.is_there() {
            true => children.into_iter().filter(|pid| *pid != getpid() && !self.others.contains(pid)).collect(),
            false => Vec::new(),
        }
    }
}

/// What the second process does, from its beginning to its end, for the first one with those children; returns with its exit code.
pub async fn watch_over(holder: i32, others: &[i32]) -> u8 {
    let writer = ConsoleWriter::begin();
    let console = writer.console(false);
    let Some(id) = Pid::from_raw(holder) else {
        return Exit::Usage("no process has such a number".to_owned()).report(&console);
    };
    let holder = Holder { id, others: others.iter().copied().filter_map(Pid::from_raw).collect() };
    match follow_orders(&holder, &console).await {
        Ok(()) => 0,
        Err(error) => Exit::Failed(format!("the watchdog is of no use: {error}")).report(&console),
    }
}

/// # Errors
/// If it can have no alarm, or can't listen to signals.
async fn follow_orders(holder: &Holder, console: &Console) -> io::Result<()> {
    // Signals to the whole service, as systemd sends them, are for the first process: this one goes when that one has gone.
    let _deaf = Signals::listen()?;
    let mut alarm = Alarm::new()?;
    let mut orders = BufReader::new(tokio::net::unix::pipe::Receiver::from_owned_fd(stdin()?)?).lines();
    let mut order = Order::Nobody;
    loop {
        tokio::select! {
            // Orders first: of two, the later counts.
            biased;
            line = orders.next_line() => match line.ok().flatten().and_then(|line| line.parse().ok()) {
                Some(next) => order = next,
                None => break,
            },
            target = due(order, &mut alarm) => {
                let reach = holder.end(target, Vec::new());
                order = Order::Nobody;
                let still = match reach {
                    Reach::All | Reach::Some => ", and its holder stands still",
                    // It may have tried.
                    Reach::Beyond => "",
                };
                console.print(format_args!("the lock was not renewed in time{still}: {reach}"));
            }
        }
    }
    if let Order::End { target, at } = order {
        let left = holder.until_gone(target, at).await;
        let reach = holder.end(target, left);
        console.print(format_args!("the lock's holder has ended: {reach}"));
    }
    Ok(())
}

/// Returns whom to end, when it is time for that.
async fn due(order: Order, alarm: &mut Alarm) -> Target {
    match order {
        Order::Nobody => std::future::pending().await,
        Order::End { target, at } => {
            alarm.until(at).await;
            target
        }
    }
}

/// The process's standard input, which nothing else reads.
fn stdin() -> io::Result<std::os::fd::OwnedFd> {
    use std::os::fd::AsFd;
    io::stdin().as_fd().try_clone_to_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use rustix::process::{WaitId, WaitIdOptions, waitid};

    use super::*;

    #[test]
    fn an_order_arrives_as_it_was_given() {
        let at = BootInstant::from_boot(Duration::from_nanos(1_234_567_890_123_456_789));
        let pid = Pid::from_raw(4_194_304).unwrap();
        for order in [
            Order::Nobody,
            Order::End { target: Target::Group(pid), at },
            Order::End { target: Target::Process(pid), at },
        ] {
            assert_eq!(order.to_string().parse(), Ok(order));
        }
    }

    #[test]
    fn a_watchdog_that_stands_still_holds_up_nobody_and_is_ended() {
        let mut watchdog =
            Watchdog::of(Command::new("sleep").arg("1000").stdin(Stdio::piped()).spawn().unwrap()).unwrap();
        let target = Target::Process(watchdog.id());
        let order = |seconds| Order::End { target, at: BootInstant::from_boot(Duration::from_secs(seconds)) };
        for _ in 0..10_000 {
            watchdog.tell(order(0));
        }
        assert!(watchdog.process.try_wait().unwrap().is_none(), "what it knows it is not told");
        for seconds in 1..10_000 {
            watchdog.tell(order(seconds));
        }
        assert_eq!(watchdog.process.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
    }

    /// Those between it and the command have ended, by whatever happened meanwhile.
    #[test]
    fn who_is_known_to_have_come_of_a_command_is_ended_without_it() {
        let [mut command, mut known] = ["0", "30"].map(|time| Command::new("sleep").arg(time).spawn().unwrap());
        let ended = Pid::from_child(&command);
        // Not taken note of, so that nobody else has its number.
        waitid(WaitId::Pid(ended), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
        let gone = Holder { id: ended, others: Vec::new() };
        assert_eq!(gone.end(Target::Process(ended), vec![Pid::from_child(&known)]), Reach::All);
        assert_eq!(known.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
        command.wait().unwrap();
    }

    #[test]
    fn what_is_no_order_is_none() {
        for line in ["", "group", "group 1", "group x 1", "group 0 1", "all 1 1", "group -1 1 1"] {
            assert_eq!(line.parse::<Order>(), Err(NoOrder), "{line:?}");
        }
    }
}
