//! A store that locks are taken in, a source over it, and the questions that a proxy asks.

use std::sync::Arc;
use std::time::Duration;

use fencepost_locks::{
    LockSource, LockSpec, RecordFormat, RecordStore, SourceOptions, TemplateSpec, Timing,
    TrackedLock,
};
use fencepost_policy::{EnterError, FenceToken, LockKey, Revision};
use fencepost_tests::PATIENCE;
use tokio::time::Instant;

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// As long as no test takes: what is read at the start stays fresh.
const HOUR: Duration = Duration::from_secs(3600);

/// What the requests of a holder present.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Presented {
    pub(crate) owner: String,
    pub(crate) revision: Revision,
}

/// A store, and those who take locks in it, as its clients do.
pub(crate) trait World {
    /// As fencepost reads it.
    type Store: RecordStore;

    fn store(&self) -> Self::Store;

    /// How its records are read.
    fn format(&self) -> RecordFormat;

    /// The lock of that name, as requests name it.
    fn key(&self, name: &str) -> LockKey {
        LockKey::new(&format!("locks/{name}")).unwrap()
    }

    /// What the keys of all these locks begin with.
    fn prefix(&self) -> String {
        "locks/".to_owned()
    }

    /// Takes a lock, also from another holder.
    async fn take(&self, lock: &LockKey, owner: &str) -> Presented;

    /// Has its holder write to the record, as far as holders do that: what it presents then.
    async fn renew(&self, lock: &LockKey, held: &Presented) -> Presented;

    async fn release(&self, lock: &LockKey, held: &Presented);

    /// Makes the record one that cannot be read. False where the store takes no such record.
    async fn spoil(&self, _: &LockKey) -> bool {
        false
    }

    /// Has the store answer nothing, and keep its connections.
    async fn stand_still(&self);

    /// Has it answer again.
    async fn go_on(&self);
}

/// A source, and the thread that does its work.
pub(crate) struct Reader {
    pub(crate) source: LockSource,
    format: Arc<RecordFormat>,
}

impl Reader {
    /// Reads everything so often that what is known is as good as always fresh.
    pub(crate) async fn of<W: World>(world: &W) -> Reader
    where
        W::Store: Send,
    {
        Reader::with(world, SourceOptions { period: HOUR / 5, ..SourceOptions::default() }).await
    }

    pub(crate) async fn with<W: World>(world: &W, options: SourceOptions) -> Reader
    where
        W::Store: Send,
    {
        let store = world.store();
        let source = LockSource::spawn_records("test", options, move || store).unwrap();
        Reader { source, format: Arc::new(world.format()) }
    }

    /// A lock that is tracked by its name, read or not.
    pub(crate) fn lock(&self, key: &LockKey) -> Arc<TrackedLock> {
        let spec = LockSpec { key: key.clone(), format: Arc::clone(&self.format) };
        self.source.track(spec).unwrap()
    }

    /// A lock that is found by a template.
    pub(crate) async fn load(&self, prefix: &str, key: &LockKey) -> Arc<TrackedLock> {
        let spec = TemplateSpec { prefix: prefix.to_owned(), format: Arc::clone(&self.format) };
        let locks = self.source.template(&spec);
        locks.load(key.as_str(), Instant::now() + PATIENCE).await.unwrap()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.source.stop();
    }
}

/// What becomes of a request in the end, as a proxy settles it: "admit", or why it is refused.
pub(crate) async fn ask(lock: &TrackedLock, presented: &Presented) -> &'static str {
    let Presented { owner, revision } = presented;
    let token = FenceToken { owner: owner.as_str(), revision: *revision };
    let arrived = Instant::now();
    loop {
        let now = Instant::now();
        let timing = Timing { arrived, not_before: None, now, max_age: HOUR, linearizable: false };
        match lock.enter(&token, &timing) {
            Ok(admission) => {
                lock.leave(admission);
                return "admit";
            }
            Err(EnterError::Refused(rejection)) => return rejection.code(),
            Err(EnterError::Confirm) => {}
            Err(other) => panic!("nothing is at the worker, and nothing is recorded: {other:?}"),
        }
        if let Err(error) = lock.confirm(arrived, arrived + PATIENCE).await {
            println!("{}: {error:?}", lock.key());
            return "unverifiable";
        }
    }
}
