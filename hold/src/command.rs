//! `fencepost hold`: holds a lock for as long as a command runs, and ends the command before the
//! lock can be lost.
//!
//! The modules in the order of what happens:
//!
//! | module | does |
//! |---|---|
//! | `settings` | the options, checked |
//! | `fence_call` | has the proxy close the door behind the predecessor |
//! | `stamp` | takes the command's requests and adds its token, through `proxy_link` and `header_names` |
//! | `starter` | the process that becomes the command |
//! | `process_tree` | the command and its descendants, and how they are ended |
//! | `under_lock` | the command's life from beginning to end |
//! | `watchdog` | a second process that ends the command if this one cannot |
//! | `exit`, `signals`, `console` | exit codes, the signals that are passed on, messages |

mod console;
mod exit;
mod fence_call;
mod header_names;
mod process_tree;
mod proxy_address;
mod proxy_link;
mod settings;
mod signals;
mod stamp;
mod starter;
mod under_lock;
mod watchdog;
mod while_held;

use std::convert::Infallible;
use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use crate::{AcquireError, Etcd, Lock, LockKey, Look, StoreError, Tenure};
use rustix::process::{Pid, Resource, Signal, getpid, getrlimit};
use tokio::time::{MissedTickBehavior, interval, sleep};

pub use self::header_names::HeaderNames;
pub use self::proxy_address::{InvalidProxyAddress, ProxyAddress};
pub use self::settings::HoldSettings;
pub use self::stamp::StampRule;
pub use self::starter::become_command;
pub use self::watchdog::watch_over as run_watchdog;

use self::console::{Console, ConsoleWriter};
use self::exit::{Exit, with_causes};
use self::fence_call::FenceCall;
use self::process_tree::reap;
use self::proxy_link::ProxyLink;
use self::settings::TRY_WITHIN;
use self::signals::{Signals, asks_to_end};
use self::stamp::Outlet;
use self::under_lock::End;
use self::watchdog::Watchdog;

/// How long to wait before etcd is asked again, when it did not answer.
const ETCD_PAUSE: Duration = Duration::from_secs(1);

/// How often the files of TLS with etcd are looked at.
const LOOK_PERIOD: Duration = Duration::from_secs(1);

/// After how long a wait its reason is printed without --verbose.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// For how long etcd may be silent before that is said. More than it takes to leave one endpoint
/// for the next.
const SILENCE_MAX: Duration = Duration::from_millis(1_500);

/// Does it, and returns the exit code. Runs on a current-thread runtime of this process's first
/// thread.
pub async fn hold(settings: HoldSettings) -> u8 {
    let writer = ConsoleWriter::begin();
    let console = writer.console(settings.verbose);
    let exit = match Hold::prepare(settings, console.clone()) {
        Ok(mut hold) => {
            let etcd = hold.etcd.clone();
            let exit = tokio::select! {
                exit = hold.run() => exit,
                never = follow_files(&etcd, &console) => match never {},
            };
            hold.settle().await;
            hold.watchdog.end();
            exit
        }
        Err(exit) => exit,
    };
    exit.report(&console)
}

/// All that stays the same from one tenure to the next.
struct Hold {
    settings: HoldSettings,
    etcd: Etcd,
    lock: Lock,
    fence_call: Option<FenceCall>,
    /// Where the command's requests go.
    outlets: Vec<Arc<Outlet>>,
    signals: Signals,
    watchdog: Watchdog,
    /// Children of this process that have nothing to do with the lock: the watchdog, and those that
    /// were there before.
    others: Vec<Pid>,
    /// How many connections to --stamp the command may have.
    connections_max: usize,
    console: Console,
}

impl Hold {
    fn prepare(settings: HoldSettings, console: Console) -> Result<Hold, Exit> {
        let etcd = settings.etcd(&console)?;
        let lock = settings.lock(&etcd)?;
        let names = &settings.header_names;
        names.check().map_err(Exit::usage)?;
        settings.check_addresses()?;
        let tls = settings.proxy_tls(&console)?;
        let link = |to| ProxyLink::new(to, tls.as_ref());
        let fence_call = settings.fence.as_ref().map(|proxy| FenceCall::at(link(proxy), names));
        let outlets = settings
            .stamp
            .iter()
            .map(|rule| Outlet::new(rule.listen, link(&rule.to), names, console.clone()))
            .collect();
        let failed = |what: &str, error: std::io::Error| Exit::failed(format!("{what}: {error}"));
        process_tree::adopt_orphans()
            .map_err(|error| failed("orphans cannot be adopted", error))?;
        let signals =
            Signals::listen().map_err(|error| failed("signals cannot be listened to", error))?;
        let mut others = process_tree::children(getpid())
            .map_err(|error| failed("this process's children cannot be seen", error))?;
        let watchdog = Watchdog::start(&others)
            .map_err(|error| failed("the watchdog cannot be started", error))?;
        others.push(watchdog.id());
        let connections_max = stamp::connections_max(getrlimit(Resource::Nofile).current);
        Ok(Hold {
            settings,
            etcd,
            lock,
            fence_call,
            outlets,
            signals,
            watchdog,
            others,
            connections_max,
            console,
        })
    }

    /// One tenure after the other, until there is something to exit with.
    async fn run(&mut self) -> Exit {
        let mut is_first = true;
        loop {
            let tenure = match self.acquire(is_first).await {
                Ok(tenure) => tenure,
                Err(exit) => return exit,
            };
            if is_first && tenure.ttl() != self.settings.ttl {
                self.console.print(format_args!(
                    "--ttl: etcd grants {:?} instead of {:?}: the lock stays taken for so long when its holder is gone",
                    tenure.ttl(),
                    self.settings.ttl
                ));
            }
            is_first = false;
            self.console.print_verbose(format_args!(
                "{} holds {} under revision {}",
                tenure.owner(),
                tenure.key(),
                tenure.revision()
            ));
            let end = self.under_lock(&tenure).await;
            self.give_back(tenure).await;
            match end {
                End::Exit(exit) => return exit,
                End::Lost(over) if self.settings.once => return Exit::lost(over),
                End::Lost(_) => {}
            }
        }
    }

    /// Waits for the lock, unless that is not wanted, and takes it.
    async fn acquire(&mut self, is_first: bool) -> Result<Tenure, Exit> {
        self.console.print_verbose(format_args!("waiting for {}", self.lock.key()));
        let mut silence =
            pin!(say_when_silent(self.etcd.clone(), self.lock.key().clone(), self.console.clone()));
        let mut wait = pin!(say_behind(&self.lock, &self.console));
        loop {
            let acquiring = async {
                match self.settings.r#try {
                    true => self.lock.try_acquire().await,
                    false => self.lock.acquire().await,
                }
            };
            let failed = tokio::select! {
                acquired = acquiring => match acquired {
                    Ok(tenure) => return Ok(tenure),
                    Err(error) => error,
                },
                exit = interrupted(&mut self.signals, self.watchdog.id()) => return Err(exit),
                never = &mut silence => match never {},
                never = &mut wait => match never {},
            };
            match failed {
                held @ AcquireError::Held { .. } => {
                    return Err(Exit::new(self.settings.conflict_exit_code, held.to_string()));
                }
                // Whoever has held the lock goes on trying: there is nothing else to do for a
                // master that waits for its etcd.
                AcquireError::Store(StoreError::Unavailable(why))
                    if !is_first && !self.settings.once =>
                {
                    self.console.print(format_args!("etcd does not answer, trying again: {why}"));
                    sleep(ETCD_PAUSE).await;
                }
                error @ AcquireError::Store(StoreError::NoLogin) => {
                    let why = with_causes(&error);
                    return Err(Exit::failed(format!(
                        "{why}: give --etcd-user and --etcd-password-file"
                    )));
                }
                error @ (AcquireError::Store(_) | AcquireError::Clock(_)) => {
                    return Err(Exit::failed(with_causes(&error)));
                }
            }
        }
    }

    /// What was given up in the background is given back before the process ends. Who does not want
    /// to wait does not wait for that either, once etcd has had its time.
    async fn settle(&self) {
        tokio::select! {
            () = self.etcd.settled() => {}
            _ = self.etcd.silent_for(TRY_WITHIN), if self.settings.r#try => {}
        }
    }

    async fn give_back(&self, tenure: Tenure) {
        let (is_held, revision) = (tenure.is_held(), tenure.revision());
        match tenure.release().await {
            Ok(()) if is_held => {
                self.console.print_verbose(format_args!("gave {} back", self.lock.key()))
            }
            // The key may be there, and another's.
            Ok(()) => self
                .console
                .print_verbose(format_args!("revision {revision} has left nothing in etcd")),
            Err(error) => self.console.print(format_args!("{}", with_causes(&error))),
        }
    }
}

/// Has connections to etcd that begin from now on go by what the files of TLS hold then.
async fn follow_files(etcd: &Etcd, console: &Console) -> Infallible {
    let mut ticks = interval(LOOK_PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        match etcd.reload_files().await {
            Look::Unchanged => {}
            Look::Reloaded => console.print_verbose(format_args!(
                "the files for etcd have changed: connections that begin now go by them"
            )),
            Look::Failed(error) => console.print(format_args!("{error}; what was in force stays")),
        }
    }
}

/// Prints when etcd stops answering, and when it answers again, so that the user knows whether the
/// command waits for the lock or for etcd.
async fn say_when_silent(etcd: Etcd, key: LockKey, console: Console) -> Infallible {
    loop {
        console.print(format_args!("{}", etcd.silent_for(SILENCE_MAX).await));
        etcd.answers().await;
        console.print(format_args!("etcd answers again; waiting for {key}"));
    }
}

/// Prints behind whom the lock is waited for: each time if all steps are printed, else once, after
/// some seconds.
async fn say_behind(lock: &Lock, console: &Console) -> Infallible {
    let mut behind = lock.behind();
    if !console.is_verbose() {
        sleep(WAIT_MAX).await;
    }
    loop {
        // The channel's other end is the lock's.
        if let Ok(Some(behind)) = behind.wait_for(Option::is_some).await.as_deref() {
            console.print(format_args!("waiting {behind}"));
        }
        if !console.is_verbose() {
            return pending().await;
        }
        let _ = behind.changed().await;
    }
}

/// Returns when a signal, or the end of the watchdog, ends this process before it has started the
/// command.
async fn interrupted(signals: &mut Signals, watchdog: Pid) -> Exit {
    loop {
        match signals.next().await {
            Signal::CHILD if reap(None, watchdog).watchdog => {
                return Exit::failed("the watchdog has ended");
            }
            signal if asks_to_end(signal) => return Exit::signalled(signal),
            _ => {}
        }
    }
}
