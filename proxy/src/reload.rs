//! Putting another configuration in force while requests go on: all of it or nothing.
//!
//! A [`ConfigFile`] says what the file holds, and when that has changed; a [`Reloader`] makes it
//! the configuration in force, or says why it can't.

mod file;
mod files;
mod locks;
mod sources;
#[cfg(test)]
mod tests;
mod turning;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fencepost_config::{Config, Difference};
use tokio::signal::unix::SignalKind;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};

pub use file::ConfigFile;
use file::Content;
use files::{READ_TIMEOUT, first_looks};
use locks::{conflicts, first_reads, keep_only};
use sources::{first_answers, try_detours};
use turning::Earlier;

use crate::access_log::AccessLog;
use crate::active_config::{ActiveConfig, ActiveConfigSwitch};
use crate::generation::{Generation, GenerationError, PreparedGeneration};
use crate::lock_sources::SourcesError;
use crate::service_manager::ServiceManager;
use crate::signals::Signals;
use crate::tenure_log::RECORD_TIMEOUT;

/// How often the file is looked at.
const POLL_PERIOD: Duration = Duration::from_secs(1);

/// How many may wait for a reload.
const ASKED_MAX: usize = 16;

/// Where the configuration in force comes from.
#[derive(Debug, Default)]
pub enum Origin {
    /// From the program itself: nobody can change it, and SIGHUP does what it does to any program.
    #[default]
    Program,
    /// From the command line, which stays as it is for as long as the process runs.
    Flags,
    /// From a file.
    File(ConfigFile),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Program => f.write_str("the program"),
            Origin::Flags => f.write_str("the command line"),
            Origin::File(file) => f.write_str(&file.name()),
        }
    }
}

/// SIGHUP, which asks for a reload, and the signals that other proxies take for something: to drain,
/// or to open logs anew. What they do by default would end the process at once.
pub struct ReloadSignals {
    hangups: Signals,
    usr1: Signals,
    usr2: Signals,
}

impl ReloadSignals {
    /// Listens for them: from now on none ends the process. One that comes before there is a
    /// [`Reloader`] is heard by it.
    pub fn listen(origin: &Origin) -> ReloadSignals {
        let listen = |kind| match origin {
            Origin::Program => Signals::none(),
            Origin::Flags | Origin::File(_) => Signals::listen(kind),
        };
        ReloadSignals {
            hangups: listen(SignalKind::hangup()),
            usr1: listen(SignalKind::user_defined1()),
            usr2: listen(SignalKind::user_defined2()),
        }
    }
}

/// What came of a reload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Another configuration is in force.
    Applied {
        /// Its number.
        generation: u64,
        /// What is different in it.
        difference: Difference,
    },
    /// The file says what is in force already.
    Unchanged {
        /// The number of what is in force.
        generation: u64,
    },
    /// Nothing changed, because of all of these.
    Rejected(Vec<String>),
}

/// Asks for reloads, from any thread.
#[derive(Clone)]
pub struct Reloads(mpsc::Sender<oneshot::Sender<Outcome>>);

impl Reloads {
    /// Reloads now; `None` if the process is about to end.
    pub async fn reload(&self) -> Option<Outcome> {
        let (answer, outcome) = oneshot::channel();
        self.0.send(answer).await.ok()?;
        outcome.await.ok()
    }
}

/// Puts the file's configuration in force whenever somebody asks for it or the file has changed.
pub struct Reloader {
    origin: Origin,
    manager: ServiceManager,
    switch: ActiveConfigSwitch,
    in_force: ActiveConfig,
    earlier: Earlier,
    signals: ReloadSignals,
    asked: mpsc::Receiver<oneshot::Sender<Outcome>>,
}

impl Reloader {
    /// Begins with a configuration that is put in force by this.
    pub fn new(origin: Origin, signals: ReloadSignals, first: Generation) -> (Reloader, Reloads) {
        let (reloads, asked) = mpsc::channel(ASKED_MAX);
        let metrics = &first.process.metrics;
        metrics.set_config(first.number, SystemTime::now());
        first.keep_labels();
        first.process.sources.admit(&first.config);
        first.process.identities.put_in_force(&first.identities);
        let switch = ActiveConfigSwitch::new(Arc::new(first));
        let manager = ServiceManager::of(&origin);
        let earlier = Earlier::default();
        (
            Reloader {
                origin,
                manager,
                in_force: switch.in_force(),
                switch,
                earlier,
                signals,
                asked,
            },
            Reloads(reloads),
        )
    }

    /// Shows what is in force.
    pub fn in_force(&self) -> ActiveConfig {
        self.in_force.clone()
    }

    /// Does its work for as long as it is polled. Between two reloads it may be dropped; in one,
    /// nothing has changed yet.
    pub async fn run(&mut self) {
        if let Origin::File(file) = &self.origin
            && let Some(why) = file.unfollowed()
        {
            tracing::info!("{why}");
        }
        let mut poll = interval(POLL_PERIOD);
        poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.signals.hangups.next() => drop(self.reload_now("SIGHUP").await),
                () = self.signals.usr1.next() => warn_of("SIGUSR1"),
                () = self.signals.usr2.next() => warn_of("SIGUSR2"),
                Some(answer) = self.asked.recv() => {
                    let outcome = self.reload_now("the operator").await;
                    let _ = answer.send(outcome); // Who asked may be gone.
                }
                seen = next_look(&mut poll, &self.origin) => {
                    if let Origin::File(file) = &mut self.origin
                        && let Some(content) = file.settle(seen)
                    {
                        self.reload("the file", &content).await;
                    }
                }
            }
        }
    }

    async fn reload_now(&mut self, cause: &str) -> Outcome {
        // Also where nothing else changes: what has renamed the file, or written others, says so in
        // this way.
        let with_requests = self.earlier.generations().chain([self.in_force.now()]);
        with_requests
            .for_each(|generation| generation.access_log.iter().for_each(AccessLog::reopen));
        if timeout(READ_TIMEOUT, self.in_force.now().process.tls_files.look_now()).await.is_err() {
            tracing::error!(
                "the TLS files could not be read within {READ_TIMEOUT:?}: what was in force stays"
            );
        }
        match &mut self.origin {
            Origin::File(file) => {
                let content = file.content_now().await;
                self.reload(cause, &content).await
            }
            Origin::Flags | Origin::Program => {
                self.manager.reloading();
                let nothing = "there is nothing to reload: the configuration is in the arguments of this process, not in a file";
                self.conclude(cause, Outcome::Rejected(vec![nothing.to_owned()]))
            }
        }
    }

    async fn reload(&mut self, cause: &str, content: &Content) -> Outcome {
        self.manager.reloading();
        let outcome = self.put_in_force(content).await.unwrap_or_else(Outcome::Rejected);
        if let Origin::File(file) = &self.origin
            && file.is_news(content)
        {
            let problems = match &outcome {
                Outcome::Rejected(problems) => problems.clone(),
                Outcome::Applied { .. } | Outcome::Unchanged { .. } => Vec::new(),
            };
            self.in_force.now().process.set_rejection(problems);
        }
        self.conclude(cause, outcome)
    }

    /// Says what came of it.
    fn conclude(&self, cause: &str, outcome: Outcome) -> Outcome {
        let in_force = self.in_force.now();
        let metrics = &in_force.process.metrics;
        metrics.reloaded(outcome.name());
        match &outcome {
            Outcome::Applied { generation, difference } => {
                tracing::info!(cause, generation, changed = %difference, "configuration reloaded");
                metrics.set_config(*generation, SystemTime::now());
            }
            Outcome::Unchanged { generation } => {
                tracing::info!(cause, generation, "configuration unchanged");
                metrics.set_config(*generation, SystemTime::now());
            }
            Outcome::Rejected(problems) => {
                problems.iter().for_each(|problem| tracing::error!("{problem}"));
                let generation = in_force.number;
                tracing::error!(
                    cause,
                    generation,
                    "configuration not reloaded: what was in force stays"
                );
            }
        }
        if in_force.config.places.has_variables() {
            tracing::info!(
                "each ${{NAME}} of the file has its value of the start of this process: a change of the environment takes a restart"
            );
        }
        self.manager.ready();
        outcome
    }

    /// Puts what the file says in force.
    ///
    /// # Errors
    /// Everything that speaks against it. Then nothing has changed.
    async fn put_in_force(&mut self, content: &Content) -> Result<Outcome, Vec<String>> {
        let Origin::File(file) = &self.origin else { return Err(Vec::new()) };
        let old = self.in_force.now();
        let generation = old.number;
        let (config, difference) = file.compared(content, &old.config).await?;
        if difference.is_empty() {
            return Ok(Outcome::Unchanged { generation });
        }
        let mut problems: Vec<String> = difference
            .iter()
            .filter(|change| !change.follows)
            .map(|change| {
                let text = format!("{} needs a restart", change.how());
                config.places.problem(&change.what, text).to_string()
            })
            .collect();
        problems.extend(conflicts(&old, &self.earlier, &config).await);
        if !problems.is_empty() {
            return Err(problems);
        }
        let new = self.prepare(&old, config, generation + 1).await?;
        for warning in &new.config.warnings {
            tracing::warn!("{warning}");
        }
        self.put(&old, new.activate());
        Ok(Outcome::Applied { generation: generation + 1, difference })
    }

    /// Makes a configuration ready, so that its first request finds what it needs.
    ///
    /// # Errors
    /// What it names and can't be had, such as a lock that can't be read or a store that doesn't
    /// answer. Then everything goes on as before.
    async fn prepare(
        &self,
        old: &Generation,
        config: Config,
        generation: u64,
    ) -> Result<PreparedGeneration, Vec<String>> {
        first_looks(&old.config, &config).await?;
        let (process, places) = (Arc::clone(&old.process), config.places.clone());
        let prepared = match PreparedGeneration::new(config, generation, process) {
            Ok(new) => self.make_ready(old, new).await,
            Err(error) => {
                let key = match &error {
                    GenerationError::AccessLog(_) => Some("access_log.path".to_owned()),
                    GenerationError::Source(SourcesError::AnotherStore { name }) => {
                        Some(format!("source.{name}"))
                    }
                    GenerationError::Source(_)
                    | GenerationError::Lock(_)
                    | GenerationError::Upstream(_) => None,
                };
                // With its causes, as at the start.
                let text = format!("{:#}", anyhow::Error::new(error));
                Err(vec![match key {
                    Some(key) => places.problem(&key, text).to_string(),
                    None => places.shown(text).into_owned(),
                }])
            }
        };
        let prepared = prepared.inspect_err(|_| {
            old.process.sources.follow(&old.config);
            keep_only(old);
        });
        old.process.sources.settle();
        prepared
    }

    /// What has to be so before requests come under it.
    async fn make_ready(
        &self,
        old: &Generation,
        new: PreparedGeneration,
    ) -> Result<PreparedGeneration, Vec<String>> {
        make_readable(old, &new).await?;
        make_remembered(&new).await?;
        // Once more: meanwhile requests have asked for locks that nobody had asked for before.
        let problems = conflicts(old, &self.earlier, &new.config).await;
        if problems.is_empty() { Ok(new) } else { Err(problems) }
    }

    fn put(&mut self, old: &Arc<Generation>, mut new: Generation) {
        self.earlier.bar_what_was_let_past(old, &mut new);
        new.tell_group();
        let new = Arc::new(new);
        if let Some(memory) = &new.process.memory {
            memory.raise_orphan_timeouts(&new.config, &new.sources);
        }
        new.process.sources.admit(&new.config);
        new.process.identities.put_in_force(&new.identities);
        self.switch.to(Arc::clone(&new));
        keep_only(&new);
    }
}

fn warn_of(signal: &str) {
    tracing::warn!(
        "{signal} means nothing here: SIGHUP reloads and opens the access log anew, SIGTERM drains and ends"
    );
}

/// Has sources reached as `new` says, if its locks can be read in that way and those that are new
/// answer.
async fn make_readable(old: &Generation, new: &PreparedGeneration) -> Result<(), Vec<String>> {
    try_detours(old, new).await?;
    new.process.sources.follow(&new.config);
    first_reads(old, new).await?;
    first_answers(old, new).await
}

/// Has what `new` lets past unjudged remembered, before any of it comes.
async fn make_remembered(new: &PreparedGeneration) -> Result<(), Vec<String>> {
    let Some(memory) = &new.process.memory else { return Ok(()) };
    let outcome = timeout(RECORD_TIMEOUT, memory.will_watch(&new.config)).await;
    match outcome {
        Ok(written) => written.map_err(|error| vec![format!("{:#}", anyhow::Error::new(error))]),
        Err(_) => Err(vec![format!("the state_dir was not written to within {RECORD_TIMEOUT:?}")]),
    }
}

impl Outcome {
    /// As metrics name it.
    fn name(&self) -> &'static str {
        match self {
            Outcome::Applied { .. } => "applied",
            Outcome::Unchanged { .. } => "unchanged",
            Outcome::Rejected(_) => "rejected",
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Applied { generation, difference } => {
                write!(f, "generation {generation} is in force: {difference}")
            }
            Outcome::Unchanged { generation } => {
                write!(f, "unchanged: generation {generation} stays in force")
            }
            Outcome::Rejected(problems) => {
                write!(f, "nothing is changed:\n{}", problems.join("\n"))
            }
        }
    }
}

/// What the file holds when the next look is due. Never completes for a configuration without a
/// file.
async fn next_look(poll: &mut Interval, origin: &Origin) -> Content {
    match origin {
        Origin::File(file) => {
            poll.tick().await;
            file.look().await
        }
        Origin::Flags | Origin::Program => std::future::pending().await,
    }
}
