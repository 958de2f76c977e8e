//! The thread that does the file work, so that nobody else waits for a disk who need not.

use std::collections::BTreeMap;
use std::io;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fencepost_policy::Revision;
use tokio::sync::oneshot;

use super::StateError;
use super::journal::Journal;
use super::remembered::{Entry, Remembered};

/// How long a revision may wait for a commit to go with, before it has one of its own.
const NOTE_PERIOD: Duration = Duration::from_secs(2);

/// How long a disk that failed is left alone, while requests that need it are answered together.
const RETRY_PERIOD: Duration = Duration::from_millis(100);

type Outcome = Result<(), StateError>;

/// The thread, as others see it.
pub(super) struct Writer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Outcome>>,
}

impl Writer {
    pub(super) fn start(journal: Journal, state: Remembered) -> io::Result<Writer> {
        let shared = Arc::<Shared>::default();
        let now = Instant::now();
        let work = Work { shared: Arc::clone(&shared), journal, state, last_commit: now, resume: now, failing: false };
        let thread = thread::Builder::new().name("state".to_owned()).spawn(|| work.run())?;
        Ok(Writer { shared, thread: Some(thread) })
    }

    /// Hands an entry over; the future completes when it is durable.
    pub(super) fn commit(&self, entry: Entry) -> impl Future<Output = Outcome> + Send + use<> {
        hand_over(&self.shared, self.shared.queue(), Some(entry))
    }

    /// Completes when all that was handed over before is durable.
    pub(super) fn written(&self) -> impl Future<Output = Outcome> + Send + use<> {
        hand_over(&self.shared, self.shared.queue(), None)
    }

    pub(super) fn inbox(&self) -> Inbox {
        Inbox(Arc::clone(&self.shared))
    }

    pub(super) fn note(&self, source: &str, revision: Revision) {
        let mut queue = self.shared.queue();
        let first = queue.notes.is_empty();
        match queue.notes.get_mut(source) {
            Some(noted) => *noted = revision.max(*noted),
            None => drop(queue.notes.insert(source.to_owned(), revision)),
        }
        if first {
            self.shared.changed.notify_one();
        }
    }

    /// Ends the thread after a last commit, with the clean mark in it or without.
    pub(super) fn leave(mut self, clean: bool) -> Outcome {
        self.join(clean)
    }

    fn join(&mut self, clean: bool) -> Outcome {
        let Some(thread) = self.thread.take() else {
            return Ok(());
        };
        self.shared.queue().leaving = Some(Leaving { clean });
        self.shared.changed.notify_one();
        thread.join().unwrap_or(Err(StateError::Stopped))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // What could not be written has been reported to whoever waited for it, and logged.
        let _ = self.join(false);
    }
}

/// Takes what must be on its way in the very step in which it is known, and that nobody waits for. What comes after the `state_dir`
/// was closed is lost.
#[derive(Debug, Clone)]
pub struct Inbox(Arc<Shared>);

impl Inbox {
    /// Remembers that the store of this source went back, having been seen up to that revision: nothing that begins at or below it is
    /// believed until its operator accepts that. It is never durable later than a revision that is noted after this.
    pub fn distrust(&self, source: &str, through: Revision) {
        let entry = Entry::Distrusted { source: source.to_owned(), through };
        drop(hand_over(&self.0, self.0.queue(), Some(entry)));
    }

    /// Forgets all revisions of a source, those that were noted too: its operator accepted that its store went back. That its locks may
    /// have left requests at the worker stays remembered, of no tenure in particular. What is handed over after this is behind it.
    pub fn forget(&self, source: &str) {
        let mut queue = self.0.queue();
        queue.notes.remove(source);
        drop(hand_over(&self.0, queue, Some(Entry::Forget { source: source.to_owned() })));
    }
}

fn hand_over(
    shared: &Shared,
    mut queue: MutexGuard<'_, Queue>,
    entry: Option<Entry>,
) -> impl Future<Output = Outcome> + Send + use<> {
    let (report, reported) = oneshot::channel();
    // Once the thread has ended nobody would report: the dropped sender says so.
    if !queue.ended {
        queue.entries.push((entry, report));
        shared.changed.notify_one();
    }
    async { reported.await.unwrap_or(Err(StateError::Stopped)) }
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Shared {
    /// Held for a moment only, never while the disk works.
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner) // The end of the thread is told in panics too.
    }
}

/// What came in since the thread last looked: the next commit.
#[derive(Debug, Default)]
struct Queue {
    /// In the order in which they came. Without an entry somebody only waits for those before.
    entries: Vec<(Option<Entry>, oneshot::Sender<Outcome>)>,
    /// The highest revision by source.
    notes: BTreeMap<String, Revision>,
    leaving: Option<Leaving>,
    /// Nobody looks any more.
    ended: bool,
}

#[derive(Debug, Clone, Copy)]
struct Leaving {
    clean: bool,
}

/// The thread, as it sees itself.
struct Work {
    shared: Arc<Shared>,
    journal: Journal,
    /// What the journal says, or will say with the next commit if it is not sound.
    state: Remembered,
    last_commit: Instant,
    /// Not before this is the disk tried again.
    resume: Instant,
    failing: bool,
}

impl Work {
    fn run(mut self) -> Outcome {
        let _end = EndOfWork(Arc::clone(&self.shared));
        loop {
            let Queue { entries, notes, leaving, ended: _ } = self.next();
            let mut changes = Vec::new();
            let mut reports = Vec::new();
            for (entry, report) in entries {
                reports.push((report, entry.map_or(Ok(()), |entry| self.take_over(entry, &mut changes))));
            }
            let notes = notes.into_iter().map(|(source, revision)| Entry::HighestSeen { source, revision });
            let mark = leaving.filter(|leaving| leaving.clean).map(|_| Entry::CleanLeave);
            changes.extend(notes.chain(mark).filter(|entry| self.state.apply(entry)));
            let outcome = self.commit(&changes);
            for (report, taken_over) in reports {
                let _ = report.send(outcome.clone().and(taken_over)); // Whoever asked may have gone.
            }
            if leaving.is_some() {
                return outcome;
            }
        }
    }

    /// Waits until there is something to write, and takes all there is.
    fn next(&self) -> Queue {
        let mut queue = self.shared.queue();
        loop {
            let now = Instant::now();
            let due = if queue.leaving.is_some() {
                Some(now)
            } else if !queue.entries.is_empty() {
                Some(self.resume)
            } else if !queue.notes.is_empty() {
                Some(self.last_commit + NOTE_PERIOD)
            } else {
                None
            };
            let unpoisoned = "nothing panics while it holds the queue";
            queue = match due.map(|due| due.saturating_duration_since(now)) {
                Some(Duration::ZERO) => return mem::take(&mut *queue),
                Some(wait) => self.shared.changed.wait_timeout(queue, wait).expect(unpoisoned).0,
                None => self.shared.changed.wait(queue).expect(unpoisoned),
            };
        }
    }

    /// Takes over what an entry changes. A record that a later one stands in the way of is none: nobody would know of it after a crash.
    fn take_over(&mut self, entry: Entry, changes: &mut Vec<Entry>) -> Outcome {
        if self.state.apply(&entry) {
            changes.push(entry);
            return Ok(());
        }
        self.state.later_than(&entry).map_or(Ok(()), |known| Err(StateError::Later { known }))
    }

    /// Makes durable what has been taken over: these changes, and those before them that could not be written.
    fn commit(&mut self, changes: &[Entry]) -> Outcome {
        if changes.is_empty() && self.journal.is_sound() {
            return Ok(());
        }
        let outcome = self.journal.commit(changes, &self.state);
        self.last_commit = Instant::now();
        let directory = self.journal.directory().path();
        match outcome {
            Ok(()) => {
                if mem::take(&mut self.failing) {
                    tracing::info!(state_dir = %directory.display(), "the state can be written again");
                }
                Ok(())
            }
            Err(error) => {
                if !mem::replace(&mut self.failing, true) {
                    let text = "the state cannot be written: tenures that are not on the disk are not let in";
                    tracing::error!(state_dir = %directory.display(), %error, "{text}");
                }
                self.resume = self.last_commit + RETRY_PERIOD;
                Err(StateError::NotWritten { directory: directory.to_owned(), source: Arc::new(error) })
            }
        }
    }
}

/// However the thread ends, nobody waits for it in vain.
struct EndOfWork(Arc<Shared>);

impl Drop for EndOfWork {
    fn drop(&mut self) {
        let mut queue = self.0.queue();
        queue.ended = true;
        queue.entries.clear();
    }
}
