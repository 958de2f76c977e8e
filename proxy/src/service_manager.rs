//! Notifies systemd of this process, where systemd asks for it (`NOTIFY_SOCKET`, `WATCHDOG_USEC`).

use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use sd_notify::NotifyState;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use crate::process::Process;
use crate::reload::Origin;
use crate::server::OpenConnections;

/// How often the status line is looked at.
const STATUS_PERIOD: Duration = Duration::from_secs(1);

/// The service manager, if this process is a service of its own.
#[derive(Debug, Clone, Copy)]
pub struct ServiceManager {
    listens: bool,
}

/// What the status line and the watchdog depend on.
pub struct Attended<'r> {
    /// The process; as long as it is there.
    pub process: Weak<Process>,
    /// Whether it is about to stop.
    pub leaving: &'r AtomicBool,
    /// How many client connections are open.
    pub connections: OpenConnections,
}

impl ServiceManager {
    /// Notifies nobody if another program runs the configuration within itself.
    pub fn of(origin: &Origin) -> ServiceManager {
        match origin {
            Origin::Program => ServiceManager { listens: false },
            Origin::Flags | Origin::File(_) => ServiceManager { listens: is_named() },
        }
    }

    /// The process listens. It is ready for its manager then, even if a lock store does not answer
    /// yet: `/readyz` says whether requests should come, and a manager that waits for the store
    /// would kill what could tell of it.
    pub fn ready(self) {
        self.tell(&[NotifyState::Ready]);
    }

    /// A reload begins; [`ServiceManager::ready`] ends it.
    pub fn reloading(self) {
        match NotifyState::monotonic_usec_now() {
            Ok(now) => self.tell(&[NotifyState::Reloading, now]),
            Err(error) => tracing::warn!(%error, "the service manager cannot be told of a reload"),
        }
    }

    /// The process is about to end.
    pub fn stopping(self) {
        self.tell(&[NotifyState::Stopping]);
    }

    /// Keeps the status line up to date, and the watchdog quiet for as long as every thread makes
    /// progress. Never ends.
    pub async fn attend(self, attended: Attended<'_>) {
        if !self.listens {
            return std::future::pending().await;
        }
        tokio::join!(self.keep_status(&attended), self.feed_watchdog(&attended));
    }

    async fn keep_status(self, attended: &Attended<'_>) {
        let mut tick = interval(STATUS_PERIOD);
        let mut told = String::new();
        loop {
            tick.tick().await;
            let status = attended.status();
            if status != told {
                self.tell(&[NotifyState::Status(&status)]);
                told = status;
            }
        }
    }

    async fn feed_watchdog(self, attended: &Attended<'_>) {
        // 0 is no watchdog, as for sd_watchdog_enabled(3).
        let Some(patience) = sd_notify::watchdog_enabled().filter(|patience| !patience.is_zero())
        else {
            return;
        };
        let period = patience / 3;
        let mut tick = interval(period);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            if timeout(period, attended.makes_progress()).await == Ok(true) {
                self.tell(&[NotifyState::Watchdog]);
            } else {
                tracing::error!(?patience, "a thread makes no progress: the watchdog is not fed");
            }
        }
    }

    fn tell(self, news: &[NotifyState<'_>]) {
        if self.listens
            && let Err(error) = sd_notify::notify(news)
        {
            tracing::warn!(%error, "the service manager cannot be told");
        }
    }
}

/// Whether there is one. A variable that is empty names nobody.
fn is_named() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some_and(|socket| !socket.is_empty())
}

impl Attended<'_> {
    /// One line for `systemctl status`.
    fn status(&self) -> String {
        let Some(process) = self.process.upgrade() else {
            return "ended".to_owned();
        };
        if self.leaving.load(Ordering::Relaxed) {
            let (connections, requests) = (self.connections.count(), process.metrics.in_flight());
            return format!("draining: {connections} connections, {requests} requests");
        }
        let now = Instant::now();
        let sources = process.sources.all();
        let mut locks = 0;
        let states = sources.iter().map(|source| {
            let status = source.status(now);
            locks += status.static_locks + status.templated_locks;
            let state = match (status.up, source.ready()) {
                (Some(true), true) => "up",
                (Some(true), false) => "up, locks not read yet",
                (Some(false), _) if status.age.is_none() && status.last_error.is_none() => {
                    "is asked"
                }
                (Some(false), _) => "does not answer",
                (None, _) => "not in use",
            };
            format!("; {} {state}", source.name())
        });
        let states: String = states.collect();
        let plural = if locks == 1 { "" } else { "s" };
        let rejected = if process.metrics.config_rejected() {
            "; the file is rejected, an earlier one in force"
        } else {
            ""
        };
        let failing =
            if process.state_dir_fails() { "; the state_dir cannot be written" } else { "" };
        format!("serving, {locks} lock{plural}{states}{rejected}{failing}")
    }

    /// Whether the threads of the sources go on; completes once those of the workers do too.
    async fn makes_progress(&self) -> bool {
        let Some((pulses, sources)) =
            self.process.upgrade().map(|process| (process.pulses.clone(), process.sources.all()))
        else {
            return true; // It is at its very end.
        };
        pulses.all_answer().await;
        let answers = join_all(sources.iter().map(|source| source.answers())).await;
        answers.iter().all(Result::is_ok)
    }
}
