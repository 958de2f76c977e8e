//! A store of locks in memory, for the demo and for tests.

mod history;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use fencepost_policy::Revision;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

pub use self::history::Write;
use self::history::{Compacted, History};
use crate::member::Member;
use crate::store::{
    Event, KeyValue, LockStore, RangeRead, RangeWatch, ReadAnswer, StoreError, Swap, Swapped,
    Wanted, Watch, WatchNews,
};

/// How long a call waits for a store that is paused.
const CALL_TIMEOUT: Duration = Duration::from_millis(500);

/// A store of locks in memory. Clones are the same store; they may be used from several threads.
///
/// Revisions, history, compaction and watches are as in etcd. It never forgets anything but by
/// [`MemoryStore::compact`].
#[derive(Debug, Clone, Default)]
pub struct MemoryStore(Arc<Shared>);

/// How often a [`MemoryStore`] was asked what, since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryCalls {
    /// Calls of [`LockStore::read`].
    pub reads: u64,
    /// Ranges read whole ([`Wanted::All`]), in all those calls.
    pub ranges_whole: u64,
    /// Ranges that were only counted ([`Wanted::Count`]).
    pub ranges_counted: u64,
    /// Calls of [`LockStore::read_at`].
    pub reads_at: u64,
    /// Calls of [`LockStore::watch`].
    pub watches: u64,
    /// Calls of [`LockStore::members`].
    pub members: u64,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    paused: watch::Sender<bool>,
}

#[derive(Debug)]
struct State {
    history: History,
    watchers: Vec<Watcher>,
    watches_held: bool,
    paused: bool,
    calls: MemoryCalls,
}

impl Default for State {
    fn default() -> State {
        State {
            history: History::new(),
            watchers: Vec::new(),
            watches_held: false,
            paused: false,
            calls: MemoryCalls::default(),
        }
    }
}

/// Our end of a watch.
#[derive(Debug)]
struct Watcher {
    /// Each with the first revision of interest. Nothing where the watch of that range has ended.
    ranges: Vec<Option<RangeWatch>>,
    /// What has happened and is held back.
    held: Vec<WatchNews>,
    /// Without a limit: the demo and the tests write little.
    news: mpsc::UnboundedSender<WatchNews>,
}

impl MemoryStore {
    /// An empty store, at revision 1.
    pub fn new() -> MemoryStore {
        MemoryStore::default()
    }

    /// The revision of the newest write.
    pub fn revision(&self) -> Revision {
        self.state().history.revision()
    }

    /// What a key is now. It does not count as a read, and it can be had of a paused store.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Option<KeyValue> {
        self.state().history.get(key.as_ref()).cloned()
    }

    /// Sets a key.
    pub fn put(&self, key: impl Into<Bytes>, value: impl Into<Bytes>) -> Revision {
        self.transact([Write::Put { key: key.into(), value: value.into() }])
    }

    /// Sets a key that is not there; nothing happens if it is.
    pub fn put_if_absent(
        &self,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
    ) -> Option<Revision> {
        let (key, value) = (key.into(), value.into());
        let mut state = self.state();
        let absent = state.history.get(&key).is_none();
        absent.then(|| state.write(vec![Write::Put { key, value }]))
    }

    /// Deletes a key; nothing happens if it is not there.
    pub fn delete(&self, key: impl Into<Bytes>) -> Option<Revision> {
        let key = key.into();
        let mut state = self.state();
        let present = state.history.get(&key).is_some();
        present.then(|| state.write(vec![Write::Delete { key }]))
    }

    /// Writes all of these at one revision, and returns the revision of the store.
    ///
    /// # Panics
    /// If a key is written twice.
    pub fn transact(&self, writes: impl IntoIterator<Item = Write>) -> Revision {
        let writes = writes.into_iter().collect();
        self.state().write(writes)
    }

    /// Forgets the history before a revision.
    pub fn compact(&self, at: Revision) {
        self.state().history.compact(at);
    }

    /// Takes the store back to what it was at a revision, as restoring a backup does. Running
    /// watches end.
    ///
    /// # Panics
    /// If the store has not been there, or has compacted it.
    pub fn rewind_to(&self, revision: Revision) {
        let mut state = self.state();
        state.history.rewind(revision);
        state.watchers.clear();
    }

    /// Stops answering: calls wait until it is too late, watches fall silent. Writes still happen.
    pub fn pause(&self) {
        self.set_paused(true);
    }

    /// Answers again, also those calls that are still waiting, and tells the watches what they
    /// missed.
    pub fn resume(&self) {
        self.set_paused(false);
    }

    /// Holds back what the watches would tell from now on; calls are answered.
    pub fn hold_watches(&self) {
        self.state().watches_held = true;
    }

    /// Ends [`MemoryStore::hold_watches`].
    pub fn release_watches(&self) {
        let mut state = self.state();
        state.watches_held = false;
        state.deliver();
    }

    /// Ends all running watches, as a member that goes away does. What was held back is lost.
    pub fn end_watches(&self) {
        self.state().watchers.clear();
    }

    /// How often it was asked what.
    pub fn calls(&self) -> MemoryCalls {
        self.state().calls
    }

    fn set_paused(&self, paused: bool) {
        let mut state = self.state();
        state.paused = paused;
        state.deliver();
        self.0.paused.send_replace(paused);
    }

    /// Returns once the store is not paused.
    async fn answering(&self) -> Result<(), StoreError> {
        let mut paused = self.0.paused.subscribe();
        let answering = timeout(CALL_TIMEOUT, paused.wait_for(|paused| !paused)).await;
        let silent =
            || StoreError::Unavailable(format!("memory: no answer within {CALL_TIMEOUT:?}").into());
        answering.map_err(|_| silent())?.map_err(|_| silent())?;
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn write(&mut self, writes: Vec<Write>) -> Revision {
        let events = self.history.write(writes);
        for watcher in &mut self.watchers {
            watcher.notice(&events);
        }
        self.deliver();
        self.history.revision()
    }

    /// Tells the watches what happened, unless it is held back. Watches that nobody listens to end.
    fn deliver(&mut self) {
        let silent = self.paused || self.watches_held;
        self.watchers.retain_mut(|watcher| {
            if !silent {
                watcher.held.drain(..).all(|news| watcher.news.send(news).is_ok())
            } else {
                !watcher.news.is_closed()
            }
        });
    }

    fn watch(&mut self, ranges: &[RangeWatch]) -> MemoryWatch {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut watcher =
            Watcher { ranges: Vec::with_capacity(ranges.len()), held: Vec::new(), news: sender };
        for (range, wanted) in ranges.iter().enumerate() {
            let past = self.history.events(&wanted.range, wanted.from);
            watcher.ranges.push(past.is_ok().then(|| wanted.clone()));
            match past {
                Ok(events) if events.is_empty() => {}
                Ok(events) => watcher.held.push(WatchNews::Events { range, events }),
                Err(Compacted) => watcher.held.push(WatchNews::Compacted { range }),
            }
        }
        watcher.held.push(WatchNews::CaughtUp);
        self.watchers.push(watcher);
        self.deliver();
        MemoryWatch { news: receiver }
    }
}

impl Watcher {
    /// Takes note of what happened at one revision.
    fn notice(&mut self, events: &[Event]) {
        for (index, wanted) in self.ranges.iter().enumerate() {
            let Some(wanted) = wanted else { continue };
            let of_interest = |event: &&Event| {
                wanted.range.contains(event.key()) && event.revision() >= wanted.from
            };
            let events: Vec<Event> = events.iter().filter(of_interest).cloned().collect();
            if !events.is_empty() {
                self.held.push(WatchNews::Events { range: index, events });
            }
        }
    }
}

impl LockStore for MemoryStore {
    type Watch = MemoryWatch;

    async fn read(&self, ranges: &[RangeRead]) -> Result<ReadAnswer, StoreError> {
        self.state().calls.count_read(ranges);
        if ranges.is_empty() {
            return Err(StoreError::Refused("a read of nothing".into()));
        }
        self.answering().await?;
        let state = self.state();
        let answers =
            ranges.iter().map(|read| state.history.read(&read.range, read.wanted)).collect();
        Ok(ReadAnswer { revision: state.history.revision(), ranges: answers, by: None })
    }

    async fn read_at(&self, key: &[u8], at: Revision) -> Result<Option<KeyValue>, StoreError> {
        self.state().calls.reads_at += 1;
        self.answering().await?;
        let state = self.state();
        if at > state.history.revision() {
            return Err(StoreError::Unavailable(
                format!("memory: revision {at} is not there yet").into(),
            ));
        }
        let was = state.history.get_at(key, at).map_err(|Compacted| StoreError::Compacted)?;
        Ok(was.cloned())
    }

    async fn watch(&self, ranges: &[RangeWatch]) -> Result<MemoryWatch, StoreError> {
        self.state().calls.watches += 1;
        if ranges.is_empty() {
            return Err(StoreError::Refused("a watch of nothing".into()));
        }
        self.answering().await?;
        Ok(self.state().watch(ranges))
    }

    async fn swap(&self, swap: &Swap) -> Result<Swapped, StoreError> {
        self.answering().await?;
        let mut state = self.state();
        let newest = state.history.get(&swap.key).map(|found| found.modified);
        let is_written = newest == swap.expected;
        if is_written {
            let key = Bytes::copy_from_slice(&swap.key);
            state.write(vec![match &swap.value {
                Some(value) => Write::Put { key, value: value.clone() },
                None => Write::Delete { key },
            }]);
        }
        let read = state.history.read(&swap.read, Wanted::All);
        let names = read.keys.into_iter().map(|found| found.key).collect();
        Ok(Swapped { is_written, revision: state.history.revision(), names, by: None })
    }

    async fn members(&self) -> Vec<Member> {
        self.state().calls.members += 1;
        let version = self.answering().await.map(|()| env!("CARGO_PKG_VERSION").into());
        vec![Member { endpoint: "memory".into(), version, problems: Vec::new() }]
    }
}

impl MemoryCalls {
    fn count_read(&mut self, ranges: &[RangeRead]) {
        self.reads += 1;
        for read in ranges {
            match read.wanted {
                Wanted::All => self.ranges_whole += 1,
                Wanted::Count => self.ranges_counted += 1,
            }
        }
    }
}

/// A running watch of a [`MemoryStore`].
#[derive(Debug)]
pub struct MemoryWatch {
    news: mpsc::UnboundedReceiver<WatchNews>,
}

impl Watch for MemoryWatch {
    async fn next(&mut self) -> Result<WatchNews, StoreError> {
        self.news
            .recv()
            .await
            .ok_or_else(|| StoreError::Unavailable("memory: the watch has ended".into()))
    }
}
