//! Watches, which say when a lock had better be read.
//!
//! They are one-shot watches. A read sets one where none is set, so each event leads to one read,
//! which sets the next. A one-shot watch is set again over a new connection, with the changes since;
//! a persistent watch loses those (ZOOKEEPER-4698).

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fencepost_policy::LockKey;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use zookeeper_client::OneshotWatcher;

use crate::record_store::Hint;

/// The most watches of one session. Further locks are read when they are due, and no sooner.
const WATCHES_MAX: usize = 16_384;

/// The locks that a session watches.
#[derive(Debug, Clone, Default)]
pub(super) struct Watched(Arc<Mutex<HashSet<LockKey>>>);

impl Watched {
    /// Whether a watch may be set on the lock.
    pub(super) fn lacks(&self, lock: &LockKey) -> bool {
        let watched = self.watched();
        watched.len() < WATCHES_MAX && !watched.contains(lock)
    }

    fn watched(&self) -> MutexGuard<'_, HashSet<LockKey>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
enum News {
    /// A session was opened. All that happened since the end of the one before is unknown.
    Opened,
    Set {
        lock: LockKey,
        watcher: OneshotWatcher,
        watched: Watched,
    },
}

/// Tells of watches that are set.
#[derive(Debug, Clone)]
pub(super) struct WatchSender(mpsc::UnboundedSender<News>);

impl WatchSender {
    pub(super) fn opened(&self) {
        self.send(News::Opened);
    }

    /// Tells of a watch on a lock.
    pub(super) fn set(&self, lock: &LockKey, watcher: OneshotWatcher, watched: &Watched) {
        watched.watched().insert(lock.clone());
        self.send(News::Set { lock: lock.clone(), watcher, watched: watched.clone() });
    }

    fn send(&self, news: News) {
        // Nobody may be left who wants hints; then none are needed.
        let _ = self.0.send(news);
    }
}

/// The watches of the present session.
#[derive(Debug)]
pub(super) struct Watches {
    news: mpsc::UnboundedReceiver<News>,
    /// In tasks of their own, because the client panics where its session ends without a word.
    set: JoinSet<LockKey>,
}

impl Watches {
    pub(super) fn new() -> (WatchSender, Watches) {
        let (sender, news) = mpsc::unbounded_channel();
        (WatchSender(sender), Watches { news, set: JoinSet::new() })
    }

    /// The next hint.
    ///
    /// # Cancel safety
    /// Dropping the future loses no hint.
    pub(super) async fn next(&mut self) -> Hint {
        loop {
            tokio::select! {
                Some(news) = self.news.recv() => match news {
                    News::Opened => {
                        self.set = JoinSet::new();
                        return Hint::All;
                    }
                    News::Set { lock, watcher, watched } => {
                        self.set.spawn(async move {
                            watcher.changed().await;
                            watched.watched().remove(&lock);
                            lock
                        });
                    }
                },
                Some(changed) = self.set.join_next() => {
                    return changed.map_or(Hint::All, Hint::Lock);
                }
                else => std::future::pending().await,
            }
        }
    }
}
