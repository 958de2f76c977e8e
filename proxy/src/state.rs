//! What a process remembers for the one after it: per lock the last tenure that was let in, per
//! source the highest revision seen and whether it has gone back, of which locks routes only
//! watched, and whether it left with nothing at the worker.
//!
//! [`StateDir`] is the face of it. The `writer` is a thread of its own, which turns whatever came
//! in since its last write into one commit; the `journal` is the file that commits are added to, a
//! sequence of checksummed `frame`s; `directory` sees to it that only one process writes it;
//! [`Remembered`] is what comes out.
//!
//! A crash at any byte leaves the state before or after a commit. A record that was reported as
//! durable is lost by no crash, and damage is an error, never taken for an end. Why not an embedded
//! database: redb 4.4 was tried. After an unclean end it takes a damaged byte of its last commit
//! for a commit that never was, and on a damaged file it may panic.

mod directory;
mod entry;
mod error;
mod frame;
mod journal;
mod remembered;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fencepost_policy::{Layout, LockKey, Revision};
use tokio::sync::oneshot;

use directory::Directory;
use entry::Entry;
use writer::{Disk, Gathered, Message, Outcome, Shared, WAITING_MAX};

pub use error::StateError;
pub use remembered::{Remembered, RememberedLock, Seen};

/// How long the last commit may take. A disk that takes longer is not waited for: the process ends
/// without it.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

/// The `state_dir` of this process.
///
/// Until it [`begins`](StateDir::begin), nothing is written, and what the last process left stays
/// as it is. Dropping it before that leaves no trace. Dropping it later, without
/// [`close`](StateDir::close), writes what was recorded and leaves no clean mark. Dropping or
/// closing it may wait for the disk for up to 5 s.
///
/// Entries are never dropped, so the size grows with the locks that were ever held. A lock with a
/// key of 30 bytes takes about 120 bytes, 100,000 of them 12 MB, and up to three times as much
/// between two compactions. The process holds as much in memory.
pub struct StateDir {
    messages: mpsc::Sender<Message>,
    shared: Arc<Shared>,
    directory: PathBuf,
    thread: JoinHandle<()>,
    /// What came of the whole; `None` once the thread was told to leave.
    ended: Option<Mutex<mpsc::Receiver<Outcome>>>,
    /// Until then, requests that an earlier process left may be at the worker, of locks too that
    /// this one never meets.
    inherited_until: Option<Instant>,
}

impl StateDir {
    /// Takes the directory, which is made if it is missing, and reads what the last process left
    /// there.
    ///
    /// An empty directory means that there was no process before: nothing is remembered, and that
    /// is clean.
    ///
    /// # Errors
    /// If another process has the directory, if what it left is damaged, or if the directory cannot
    /// be made or read.
    pub fn open(path: &Path) -> Result<(StateDir, Remembered), StateError> {
        let directory = Directory::claim(path)?;
        let remembered = journal::read(&directory)?.without_moved();
        let state = remembered.at_start();
        let (messages, told) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        let shared = Arc::<Shared>::default();
        let disk = Arc::clone(&shared);
        // The directory is let go before the end is told.
        let run = move || drop(end.send(Gathered::new(told).run(disk, directory, state)));
        let thread = thread::Builder::new().name("state".to_owned()).spawn(run);
        let thread = thread.map_err(StateError::unusable(path))?;
        let longest = remembered.longest_orphan_timeout().filter(|_| !remembered.clean);
        let state_dir = StateDir {
            messages,
            shared,
            directory: path.to_owned(),
            thread,
            ended: Some(Mutex::new(ended)),
            inherited_until: longest.map(|longest| Instant::now() + longest),
        };
        Ok((state_dir, remembered))
    }

    /// Begins to write, once. When the future completes, the clean mark of the last process is
    /// durably gone. Until then nothing may go to the worker.
    ///
    /// The disk may take forever. A caller that gives up waiting has to close the directory.
    ///
    /// # Cancel safety
    /// As with [`record`](StateDir::record).
    ///
    /// # Errors
    /// If the directory cannot be written.
    pub fn begin(&self) -> impl Future<Output = Result<(), StateError>> + Send + use<> {
        let (report, reported) = oneshot::channel();
        let _ = self.messages.send(Message::Begin(report));
        async { reported.await.unwrap_or(Err(StateError::Stopped)) }
    }

    /// Remembers that this tenure, named by its first revision, is about to be let in. Once the
    /// future completes with `Ok`, no crash makes that forgotten; until then none of its requests
    /// may go out.
    ///
    /// What is remembered of a lock never goes back: an earlier tenure than the remembered one of
    /// that layout changes nothing and is an error, a shorter `orphan_timeout` within one tenure
    /// changes nothing. Nothing is written if nothing changes. Tenures must come here after the
    /// barrier opened for them: one whose record failed may be remembered all the same.
    ///
    /// It takes as long as the disk, which may be forever: the caller bounds the wait.
    ///
    /// # Cancel safety
    /// The tenure is on its way when this returns, before the future is polled; dropping the future
    /// changes nothing.
    ///
    /// # Errors
    /// If it could not be written. Each later record tries again, the failed ones with it.
    /// [`StateError::Later`] if a later tenure is remembered.
    pub fn record(
        &self,
        source: &str,
        lock: &LockKey,
        layout: Layout,
        tenure: Revision,
        orphan_timeout: Duration,
    ) -> impl Future<Output = Result<(), StateError>> + Send + use<> {
        let (source, lock) = (source.to_owned(), lock.clone());
        let tenure = Some(tenure);
        self.hand_over(Some(Entry::Lock { source, lock, layout, tenure, orphan_timeout }))
    }

    /// Remembers that a route with this template for its lock's key only watches, and lets every
    /// request past. Those requests may go on for `orphan_timeout`.
    ///
    /// Writes nothing if as much is already known. A clean end of the process forgets it.
    ///
    /// # Cancel safety
    /// As with [`record`](StateDir::record).
    ///
    /// # Errors
    /// As with [`record`](StateDir::record).
    pub fn watch(
        &self,
        key: &str,
        orphan_timeout: Duration,
    ) -> impl Future<Output = Result<(), StateError>> + Send + use<> {
        self.hand_over(Some(Entry::Watched { key: key.to_owned(), orphan_timeout }))
    }

    /// Remembers how far the store of the source has been seen, with the next commit or within two
    /// seconds. Cheap: it neither waits nor writes.
    pub fn note_seen(&self, source: &str, seen: Seen) {
        let _ = self.messages.send(Message::Note(source.to_owned(), seen));
    }

    /// Whether the disk did not take what it was last given, or has been at it for longer than
    /// `patience`. Revisions are written every two seconds, so that a disk that is well again is
    /// found to be.
    pub fn is_failing(&self, patience: Duration) -> bool {
        let Disk { failed, busy_since } = *self.shared.disk();
        failed
            || busy_since.is_some_and(|since| since.elapsed() > patience)
            || self.thread.is_finished()
    }

    /// Where that is told which nobody waits for.
    pub fn inbox(&self) -> Inbox {
        Inbox(self.messages.clone())
    }

    /// Completes when all that was handed over before is durable, also what had failed.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    /// If it could not be written.
    pub fn written(&self) -> impl Future<Output = Result<(), StateError>> + Send + use<> {
        self.hand_over(None)
    }

    /// Writes what is left to write and, if no request of this process is at the worker any more,
    /// the clean mark. Then releases the directory.
    ///
    /// After a start without the clean mark, writes none until the longest remembered
    /// `orphan_timeout` has passed. Until then, requests of an earlier process may be at the
    /// worker. Returns whether it wrote the mark.
    ///
    /// # Errors
    /// If something could not be written. Then there is no clean mark that anybody may rely on.
    /// [`StateError::Hangs`] if the disk takes longer than 5 s: the writer keeps the directory
    /// until it is done, or until this process has ended.
    pub fn close(mut self, clean: bool) -> Result<bool, StateError> {
        let clean = clean && self.inherited_until.is_none_or(|until| until <= Instant::now());
        self.end(clean).map(|()| clean)
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

    /// Ends the thread after a last commit. One that hangs in the disk is left to itself.
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

impl Drop for StateDir {
    fn drop(&mut self) {
        // A failed write has been reported to the tasks that waited for it, and logged.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// One whose thread takes nothing that comes in until the sender is dropped.
    fn that_hangs() -> (StateDir, mpsc::Sender<()>) {
        let (messages, told) = mpsc::channel();
        let (go_on, stop) = mpsc::channel::<()>();
        let thread = thread::spawn(move || drop((stop.recv(), told)));
        let (shared, directory) = (Arc::default(), PathBuf::new());
        let (ended, inherited_until) = (None, None);
        (StateDir { messages, shared, directory, thread, ended, inherited_until }, go_on)
    }

    #[test]
    fn a_disk_that_hangs_fails_once_nobody_would_wait_for_it() {
        let (state_dir, _go_on) = that_hangs();
        assert!(!state_dir.is_failing(Duration::ZERO), "nothing was asked of it");
        let begun = Instant::now();
        state_dir.shared.disk().busy_since = Some(begun);
        while begun.elapsed() == Duration::ZERO {} // The clock may be coarse.
        assert!(
            state_dir.is_failing(Duration::ZERO)
                && !state_dir.is_failing(Duration::from_secs(3600))
        );
    }

    /// Requests that had given up left their entries behind: while a disk hung, memory grew by one
    /// for each request.
    #[tokio::test]
    async fn what_waits_while_the_disk_hangs_is_bounded() {
        let (state_dir, go_on) = that_hangs();
        let record = || {
            state_dir.hand_over(Some(Entry::Lock {
                source: "main".to_owned(),
                lock: LockKey::new("/a").unwrap(),
                layout: Layout::Key,
                tenure: Revision::new(7),
                orphan_timeout: Duration::from_secs(1),
            }))
        };
        (0..WAITING_MAX - 1).for_each(|_| drop(record()));
        let last = record();
        assert!(matches!(record().await, Err(StateError::Hangs { .. })));
        drop(go_on);
        assert!(matches!(last.await, Err(StateError::Stopped)));
    }
}
