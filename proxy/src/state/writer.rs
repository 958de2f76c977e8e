//! The thread that writes. Whatever came in since its last write becomes one commit.

use std::collections::BTreeMap;
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::directory::Directory;
use super::entry::Entry;
use super::error::StateError;
use super::journal::Journal;
use super::remembered::{Remembered, Seen};

/// How long a revision may wait for a commit to go with, before it has one of its own.
const NOTE_WAIT_MAX: Duration = Duration::from_secs(2);

/// How long a disk that failed is left alone, while requests that need it are answered together.
const RETRY_PERIOD: Duration = Duration::from_millis(100);

/// How many entries may wait for the disk. While it hangs, requests that have given up leave theirs
/// behind.
pub(super) const WAITING_MAX: usize = 65_536;

/// What came of something that was handed over.
pub(super) type Outcome = Result<(), StateError>;

pub(super) type Report = oneshot::Sender<Outcome>;

/// What the thread is told.
#[derive(Debug)]
pub(super) enum Message {
    /// The journal is to be begun.
    Begin(Report),
    /// Something is to be written; `None` where somebody only waits for what came before.
    Entry(Option<Entry>, Option<Report>),
    /// How far a source was seen.
    Note(String, Seen),
    /// Nothing comes any more.
    Leave { clean: bool },
}

/// What others see of the thread's work.
#[derive(Debug, Default)]
pub(super) struct Shared {
    disk: Mutex<Disk>,
    /// Entries that were handed over and not reported yet.
    pub(super) waiting: AtomicUsize,
}

/// How the disk does.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Disk {
    /// It did not take what it was last given.
    pub(super) failed: bool,
    /// Since when it has been at what it was given, if it is.
    pub(super) busy_since: Option<Instant>,
}

impl Shared {
    /// Held for a moment only, never while the disk works.
    pub(super) fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the thread was told and has not done yet: the next commit.
pub(super) struct Gathered {
    told: mpsc::Receiver<Message>,
    begin: Option<Report>,
    /// In the order in which they came.
    entries: Vec<(Option<Entry>, Option<Report>)>,
    /// How far each source was seen. They are written behind the entries.
    notes: BTreeMap<String, Seen>,
    /// Whether to leave, and whether cleanly.
    leaving: Option<bool>,
}

impl Gathered {
    pub(super) fn new(told: mpsc::Receiver<Message>) -> Gathered {
        let (begin, entries, notes, leaving) = (None, Vec::new(), BTreeMap::new(), None);
        Gathered { told, begin, entries, notes, leaving }
    }

    /// Takes what comes next, if it comes by then. Returns whether it did.
    fn next_by(&mut self, due: Option<Instant>) -> bool {
        let message = match due.map(|due| due.saturating_duration_since(Instant::now())) {
            Some(wait) => self.told.recv_timeout(wait),
            None => self.told.recv().map_err(RecvTimeoutError::from),
        };
        match message {
            Ok(Message::Begin(report)) => self.begin = Some(report),
            Ok(Message::Entry(entry, report)) => {
                if let Some(Entry::Forget { source }) = &entry {
                    self.notes.remove(source);
                }
                self.entries.push((entry, report));
            }
            Ok(Message::Note(source, seen)) => match self.notes.get_mut(&source) {
                Some(noted) => _ = noted.rise(seen),
                None => drop(self.notes.insert(source, seen)),
            },
            Ok(Message::Leave { clean }) => self.leaving = Some(clean),
            // The sender of the order to leave is gone.
            Err(RecvTimeoutError::Disconnected) => self.leaving = Some(false),
            Err(RecvTimeoutError::Timeout) => return false,
        }
        true
    }

    /// The work of the thread. Told to leave before it is told to begin, it writes nothing: what is
    /// on the disk stays as it is.
    pub(super) fn run(
        mut self,
        shared: Arc<Shared>,
        directory: Directory,
        state: Remembered,
    ) -> Outcome {
        let report = loop {
            if self.leaving.is_some() {
                return Ok(());
            }
            match self.begin.take() {
                Some(report) => break report,
                None => _ = self.next_by(None),
            }
        };
        let unusable = StateError::unusable(directory.path());
        shared.disk().busy_since = Some(Instant::now());
        let begun = Journal::begin(directory, &state).map_err(unusable);
        *shared.disk() = Disk { failed: begun.is_err(), busy_since: None };
        let _ = report.send(begun.as_ref().map(drop).map_err(StateError::clone)); // Whoever asked may have gone.
        let now = Instant::now();
        Work { shared, gathered: self, journal: begun?, state, last_commit: now, resume: now }.run()
    }
}

/// The thread once it writes.
struct Work {
    shared: Arc<Shared>,
    gathered: Gathered,
    journal: Journal,
    /// What the journal says, or will say with the next commit if it is not sound.
    state: Remembered,
    last_commit: Instant,
    /// Not before this is the disk tried again.
    resume: Instant,
}

impl Work {
    fn run(mut self) -> Outcome {
        loop {
            self.gather();
            let mut changes = Vec::new();
            let mut asked = Vec::new();
            for (entry, report) in mem::take(&mut self.gathered.entries) {
                let taken_over = entry.map_or(Ok(()), |entry| self.take_over(entry, &mut changes));
                asked.extend(report.map(|report| (report, taken_over)));
            }
            let notes = mem::take(&mut self.gathered.notes);
            let notes = notes.into_iter().map(|(source, seen)| Entry::highest_seen(source, seen));
            let leaving = self.gathered.leaving;
            let mark = (leaving == Some(true)).then_some(Entry::CleanLeave);
            changes.extend(notes.chain(mark).filter(|entry| self.state.apply(entry)));
            let outcome = self.commit(&changes);
            self.shared.waiting.fetch_sub(asked.len(), Ordering::Relaxed);
            for (report, taken_over) in asked {
                let _ = report.send(outcome.clone().and(taken_over)); // Whoever asked may have gone.
            }
            if leaving.is_some() {
                return outcome;
            }
        }
    }

    /// Waits until there is something to write, and takes all there is.
    fn gather(&mut self) {
        loop {
            let Gathered { entries, notes, leaving, .. } = &self.gathered;
            let due = if leaving.is_some() {
                Some(Instant::now())
            } else if !entries.is_empty() {
                Some(self.resume)
            } else if !notes.is_empty() {
                Some(self.last_commit + NOTE_WAIT_MAX)
            } else {
                None
            };
            let is_full = entries.len() >= WAITING_MAX;
            if is_full || !self.gathered.next_by(due) {
                return;
            }
        }
    }

    /// Takes over what an entry changes. Fails if a later tenure is remembered, because nobody
    /// would know of the entry after a crash.
    fn take_over(&mut self, entry: Entry, changes: &mut Vec<Entry>) -> Outcome {
        if self.state.apply(&entry) {
            changes.push(entry);
            return Ok(());
        }
        self.state.later_than(&entry).map_or(Ok(()), |known| Err(StateError::Later { known }))
    }

    /// Makes durable what has been taken over: these changes, and those before them that could not
    /// be written.
    fn commit(&mut self, changes: &[Entry]) -> Outcome {
        if changes.is_empty() && self.journal.is_sound() {
            return Ok(());
        }
        self.shared.disk().busy_since = Some(Instant::now());
        let outcome = self.journal.commit(changes, &self.state);
        self.last_commit = Instant::now();
        let now = Disk { failed: outcome.is_err(), busy_since: None };
        let had_failed = mem::replace(&mut *self.shared.disk(), now).failed;
        let directory = self.journal.directory().path();
        match outcome {
            Ok(()) => {
                if had_failed {
                    tracing::info!(state_dir = %directory.display(), "the state_dir can be written again");
                }
                Ok(())
            }
            Err(error) => {
                if !had_failed {
                    let text = "the state_dir cannot be written: a tenure that is not recorded there is not let in";
                    tracing::error!(state_dir = %directory.display(), %error, "{text}");
                }
                self.resume = self.last_commit + RETRY_PERIOD;
                Err(StateError::NotWritten {
                    directory: directory.to_owned(),
                    source: Arc::new(error),
                })
            }
        }
    }
}
