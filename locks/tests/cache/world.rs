//! A store in memory, a source over it, and the questions that a proxy asks.

use std::cell::RefCell;
use std::fmt::{Debug, Write as _};
use std::sync::{Arc, Once};
use std::time::Duration;

use fencepost_locks::{
    KeyValue, LockSource, LockSpec, LockStore, Member, MemoryStore, MemoryWatch, RangeRead,
    RangeWatch, ReadAnswer, RecordFormat, SourceOptions, StoreError, Swap, Swapped, TemplateSpec,
    TemplatedLocks, Timing, TrackedLock, Watch, WatchNews,
};
use fencepost_policy::{EnterError, FenceToken, Layout, LockKey, Revision, Verdict};
use tokio::time::Instant;
use tracing::field::Field;

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const MAX_AGE: Duration = Duration::from_secs(5);

pub(crate) fn options() -> SourceOptions {
    SourceOptions { period: MAX_AGE / 5, jitter_seed: 7, ..SourceOptions::default() }
}

/// Runs a test beside the driver of a source.
pub(crate) async fn play(
    options: SourceOptions,
    test: impl AsyncFnOnce(&MemoryStore, &LockSource),
) {
    play_with(MemoryStore::new(), options, test).await;
}

/// Runs a test beside the driver of a source, over a store that the test has made.
pub(crate) async fn play_with<S: LockStore + Clone>(
    store: S,
    options: SourceOptions,
    test: impl AsyncFnOnce(&S, &LockSource),
) {
    let (source, driver) = LockSource::build("test", options, store.clone());
    tokio::select! {
        biased;
        () = driver => panic!("the driver ended"),
        () = test(&store, &source) => {}
    }
}

/// What a store in memory does otherwise than it would. An error takes the place of the answer.
pub(crate) trait Faults: Clone + 'static {
    fn store(&self) -> &MemoryStore;

    async fn before_read(&self, _: &[RangeRead]) -> Result<(), StoreError> {
        Ok(())
    }

    /// The answer is on its way.
    async fn after_read(&self, _: &[RangeRead]) -> Result<(), StoreError> {
        Ok(())
    }

    async fn before_read_at(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn before_watch(&self, _: &[RangeWatch]) -> Result<(), StoreError> {
        Ok(())
    }

    /// A watch has begun.
    fn after_watch(&self) {}

    /// The next that a watch tells.
    async fn news(&self, watch: &mut MemoryWatch) -> Result<WatchNews, StoreError> {
        watch.next().await
    }
}

#[derive(Clone)]
struct Faulty<F>(F);

struct FaultyWatch<F>(F, MemoryWatch);

impl<F: Faults> LockStore for Faulty<F> {
    type Watch = FaultyWatch<F>;

    async fn read(&self, ranges: &[RangeRead]) -> Result<ReadAnswer, StoreError> {
        self.0.before_read(ranges).await?;
        let answer = self.0.store().read(ranges).await;
        self.0.after_read(ranges).await?;
        answer
    }

    async fn read_at(&self, key: &[u8], at: Revision) -> Result<Option<KeyValue>, StoreError> {
        self.0.before_read_at().await?;
        self.0.store().read_at(key, at).await
    }

    async fn watch(&self, ranges: &[RangeWatch]) -> Result<FaultyWatch<F>, StoreError> {
        self.0.before_watch(ranges).await?;
        let watch = self.0.store().watch(ranges).await?;
        self.0.after_watch();
        Ok(FaultyWatch(self.0.clone(), watch))
    }

    async fn swap(&self, swap: &Swap) -> Result<Swapped, StoreError> {
        self.0.store().swap(swap).await
    }

    async fn members(&self) -> Vec<Member> {
        self.0.store().members().await
    }
}

impl<F: Faults> Watch for FaultyWatch<F> {
    async fn next(&mut self) -> Result<WatchNews, StoreError> {
        self.0.news(&mut self.1).await
    }
}

/// Runs a test beside the driver of a source over a store with faults.
pub(crate) async fn play_faulty<F: Faults>(faults: F, test: impl AsyncFnOnce(&F, &LockSource)) {
    play_with(Faulty(faults), options(), async |Faulty(faults), source| test(faults, source).await)
        .await;
}

pub(crate) async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
}

pub(crate) fn track(source: &LockSource, key: &str, layout: Layout) -> Arc<TrackedLock> {
    source
        .track(LockSpec {
            key: LockKey::new(key).unwrap(),
            format: RecordFormat::plain(layout).into(),
        })
        .unwrap()
}

pub(crate) fn template(source: &LockSource, prefix: &str, layout: Layout) -> TemplatedLocks {
    source.template(&TemplateSpec {
        prefix: prefix.to_owned(),
        format: RecordFormat::plain(layout).into(),
    })
}

/// A static `key` lock, read for the first time.
pub(crate) async fn tracked(source: &LockSource, key: &str) -> Arc<TrackedLock> {
    let lock = track(source, key, Layout::Key);
    while !source.ready() {
        pass(SECOND / 100).await;
    }
    lock
}

pub(crate) async fn load(locks: &TemplatedLocks, key: &str) -> Arc<TrackedLock> {
    locks.load(key, Instant::now() + SECOND).await.unwrap()
}

/// A token, and the timing of a request that arrives now.
fn request(owner: &str, at: Revision, linearizable: bool) -> (FenceToken<&str>, Timing) {
    let now = Instant::now();
    (
        FenceToken { owner, revision: at },
        Timing { arrived: now, not_before: None, now, max_age: MAX_AGE, linearizable },
    )
}

/// What becomes of a request at first sight: "admit", "confirm" or why it is refused.
pub(crate) fn glance(lock: &TrackedLock, owner: &str, at: Revision) -> &'static str {
    let (token, timing) = request(owner, at, false);
    match lock.view().judge(&token, &timing) {
        Verdict::Admit => "admit",
        Verdict::Confirm => "confirm",
        Verdict::Reject(rejection) => rejection.code(),
    }
}

/// What the gate says to a request now.
pub(crate) fn enter_now(lock: &TrackedLock, owner: &str, at: Revision) -> &'static str {
    let (token, timing) = request(owner, at, false);
    match lock.enter(&token, &timing) {
        Ok(admission) => {
            lock.leave(admission);
            "admitted"
        }
        Err(EnterError::Wait) => "wait",
        Err(EnterError::Record(_)) => "record",
        Err(EnterError::Confirm) => "confirm",
        Err(EnterError::Refused(rejection)) => rejection.code(),
    }
}

/// What becomes of a request in the end, as a proxy settles it.
pub(crate) async fn ask(lock: &TrackedLock, owner: &str, at: Revision) -> &'static str {
    settle(lock, owner, at, false).await
}

pub(crate) async fn ask_linearizable(
    lock: &TrackedLock,
    owner: &str,
    at: Revision,
) -> &'static str {
    settle(lock, owner, at, true).await
}

async fn settle(lock: &TrackedLock, owner: &str, at: Revision, linearizable: bool) -> &'static str {
    // On virtual time a whole test may pass in one instant. A request arrives later than what was
    // read before it.
    tokio::time::advance(Duration::from_micros(1)).await;
    let (token, mut timing) = request(owner, at, linearizable);
    let deadline = timing.now + SECOND;
    loop {
        match lock.enter(&token, &timing) {
            Ok(admission) => {
                lock.leave(admission);
                return "admit";
            }
            Err(EnterError::Refused(rejection)) => return rejection.code(),
            Err(EnterError::Confirm) => {}
            other @ Err(EnterError::Wait | EnterError::Record(_)) => {
                panic!("nothing is at the worker, and nothing is recorded: {other:?}")
            }
        }
        if lock.confirm(Instant::now(), deadline).await.is_err() {
            // The last word is that of what is known: a store that went back, or nothing.
            return match glance(lock, owner, at) {
                "confirm" => "unverifiable",
                verdict => verdict,
            };
        }
        timing.now = Instant::now();
    }
}

thread_local! {
    static LINES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// What this thread logs.
pub(crate) struct Lines;

impl Lines {
    /// One collector for all threads: with one for each, a place in the code that another thread
    /// comes to first would be taken for one that nobody listens to.
    pub(crate) fn collect() -> Lines {
        static COLLECTS: Once = Once::new();
        COLLECTS.call_once(|| tracing::subscriber::set_global_default(Collector).unwrap());
        LINES.take();
        Lines
    }

    /// The lines with that text.
    pub(crate) fn with(&self, text: &str) -> Vec<String> {
        LINES
            .with_borrow(|lines| lines.iter().filter(|line| line.contains(text)).cloned().collect())
    }
}

struct Collector;

impl tracing::Subscriber for Collector {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::INFO
    }

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = String::new();
        event.record(&mut |_: &Field, value: &dyn Debug| _ = write!(line, "{value:?} "));
        LINES.with_borrow_mut(|lines| lines.push(line));
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}
