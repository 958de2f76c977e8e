//! The thread that does the file work, so that nobody else waits for a disk who need not.

use std::io;
use std::mem;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fencepost_policy::Revision;
use tokio::sync::oneshot;

use super::directory::Directory;
use super::entry::Entry;
use super::error::StateError;
use super::journal::Journal;
use super::queue::{Leaving, Outcome, Pending, Queue};
use super::remembered::{Remembered, Seen};

/// How long a revision may wait for a commit to go with, before it has one of its own.
const NOTE_WAIT_MAX: Duration = Duration::from_secs(2);

/// How long a disk that failed is left alone, while requests that need it are answered together.
const RETRY_PERIOD: Duration = Duration::from_millis(100);

/// How long the last commit may take. A disk that takes longer is not waited for: the process ends
/// without it.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

/// The thread, as others see it.
pub(super) struct Writer {
    shared: Arc<Shared>,
    directory: PathBuf,
    thread: Option<JoinHandle<Outcome>>,
}

impl Writer {
    /// Until it is told to [`begin`](Writer::begin), the thread writes nothing.
    pub(super) fn start(directory: Directory, state: Remembered) -> io::Result<Writer> {
        let shared = Arc::<Shared>::default();
        let path = directory.path().to_owned();
        let waiting = Waiting { shared: Arc::clone(&shared), directory, state };
        let end = EndOfWork(Arc::clone(&shared));
        let run = move || {
            let _end = end; // After the work, which has the directory until it is gone.
            waiting.run()
        };
        let thread = thread::Builder::new().name("state".to_owned()).spawn(run)?;
        Ok(Writer { shared, directory: path, thread: Some(thread) })
    }

    /// Has the journal begun; the future completes when that is durable. What was handed over
    /// before is written after it.
    pub(super) fn begin(&self) -> impl Future<Output = Outcome> + Send + use<> {
        let (report, reported) = oneshot::channel();
        self.shared.queue().begin = Some(report);
        self.shared.changed.notify_one();
        async { reported.await.unwrap_or(Err(StateError::Stopped)) }
    }

    /// Hands an entry over; the future completes when it is durable.
    pub(super) fn commit(&self, entry: Entry) -> impl Future<Output = Outcome> + Send + use<> {
        hand_over(&self.shared, self.shared.queue(), Some(entry))
    }

    /// Completes when all that was handed over before is durable.
    pub(super) fn written(&self) -> impl Future<Output = Outcome> + Send + use<> {
        hand_over(&self.shared, self.shared.queue(), None)
    }

    /// Whether the disk did not take what it was last given, or has been at it for longer than
    /// that.
    pub(super) fn is_failing(&self, patience: Duration) -> bool {
        let Disk { failed, busy_since } = *self.shared.disk();
        failed
            || busy_since.is_some_and(|since| since.elapsed() > patience)
            || self.shared.queue().ended
    }

    pub(super) fn inbox(&self) -> Inbox {
        Inbox(Arc::clone(&self.shared))
    }

    pub(super) fn note(&self, source: &str, seen: Seen) {
        let mut queue = self.shared.queue();
        let first = queue.notes.is_empty();
        match queue.notes.get_mut(source) {
            Some(noted) => _ = noted.rise(seen),
            None => drop(queue.notes.insert(source.to_owned(), seen)),
        }
        if first {
            self.shared.changed.notify_one();
        }
    }

    /// Ends the thread after a last commit, with the clean mark in it or without. One that hangs in
    /// the disk is left to itself.
    pub(super) fn leave(mut self, clean: bool) -> Outcome {
        self.end(clean)
    }

    fn end(&mut self, clean: bool) -> Outcome {
        let Some(thread) = self.thread.take() else {
            return Ok(());
        };
        let mut queue = self.shared.queue();
        queue.leaving = Some(Leaving { clean });
        self.shared.changed.notify_one();
        let still_there = |queue: &mut Queue| !queue.ended;
        let waited = self.shared.has_ended.wait_timeout_while(queue, LEAVE_TIMEOUT, still_there);
        let (queue, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        drop(queue);
        if waited.timed_out() {
            let busy_for =
                self.shared.disk().busy_since.map_or(LEAVE_TIMEOUT, |since| since.elapsed());
            return Err(StateError::Hangs { directory: self.directory.clone(), busy_for });
        }
        thread.join().unwrap_or(Err(StateError::Stopped))
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
pub struct Inbox(Arc<Shared>);

impl Inbox {
    /// Remembers that the store of this source went back, having been seen up to that revision:
    /// nothing that begins at or below it is believed until its operator accepts that. It is never
    /// durable later than a revision that is noted after this.
    pub fn distrust(&self, source: &str, through: Revision) {
        let entry = Entry::Distrusted { source: source.to_owned(), through };
        drop(hand_over(&self.0, self.0.queue(), Some(entry)));
    }

    /// Forgets all revisions of a source, those that were noted too: its operator accepted that its
    /// store went back. That its locks may have left requests at the worker stays remembered, of no
    /// tenure in particular. What is handed over after this is behind it.
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
        queue.add(entry, report);
        shared.changed.notify_one();
    }
    async { reported.await.unwrap_or(Err(StateError::Stopped)) }
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
    has_ended: Condvar,
    disk: Mutex<Disk>,
}

impl Shared {
    /// Held for a moment only, never while the disk works.
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner) // The end of the thread is told in panics too.
    }

    /// Held for a moment only, as well.
    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How the disk does.
#[derive(Debug, Default, Clone, Copy)]
struct Disk {
    /// It did not take what it was last given.
    failed: bool,
    /// Since when it has been at what it was given, if it is.
    busy_since: Option<Instant>,
}

/// The thread before it is told to begin.
struct Waiting {
    shared: Arc<Shared>,
    directory: Directory,
    state: Remembered,
}

impl Waiting {
    fn run(self) -> Outcome {
        let Some(report) = self.until_told() else { return Ok(()) };
        let Waiting { shared, directory, state } = self;
        let unusable = StateError::unusable(directory.path());
        shared.disk().busy_since = Some(Instant::now());
        let begun = Journal::begin(directory, &state).map_err(unusable);
        *shared.disk() = Disk { failed: begun.is_err(), busy_since: None };
        let _ = report.send(begun.as_ref().map(drop).map_err(StateError::clone)); // Whoever asked may have gone.
        let now = Instant::now();
        Work { shared, journal: begun?, state, last_commit: now, resume: now }.run()
    }

    /// `None` if it is to leave before that: then what is on the disk stays as it is.
    fn until_told(&self) -> Option<oneshot::Sender<Outcome>> {
        let nothing_to_do = |queue: &mut Queue| queue.begin.is_none() && queue.leaving.is_none();
        let queue = self.shared.changed.wait_while(self.shared.queue(), nothing_to_do);
        queue.unwrap_or_else(PoisonError::into_inner).begin.take()
    }
}

/// The thread once it writes.
struct Work {
    shared: Arc<Shared>,
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
            let Queue { entries, records: _, notes, begin: _, leaving, ended: _ } = self.next();
            let mut changes = Vec::new();
            let mut asked = Vec::new();
            for Pending { entry, reports } in entries {
                asked.push((
                    reports,
                    entry.map_or(Ok(()), |entry| self.take_over(entry, &mut changes)),
                ));
            }
            let notes = notes.into_iter().map(|(source, seen)| Entry::highest_seen(source, seen));
            let mark = leaving.filter(|leaving| leaving.clean).map(|_| Entry::CleanLeave);
            changes.extend(notes.chain(mark).filter(|entry| self.state.apply(entry)));
            let outcome = self.commit(&changes);
            for (reports, taken_over) in asked {
                let outcome = outcome.clone().and(taken_over);
                reports.into_iter().for_each(|report| drop(report.send(outcome.clone()))); // Whoever asked may have gone.
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
                Some(self.last_commit + NOTE_WAIT_MAX)
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

/// However the thread ends, nobody waits for it in vain.
struct EndOfWork(Arc<Shared>);

impl Drop for EndOfWork {
    fn drop(&mut self) {
        let mut queue = self.0.queue();
        queue.ended = true;
        queue.entries.clear();
        self.0.has_ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use fencepost_policy::{Layout, LockKey};

    use super::*;

    #[test]
    fn a_disk_that_hangs_fails_once_nobody_would_wait_for_it() {
        let writer = Writer { shared: Arc::default(), directory: PathBuf::new(), thread: None };
        assert!(!writer.is_failing(Duration::ZERO), "nothing was asked of it");
        let begun = Instant::now();
        writer.shared.disk().busy_since = Some(begun);
        while begun.elapsed() == Duration::ZERO {} // The clock may be coarse.
        assert!(writer.is_failing(Duration::ZERO) && !writer.is_failing(Duration::from_secs(3600)));
    }

    /// Requests that had given up left their entries behind: while a disk hung, memory grew by one
    /// for each request.
    #[test]
    fn what_waits_while_the_disk_hangs_is_bounded_by_who_waits() {
        // Nobody takes what comes in.
        let writer = Writer { shared: Arc::default(), directory: PathBuf::new(), thread: None };
        let record = |lock: &str, tenure| {
            let (lock, tenure) = (LockKey::new(lock).unwrap(), Revision::new(tenure));
            writer.commit(Entry::Lock {
                source: "main".to_owned(),
                lock,
                layout: Layout::Key,
                tenure,
                orphan_timeout: Duration::from_secs(1),
            })
        };
        let waiting: Vec<_> = (0..100).map(|_| record("/a", 7)).collect();
        for _ in 0..10_000 {
            drop(record("/a", 7));
            drop(record("/b", 8));
        }
        drop((record("/a", 9), record("/a", 9)));
        writer.inbox().forget("main");
        drop((record("/a", 7), record("/a", 7)));
        let queue = writer.shared.queue();
        let tenure = |pending: &Pending| match &pending.entry {
            Some(Entry::Lock { lock, tenure: Some(tenure), .. }) => format!("{lock} {tenure}"),
            other => format!("{other:?}"),
        };
        let forgets = r#"Some(Forget { source: "main" })"#;
        assert_eq!(
            queue.entries.iter().map(tenure).collect::<Vec<_>>(),
            ["/a 7", "/b 8", "/a 9", forgets, "/a 7"]
        );
        let reports: Vec<usize> =
            queue.entries.iter().map(|pending| pending.reports.len()).collect();
        assert!(waiting.len() <= reports[0] && reports[0] <= 400 && reports[1] <= 4, "{reports:?}");
    }
}
