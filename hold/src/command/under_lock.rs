//! The life of a command under one tenure, from the fence call to the end of its last process.

use std::sync::Arc;
use std::time::Duration;

use crate::{Alarm, BootInstant, Over, Standing, Tenure};
use rustix::process::Signal;
use tokio::sync::watch;
use tokio::time::sleep;

use super::console::Console;
use super::exit::Exit;
use super::fence_call::{FenceCall, FenceCallError};
use super::process_tree::{ProcessTree, may_signal, reap};
use super::signals::asks_to_end;
use super::stamp::{Outlet, Stamping};
use super::starter::Starter;
use super::{Hold, HoldSettings, interrupted};

/// How long killed processes may take to be gone, on a machine that is busy.
const KILLED_WITHIN: Duration = Duration::from_secs(5);

/// How long to wait before the processes are listed again, when they could not be.
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// What helps where a command runs as another user.
const RUN_AS: &str = "it may run on beside the next holder's: run hold as that user, or as root";

/// How a tenure's work has ended.
#[derive(Debug)]
pub(super) enum End {
    /// With an exit.
    Exit(Exit),
    /// Before its time: the lock was lost.
    Lost(Over),
}

impl Hold {
    /// Runs the command under the tenure. When this returns, no process of it is left that this
    /// process may end.
    pub(super) async fn under_lock(&mut self, tenure: &Tenure) -> End {
        let (alarm, stamping) = match self.begin(tenure).await {
            Ok(begun) => begun,
            Err(end) => return end,
        };
        let end = self.run_command(tenure, alarm, &stamping).await;
        stamping.close().await;
        end
    }

    /// Has the proxy close the door behind the predecessor, and opens the addresses at which the
    /// command's requests are taken.
    async fn begin(&mut self, tenure: &Tenure) -> Result<(Alarm, Stamping), End> {
        // A command of an earlier holder on this machine is asked to end for so long, and then
        // killed.
        let patience = self.settings.grace_when_lost(tenure.ttl()) + KILLED_WITHIN;
        let begun = async {
            proxies_ready(self.fence_call.as_ref(), &self.outlets, tenure, &self.console).await?;
            let alarm = Alarm::new()
                .map_err(|error| failed(format!("the clock cannot be set up: {error}")))?;
            let opened =
                Stamping::open(&self.outlets, tenure, patience, self.connections_max).await;
            Ok((alarm, opened.map_err(|error| failed(error.to_string()))?))
        };
        tokio::select! {
            biased;
            over = tenure.lost() => Err(End::Lost(over)),
            exit = interrupted(&mut self.signals, self.watchdog.id()) => Err(End::Exit(exit)),
            begun = begun => begun,
        }
    }

    async fn run_command(&mut self, tenure: &Tenure, alarm: Alarm, stamping: &Stamping) -> End {
        let HoldSettings { command, foreground, stamp, .. } = &self.settings;
        let mut environment = vec![
            ("FENCE_LOCK", tenure.key().as_str().to_owned()),
            ("FENCE_OWNER", tenure.owner().to_string()),
            ("FENCE_REVISION", tenure.revision().to_string()),
        ];
        if !stamp.is_empty() {
            environment.push(("FENCE_STAMP", stamping.to_string()));
        }
        let mut starter = match Starter::start(command, *foreground, &environment) {
            Ok(starter) => starter,
            Err(error) => {
                return failed(format!("no process can be started for the command: {error}"));
            }
        };
        let processes = ProcessTree::of(starter.id(), !foreground, self.others.clone());
        let mut life = Life::begins(processes, tenure, alarm, &self.settings);
        life.note_standing();
        self.watchdog.guard(&life.processes, life.watchdog_kills_at());
        // All that was done until now may have taken too long: then the process is killed as it
        // waits.
        if tenure.is_held() {
            starter.let_go();
            self.console.print_verbose(format_args!("started process {}", starter.id()));
        }
        self.live(&mut life).await
    }

    /// Follows the command until nothing of it is left.
    async fn live(&mut self, life: &mut Life) -> End {
        loop {
            let gone = life.processes.is_gone();
            if matches!(gone, Ok(true)) {
                break;
            }
            life.note_standing();
            self.watchdog.guard(&life.processes, life.watchdog_kills_at());
            tokio::select! {
                // The clock first: a process that wakes up too late has nothing else to do before.
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
                // For want of a descriptor, say, which may be free again.
                () = sleep(LOOK_PAUSE), if gone.is_err() => self.end_what_is_left(life),
            }
        }
        if life.processes.leaves_strangers() {
            self.console.print(format_args!(
                "the command has left a process behind that runs as another user and cannot be ended; {RUN_AS}"
            ));
        }
        self.watchdog.stand_down();
        match (life.lost, life.processes.status()) {
            // First: without a watchdog there is no next tenure.
            _ if life.watchdog_ended => failed("the watchdog has ended"),
            (Some(over), _) if !life.is_last => End::Lost(over),
            (_, Some(status)) => End::Exit(Exit::of_command(status)),
            (_, None) => failed("the command has ended in an unknown way"),
        }
    }

    /// The moment that was waited for has come: the tenure is over, or the grace is.
    fn time_is_over(&mut self, life: &mut Life) {
        if !life.is_held() {
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
            let who = if life.processes.status().is_some() {
                "what the command has left"
            } else {
                "the command"
            };
            life.processes.kill();
            life.stage = Stage::Killed;
            match may_signal(life.processes.command()) {
                true => self.console.print(format_args!("{who} has not ended in time: killing it")),
                false => self.console.print(format_args!(
                    "the command has not ended in time, and runs as another user, so that it cannot be killed; {RUN_AS}"
                )),
            }
        }
    }

    /// The tenure is over: the command is asked to end, and is killed before the lock can be
    /// another's.
    fn lose(&mut self, life: &mut Life) {
        if life.lost.is_some() {
            return;
        }
        let had_ended = life.processes.status().is_some();
        self.bury(life);
        // A command that is seen to have ended only now may have been killed by the watchdog,
        // unless it went well.
        life.is_last |= had_ended
            || life.processes.status().is_some_and(|status| status.exit_status() == Some(0));
        let over = match *life.standing.borrow() {
            Standing::Over(over) => over,
            Standing::Held { .. } => Over::NotRenewed,
        };
        life.lost = Some(over);
        life.terminate(BootInstant::now().min(life.sure_until) + life.grace_when_lost);
        self.console.print(format_args!("lost the lock: {over}; {}", life.ending()));
    }

    /// Notes which children have ended.
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
            self.console.print(format_args!("the watchdog has ended: {}", life.ending()));
        }
        self.end_what_is_left(life);
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
        // A stopped command would never learn that it is to end. It may go on: the lock is held.
        if asks_to_end(signal) && life.lost.is_none() {
            life.processes.signal(Signal::CONT);
        }
    }

    /// Ends what a command that has ended has left, because the lock is about to be another's.
    fn end_what_is_left(&mut self, life: &mut Life) {
        if life.processes.status().is_none() || matches!(life.processes.is_gone(), Ok(true)) {
            return;
        }
        match life.stage {
            Stage::Runs => {
                self.console.print(format_args!(
                    "the command has ended and left processes behind: ending them"
                ));
                life.terminate(BootInstant::now() + self.settings.grace);
            }
            Stage::Asked { .. } => life.processes.terminate(),
            Stage::Killed => life.processes.kill(),
        }
    }
}

fn failed(why: impl Into<String>) -> End {
    End::Exit(Exit::failed(why))
}

/// Returns when the door is closed and no other proxy has shown that it is not the one that is
/// meant.
async fn proxies_ready(
    fence_call: Option<&FenceCall>,
    outlets: &[Arc<Outlet>],
    tenure: &Tenure,
    console: &Console,
) -> Result<(), End> {
    if let Some(fence_call) = fence_call {
        console.print_verbose(format_args!(
            "asking {fence_call} to close the door behind earlier holders"
        ));
        fence_call.close(tenure, console).await.map_err(|error| match error {
            FenceCallError::Over(over) => End::Lost(over),
            FenceCallError::Refused { .. }
            | FenceCallError::Unexpected { .. }
            | FenceCallError::Tls { .. } => failed(error.to_string()),
        })?;
    }
    for outlet in outlets.iter().filter(|outlet| outlet.link.is_secure()) {
        // The one with the door has shown it already.
        if fence_call.is_none_or(|fence_call| *fence_call.address() != outlet.link.address) {
            outlet.introduce(tenure.standing()).await.map_err(failed)?;
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
    /// Whether the command does not run again, also if the lock is lost: this process was asked to
    /// end, or the command had ended.
    is_last: bool,
    watchdog_ended: bool,
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
    fn begins(
        processes: ProcessTree,
        tenure: &Tenure,
        alarm: Alarm,
        settings: &HoldSettings,
    ) -> Life {
        Life {
            processes,
            standing: tenure.standing(),
            sure_until: BootInstant::now(),
            alarm,
            grace_when_lost: settings.grace_when_lost(tenure.ttl()),
            watchdog_delay: tenure.ttl() / 50,
            lost: None,
            is_last: false,
            watchdog_ended: false,
            stage: Stage::Runs,
        }
    }

    fn note_standing(&mut self) {
        if let Standing::Held { until } = *self.standing.borrow_and_update() {
            self.sure_until = until;
        }
    }

    fn is_held(&self) -> bool {
        self.standing.borrow().is_held_at(BootInstant::now())
    }

    /// Asks the command to end before `kill_at`. Of several such moments the earliest counts.
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

    /// When the watchdog steps in without another order: a little later than this process would.
    fn watchdog_kills_at(&self) -> BootInstant {
        let due = match (self.lost, self.stage) {
            (Some(_), Stage::Asked { kill_at }) => kill_at,
            (None, _) | (Some(_), Stage::Runs | Stage::Killed) => {
                self.sure_until + self.grace_when_lost
            }
        };
        due + self.watchdog_delay
    }
}
