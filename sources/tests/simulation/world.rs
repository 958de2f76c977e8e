//! The world of one seed: store, proxy, worker, clients, and what is true of them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use fencepost_policy::{Layout, LockKey, Revision};
use fencepost_sources::{
    GateMemory, LockSource, LockSpec, MemoryStore, RecordFormat, Remembered, SourceOptions, TemplateSpec,
    TemplatedLocks, TrackedLock, Write,
};
use tokio::time::Instant;

use crate::chance::Chance;
use crate::executor::{Class, Executor};
use crate::store::{Lagging, SimulatedStore};
use crate::truth::{FREE, Point, Token, Truth, Written};
use crate::worker::Worker;

pub(crate) const MAX_AGE: Duration = Duration::from_millis(500);
pub(crate) const ORPHAN_TIMEOUT: Duration = Duration::from_millis(400);
pub(crate) const TEMPLATE: &str = "t/";

/// What may happen in a world.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) locks: [(&'static str, Layout); 4],
    /// Every how manieth call is lost.
    pub(crate) lost_calls: u64,
    /// How late a watch may be, in milliseconds.
    pub(crate) watch_lag: u64,
    /// Some reads show an old state of the store: what leans on quorum reads is not promised then.
    pub(crate) stale_reads: bool,
    /// Tenures are recorded, so the proxy may be killed.
    pub(crate) remembers: bool,
    pub(crate) rewinds: bool,
}

impl Plan {
    fn of(seed: u64) -> Plan {
        let mut chance = Chance::of(seed, "plan");
        let layouts = [Layout::Key, Layout::Election, Layout::Mutex];
        let queue = layouts[1 + chance.index(2)];
        let templated = layouts[chance.index(3)];
        Plan {
            locks: [("key", Layout::Key), ("queue", queue), ("t/1", templated), ("t/2", templated)],
            lost_calls: [8, 30, 1000][chance.index(3)],
            watch_lag: [20, 150, 700][chance.index(3)],
            stale_reads: chance.one_in(5),
            remembers: chance.one_in(2),
            rewinds: chance.one_in(4),
        }
    }
}

/// One life of the proxy: from its start until it is killed.
pub(crate) struct Proxy {
    pub(crate) life: u64,
    pub(crate) source: LockSource,
    static_locks: BTreeMap<&'static str, Arc<TrackedLock>>,
    templated: TemplatedLocks,
    /// What it remembers of another process no longer counts.
    pub(crate) accepted: Arc<AtomicBool>,
}

impl Proxy {
    pub(crate) async fn lock(&self, key: &'static str, deadline: Instant) -> Option<Arc<TrackedLock>> {
        match self.static_locks.get(key) {
            Some(lock) => Some(Arc::clone(lock)),
            None => self.templated.load(key, deadline).await.ok(),
        }
    }
}

pub(crate) struct World {
    pub(crate) seed: u64,
    pub(crate) plan: Plan,
    pub(crate) executor: Executor,
    pub(crate) store: MemoryStore,
    pub(crate) lagging: RefCell<Lagging>,
    pub(crate) truth: RefCell<Truth>,
    pub(crate) worker: Worker,
    /// The tokens that clients have been told of, and in which of the store's histories.
    pub(crate) told: RefCell<Vec<(u64, Token)>>,
    /// How often the store went back.
    pub(crate) histories: Cell<u64>,
    /// The last tenure of each lock that is durably recorded.
    pub(crate) recorded: RefCell<BTreeMap<String, Option<Revision>>>,
    /// An operator has accepted that the store went back, and has not heard yet whether it had.
    pub(crate) accepting: Cell<bool>,
    /// How often an operator has accepted that the store went back.
    pub(crate) accepted: Cell<u64>,
    /// Since when the store has had one history, as far as the proxy could know.
    pub(crate) trusted: Cell<Option<Point>>,
    /// The oldest revision that is not compacted away.
    pub(crate) compacted: Cell<u64>,
    pub(crate) unanswered: Cell<i64>,
    pub(crate) counts: RefCell<BTreeMap<String, u64>>,
    /// Nothing is sent any more.
    pub(crate) clients_rest: Cell<bool>,
    pub(crate) is_over: Cell<bool>,
    proxy: RefCell<Option<Rc<Proxy>>>,
    lives: Cell<u64>,
    cut_off_until: Cell<Instant>,
    calls: RefCell<BTreeMap<u64, u64>>,
    seen: RefCell<BTreeMap<String, Seen>>,
    start: Instant,
    trace: RefCell<Vec<String>>,
}

/// What the gate of a lock was seen to be.
struct Seen {
    era: u64,
    lock: Weak<TrackedLock>,
    floor: u64,
    /// The `first` revision of the tenure that was known to hold it.
    holder: Option<u64>,
}

/// What a new process reads of the last one's.
#[derive(Debug)]
struct Memory {
    locks: BTreeMap<String, Remembered>,
    /// The operator accepted that the store went back: its old revisions mean nothing any more.
    accepted: Arc<AtomicBool>,
}

impl GateMemory for Memory {
    fn of(&self, lock: &LockKey) -> Option<Remembered> {
        let Remembered { tenure, until } = *self.locks.get(lock.as_str())?;
        Some(Remembered { tenure: tenure.filter(|_| !self.accepted.load(Ordering::Relaxed)), until })
    }
}

impl World {
    pub(crate) fn new(seed: u64) -> Rc<World> {
        let (plan, start) = (Plan::of(seed), Instant::now());
        Rc::new(World {
            seed,
            executor: Executor::new(start),
            store: MemoryStore::new(),
            lagging: RefCell::default(),
            truth: RefCell::new(Truth::new(&plan.locks)),
            worker: Worker::default(),
            told: RefCell::default(),
            histories: Cell::new(0),
            recorded: RefCell::default(),
            accepting: Cell::new(false),
            accepted: Cell::new(0),
            trusted: Cell::new(Some(Point { at: start, step: 0 })),
            compacted: Cell::new(1),
            unanswered: Cell::new(0),
            counts: RefCell::default(),
            clients_rest: Cell::new(false),
            is_over: Cell::new(false),
            proxy: RefCell::new(None),
            lives: Cell::new(0),
            cut_off_until: Cell::new(start),
            calls: RefCell::default(),
            seen: RefCell::default(),
            start,
            trace: RefCell::default(),
            plan,
        })
    }

    pub(crate) fn now(&self) -> Point {
        Point { at: Instant::now(), step: self.executor.steps() }
    }

    pub(crate) fn note(&self, what: impl FnOnce() -> String) {
        let at = self.start.elapsed().as_millis();
        self.trace.borrow_mut().push(format!("{at:>6} ms  {}", what()));
    }

    pub(crate) fn count(&self, what: &str) {
        let mut counts = self.counts.borrow_mut();
        match counts.get_mut(what) {
            Some(count) => *count += 1,
            None => drop(counts.insert(what.to_owned(), 1)),
        }
    }

    pub(crate) fn trace(&self) -> Vec<String> {
        self.trace.borrow().clone()
    }

    /// The chances of the next call of that kind. By what is asked, so that it matters not which of two calls at one instant
    /// comes first.
    pub(crate) fn next_call(&self, asked: impl Hash) -> Chance {
        let mut hasher = DefaultHasher::new();
        (asked, self.start.elapsed()).hash(&mut hasher);
        let call = hasher.finish();
        let mut calls = self.calls.borrow_mut();
        let times = calls.entry(call).or_default();
        *times += 1;
        Chance::of(self.seed, ("call", call, *times))
    }

    pub(crate) fn is_cut_off(&self) -> bool {
        Instant::now() < self.cut_off_until.get()
    }

    pub(crate) fn cut_off(&self, time: Duration) {
        self.note(|| format!("the store is out of reach for {time:?}"));
        self.cut_off_until.set(Instant::now() + time);
    }

    /// Writes all of these at one revision.
    pub(crate) fn write(self: &Rc<Self>, writes: Vec<Written>) {
        let stored: Vec<Write> = writes
            .iter()
            .map(|Written { key, value }| match value {
                Some(value) => Write::Put { key: key.clone().into(), value: value.clone().into() },
                None => Write::Delete { key: key.clone().into() },
            })
            .collect();
        let revision = self.store.transact(stored.clone()).get();
        self.lagging.borrow_mut().wrote(stored);
        self.note(|| {
            let texts =
                writes.iter().map(|write| format!("{} = {}", write.key, write.value.as_deref().unwrap_or("(deleted)")));
            format!("store: revision {revision}: {}", texts.collect::<Vec<_>>().join(", "))
        });
        let changed = self.truth.borrow_mut().wrote(revision, &writes, self.now());
        self.tell(changed);
    }

    /// Restores a backup.
    pub(crate) fn rewind(self: &Rc<Self>, to: u64) {
        self.note(|| format!("store: goes back to revision {to}"));
        let revision = Revision::new(to).expect("it has been there");
        self.store.rewind_to(revision);
        self.lagging.borrow_mut().rewind_to(revision);
        self.trusted.set(None);
        self.histories.set(self.histories.get() + 1);
        let changed = self.truth.borrow_mut().rewound(to, self.now());
        self.tell(changed);
    }

    /// The new holders of these locks learn their tokens, each when it hears of it.
    fn tell(self: &Rc<Self>, changed: Vec<usize>) {
        for lock in changed {
            let Some(token) = self.truth.borrow().locks[lock].token(lock) else { continue };
            let mut chance = Chance::of(self.seed, ("told", lock, &token.owner, token.revision));
            let (world, history) = (Rc::clone(self), self.histories.get());
            self.executor.spawn(Class::World, None, async move {
                tokio::time::sleep(chance.delay(10, 60)).await;
                world.learnt(history, token);
            });
        }
    }

    /// A client learns its token. Who holds a mutex is told the store's revision of that moment.
    fn learnt(&self, history: u64, mut token: Token) {
        let truth = self.truth.borrow();
        let lock = &truth.locks[token.lock];
        let present = lock.present().is_some_and(|span| span.first == token.revision);
        if lock.layout == Layout::Mutex && present {
            token.revision = self.store.revision().get();
        }
        self.told.borrow_mut().push((history, token));
    }

    pub(crate) fn proxy(&self) -> Option<Rc<Proxy>> {
        self.proxy.borrow().clone()
    }

    /// Starts the proxy, after one that saw revisions up to that one.
    pub(crate) fn start_proxy(self: &Rc<Self>, highest_seen: Option<Revision>) {
        let life = self.lives.replace(self.lives.get() + 1);
        let remembered =
            |tenure: &Option<Revision>| Remembered { tenure: *tenure, until: Some(Instant::now() + ORPHAN_TIMEOUT) };
        let locks = self.recorded.borrow().iter().map(|(lock, tenure)| (lock.clone(), remembered(tenure))).collect();
        let accepted = Arc::new(AtomicBool::new(false));
        let memory = Memory { locks, accepted: Arc::clone(&accepted) };
        let memory = self.plan.remembers.then(|| Arc::new(memory) as Arc<dyn GateMemory>);
        let options = SourceOptions {
            period: MAX_AGE / 5,
            jitter_seed: self.seed,
            highest_seen,
            memory,
            ..SourceOptions::default()
        };
        let (source, driver) = LockSource::build("simulated", options, SimulatedStore::new(Rc::clone(self)));
        let (mut static_locks, mut template) = (BTreeMap::new(), None);
        for (key, layout) in self.plan.locks {
            let format = RecordFormat::plain(layout);
            let format = RecordFormat { free_values: vec![FREE.into()], ..format };
            if key.starts_with(TEMPLATE) {
                template = Some(source.template(&TemplateSpec { prefix: TEMPLATE.to_owned(), format }));
            } else {
                let lock = source.track(LockSpec { key: LockKey::new(key).unwrap(), format }).unwrap();
                static_locks.insert(key, lock);
            }
        }
        let templated = template.expect("every plan has templated locks");
        self.executor.spawn(Class::Driver, Some(life), driver);
        self.note(|| format!("proxy: starts, having seen {highest_seen:?}"));
        *self.proxy.borrow_mut() = Some(Rc::new(Proxy { life, source, static_locks, templated, accepted }));
    }

    /// Kills the proxy. Returns the highest revision that it had seen.
    pub(crate) fn kill_proxy(&self) -> Option<Revision> {
        let proxy = self.proxy.borrow_mut().take()?;
        self.note(|| "proxy: killed".to_owned());
        let seen = proxy.source.status(Instant::now()).revision;
        self.executor.kill(proxy.life);
        self.unanswered.set(0);
        self.worker.lose_all(Instant::now() + ORPHAN_TIMEOUT);
        seen
    }

    /// What an operator accepts, a later process knows.
    pub(crate) fn accepted(&self) {
        self.note(|| "operator: accepted that the store went back".to_owned());
        self.accepted.set(self.accepted.get() + 1);
        self.recorded.borrow_mut().values_mut().for_each(|tenure| *tenure = None);
        self.trusted.set(Some(self.now()));
    }

    /// `floor-rises`: it never falls, and is above whatever is known to have ended. A templated lock that nobody holds is forgotten
    /// with its floor: it is another one when it comes again.
    pub(crate) fn check_floors(&self) {
        let Some(proxy) = self.proxy().filter(|_| !self.accepting.get()) else { return };
        let mut seen = self.seen.borrow_mut();
        for lock in proxy.source.locks() {
            let described = lock.describe(Instant::now());
            let floor = described.gate.floor;
            let holder = described.holder.map(|(_, first, _)| first.get());
            let now = Seen { era: self.accepted.get(), lock: Arc::downgrade(&lock), floor, holder };
            assert!(holder <= Some(floor), "{}: the floor is {floor}, but {holder:?} holds the lock", lock.key());
            let key = lock.key().as_str();
            if let Some(before) = seen.get(key).filter(|before| before.era == now.era && before.lock.ptr_eq(&now.lock))
            {
                assert!(before.floor <= floor, "the floor of {key} fell from {} to {floor}", before.floor);
                let ended = before.holder.filter(|_| described.as_of.is_some() && holder.is_none());
                assert!(ended < Some(floor), "{key}: the floor is {floor}, but {ended:?} has ended");
            }
            seen.insert(key.to_owned(), now);
        }
    }
}
