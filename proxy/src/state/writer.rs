//! The thread that writes. Whatever came in since its last write becomes one commit.

use std::collections::BTreeMap;
use std::io;
use std::mem;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fencepost_policy::Revision;
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

/// How long the last commit may take. A disk that takes longer is not waited for: the process ends
/// without it.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

/// How many entries may wait for the disk. While it hangs, requests that have given up leave theirs
/// behind.
const WAITING_MAX: usize = 65_536;

/// What came of something that was handed over.
type Outcome = Result<(), StateError>;

type Report = oneshot::Sender<Outcome>;

/// What the thread is told.
#[derive(Debug)]
enum Message {
    /// The journal is to be begun.
    Begin(Report),
    /// Something is to be written; `None` where somebody only waits for what came before.
    Entry(Option<Entry>, Option<Report>),
    /// How far a source was seen.
    Note(String, Seen),
    /// Nothing comes any more.
    Leave { clean: bool },
}

/// The thread, as others see it.
pub(super) struct Writer {
    messages: mpsc::Sender<Message>,
    shared: Arc<Shared>,
    directory: PathBuf,
    thread: JoinHandle<()>,
    /// What came of the whole; `None` once the thread was told to leave.
    ended: Option<Mutex<mpsc::Receiver<Outcome>>>,
}

#[derive(Debug, Default)]
struct Shared {
    disk: Mutex<Disk>,
    /// Entries that were handed over and not reported yet.
    waiting: AtomicUsize,
}

/// How the disk does.
#[derive(Debug, Default, Clone, Copy)]
struct Disk {
    /// It did not take what it was last given.
    failed: bool,
    /// Since when it has been at what it was given, if it is.
    busy_since: Option<Instant>,
}

impl Shared {
    /// Held for a moment only, never while the disk works.
    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Writer {
    /// Until it is told to [`begin`](Writer::begin), the thread writes nothing.
    pub(super) fn start(directory: Directory, state: Remembered) -> io::Result<Writer> {
        let (messages, told) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        let shared = Arc::<Shared>::default();
        let path = directory.path().to_owned();
        let disk = Arc::clone(&shared);
        // The directory is let go before the end is told.
        let run = move || drop(end.send(Gathered::new(told).run(disk, directory, state)));
        let thread = thread::Builder::new().name("state".to_owned()).spawn(run)?;
        Ok(Writer { messages, shared, directory: path, thread, ended: Some(Mutex::new(ended)) })
    }

    /// Has the journal begun; the future completes when that is durable. What was handed over
    /// before is written after it.
    pub(super) fn begin(&self) -> impl Future<Output = Outcome> + Send + use<> {
        let (report, reported) = oneshot::channel();
        let _ = self.messages.send(Message::Begin(report));
        async { reported.await.unwrap_or(Err(StateError::Stopped)) }
    }

    /// Hands an entry over; the future completes when it is durable.
    pub(super) fn commit(&self, entry: Entry) -> impl Future<Output = Outcome> + Send + use<> {
        self.hand_over(Some(entry))
    }

    /// Completes when all that was handed over before is durable.
    pub(super) fn written(&self) -> impl Future<Output = Outcome> + Send + use<> {
        self.hand_over(None)
    }

    fn hand_over(&self, entry: Option<Entry>) -> impl Future<Output = Outcome> + Send + use<> {
        let (report, reported) = oneshot::channel();
        let mut no_room = Ok(());
        if self.shared.waiting.load(Ordering::Relaxed) < WAITING_MAX {
            self.shared.waiting.fetch_add(1, Ordering::Relaxed);
            // Once the thread has ended nobody reports: the dropped sender says so.
            let _ = self.messages.send(Message::Entry(entry, Some(report)));
        } else {
            no_room = Err(self.hangs());
        }
        async {
            no_room?;
            reported.await.unwrap_or(Err(StateError::Stopped))
        }
    }

    /// Whether the disk did not take what it was last given, or has been at it for longer than
    /// that.
    pub(super) fn is_failing(&self, patience: Duration) -> bool {
        let Disk { failed, busy_since } = *self.shared.disk();
        failed
            || busy_since.is_some_and(|since| since.elapsed() > patience)
            || self.thread.is_finished()
    }

    pub(super) fn inbox(&self) -> Inbox {
        Inbox(self.messages.clone())
    }

    pub(super) fn note(&self, source: &str, seen: Seen) {
        let _ = self.messages.send(Message::Note(source.to_owned(), seen));
    }

    /// Ends the thread after a last commit, with the clean mark in it or without. One that hangs in
    /// the disk is left to itself.
    pub(super) fn leave(mut self, clean: bool) -> Outcome {
        self.end(clean)
    }

    fn end(&mut self, clean: bool) -> Outcome {
        let Some(ended) = self.ended.take() else { return Ok(()) };
        let _ = self.messages.send(Message::Leave { clean });
        let ended = ended.into_inner().unwrap_or_else(PoisonError::into_inner);
        match ended.recv_timeout(LEAVE_TIMEOUT) {
            Ok(outcome) => outcome,
            Err(RecvTimeoutError::Disconnected) => Err(StateError::Stopped),
            Err(RecvTimeoutError::Timeout) => Err(self.hangs()),
        }
    }

    fn hangs(&self) -> StateError {
        let busy_for = self.shared.disk().busy_since.map_or(LEAVE_TIMEOUT, |since| since.elapsed());
        StateError::Hangs { directory: self.directory.clone(), busy_for }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // What could not be written has been reported to whoever waited for it, and logged.
        let _ = self.end(false);
    }
}

/// Takes what must be on its way in the very step in which it is known, and that nobody waits for.
/// What comes after the `state_dir` was closed is lost.
#[derive(Debug, Clone)]
pub struct Inbox(mpsc::Sender<Message>);

impl Inbox {
    /// Remembers that the store of this source went back, having been seen up to that revision:
    /// nothing that begins at or below it is believed until its operator accepts that. It is never
    /// durable later than a revision that is noted after this.
    pub fn distrust(&self, source: &str, through: Revision) {
        let entry = Entry::Distrusted { source: source.to_owned(), through };
        let _ = self.0.send(Message::Entry(Some(entry), None));
    }

    /// Forgets all revisions of a source, those that were noted too: its operator accepted that its
    /// store went back. That its locks may have left requests at the worker stays remembered, of no
    /// tenure in particular. What is handed over after this is behind it.
    pub fn forget(&self, source: &str) {
        let entry = Entry::Forget { source: source.to_owned() };
        let _ = self.0.send(Message::Entry(Some(entry), None));
    }
}

/// What the thread was told and has not done yet: the next commit.
struct Gathered {
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
    fn new(told: mpsc::Receiver<Message>) -> Gathered {
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
            // Whoever was to tell it to leave has gone.
            Err(RecvTimeoutError::Disconnected) => self.leaving = Some(false),
            Err(RecvTimeoutError::Timeout) => return false,
        }
        true
    }

    /// The work of the thread. Told to leave before it is told to begin, it writes nothing: what is
    /// on the disk stays as it is.
    fn run(mut self, shared: Arc<Shared>, directory: Directory, state: Remembered) -> Outcome {
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

    /// Takes over what an entry changes. A record that a later one stands in the way of is none:
    /// nobody would know of it after a crash.
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
                    tracing::info!(state_dir = %directory.display(), "the state can be written again");
                }
                Ok(())
            }
            Err(error) => {
                if !had_failed {
                    let text = "the state cannot be written: tenures that are not on the disk are not let in";
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

#[cfg(test)]
mod tests {
    use fencepost_policy::{Layout, LockKey};

    use super::*;

    /// A writer whose thread takes nothing that comes in until the sender is dropped.
    fn that_hangs() -> (Writer, mpsc::Sender<()>) {
        let (messages, told) = mpsc::channel();
        let (go_on, stop) = mpsc::channel::<()>();
        let thread = thread::spawn(move || drop((stop.recv(), told)));
        let (shared, directory) = (Arc::default(), PathBuf::new());
        (Writer { messages, shared, directory, thread, ended: None }, go_on)
    }

    #[test]
    fn a_disk_that_hangs_fails_once_nobody_would_wait_for_it() {
        let (writer, _go_on) = that_hangs();
        assert!(!writer.is_failing(Duration::ZERO), "nothing was asked of it");
        let begun = Instant::now();
        writer.shared.disk().busy_since = Some(begun);
        while begun.elapsed() == Duration::ZERO {} // The clock may be coarse.
        assert!(writer.is_failing(Duration::ZERO) && !writer.is_failing(Duration::from_secs(3600)));
    }

    /// Requests that had given up left their entries behind: while a disk hung, memory grew by one
    /// for each request.
    #[tokio::test]
    async fn what_waits_while_the_disk_hangs_is_bounded() {
        let (writer, go_on) = that_hangs();
        let record = || {
            writer.commit(Entry::Lock {
                source: "main".to_owned(),
                lock: LockKey::new("/a").unwrap(),
                layout: Layout::Key,
                tenure: Revision::new(7),
                orphan_timeout: Duration::from_secs(1),
            })
        };
        (0..WAITING_MAX - 1).for_each(|_| drop(record()));
        let last = record();
        assert!(matches!(record().await, Err(StateError::Hangs { .. })));
        drop(go_on);
        assert!(matches!(last.await, Err(StateError::Stopped)));
    }
}
