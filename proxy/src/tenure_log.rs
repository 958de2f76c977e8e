//! What this process remembers of the one before it, and what it keeps for the one after it, as the
//! gates need it.

mod source_memory;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use fencepost_config::{Config, Mode};
use fencepost_locks::{GateMemory, LockSource, StoreIdentity, TrackedLock};
use fencepost_policy::{Layout, Rejection, Revision, Tenure};
use tokio::time::{Instant, timeout};

use crate::lock_sources::LockSources;
use crate::logging::{Complaints, WithCauses};
use crate::state::{Remembered, Seen, StateDir, StateError};

use source_memory::SourceMemory;

/// How long a request waits for its tenure to be recorded. A disk that takes longer refuses it.
pub const RECORD_TIMEOUT: Duration = Duration::from_secs(5);

/// How often the highest revision seen is passed on to be remembered.
const NOTE_PERIOD: Duration = Duration::from_secs(1);

/// The memory of a process with a `state_dir`.
pub struct Memory {
    state: StateDir,
    remembered: Arc<Remembered>,
    /// For which locks it is on the disk that a route only watches, and for how long that may go
    /// on.
    watched: Mutex<BTreeMap<String, Duration>>,
    /// What each source was given, by its name: one that is put back has what it had.
    sources: Mutex<BTreeMap<String, Arc<SourceMemory>>>,
    /// When this process began, if the one before it may have left requests at the worker.
    unclean_since: Option<Instant>,
    order: Order,
    /// Tenures that could not be recorded: each request of them asks for it again.
    unrecorded: Mutex<Complaints>,
}

/// What has been decided of each source, by its name. A thread locks it while it decides something
/// and hands that to the writer of the state. So neither a record of a lost history nor its highest
/// revision is written after that history's end.
///
/// The driver of a source waits for this lock when an operator accepts that the store went back.
/// Meanwhile the driver holds nothing that a holder of this lock may wait for: no gate, not the
/// registry, not what guards the driver's own state.
type Order = Arc<Mutex<BTreeMap<String, Decided>>>;

/// What has been decided of a source.
#[derive(Debug, Clone, Copy, Default)]
struct Decided {
    /// The longest that requests of its locks may run on unseen.
    orphan_timeout: Duration,
    /// How often its operator has accepted that its store went back.
    acceptances: u64,
    /// How many of those somebody was told are durable.
    acceptances_told: u64,
}

fn kept(order: &Order) -> MutexGuard<'_, BTreeMap<String, Decided>> {
    order.lock().expect("nothing panics while it puts things in order")
}

/// What has been decided of that source.
fn decided(order: &BTreeMap<String, Decided>, source: &str) -> Decided {
    order.get(source).copied().unwrap_or_default()
}

impl Memory {
    /// Opens the `state_dir`, and says what was found there, which stays as it is until this
    /// [`begins`](Memory::begin).
    ///
    /// # Errors
    /// If another process has it, if it is damaged, or if it can't be used.
    pub fn open(path: &Path) -> Result<Memory, StateError> {
        let state_dir = path.display();
        // Its disk may hang: then clients connect, since what they connect to is bound, and nobody
        // serves them.
        tracing::info!(%state_dir, "reading what an earlier process left in the state_dir");
        let (state, remembered) = StateDir::open(path)?;
        let locks: usize = remembered.locks.values().map(BTreeMap::len).sum();
        if remembered.clean {
            tracing::info!(%state_dir, locks, "state_dir: no earlier process has left anything at the worker");
        } else {
            let may_run_for = remembered.longest_orphan_timeout().unwrap_or_default();
            tracing::warn!(
                %state_dir, locks, ?may_run_for,
                "state_dir: the process before this one did not end cleanly; for as long as its requests may run, each lock \
                 lets in only the last tenure that it let in, or nobody if there may have been others; POST \
                 /locks/KEY/clear-orphans on the admin listener ends the wait"
            );
        }
        let unclean_since = (!remembered.clean).then(Instant::now);
        Ok(Memory {
            state,
            remembered: Arc::new(remembered),
            watched: Mutex::default(),
            sources: Mutex::default(),
            unclean_since,
            order: Order::default(),
            unrecorded: Mutex::default(),
        })
    }

    /// Begins to remember: before any request is served, and what a configuration lets past
    /// unjudged is part of it.
    ///
    /// It takes as long as the disk, which may be forever.
    ///
    /// # Errors
    /// If the disk does not take it.
    pub async fn begin(&self, config: &Config) -> Result<(), StateError> {
        self.state.begin().await?;
        self.will_watch(config).await
    }

    fn new_source(&self, name: &str) -> SourceMemory {
        SourceMemory {
            name: name.to_owned(),
            remembered: Arc::clone(&self.remembered),
            inbox: self.state.inbox(),
            order: Arc::clone(&self.order),
            unclean_since: self.unclean_since,
            accepted: AtomicBool::new(false),
            cleared: Mutex::default(),
        }
    }

    /// What the gates of that source begin with.
    pub fn of_source(&self, name: &str) -> Arc<dyn GateMemory> {
        let mut sources = self.sources.lock().expect("nothing panics while it looks at them");
        let memory =
            sources.entry(name.to_owned()).or_insert_with(|| Arc::new(self.new_source(name)));
        Arc::clone(memory) as Arc<dyn GateMemory>
    }

    /// The highest revision that an earlier process saw of that source.
    ///
    /// It is durable within about three seconds, and each tenure when it is let in: whichever is
    /// higher.
    pub fn highest_seen(&self, name: &str) -> Option<Revision> {
        let tenures = self.remembered.locks.get(name).into_iter().flat_map(BTreeMap::values);
        let let_in = tenures.filter_map(|lock| lock.tenure).max();
        self.remembered.highest_seen.get(name).map(|seen| seen.revision).max(let_in)
    }

    /// The identity that the store of this source reported to an earlier process.
    pub fn store_seen(&self, name: &str) -> StoreIdentity {
        self.remembered.highest_seen.get(name).map(|seen| seen.store.clone()).unwrap_or_default()
    }

    /// The revision up to which nothing is believed of that source: an earlier process found that
    /// its store went back.
    pub fn distrusted_through(&self, name: &str) -> Option<Revision> {
        self.remembered.distrusted.get(name).copied()
    }

    /// Has a tenure recorded before its first request goes out.
    ///
    /// # Errors
    /// `unverifiable` if the disk does not take it: what a later process could not know of is not
    /// let in.
    pub async fn record(
        &self,
        lock: &TrackedLock,
        tenure: Revision,
        orphan_timeout: Duration,
    ) -> Result<(), Rejection> {
        let longest = decided(&kept(&self.order), lock.source()).orphan_timeout;
        let orphan_timeout = orphan_timeout.max(longest);
        let mut recorded_as = tenure;
        loop {
            let (record, present, acceptances) = {
                let order = kept(&self.order);
                // The operator may have accepted meanwhile that the store went back, or be about
                // to. A tenure of the lost history, remembered after that, would stand in the way
                // of all that come.
                let outlook = lock.view();
                let Some(present) =
                    outlook.believed_tenure().filter(|present| is_named(present, tenure))
                else {
                    return Ok(()); // To be judged again.
                };
                let record = self.state.record(
                    lock.source(),
                    lock.key(),
                    lock.layout(),
                    recorded_as,
                    orphan_timeout,
                );
                (record, present.clone(), decided(&order, lock.source()).acceptances)
            };
            let error = match timeout(RECORD_TIMEOUT, record).await {
                Ok(Ok(())) => {
                    self.note_recorded(lock, tenure, orphan_timeout, acceptances);
                    return Ok(());
                }
                // The same tenure: its history is shown farther back than when it was recorded.
                Ok(Err(StateError::Later { known }))
                    if lock.layout() == Layout::Key && is_named(&present, known) =>
                {
                    recorded_as = known;
                    continue;
                }
                Ok(Err(error)) => WithCauses(&error).to_string(),
                Err(_) => format!("it was not recorded within {RECORD_TIMEOUT:?}"),
            };
            let mut unrecorded = self.unrecorded.lock().expect("nothing panics while it counts");
            if let Some(times) = unrecorded.more(1, Instant::now().into_std()) {
                tracing::error!(lock = %lock.key(), error, times, "a tenure cannot be recorded");
            }
            return Err(Rejection::Unverifiable);
        }
    }

    /// Whether a tenure that begins now could not be let in, by what the disk has done of late.
    pub fn is_failing(&self) -> bool {
        self.state.is_failing(RECORD_TIMEOUT)
    }

    /// Lets the gate know that a tenure is durable, unless that is not so any more, or says too
    /// little.
    fn note_recorded(
        &self,
        lock: &TrackedLock,
        tenure: Revision,
        orphan_timeout: Duration,
        acceptances: u64,
    ) {
        let order = kept(&self.order);
        let now = decided(&order, lock.source());
        // A reload has raised it meanwhile: to be recorded once more.
        let says_too_little = now.orphan_timeout > orphan_timeout;
        // Forgotten with the history that the store has lost: its number may be another tenure's by
        // now. It is recorded anew.
        let is_forgotten = now.acceptances != acceptances;
        if !says_too_little && !is_forgotten {
            lock.recorded(tenure);
        }
    }

    /// Takes note of a configuration that is about to be put in force: if requests may run on for
    /// longer than under those before it, that is recorded before another request enters. It is
    /// never shortened, since those before it have requests under way.
    pub fn raise_orphan_timeouts(&self, config: &Config, sources: &[LockSource]) {
        for (index, source) in sources.iter().enumerate() {
            let routes = config.routes.iter();
            let of_source =
                routes.filter(|route| route.mode.lock().is_some_and(|lock| lock.source == index));
            let Some(longest) = of_source.map(|route| route.orphan_timeout).max() else { continue };
            let mut order = kept(&self.order);
            let now = order.entry(source.name().to_owned()).or_default();
            if now.orphan_timeout < longest {
                now.orphan_timeout = longest;
                source.locks().iter().for_each(|lock| lock.record_again());
            }
        }
    }

    /// Has it remembered, before a request comes under this configuration, if routes of it only
    /// watch: the next process has to wait for what they let past, should they enforce by then.
    ///
    /// # Errors
    /// If the disk does not take it.
    pub async fn will_watch(&self, config: &Config) -> Result<(), StateError> {
        let mut anew: BTreeMap<&str, Duration> = BTreeMap::new();
        for route in config.routes.iter() {
            let Mode::Shadow(lock) = &route.mode else { continue };
            let longest = anew.entry(lock.key.as_str()).or_default();
            *longest = route.orphan_timeout.max(*longest);
        }
        {
            let known = self.watched();
            anew.retain(|key, longest| known.get(*key).is_none_or(|known| known < longest));
        }
        // All of them are handed over before any is waited for: there may be thousands, and the
        // disk takes its time for each commit.
        let written: Vec<_> =
            anew.iter().map(|(key, longest)| self.state.watch(key, *longest)).collect();
        for written in written {
            written.await?;
        }
        self.watched().extend(anew.into_iter().map(|(key, longest)| (key.to_owned(), longest)));
        Ok(())
    }

    fn watched(&self) -> MutexGuard<'_, BTreeMap<String, Duration>> {
        self.watched.lock().expect("nothing panics while it looks")
    }

    /// Waits until it is durable that the operator of this source has accepted that its store went
    /// back. `false` if each such acceptance has already been reported.
    ///
    /// The disk may take forever. A caller that gave up waiting or got an error may ask again: the
    /// writer tries again to write what it could not.
    ///
    /// # Errors
    /// If it could not be written.
    pub async fn remembers_acceptance(&self, source: &str) -> Result<bool, StateError> {
        let (acceptances, written) = {
            let order = kept(&self.order);
            let now = decided(&order, source);
            if now.acceptances == now.acceptances_told {
                return Ok(false);
            }
            (now.acceptances, self.state.written())
        };
        written.await?;
        let mut order = kept(&self.order);
        let told = &mut order.entry(source.to_owned()).or_default().acceptances_told;
        *told = acceptances.max(*told);
        Ok(true)
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
            // What was seen before an acceptance is not noted after it.
            let _order = kept(&self.order);
            let status = source.status(now);
            if let Some(revision) = status.revision {
                self.state.note_seen(source.name(), Seen { revision, store: status.store });
            }
        }
    }

    /// Writes what is left to write, with the mark of a clean end if nothing is left at the worker.
    /// This may take some seconds.
    ///
    /// # Errors
    /// If the disk hangs, so that nobody knows what it will have written. Also if the state could
    /// not be begun, an error that `begin` has already returned.
    pub fn close(self, sources: &[LockSource], clean: bool) -> Result<(), StateError> {
        self.note(sources);
        match self.state.close(clean) {
            Ok(true) => tracing::info!("state_dir: nothing is left at the worker"),
            Ok(false) => {
                tracing::warn!(
                    "state_dir: requests may be left at the worker; the next process will wait for them"
                )
            }
            Err(error @ (StateError::Hangs { .. } | StateError::Unusable { .. })) => {
                return Err(error);
            }
            Err(error) => {
                tracing::error!(error = %WithCauses(&error), "the state_dir could not be told that this process ended cleanly");
            }
        }
        Ok(())
    }
}

/// Whether a revision is one of those that name the tenure.
fn is_named(tenure: &Tenure, revision: Revision) -> bool {
    (tenure.first..=tenure.last).contains(&revision)
}
