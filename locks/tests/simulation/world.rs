//! The world of one seed: store, proxy, worker, clients, and what is true of them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use fencepost_locks::{MemoryStore, Write};
use fencepost_policy::{Layout, Revision};
use tokio::time::Instant;

use crate::chance::Chance;
use crate::executor::{Class, Executor};
use crate::group::{Deleted, VirtualSystem};
use crate::host::Host;
use crate::plan::Plan;
use crate::store::Lagging;
use crate::truth::{Point, Token, Truth, Written};
use crate::worker::{Place, Worker};

pub(crate) const MAX_AGE: Duration = Duration::from_millis(500);
pub(crate) const ORPHAN_TIMEOUT: Duration = Duration::from_millis(400);

pub(crate) struct World {
    pub(crate) seed: u64,
    pub(crate) plan: Plan,
    pub(crate) executor: Executor,
    pub(crate) store: MemoryStore,
    pub(crate) lagging: RefCell<Lagging>,
    pub(crate) truth: RefCell<Truth>,
    pub(crate) worker: Worker,
    pub(crate) hosts: Vec<Rc<Host>>,
    pub(crate) member_system: Arc<VirtualSystem>,
    pub(crate) deleted: RefCell<Vec<Deleted>>,
    /// Whose routes only watch.
    pub(crate) shadows: RefCell<Vec<bool>>,
    /// The tokens that clients have learnt, and in which of the store's histories.
    pub(crate) told: RefCell<Vec<(u64, Token)>>,
    /// How often the store went back.
    pub(crate) histories: Cell<u64>,
    /// How often an operator has accepted that the store went back.
    pub(crate) accepted: Cell<u64>,
    /// How often the gates of each lock began anew, with nothing to tell them what was before.
    anew: RefCell<BTreeMap<usize, u64>>,
    /// Since when the store has had one history, as far as the proxy could know.
    pub(crate) trusted: Cell<Option<Point>>,
    /// The oldest revision that is not compacted away.
    pub(crate) compacted: Cell<u64>,
    pub(crate) counts: RefCell<BTreeMap<String, u64>>,
    /// Nothing is sent any more.
    pub(crate) clients_rest: Cell<bool>,
    pub(crate) is_over: Cell<bool>,
    pub(crate) lives: Cell<u64>,
    /// How many have queued for locks.
    pub(crate) queued: Cell<u64>,
    is_calm: Cell<bool>,
    cut_off_until: Cell<Instant>,
    calls: RefCell<BTreeMap<u64, u64>>,
    start: Instant,
    trace: RefCell<Vec<String>>,
}

impl World {
    pub(crate) fn new(seed: u64, plan: Plan) -> Rc<World> {
        let start = Instant::now();
        Rc::new(World {
            seed,
            executor: Executor::new(start),
            store: MemoryStore::new(),
            lagging: RefCell::default(),
            member_system: Arc::new(VirtualSystem::new(seed, start)),
            deleted: RefCell::default(),
            truth: RefCell::new(Truth::new(&plan.locks)),
            worker: Worker::default(),
            hosts: (0..plan.members).map(|number| Rc::new(Host::new(number, start))).collect(),
            shadows: RefCell::new(
                plan.locks.iter().map(|(lock, _)| plan.shadows && *lock != "queue").collect(),
            ),
            told: RefCell::default(),
            histories: Cell::new(0),
            accepted: Cell::new(0),
            anew: RefCell::default(),
            trusted: Cell::new(Some(Point { at: start, step: 0 })),
            compacted: Cell::new(1),
            counts: RefCell::default(),
            clients_rest: Cell::new(false),
            is_over: Cell::new(false),
            lives: Cell::new(0),
            queued: Cell::new(0),
            is_calm: Cell::new(false),
            cut_off_until: Cell::new(start),
            calls: RefCell::default(),
            start,
            trace: RefCell::default(),
            plan,
        })
    }

    /// Tenures of one lock and one era have the order of their revisions.
    pub(crate) fn era(&self, lock: usize) -> u64 {
        self.accepted.get() + self.anew.borrow().get(&lock).copied().unwrap_or_default()
    }

    /// The place of the tenure that `token` names, and some proxy knows as `first`. After a
    /// compaction the members of a group may know one tenure by different ones.
    pub(crate) fn place(&self, token: &Token, first: Revision) -> Place {
        if self.is_group() {
            let named = self.truth.borrow().locks[token.lock].named_by(token);
            (0, named.expect("what is let in has held the lock") as u64)
        } else {
            (self.era(token.lock), first.get())
        }
    }

    pub(crate) fn begin_anew(&self, lock: usize) {
        self.note(|| {
            format!(
                "what was let in of {} is forgotten, and the store went back unnoticed",
                self.plan.locks[lock].0
            )
        });
        self.count("anew");
        *self.anew.borrow_mut().entry(lock).or_default() += 1;
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

    /// The chances of the next call of that kind. By what is asked, so that it matters not which of
    /// two calls at one instant comes first.
    pub(crate) fn next_call(&self, asked: impl Hash) -> Chance {
        let mut hasher = DefaultHasher::new();
        (asked, self.start.elapsed()).hash(&mut hasher);
        let call = hasher.finish();
        let mut calls = self.calls.borrow_mut();
        let times = calls.entry(call).or_default();
        *times += 1;
        Chance::of(self.seed, ("call", call, *times))
    }

    /// Faults end: no call is lost any more, none takes long, the worker answers all.
    pub(crate) fn calm_down(&self) {
        self.note(|| "all faults end".to_owned());
        self.is_calm.set(true);
        self.cut_off_until.set(Instant::now());
        self.hosts.iter().for_each(|host| host.cut_off(Instant::now()));
    }

    pub(crate) fn is_calm(&self) -> bool {
        self.is_calm.get()
    }

    /// Mostly up to `usual`, now and then up to `rare`, in milliseconds; not once all is calm.
    pub(crate) fn delay(&self, chance: &mut Chance, usual: u64, rare: u64) -> Duration {
        chance.delay(usual, if self.is_calm() { usual } else { rare })
    }

    /// Whether something goes wrong that does so once in so many times.
    pub(crate) fn fails(&self, chance: &mut Chance, times: u64) -> bool {
        chance.one_in(times) && !self.is_calm()
    }

    /// Whether the store is out of reach of that host.
    pub(crate) fn is_cut_off(&self, host: &Host) -> bool {
        Instant::now() < self.cut_off_until.get() || host.is_cut_off()
    }

    /// Whether a message between that host and the store is lost.
    pub(crate) fn loses(&self, host: &Host, chance: &mut Chance) -> bool {
        self.is_cut_off(host) || self.fails(chance, self.plan.lost_calls)
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
            let texts = writes.iter().map(|write| {
                format!("{} = {}", write.key, write.value.as_deref().unwrap_or("(deleted)"))
            });
            format!("store: revision {revision}: {}", texts.collect::<Vec<_>>().join(", "))
        });
        let changed = self.truth.borrow_mut().wrote(revision, &writes, self.now());
        self.tell(changed);
    }

    /// Whether there are several proxies, which are the members of a group.
    pub(crate) fn is_group(&self) -> bool {
        self.hosts.len() > 1
    }

    /// A lock by chance. In a group most of what happens is about the first ones.
    pub(crate) fn any_lock(&self, chance: &mut Chance) -> usize {
        let lock = chance.index(self.plan.locks.len());
        if self.is_group() { lock.min(chance.index(self.plan.locks.len())) } else { lock }
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
}
