//! What this process remembers of the one before it, and what it keeps for the one after it, as the gates need it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use fencepost_config::{Config, Mode};
use fencepost_policy::{LockKey, Rejection, Revision, Snapshot};
use fencepost_sources::{GateMemory, LockSource, TrackedLock};
use tokio::time::{Instant, timeout};

use crate::exchange::Fence;
use crate::lock_sources::LockSources;
use crate::state::{Inbox, Remembered, StateDir, StateError};

/// How long a request waits for its tenure to be recorded. A disk that takes longer refuses it.
pub const RECORD_TIMEOUT: Duration = Duration::from_secs(5);

/// How often the highest revision seen is passed on to be remembered.
const NOTE_PERIOD: Duration = Duration::from_secs(1);

/// The memory of a process with a `state_dir`.
pub struct Memory {
    state: StateDir,
    remembered: Arc<Remembered>,
    /// For which locks it is on the disk that a route only watches, and for how long that may go on.
    watched: Mutex<BTreeMap<String, Duration>>,
    /// What each source that is remembered was given, by its name.
    sources: BTreeMap<String, Arc<SourceMemory>>,
    /// When this process began, if the one before it may have left requests at the worker.
    unclean_since: Option<Instant>,
    /// Records and acceptances come to the writer in the order in which they were decided. Under this: for each source, the
    /// longest that requests of its locks may run on unseen.
    order: Mutex<BTreeMap<String, Duration>>,
}

/// What is remembered of the gates of one source.
#[derive(Debug)]
struct SourceMemory {
    name: String,
    remembered: Arc<Remembered>,
    inbox: Inbox,
    /// When this process began, if the one before it may have left requests at the worker.
    unclean_since: Option<Instant>,
    /// The operator accepted that the store went back: its old revisions mean nothing any more.
    accepted: AtomicBool,
}

impl GateMemory for SourceMemory {
    fn of(&self, lock: &LockKey) -> Option<fencepost_sources::Remembered> {
        let known = self.remembered.lock(&self.name, lock);
        // Somebody may have been let in of whom this source knows nothing, and later than whom it knows: sources are renamed, routes
        // are given others, and their former ones again.
        let of_others = self.remembered.of_sources(lock, |source| source != self.name);
        let of_others = of_others.max(self.remembered.watched(lock)).filter(|_| self.unclean_since.is_some());
        if known.is_none() && of_others.is_none() {
            return None;
        }
        let for_long = known.map(|known| known.orphan_timeout).max(of_others);
        Some(fencepost_sources::Remembered {
            tenure: known.and_then(|known| known.tenure).filter(|_| !self.accepted.load(Ordering::Acquire)),
            until: self.unclean_since.zip(for_long).map(|(since, for_long)| since + for_long),
            others: of_others.is_some(),
        })
    }

    fn distrust(&self, through: Revision) {
        self.inbox.distrust(&self.name, through);
    }

    fn forget_tenures(&self) {
        self.accepted.store(true, Ordering::Release);
    }
}

impl SourceMemory {
    fn new(name: &str, remembered: &Arc<Remembered>, inbox: &Inbox, unclean_since: Option<Instant>) -> SourceMemory {
        SourceMemory {
            name: name.to_owned(),
            remembered: Arc::clone(remembered),
            inbox: inbox.clone(),
            unclean_since,
            accepted: AtomicBool::new(false),
        }
    }
}

impl Memory {
    /// Opens the `state_dir`, and says what was found there.
    ///
    /// # Errors
    /// If another process has it, if it is damaged, or if it can't be used.
    pub fn open(path: &Path) -> Result<Memory, StateError> {
        let (state, remembered) = StateDir::open(path)?;
        let locks: usize = remembered.locks.values().map(BTreeMap::len).sum();
        let state_dir = path.display();
        if remembered.clean {
            tracing::info!(%state_dir, locks, "remembering: no earlier process has left anything at the worker");
        } else {
            let may_run_for = remembered.longest_orphan_timeout().unwrap_or_default();
            tracing::warn!(
                %state_dir, locks, ?may_run_for,
                "remembering: the process before this one did not end cleanly; for as long as its requests may run, each lock \
                 lets in only the last tenure that it let in, or nobody if there may have been others; POST \
                 /locks/KEY/clear-orphans on the admin listener ends the wait"
            );
        }
        let unclean_since = (!remembered.clean).then(Instant::now);
        let remembered = Arc::new(remembered);
        let inbox = state.inbox();
        let sources = remembered
            .locks
            .keys()
            .map(|name| (name.clone(), Arc::new(SourceMemory::new(name, &remembered, &inbox, unclean_since))));
        Ok(Memory {
            sources: sources.collect(),
            state,
            remembered: Arc::clone(&remembered),
            watched: Mutex::default(),
            unclean_since,
            order: Mutex::default(),
        })
    }

    /// What the gates of that source begin with.
    pub fn of_source(&self, name: &str) -> Arc<dyn GateMemory> {
        match self.sources.get(name) {
            Some(memory) => Arc::clone(memory) as Arc<dyn GateMemory>,
            None => Arc::new(SourceMemory::new(name, &self.remembered, &self.state.inbox(), self.unclean_since)),
        }
    }

    /// The highest revision that an earlier process saw of that source.
    ///
    /// It is noted every few seconds, and each tenure when it is let in: whichever is higher.
    pub fn highest_seen(&self, name: &str) -> Option<Revision> {
        let tenures = self.remembered.locks.get(name).into_iter().flat_map(BTreeMap::values);
        let let_in = tenures.filter_map(|lock| lock.tenure).max();
        self.remembered.highest_seen.get(name).copied().max(let_in)
    }

    /// The revision up to which nothing is believed of that source: an earlier process found that its store went back.
    pub fn distrusted_through(&self, name: &str) -> Option<Revision> {
        self.remembered.distrusted.get(name).copied()
    }

    /// Has a tenure recorded before its first request goes out.
    ///
    /// # Errors
    /// `unverifiable` if the disk does not take it: what a later process could not know of is not let in.
    pub async fn record(
        &self,
        lock: &TrackedLock,
        tenure: Revision,
        orphan_timeout: Duration,
    ) -> Result<(), Rejection> {
        let orphan_timeout = orphan_timeout.max(self.longest_orphan_timeout(lock.source()));
        let record = {
            let _in_order = self.order();
            // The operator may have accepted meanwhile that the store went back. A tenure of the lost history, remembered after
            // that, would stand in the way of all that come.
            let outlook = lock.outlook();
            let present = outlook.snapshot().and_then(Snapshot::tenure);
            if !present.is_some_and(|present| (present.first..=present.last).contains(&tenure)) {
                return Ok(()); // To be judged again.
            }
            self.state.record(lock.source(), lock.key(), tenure, orphan_timeout)
        };
        match timeout(RECORD_TIMEOUT, record).await {
            Ok(Ok(())) => {
                let longest = self.order();
                // A reload has raised it meanwhile: to be recorded once more.
                let says_too_little = longest.get(lock.source()).is_some_and(|longest| *longest > orphan_timeout);
                if !says_too_little {
                    lock.recorded(tenure);
                }
                Ok(())
            }
            Ok(Err(error)) => {
                tracing::error!(lock = %lock.key(), error = &error as &dyn std::error::Error, "a tenure cannot be recorded");
                Err(Rejection::Unverifiable)
            }
            Err(_) => {
                tracing::error!(lock = %lock.key(), "a tenure was not recorded within {RECORD_TIMEOUT:?}");
                Err(Rejection::Unverifiable)
            }
        }
    }

    /// Takes note of a configuration that is about to be put in force: if requests may run on for longer than under those before
    /// it, that is recorded before another request enters. It is never shortened, since those before it have requests under way.
    pub fn raise_orphan_timeouts(&self, fence: &Fence) {
        for (index, source) in fence.sources.iter().enumerate() {
            let routes = fence.config.routes.iter();
            let of_source = routes.filter(|route| route.mode.lock().is_some_and(|lock| lock.source == index));
            let Some(longest) = of_source.map(|route| route.orphan_timeout).max() else { continue };
            let mut known = self.order();
            let known = known.entry(source.name().to_owned()).or_default();
            if *known < longest {
                *known = longest;
                source.locks().iter().for_each(|lock| lock.record_again());
            }
        }
    }

    /// Has it remembered, before a request comes under this configuration, if routes of it only watch: the next process has to wait
    /// for what they let past, should they enforce by then.
    ///
    /// # Errors
    /// If the disk does not take it.
    pub async fn will_watch(&self, config: &Config) -> Result<(), StateError> {
        for route in &config.routes {
            let Mode::Shadow(lock) = &route.mode else { continue };
            let key = lock.key.as_str();
            let known = self.watched().get(key).copied();
            if known.is_none_or(|known| known < route.orphan_timeout) {
                self.state.watch(key, route.orphan_timeout).await?;
                self.watched().insert(key.to_owned(), route.orphan_timeout);
            }
        }
        Ok(())
    }

    fn watched(&self) -> MutexGuard<'_, BTreeMap<String, Duration>> {
        self.watched.lock().expect("nothing panics while it looks")
    }

    fn longest_orphan_timeout(&self, source: &str) -> Duration {
        self.order().get(source).copied().unwrap_or_default()
    }

    /// Forgets the revisions of a source that has accepted, by its operator's word, that its store went back.
    ///
    /// # Errors
    /// If that can't be made durable.
    pub async fn forget(&self, source: &str) -> Result<(), StateError> {
        let forget = {
            let _in_order = self.order();
            self.state.forget(source)
        };
        forget.await
    }

    fn order(&self) -> MutexGuard<'_, BTreeMap<String, Duration>> {
        self.order.lock().expect("nothing panics while it puts things in order")
    }

    /// Passes on, for ever, how far each store was seen.
    pub async fn note_revisions(&self, sources: &LockSources) {
        let mut tick = tokio::time::interval(NOTE_PERIOD);
        loop {
            tick.tick().await;
            self.note(&sources.all());
        }
    }

    fn note(&self, sources: &[LockSource]) {
        let now = Instant::now();
        for source in sources {
            if let Some(revision) = source.status(now).revision {
                self.state.note_revision(source.name(), revision);
            }
        }
    }

    /// Writes what is left to write; with the mark of a clean end if nothing is left at the worker.
    pub fn close(self, sources: &[LockSource], clean: bool) {
        self.note(sources);
        match self.state.close(clean) {
            Ok(true) => tracing::info!("remembered: nothing is left at the worker"),
            Ok(false) => {
                tracing::warn!("remembered: requests may be left at the worker; the next process will wait for them")
            }
            Err(error) => {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "the end could not be remembered as a clean one"
                );
            }
        }
    }
}
