//! Runs all tasks of a simulation on one thread, in one order: of all tasks that can go on, always
//! the first.
//!
//! So what happens at one instant happens one after the other, and the source has dealt with one
//! thing before the next one happens.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, poll_fn};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use tokio::time::Instant;

/// Which tasks go first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Class {
    /// The source's driver.
    Driver,
    /// The operator, who accepts a regression.
    Operator,
    /// Requests at the worker.
    Worker,
    /// The proxy and its clients.
    Proxy,
    /// All else that happens in the world.
    World,
}

type Id = (Class, u64);

/// A task that is dropped when the proxy is killed says of which life of the proxy it is.
pub(crate) type Life = Option<u64>;

struct Task {
    future: Pin<Box<dyn Future<Output = ()>>>,
    waker: Waker,
    life: Life,
}

#[derive(Default)]
struct Ready {
    raised: Mutex<BTreeSet<Id>>,
    main: Mutex<Option<Waker>>,
}

struct Raise {
    id: Id,
    ready: Arc<Ready>,
}

impl Wake for Raise {
    fn wake(self: Arc<Self>) {
        self.ready.raised.lock().unwrap().insert(self.id);
        let main = self.ready.main.lock().unwrap().clone();
        main.iter().for_each(Waker::wake_by_ref);
    }
}

pub(crate) struct Executor {
    tasks: RefCell<BTreeMap<Id, Task>>,
    ready: Arc<Ready>,
    /// The lives that stand still, and which tasks of them were woken since.
    still: RefCell<BTreeMap<u64, BTreeSet<Id>>>,
    made: Cell<u64>,
    steps: Cell<u64>,
    start: Instant,
    /// Which tasks took a step, in which order and at which times.
    order: RefCell<DefaultHasher>,
}

impl Executor {
    pub(crate) fn new(start: Instant) -> Executor {
        Executor {
            tasks: RefCell::default(),
            ready: Arc::default(),
            still: RefCell::default(),
            made: Cell::new(0),
            steps: Cell::new(0),
            start,
            order: RefCell::default(),
        }
    }

    pub(crate) fn spawn(
        &self,
        class: Class,
        life: Life,
        future: impl Future<Output = ()> + 'static,
    ) {
        let id = (class, self.made.replace(self.made.get() + 1));
        let waker = Waker::from(Arc::new(Raise { id, ready: Arc::clone(&self.ready) }));
        waker.wake_by_ref();
        self.tasks.borrow_mut().insert(id, Task { future: Box::pin(future), waker, life });
    }

    /// No task of a life takes a step from now on, as when its process is stopped.
    pub(crate) fn hold(&self, life: u64) {
        self.still.borrow_mut().entry(life).or_default();
    }

    /// The tasks of a life go on.
    pub(crate) fn release(&self, life: u64) {
        let woken = self.still.borrow_mut().remove(&life).unwrap_or_default();
        self.ready.raised.lock().unwrap().extend(woken);
    }

    /// Drops all tasks of a life, wherever they are.
    pub(crate) fn kill(&self, life: u64) {
        self.still.borrow_mut().remove(&life);
        let mut killed = BTreeMap::new();
        self.tasks.borrow_mut().retain(|id, task| {
            let lives = task.life != Some(life);
            if !lives {
                let nothing =
                    Task { future: Box::pin(async {}), waker: Waker::noop().clone(), life: None };
                killed.insert(*id, std::mem::replace(task, nothing));
            }
            lives
        });
        drop(killed); // Not while the tasks are borrowed: what is dropped may wake others.
    }

    /// How many steps were taken; orders what happens at one instant.
    pub(crate) fn steps(&self) -> u64 {
        self.steps.get()
    }

    /// Differs if the tasks did not take the same steps.
    pub(crate) fn fingerprint(&self) -> u64 {
        self.order.borrow().finish()
    }

    /// Runs until `done`, and drops all tasks then.
    pub(crate) async fn run(&self, after_step: impl Fn(Class, Life), done: impl Fn() -> bool) {
        let work = poll_fn(|context| {
            *self.ready.main.lock().unwrap() = Some(context.waker().clone());
            while !done() {
                let Some(id) = self.ready.raised.lock().unwrap().pop_first() else {
                    return Poll::Pending;
                };
                if let Some(life) = self.step(id) {
                    after_step(id.0, life);
                }
            }
            Poll::Ready(())
        });
        // All tasks are one to tokio, which would have it pause after a while.
        tokio::task::unconstrained(work).await;
        let tasks = std::mem::take(&mut *self.tasks.borrow_mut());
        drop(tasks);
    }

    /// Of which life the task is, if it took a step.
    fn step(&self, id: Id) -> Option<Life> {
        let mut task = self.tasks.borrow_mut().remove(&id)?;
        let (life, mut still) = (task.life, self.still.borrow_mut());
        if let Some(woken) = life.and_then(|life| still.get_mut(&life)) {
            woken.insert(id);
            self.tasks.borrow_mut().insert(id, task);
            return None;
        }
        drop(still);
        self.steps.set(self.steps.get() + 1);
        (id, self.start.elapsed()).hash(&mut *self.order.borrow_mut());
        if task.future.as_mut().poll(&mut Context::from_waker(&task.waker)).is_pending() {
            self.tasks.borrow_mut().insert(id, task);
        }
        Some(life)
    }
}
