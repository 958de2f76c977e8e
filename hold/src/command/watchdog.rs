//! A second process that ends the command where the first cannot: when the first was killed, or
//! stands still.
//!
//! The first process writes an order into its standard input each time the lock was renewed: whom
//! to end, and when. Without another order the watchdog ends the command at that moment. When its
//! input ends, it waits until the first process is gone, and ends the command then. Both processes
//! go by CLOCK_BOOTTIME.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use crate::{Alarm, BootInstant};
use rustix::process::{Pid, Signal, getpid, getppid, kill_process_group};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::unix::pipe;
use tokio::time::sleep;

use super::console::{Console, ConsoleWriter};
use super::exit::Exit;
use super::process_tree::{ProcessTree, children, kill_with_descendants, with_descendants};
use super::signals::Signals;

/// How long to leave the processor to a holder that is about to end.
const GONE_PAUSE: Duration = Duration::from_millis(1);

/// The hidden subcommand of the watchdog.
const SUBCOMMAND: &str = "hold-watchdog";

/// The watchdog, as the first process has it.
#[derive(Debug)]
pub(super) struct Watchdog {
    process: Child,
    orders: ChildStdin,
    /// The last one.
    told: Option<Order>,
}

impl Watchdog {
    /// Starts one. The others are children of this process that have nothing to do with the
    /// command.
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
        Ok(Watchdog { process, orders, told: None })
    }

    pub(super) fn id(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    /// From now on, the watchdog ends the command at that moment, or as soon as this process has
    /// ended.
    pub(super) fn guard(&mut self, processes: &ProcessTree, at: BootInstant) {
        self.tell(Some(Order {
            command: processes.command(),
            leads_group: processes.leads_group(),
            at,
        }));
    }

    /// From now on, the watchdog ends nobody.
    pub(super) fn stand_down(&mut self) {
        self.tell(None);
    }

    /// Ends the watchdog itself, even if it stands still.
    pub(super) fn end(mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    fn tell(&mut self, order: Option<Order>) {
        if order == self.told {
            return;
        }
        self.told = order;
        // A pipe takes a short line whole or not at all. If the watchdog has ended, its parent
        // learns that from the system.
        let written = self.orders.write(line(order).as_bytes());
        if written.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            // It has stood still while a pipe filled with orders: it is of no use, and must not
            // hold this process up.
            let _ = self.process.kill();
        }
    }
}

/// Whom to end, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Order {
    command: Pid,
    leads_group: bool,
    at: BootInstant,
}

/// An order as a line of the watchdog's input; `None`: nobody is to be ended.
fn line(order: Option<Order>) -> String {
    let Some(Order { command, leads_group, at }) = order else { return "nobody\n".to_owned() };
    format!(
        "{} {command} {}\n",
        if leads_group { "group" } else { "process" },
        at.since_boot().as_nanos()
    )
}

/// The order of a line without its end; `None`: it is not an order.
fn order(line: &str) -> Option<Option<Order>> {
    let mut words = line.split(' ');
    let leads_group = match words.next()? {
        "nobody" => return Some(None),
        "group" => true,
        "process" => false,
        _ => return None,
    };
    // The system takes 0 and numbers below it for sets of processes.
    let command =
        words.next()?.parse().ok().filter(|number| *number > 0).and_then(Pid::from_raw)?;
    let at = BootInstant::from_boot(Duration::from_nanos(words.next()?.parse().ok()?));
    Some(Some(Order { command, leads_group, at }))
}

/// The first process, as the watchdog knows it.
#[derive(Debug)]
struct Holder {
    id: Pid,
    /// Children of it that have nothing to do with the command.
    others: Vec<Pid>,
}

impl Holder {
    /// Ends the command, those that are `known` to have come of it, and the descendants of all.
    fn end(&self, order: Order, known: Vec<Pid>) {
        let signal_group = |signal| {
            if order.leads_group {
                // An empty group needs no signal.
                let _ = kill_process_group(order.command, signal);
            }
        };
        // Before any is stopped: should that end some, the search would not find their children.
        let seen: Vec<Pid> = with_descendants([known, self.roots(order)].concat()).collect();
        signal_group(Signal::STOP);
        kill_with_descendants(|| [seen.clone(), self.roots(order)].concat());
        signal_group(Signal::KILL);
    }

    /// Waits until the holder, which is about to end, is gone, or until the order's moment. Returns
    /// the command, what the holder had adopted, and their descendants, as they were when the
    /// holder was last there.
    ///
    /// A process that ends closes its files first, which ends the watchdog's input, and loses its
    /// children after that. If one of the command's group were stopped by then, the kernel would
    /// send SIGHUP and SIGCONT to the group (POSIX, "orphaned process group"). The command would
    /// end of itself, and its children would be nobody's that the watchdog knows.
    async fn until_gone(&self, order: Order) -> Vec<Pid> {
        let mut left = Vec::new();
        loop {
            let seen = with_descendants(self.roots(order)).collect();
            if !self.is_there() {
                return left;
            }
            left = seen;
            if BootInstant::now() >= order.at {
                return left;
            }
            sleep(GONE_PAUSE).await;
        }
    }

    /// The command, and the other children of the holder, as long as the holder is there.
    fn roots(&self, order: Order) -> Vec<Pid> {
        let mut roots = children(self.id).unwrap_or_default();
        // Looked at after the children: a process that is still our parent has not left its number
        // to another.
        if !self.is_there() {
            roots.clear();
        }
        roots.retain(|pid| *pid != getpid() && !self.others.contains(pid));
        roots.push(order.command);
        roots
    }

    /// Whether it has not ended, or not to the last.
    fn is_there(&self) -> bool {
        getppid() == Some(self.id)
    }
}

/// What the second process does, from its beginning to its end, for the first one with those
/// children. Returns the exit code.
pub async fn watch_over(holder: i32, others: &[i32]) -> u8 {
    let writer = ConsoleWriter::begin();
    let console = writer.console(false);
    let Some(id) = Pid::from_raw(holder) else {
        return Exit::usage("no process has such a number").report(&console);
    };
    let holder = Holder { id, others: others.iter().copied().filter_map(Pid::from_raw).collect() };
    match follow_orders(&holder, &console).await {
        Ok(()) => 0,
        Err(error) => Exit::failed(format!("the watchdog is of no use: {error}")).report(&console),
    }
}

/// # Errors
/// If there is no alarm, or if signals cannot be listened to.
async fn follow_orders(holder: &Holder, console: &Console) -> io::Result<()> {
    // Signals to the whole service, as systemd sends them, are for the first process.
    let _deaf = Signals::listen()?;
    let mut alarm = Alarm::new()?;
    let input = io::stdin().as_fd().try_clone_to_owned()?;
    let mut lines = BufReader::new(pipe::Receiver::from_owned_fd(input)?).lines();
    let mut told = None;
    loop {
        tokio::select! {
            // Of two orders, the later counts.
            biased;
            line = lines.next_line() => match line.ok().flatten().and_then(|line| order(&line)) {
                Some(next) => told = next,
                None => break,
            },
            order = due(told, &mut alarm) => {
                holder.end(order, Vec::new());
                told = None;
                let why = "the lock was not renewed in time, and its holder stands still";
                console.print(format_args!("{why}: ending the command"));
            }
        }
    }
    if let Some(order) = told {
        let left = holder.until_gone(order).await;
        holder.end(order, left);
        console.print(format_args!("the lock's holder has ended: ending the command"));
    }
    Ok(())
}

/// Returns the order when its moment has come.
async fn due(order: Option<Order>, alarm: &mut Alarm) -> Order {
    match order {
        None => std::future::pending().await,
        Some(order) => {
            alarm.until(order.at).await;
            order
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use rustix::process::{WaitId, WaitIdOptions, waitid};

    use super::*;

    fn end(command: Pid, at: Duration) -> Order {
        Order { command, leads_group: false, at: BootInstant::from_boot(at) }
    }

    #[test]
    fn order_arrives_as_it_was_given() {
        let one =
            end(Pid::from_raw(4_194_304).unwrap(), Duration::from_nanos(1_234_567_890_123_456_789));
        for given in [None, Some(one), Some(Order { leads_group: true, ..one })] {
            assert_eq!(order(line(given).trim_end()), Some(given));
        }
        for wrong in ["", "group", "group 1", "group x 1", "group 0 1", "all 1 1", "group -1 1 1"] {
            assert_eq!(order(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn watchdog_that_stands_still_is_killed() {
        let mut watchdog =
            Watchdog::of(Command::new("sleep").arg("1000").stdin(Stdio::piped()).spawn().unwrap())
                .unwrap();
        let id = watchdog.id();
        for _ in 0..10_000 {
            watchdog.tell(Some(end(id, Duration::ZERO)));
        }
        assert!(watchdog.process.try_wait().unwrap().is_none(), "an order is not written twice");
        for seconds in 1..10_000 {
            watchdog.tell(Some(end(id, Duration::from_secs(seconds))));
        }
        assert_eq!(watchdog.process.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
    }

    /// The processes between it and the command have ended.
    #[test]
    fn who_is_known_to_have_come_of_a_command_is_ended_without_it() {
        let [mut command, mut known] =
            ["0", "30"].map(|time| Command::new("sleep").arg(time).spawn().unwrap());
        let ended = Pid::from_child(&command);
        // Not reaped, so that no other process has its number.
        waitid(WaitId::Pid(ended), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
        let gone = Holder { id: ended, others: Vec::new() };
        gone.end(end(ended, Duration::ZERO), vec![Pid::from_child(&known)]);
        assert_eq!(known.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
        command.wait().unwrap();
    }
}
