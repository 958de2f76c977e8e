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

use std::path::Path;
use std::time::{Duration, Instant};

use fencepost_policy::{Layout, LockKey, Revision};

use directory::Directory;
use entry::Entry;
use writer::Writer;

pub use error::StateError;
pub use remembered::{Remembered, RememberedLock, Seen};
pub use writer::Inbox;

/// The `state_dir` of this process.
///
/// Nothing is written, and what the last process left stays as it is, until it
/// [`begins`](StateDir::begin). Dropped before that, it leaves no trace; dropped after it without
/// [`close`](StateDir::close), it writes what it was told and leaves no clean mark. To drop or
/// close it may take the disk up to 5 s.
///
/// Nothing is ever dropped from it, so its size is that of the locks that were ever held: about 120
/// bytes for a lock with a key of 30, 12 MB for 100,000, and up to three times as much between two
/// compactions. The same again in memory.
pub struct StateDir {
    writer: Writer,
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
        let writer = Writer::start(directory, state).map_err(StateError::unusable(path))?;
        let inherited_until =
            remembered.longest_orphan_timeout().map(|longest| Instant::now() + longest);
        Ok((
            StateDir { writer, inherited_until: inherited_until.filter(|_| !remembered.clean) },
            remembered,
        ))
    }

    /// Begins to write, once. The clean mark of the last process is gone, durably, when the future
    /// completes: until then nothing may go to the worker.
    ///
    /// It takes as long as the disk, which may be forever: whoever gives up waiting closes it.
    ///
    /// # Cancel safety
    /// As with [`record`](StateDir::record).
    ///
    /// # Errors
    /// If the directory cannot be written.
    pub fn begin(&self) -> impl Future<Output = Result<(), StateError>> + Send + use<> {
        self.writer.begin()
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
        self.writer.commit(Entry::Lock {
            source,
            lock,
            layout,
            tenure: Some(tenure),
            orphan_timeout,
        })
    }

    /// Remembers that a route with that template for its lock's key only watches, and lets past
    /// whoever comes: what it lets past may go on for so long. Nothing is written if as much is
    /// known. It is forgotten when a process has left cleanly.
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
        self.writer.commit(Entry::Watched { key: key.to_owned(), orphan_timeout })
    }

    /// Remembers how far the store of the source has been seen, with the next commit or within two
    /// seconds. Cheap: it neither waits nor writes.
    pub fn note_seen(&self, source: &str, seen: Seen) {
        self.writer.note(source, seen);
    }

    /// Whether the disk did not take what it was last given, or has been at it for longer than
    /// `patience`. Revisions are written every two seconds, so that a disk that is well again is
    /// found to be.
    pub fn is_failing(&self, patience: Duration) -> bool {
        self.writer.is_failing(patience)
    }

    /// Where that is told which nobody waits for.
    pub fn inbox(&self) -> Inbox {
        self.writer.inbox()
    }

    /// Completes when all that was handed over before is durable, also what had failed.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    /// If it could not be written.
    pub fn written(&self) -> impl Future<Output = Result<(), StateError>> + Send + use<> {
        self.writer.written()
    }

    /// Writes what is left to write and, if nothing of this process is at the worker any more, the
    /// clean mark; then lets the directory go.
    ///
    /// After a start without the clean mark there is none again until the longest remembered
    /// `orphan_timeout` has passed: what an earlier process left may still be at the worker,
    /// whatever this one did. Says whether there is a mark.
    ///
    /// # Errors
    /// If something could not be written. Then there is no clean mark that anybody may rely on.
    /// [`StateError::Hangs`] if the disk is still at it after 5 s: it has the directory until it is
    /// done, or this process has ended.
    pub fn close(self, clean: bool) -> Result<bool, StateError> {
        let clean = clean && self.inherited_until.is_none_or(|until| until <= Instant::now());
        self.writer.leave(clean).map(|()| clean)
    }
}
