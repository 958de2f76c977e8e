//! What comes to the disk, and in which order, while a store goes back and that is accepted.

use std::fs;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{OnceLock, Weak};
use std::task::{Context, Poll, Waker};

use fencepost_locks::{
    LockSpec, MemoryStore, RecordFormat, Remembered as OfGate, SourceOptions, Timing,
};
use fencepost_policy::{EnterError, FenceToken, LockKey};
use fencepost_tests::{Scratch, eventually};

use super::*;
use crate::state::RememberedLock;

const ORPHAN_TIMEOUT: Duration = Duration::from_secs(30);

fn revision(number: u64) -> Revision {
    Revision::new(number).unwrap()
}

/// A process with a memory, and a lock.
struct World {
    scratch: Scratch,
    memory: Arc<Memory>,
    store: MemoryStore,
    source: LockSource,
    lock: Arc<TrackedLock>,
}

impl World {
    /// The owners have written the lock one after the other, from revision 2 on.
    async fn held_by(owners: &[&str]) -> World {
        World::with(owners, |memory| memory.of_source("main")).await
    }

    async fn with(
        owners: &[&str],
        gates: impl FnOnce(&Arc<Memory>) -> Arc<dyn GateMemory>,
    ) -> World {
        let scratch = Scratch::new();
        let memory = Arc::new(Memory::open(scratch.path()).unwrap());
        memory.state.begin().await.unwrap();
        let store = MemoryStore::new();
        for owner in owners {
            store.put("/a", owner.to_string());
        }
        let options = SourceOptions {
            period: Duration::from_millis(1),
            memory: Some(gates(&memory)),
            ..SourceOptions::default()
        };
        let behind = store.clone();
        let source = LockSource::spawn("main", options, move || behind).unwrap();
        let format = RecordFormat::plain(Layout::Key).into();
        let lock = source.track(LockSpec { key: LockKey::new("/a").unwrap(), format }).unwrap();
        eventually("the lock is known", async || source.ready().then_some(())).await;
        World { scratch, memory, store, source, lock }
    }

    async fn goes_back_to(&self, to: u64) {
        self.store.rewind_to(revision(to));
        let noticed =
            async || self.source.status(Instant::now()).distrusted_through.is_some().then_some(());
        eventually("the store is seen to have gone back", noticed).await;
    }

    /// An operator accepts it, and leaves before hearing what became of that.
    async fn is_accepted_by_one_who_leaves(&self) {
        {
            let mut accepts = pin!(self.source.accept_regression());
            let _ = poll_fn(|context| Poll::Ready(accepts.as_mut().poll(context))).await;
        }
        let status = || self.source.status(Instant::now());
        eventually("it is accepted", async || status().distrusted_through.is_none().then_some(()))
            .await;
    }

    async fn record(&self, tenure: u64) -> Result<(), Rejection> {
        self.memory.record(&self.lock, revision(tenure), ORPHAN_TIMEOUT).await
    }

    fn may_enter(&self, owner: &str, at: u64) -> Result<Revision, EnterError> {
        let token = FenceToken { owner: owner.to_owned(), revision: revision(at) };
        let now = Instant::now();
        self.lock.may_enter(
            &token,
            &Timing {
                arrived: now,
                not_before: None,
                now,
                max_age: Duration::from_secs(3600),
                linearizable: false,
            },
        )
    }

    /// What a crash right now would leave, all that was handed over being written.
    async fn on_the_disk(&self) -> Remembered {
        self.memory.state.written().await.unwrap();
        let crashed = Scratch::new();
        fs::copy(self.scratch.path().join("journal"), crashed.path().join("journal")).unwrap();
        StateDir::open(crashed.path()).unwrap().1
    }

    async fn tenure_on_the_disk(&self) -> Option<RememberedLock> {
        self.on_the_disk().await.lock("main", self.lock.key()).copied()
    }
}

/// The operator's request alone brings an acceptance to the disk, even if the operator leaves and
/// nothing else is written. The next request learns that the acceptance is durable.
#[tokio::test]
async fn an_acceptance_is_written_though_nobody_waits_for_it() {
    let world = World::held_by(&["a", "b"]).await;
    world.record(3).await.unwrap();
    world.memory.note(std::slice::from_ref(&world.source));
    world.goes_back_to(2).await;
    assert_eq!(world.on_the_disk().await.distrusted["main"], revision(3));
    world.is_accepted_by_one_who_leaves().await;
    let after = world.on_the_disk().await;
    assert_eq!((after.highest_seen.get("main"), after.distrusted.get("main")), (None, None));
    let forgotten =
        RememberedLock { layout: Layout::Key, tenure: None, orphan_timeout: ORPHAN_TIMEOUT };
    assert_eq!(after.lock("main", world.lock.key()), Some(&forgotten));

    assert!(!world.source.accept_regression().await.unwrap());
    assert!(world.memory.remembers_acceptance("main").await.unwrap(), "nobody has heard of it yet");
    assert!(!world.memory.remembers_acceptance("main").await.unwrap());
}

/// Has a tenure recorded between the two steps of an acceptance: the disk is to forget, and the
/// gates have not started anew.
#[derive(Debug)]
struct Intruder {
    gates: Arc<dyn GateMemory>,
    memory: Weak<Memory>,
    lock: OnceLock<Weak<TrackedLock>>,
}

impl GateMemory for Intruder {
    fn of(&self, lock: &LockKey, layout: Layout) -> Option<OfGate> {
        self.gates.of(lock, layout)
    }

    fn clear(&self, lock: &LockKey) {
        self.gates.clear(lock);
    }

    fn distrust(&self, through: Revision) {
        self.gates.distrust(through);
    }

    fn forget_tenures(&self) {
        self.gates.forget_tenures();
        let lock = self.lock.get().and_then(Weak::upgrade).unwrap();
        let memory = self.memory.upgrade().unwrap();
        let record = pin!(memory.record(&lock, revision(3), ORPHAN_TIMEOUT));
        let _ = record.poll(&mut Context::from_waker(Waker::noop()));
    }
}

#[tokio::test]
async fn no_tenure_of_a_forgotten_history_is_recorded() {
    let intruder = Arc::<OnceLock<Arc<Intruder>>>::default();
    let world = World::with(&["a", "b"], |memory| {
        let (gates, memory) = (memory.of_source("main"), Arc::downgrade(memory));
        let made = Arc::new(Intruder { gates, memory, lock: OnceLock::new() });
        intruder.set(Arc::clone(&made)).unwrap();
        made
    })
    .await;
    intruder.get().unwrap().lock.set(Arc::downgrade(&world.lock)).unwrap();
    world.goes_back_to(2).await;
    world.is_accepted_by_one_who_leaves().await;
    assert_eq!(world.tenure_on_the_disk().await, None);
}

/// The tenure had been forgotten with all the rest, and the gate took it for recorded.
#[tokio::test]
async fn a_record_that_an_acceptance_overtakes_is_none() {
    let world = World::held_by(&["a"]).await;
    world.store.put("/elsewhere", "x"); // 3
    let seen = || world.source.status(Instant::now()).revision;
    eventually("the store is seen there", async || (seen() == Some(revision(3))).then_some(()))
        .await;
    let mut record = pin!(world.record(2));
    let asked = poll_fn(|context| Poll::Ready(record.as_mut().poll(context))).await;
    world.goes_back_to(2).await;
    world.is_accepted_by_one_who_leaves().await;
    let is_decided = || !matches!(world.may_enter("a", 2), Err(EnterError::Confirm));
    eventually("the lock is known, and its watch has caught up", async || {
        is_decided().then_some(())
    })
    .await;
    if asked.is_pending() {
        record.await.unwrap();
    }
    let entry = world.may_enter("a", 2);
    assert!(
        matches!(&entry, Err(EnterError::Record(tenure)) if *tenure == revision(2)),
        "{entry:?}"
    );
    world.record(2).await.unwrap();
    assert!(world.may_enter("a", 2).is_ok());
    assert_eq!(world.tenure_on_the_disk().await.and_then(|lock| lock.tenure), Some(revision(2)));
}

#[tokio::test]
async fn a_later_revision_records_its_whole_tenure() {
    let world = World::held_by(&["a", "a"]).await;
    world
        .memory
        .state
        .record("main", world.lock.key(), Layout::Key, revision(3), ORPHAN_TIMEOUT)
        .await
        .unwrap();
    world.memory.record(&world.lock, revision(2), ORPHAN_TIMEOUT * 2).await.unwrap();
    assert!(world.may_enter("a", 2).is_ok());
    let now = RememberedLock {
        layout: Layout::Key,
        tenure: Some(revision(3)),
        orphan_timeout: ORPHAN_TIMEOUT * 2,
    };
    assert_eq!(world.tenure_on_the_disk().await, Some(now));
}

#[tokio::test]
async fn a_tenure_that_a_later_one_stands_in_the_way_of_is_not_let_in() {
    let world = World::held_by(&["a", "b"]).await;
    world
        .memory
        .state
        .record("main", world.lock.key(), Layout::Key, revision(4), ORPHAN_TIMEOUT)
        .await
        .unwrap();
    assert_eq!(world.record(3).await, Err(Rejection::Unverifiable));
    assert!(matches!(world.may_enter("b", 3), Err(EnterError::Record(_))));
}

#[tokio::test]
async fn watching_routes_reach_the_disk_all_at_once() {
    let (scratch, routes) = (Scratch::new(), 1_000);
    let memory = Memory::open(scratch.path()).unwrap();
    memory.state.begin().await.unwrap();
    let watching = |number| {
        format!(
            "[[route]]\nname = \"r{number}\"\npath = \"/{number}/\"\nupstream = \"http://127.0.0.1:9000\"\nmode = \"shadow\"\n\
             lock = {{ source = \"main\", key = \"/{number}\" }}\n"
        )
    };
    let text: String = (0..routes).map(watching).collect();
    let config = Config::from_toml(
        "f.toml",
        &format!(
            "[[listener]]\naddress = \"127.0.0.1:0\"\n[source.main]\nkind = \"memory\"\n{text}"
        ),
    );
    let config = config.unwrap();
    {
        let mut told = pin!(memory.will_watch(&config));
        let _ = poll_fn(|context| Poll::Ready(told.as_mut().poll(context))).await;
    }
    memory.state.written().await.unwrap();
    drop(memory);
    assert_eq!(StateDir::open(scratch.path()).unwrap().1.watched.len(), routes);
}

/// A note of a revision from before an acceptance would make the next start find that the store
/// went back once more. The noting thread does nothing else here, so that several of so many
/// acceptances would fall in between.
#[tokio::test]
async fn progress_from_before_an_acceptance_is_not_noted_after() {
    let world = World::held_by(&["a"]).await;
    for number in 0..60 {
        let (name, store) = (format!("source {number}"), MemoryStore::new());
        for owner in ["a", "b", "c"] {
            store.put("/a", owner);
        }
        let options = SourceOptions {
            period: Duration::from_millis(1),
            memory: Some(world.memory.of_source(&name)),
            ..SourceOptions::default()
        };
        let behind = store.clone();
        let source = LockSource::spawn(&name, options, move || behind).unwrap();
        source
            .track(LockSpec {
                key: world.lock.key().clone(),
                format: world.lock.format().clone().into(),
            })
            .unwrap();
        let status = || source.status(Instant::now());
        eventually("it is seen", async || (status().revision == Some(revision(4))).then_some(()))
            .await;
        store.rewind_to(revision(2));
        eventually("it went back", async || status().distrusted_through.is_some().then_some(()))
            .await;
        let (memory, noted, is_over) =
            (Arc::clone(&world.memory), source.clone(), Arc::new(AtomicBool::new(false)));
        let ends = Arc::clone(&is_over);
        let notes = std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                memory.note(std::slice::from_ref(&noted));
            }
        });
        assert_eq!(source.accept_regression().await, Ok(true));
        is_over.store(true, Ordering::Relaxed);
        notes.join().unwrap();
    }
    let seen = world.on_the_disk().await.highest_seen;
    assert!(seen.values().all(|seen| seen.revision <= revision(2)), "{seen:?}");
}

/// It was remembered for as long as its source was there, where that is called otherwise than in
/// the process before.
#[tokio::test]
async fn cleared_orphans_stay_cleared_under_a_renamed_source() {
    let world = World::held_by(&["a"]).await;
    world.record(2).await.unwrap();
    let crashed = Scratch::new();
    fs::copy(world.scratch.path().join("journal"), crashed.path().join("journal")).unwrap();
    let next = Memory::open(crashed.path()).unwrap();
    let left_behind =
        || next.of_source("renamed").of(world.lock.key(), Layout::Key).and_then(|left| left.until);
    assert!(left_behind().is_some());
    next.of_source("renamed").clear(world.lock.key());
    assert_eq!(left_behind(), None);
}

/// A gate waits for the requests of another layout, but does not begin with that layout's floor.
/// That floor would refuse the mutex's holder as `replayed-tenure`.
#[tokio::test]
async fn a_gate_waits_for_requests_of_another_layout() {
    let world = World::held_by(&["a"]).await;
    world.record(2).await.unwrap();
    let crashed = Scratch::new();
    fs::copy(world.scratch.path().join("journal"), crashed.path().join("journal")).unwrap();
    let next = Memory::open(crashed.path()).unwrap();
    let of = |layout| next.of_source("main").of(world.lock.key(), layout).unwrap();
    let (alike, other) = (of(Layout::Key), of(Layout::Mutex));
    assert_eq!((alike.tenure, other.tenure), (Some(revision(2)), None));
    assert!(alike.until.is_some() && alike.until == other.until && !other.others);
}
