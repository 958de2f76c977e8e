//! The life of a command under one tenure, from closing the door to its last process's end.

use std::time::Duration;

use crate::{Alarm, BootInstant, Over, Standing, Tenure};
use rustix::process::Signal;
use tokio::sync::watch;
use tokio::time::sleep;

use super::console::Console;
use super::exit::Exit;
use super::fence_call::{FenceCall, FenceCallError};
use super::process_tree::{ProcessTree, Reach, reap};
use super::signals::asks_to_end;
use super::stamp::{Outlet, Stamping};
use super::{Hold, HoldSettings, interrupted};

/// How long processes may take to be gone that were killed, on a machine that is busy.
const KILLED_WITHIN: Duration = Duration::from_secs(5);

/// How long to wait before it is looked again what is left of a command, when that could not be seen.
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// What helps where a command runs as another user.
const RUN_AS: &str = "run hold as that user, or as root";

/// How a tenure's work has ended.
#[derive(Debug)]
pub(super) enum End {
    /// With something to exit with.
    Exit(Exit),
    /// Before its time: the lock was lost.
    Lost(Over),
}

impl Hold {
    /// Does under the tenure what it is for. When this returns, nothing of it runs any more that this process may end.
    pub(super) async fn under_lock(&mut self, tenure: &Tenure) -> End {
        if let Some(end) = self.see_to_proxies(tenure).await {
            return end;
        }
        let alarm = match Alarm::new() {
            Ok(alarm) => alarm,
            Err(error) => return End::Exit(Exit::Failed(format!("the clock cannot be set up: {error}"))),
        };
        let stamping = match self.take_addresses(tenure).await {
            Ok(stamping) => stamping,
            Err(end) => return end,
        };
        let end = self.run_command(tenure, alarm, &stamping).await;
        stamping.close().await;
        end
    }

    /// Those at which the command's requests are taken.
    async fn take_addresses(&mut self, tenure: &Tenure) -> Result<Stamping, End> {
        // A command of an earlier holder on this machine is asked to end for so long, and then killed.
        let patience = self.settings.grace_when_lost(tenure.ttl()) + KILLED_WITHIN;
        tokio::select! {
            biased;
            over = tenure.lost() => Err(End::Lost(over)),
            exit = interrupted(&mut self.signals, self.watchdog.id(), &mut self.starter) => Err(End::Exit(exit)),
            opened = Stamping::open(&self.outlets, tenure, patience, self.connections_max) => {
                opened.map_err(|error| End::Exit(Exit::Failed(error.to_string())))
            }
        }
    }

    async fn run_command(&mut self, tenure: &Tenure, alarm: Alarm, stamping: &Stamping) -> End {
        // Whatever was done until now may have taken too long.
        if !tenure.is_held() {
            return End::Lost(Over::NotRenewed);
        }
        // It may have ended meanwhile: somebody else has signalled it.
        let starter = match self.starter.take().map_or_else(|| self.settings.starter(self.own_descriptors), Ok) {
            Ok(starter) => starter,
            Err(exit) => return End::Exit(exit),
        };
        let processes = ProcessTree::of(starter.id(), !self.settings.foreground, self.others.clone());
        let mut life = Life::begins(processes, tenure, alarm, &self.settings);
        life.look_at_standing();
        self.watchdog.guard(&life.processes, life.watchdog_kills_at());
        let word = starter.let_go(life.sure_until, &self.environment(tenure, stamping));
        self.console.print_verbose(format_args!("started process {}", life.processes.command().as_raw_nonzero()));
        let end = self.live(&mut life).await;
        drop(word);
        end
    }

    /// Has the proxy close the door behind the predecessor, and finds out whether the others are the ones that are meant; says how
    /// all ended if the command is not to be started.
    async fn see_to_proxies(&mut self, tenure: &Tenure) -> Option<End> {
        tokio::select! {
            biased;
            over = tenure.lost() => Some(End::Lost(over)),
            exit = interrupted(&mut self.signals, self.watchdog.id(), &mut self.starter) => Some(End::Exit(exit)),
            ready = proxies_ready(self.fence_call.as_ref(), &self.outlets, tenure, &self.console) => ready.err(),
        }
    }

    /// What the command finds in its environment.
    fn environment(&self, tenure: &Tenure, stamping: &Stamping) -> Vec<(&'static str, String)> {
        let mut environment = vec![
            ("FENCE_LOCK", tenure.key().as_str().to_owned()),
            ("FENCE_OWNER", tenure.owner().to_string()),
            ("FENCE_REVISION", tenure.revision().to_string()),
        ];
        if !self.settings.stamp.is_empty() {
            environment.push(("FENCE_STAMP", stamping.to_string()));
        }
        environment
    }

    /// Follows the command until nothing of it is left.
    async fn live(&mut self, life: &mut Life) -> End {
        loop {
            let gone = life.processes.is_gone();
            if matches!(gone, Ok(true)) {
                break;
            }
            life.look_at_standing();
            self.watchdog.guard(&life.processes, life.watchdog_kills_at());
            self.look_at_user(life);
            tokio::select! {
                // The clock first: whoever wakes up too late has nothing else to do before.
                biased;
                () = life.alarm.until(life.next_moment()), if life.stage != Stage::Killed => self.time_is_over(life),
                // Over, or renewed.
                _ = life.standing.changed() => if !life.is_held() {
                    self.lose(life);
                },
                signal = self.signals.next() => match signal {
                    Signal::CHILD => self.bury(life),
                    signal => self.pass_on(life, signal),
                },
                // What could not be seen may be, once something was closed.
                () = sleep(LOOK_PAUSE), if gone.is_err() => self.see_to_those_left(life),
            }
        }
        if life.processes.leaves_beyond() {
            self.console.print(format_args!(
                "the command has left processes behind that run as another user: they cannot be ended, and may run on beside the next \
                holder's: {RUN_AS}"
            ));
        }
        self.watchdog.stand_down();
        match (life.lost, life.processes.status()) {
            // First: without it there is no next tenure.
            _ if life.watchdog_ended => End::Exit(Exit::Failed("the watchdog has ended".to_owned())),
            (Some(over), _) if !life.is_last => End::Lost(over),
            (_, Some(status)) => End::Exit(Exit::of_command(status)),
            (_, None) => End::Exit(Exit::Failed("the command has ended in an unknown way".to_owned())),
        }
    }

    /// The moment that was waited for: the tenure is over, or the grace is.
    fn time_is_over(&mut self, life: &mut Life) {
        if life.lost.is_none() && !life.is_held() {
            self.lose(life);
        }
        if let Stage::Asked { kill_at } = life.stage
            && BootInstant::now() >= kill_at
        {
            // This process may have stood still since the command ended.
            self.bury(life);
            if matches!(life.processes.is_gone(), Ok(true)) {
                return;
            }
            life.processes.kill();
            life.stage = Stage::Killed;
            self.look_at_user(life);
            let who = if life.processes.status().is_some() { "what the command has left" } else { "the command" };
            let killing = if life.processes.command_is_beyond() { ", and cannot be killed" } else { ": killing it" };
            self.console.print(format_args!("{who} has not ended in time{killing}"));
        }
    }

    /// The tenure is over: the command is asked to end, and is ended before the lock can be another's.
    fn lose(&mut self, life: &mut Life) {
        if life.lost.is_some() {
            return;
        }
        let had_ended = life.processes.status().is_some();
        self.bury(life);
        // What is seen only now may have ended because of it, by the watchdog for one; but not if it went well.
        life.is_last |= had_ended || life.processes.status().is_some_and(|status| status.exit_status() == Some(0));
        let over = match *life.standing.borrow() {
            Standing::Over(over) => over,
            Standing::Held { .. } => Over::NotRenewed,
        };
        life.lost = Some(over);
        let kill_at = BootInstant::now().min(life.sure_until) + life.grace_when_lost;
        life.terminate(kill_at);
        self.look_at_user(life);
        self.console.print(format_args!("lost the lock: {over}; {}", life.ending()));
    }

    /// Says once that the command runs as another user, as soon as that shows: it is our user's until it changes that.
    fn look_at_user(&self, life: &mut Life) {
        if !life.said_beyond && life.processes.command_is_beyond() {
            life.said_beyond = true;
            self.console.print(format_args!("{}: {RUN_AS}", Reach::Beyond));
        }
    }

    /// Takes note of the children that have ended.
    fn bury(&mut self, life: &mut Life) {
        let reaped = reap(Some(life.processes.command()), self.watchdog.id());
        if let Some(status) = reaped.command {
            life.processes.command_ended(status);
        }
        if reaped.wants_terminal {
            self.console.print(format_args!("the command stands still, since it is not in the foreground of its terminal: --foreground leaves it there"));
        }
        if reaped.watchdog {
            life.watchdog_ended = true;
            life.terminate(BootInstant::now() + self.settings.grace);
            self.look_at_user(life);
            self.console.print(format_args!("the watchdog has ended: {}", life.ending()));
        }
        self.see_to_those_left(life);
    }

    fn pass_on(&mut self, life: &mut Life, signal: Signal) {
        self.console.print_verbose(format_args!("passing signal {} on", signal.as_raw()));
        life.is_last |= matches!(signal, Signal::TERM | Signal::INT);
        match signal {
            Signal::TERM => {
                // Each time: what a second one means is the command's business.
                life.processes.ask_anew();
                life.terminate(BootInstant::now() + self.settings.grace);
            }
            // In the foreground of a terminal, the command has it from there already.
            Signal::INT | Signal::QUIT if self.settings.foreground => {}
            // Under a lock that is lost, nothing is to go on.
            Signal::CONT if life.lost.is_some() => {}
            other => life.processes.signal(other),
        }
        // A command that stands still would never learn that it is to end. It may go on: the lock is held.
        if asks_to_end(signal) && life.lost.is_none() {
            life.processes.signal(Signal::CONT);
        }
    }

    /// Of a command that has ended nothing may stay: the lock is about to be another's.
    fn see_to_those_left(&mut self, life: &mut Life) {
        if life.processes.status().is_none() || matches!(life.processes.is_gone(), Ok(true)) {
            return;
        }
        match life.stage {
            Stage::Runs => {
                self.console.print(format_args!("the command has ended and left processes behind: ending them"));
                life.terminate(BootInstant::now() + self.settings.grace);
            }
            Stage::Asked { .. } => life.processes.terminate(),
            Stage::Killed => life.processes.kill(),
        }
    }
}

/// Returns when the door is closed and no other proxy has shown that it is not the one that is meant; else says how all ended.
async fn proxies_ready(
    fence_call: Option<&FenceCall>,
    outlets: &[Outlet],
    tenure: &Tenure,
    console: &Console,
) -> Result<(), End> {
    if let Some(fence_call) = fence_call {
        console.print_verbose(format_args!("asking {fence_call} to close the door behind earlier holders"));
        fence_call.close(tenure, console).await.map_err(|error| match error {
            FenceCallError::Over(over) => End::Lost(over),
            FenceCallError::Refused { .. } | FenceCallError::Unexpected { .. } | FenceCallError::Tls { .. } => {
                End::Exit(Exit::Failed(error.to_string()))
            }
        })?;
    }
    for outlet in outlets.iter().filter(|outlet| outlet.proxy().is_secure()) {
        // The one with the door has shown it already.
        if fence_call.is_none_or(|fence_call| *fence_call.address() != outlet.proxy().address) {
            outlet.introduce(tenure.standing()).await.map_err(|why| End::Exit(Exit::Failed(why)))?;
        }
    }
    Ok(())
}

/// A command's life under a tenure.
struct Life {
    processes: ProcessTree,
    standing: watch::Receiver<Standing>,
    /// Until when the last renewal makes sure of the lock, or did.
    sure_until: BootInstant,
    alarm: Alarm,
    grace_when_lost: Duration,
    /// How much later than this process the watchdog steps in.
    watchdog_delay: Duration,
    lost: Option<Over>,
    /// Whether the command is not run again, also if the lock is lost: this process was asked to end, or the command had ended before.
    is_last: bool,
    watchdog_ended: bool,
    /// Whether it was said that the command runs as another user.
    said_beyond: bool,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Runs,
    /// It was asked to end.
    Asked {
        kill_at: BootInstant,
    },
    Killed,
}

impl Life {
    fn begins(processes: ProcessTree, tenure: &Tenure, alarm: Alarm, settings: &HoldSettings) -> Life {
        Life {
            processes,
            standing: tenure.standing(),
            // Until the standing is looked at.
            sure_until: BootInstant::now(),
            alarm,
            grace_when_lost: settings.grace_when_lost(tenure.ttl()),
            watchdog_delay: tenure.ttl() / 50,
            lost: None,
            is_last: false,
            watchdog_ended: false,
            said_beyond: false,
            stage: Stage::Runs,
        }
    }

    fn look_at_standing(&mut self) {
        if let Standing::Held { until } = *self.standing.borrow_and_update() {
            self.sure_until = until;
        }
    }

    fn is_held(&self) -> bool {
        self.standing.borrow().is_held_at(BootInstant::now())
    }

    /// Asks it to end by that moment. Of several such moments the first counts.
    fn terminate(&mut self, kill_at: BootInstant) {
        let kill_at = match self.stage {
            Stage::Runs => kill_at,
            Stage::Asked { kill_at: before } => before.min(kill_at),
            Stage::Killed => return,
        };
        self.stage = Stage::Asked { kill_at };
        self.processes.terminate();
    }

    /// What becomes of the command that was asked to end.
    fn ending(&self) -> &'static str {
        match self.processes.status() {
            None if self.processes.command_is_beyond() => "the command cannot be ended",
            None => "ending the command",
            Some(_) if matches!(self.processes.is_gone(), Ok(true)) => "the command has ended",
            Some(_) => "ending what the command has left",
        }
    }

    /// When there is something to do if nothing happens.
    fn next_moment(&self) -> BootInstant {
        match (self.lost, self.stage) {
            (None, Stage::Asked { kill_at }) => kill_at.min(self.sure_until),
            (Some(_), Stage::Asked { kill_at }) => kill_at,
            (_, Stage::Runs | Stage::Killed) => self.sure_until,
        }
    }

    /// When the watchdog is to step in, if it hears nothing more: when this process should have done so, and a little later.
    fn watchdog_kills_at(&self) -> BootInstant {
        let due = match (self.lost, self.stage) {
            (Some(_), Stage::Asked { kill_at }) => kill_at,
            (None, _) | (Some(_), Stage::Runs | Stage::Killed) => self.sure_until + self.grace_when_lost,
        };
        due + self.watchdog_delay
    }
}
