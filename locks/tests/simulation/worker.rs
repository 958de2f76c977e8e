//! A worker that begins requests late, goes on with those whose connection is gone, and can't
//! defend itself.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::executor::Class;
use crate::world::World;

/// A tenure's place in the order that the gate promises: which era, and its `first` revision.
pub(crate) type Place = (u64, u64);

/// What a request was let out on.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Stands {
    /// Its tenure. `true`: overlap was said to be better than waiting, so that earlier ones may
    /// still be here.
    On(Place, bool),
    /// A pass: it overlaps with whatever is here.
    Passed,
}

/// A request that went to the worker.
pub(crate) struct Job {
    pub(crate) name: u64,
    host: usize,
    lock: usize,
    stands: Stands,
    is_whole: Cell<bool>,
    begun: Cell<bool>,
    /// It will neither begin nor go on after that: the operator's bound on requests whose end is
    /// not seen.
    bound: Cell<Option<Instant>>,
    changed: Notify,
    ended: Cell<bool>,
    end: Notify,
}

#[derive(Default)]
pub(crate) struct Worker {
    jobs: RefCell<Vec<Rc<Job>>>,
    latest_written: RefCell<BTreeMap<usize, Place>>,
    latest_begun: RefCell<BTreeMap<usize, Place>>,
    /// No earlier tenure may begin any more, a client was told.
    fenced: RefCell<BTreeMap<usize, Place>>,
    /// The latest of the true tenures that was let out.
    latest_let_out: RefCell<BTreeMap<usize, usize>>,
    /// The tenures that did not wait for earlier ones, and whether another process has gone on with
    /// them since.
    risked: RefCell<BTreeMap<(usize, Place), bool>>,
    overlaps: Cell<u64>,
    /// Until when nothing of this is promised: an operator has deleted a key of the group.
    excused_until: Cell<Option<Instant>>,
}

impl Worker {
    /// How often requests were at work together that the settings of their routes allow to be.
    pub(crate) fn overlaps(&self) -> u64 {
        self.overlaps.get()
    }

    /// Whether a request that is let out now may overlap with earlier ones: it did not wait for
    /// them, or a process that was killed has not, in whose tenure's name this one goes on.
    pub(crate) fn enters_at_a_risk(&self, lock: usize, place: Place, proceeds: bool) -> bool {
        let mut risked = self.risked.borrow_mut();
        if proceeds {
            risked.entry((lock, place)).or_default();
        }
        proceeds || risked.get(&(lock, place)).is_some_and(|inherited| *inherited)
    }

    /// Nothing is promised until then.
    pub(crate) fn excuse(&self, until: Instant) {
        self.excused_until.set(Some(until));
    }

    fn is_excused(&self) -> bool {
        self.excused_until.get().is_some_and(|until| Instant::now() < until)
    }

    /// `whole-or-cut`, `written-is-standing`: nothing of a tenure is written after something of a
    /// later one.
    fn check_written(&self, lock: usize, place: Place, name: u64) {
        let mut latest = self.latest_written.borrow_mut();
        let latest = latest.entry(lock).or_default();
        let is_in_order = place >= *latest || self.is_excused();
        assert!(is_in_order, "#{name} of {place:?} is written after one of {latest:?}");
        *latest = place.max(*latest);
    }

    /// `no-overlap`: what of an earlier tenure is still here, when one of this tenure goes out.
    fn check_entering(&self, lock: usize, place: Place) {
        for job in self.jobs.borrow().iter().filter(|job| job.lock == lock) {
            let Stands::On(there, _) = job.stands else { continue };
            assert!(
                there >= place || self.is_excused(),
                "a request of {place:?} is let out while #{} of {there:?} may be at the worker",
                job.name,
            );
        }
    }

    /// Somebody was told that nothing of earlier tenures is at the worker, or ever will be.
    pub(crate) fn fence(&self, lock: usize, place: Place) {
        if !self.enters_at_a_risk(lock, place, false) {
            self.check_entering(lock, place);
            let mut fenced = self.fenced.borrow_mut();
            let known = fenced.entry(lock).or_default();
            *known = (*known).max(place);
        }
    }

    /// Tenures are let out in the order in which they truly were, whatever the proxy takes them
    /// for.
    pub(crate) fn check_order(&self, lock: usize, tenure: usize, name: u64) {
        let mut latest = self.latest_let_out.borrow_mut();
        let latest = latest.entry(lock).or_default();
        assert!(
            *latest <= tenure || self.is_excused(),
            "#{name} of the lock's tenure number {tenure} is let out after one of number {latest}"
        );
        *latest = tenure.max(*latest);
    }

    /// The proxy of that host is killed, or stands still for so long that this comes to the same.
    pub(crate) fn lose_all(&self, host: usize, until: Instant) {
        let jobs = self.jobs.borrow();
        jobs.iter().filter(|job| job.host == host).for_each(|job| job.lose(until));
        self.risked.borrow_mut().values_mut().for_each(|inherited| *inherited = true);
    }

    fn begins(&self, job: &Job) {
        job.begun.set(true);
        let Stands::On(place, risked) = job.stands else { return };
        let mut latest = self.latest_begun.borrow_mut();
        let latest = latest.entry(job.lock).or_default();
        let is_excused = self.is_excused();
        assert!(
            place >= *latest || is_excused,
            "#{} of {place:?} begins after one of {latest:?}",
            job.name
        );
        if !risked {
            *latest = place.max(*latest); // Otherwise an earlier one may begin still.
        }
        let fenced = self.fenced.borrow().get(&job.lock).copied().unwrap_or_default();
        assert!(
            place >= fenced || is_excused,
            "#{} of {place:?} begins behind the closed door of {fenced:?}",
            job.name
        );
        for other in
            self.jobs.borrow().iter().filter(|other| other.lock == job.lock && other.begun.get())
        {
            let Stands::On(there, other_risked) = other.stands else { continue };
            let is_allowed = if there < place { risked } else { other_risked };
            assert!(
                there == place || is_allowed || is_excused,
                "#{} and #{} overlap at the worker",
                other.name,
                job.name
            );
            self.overlaps.set(self.overlaps.get() + u64::from(there != place));
        }
    }

    fn ends(&self, job: &Job) {
        self.jobs.borrow_mut().retain(|other| other.name != job.name);
        job.ended.set(true);
        job.end.notify_one();
    }
}

impl Job {
    /// Nobody sees its end any more.
    pub(crate) fn lose(&self, until: Instant) {
        let bound = self.bound.get().map_or(until, |bound| bound.min(until));
        self.bound.set(Some(bound));
        self.changed.notify_one();
    }

    /// Its last piece is written.
    pub(crate) fn set_whole(&self, world: &World) {
        if let Stands::On(place, false) = self.stands {
            world.worker.check_written(self.lock, place, self.name);
        }
        self.is_whole.set(true);
        self.changed.notify_one();
    }

    /// Until all of it is there, or no more will come.
    async fn whole(&self) {
        while !self.is_whole.get() && self.bound.get().is_none() {
            self.changed.notified().await;
        }
    }

    pub(crate) async fn ended(&self) {
        while !self.ended.get() {
            self.end.notified().await;
        }
    }

    /// Until then, or until its time has come. Says whether there was time.
    async fn until(&self, planned: Instant) -> bool {
        loop {
            let last = self.bound.get().map(|bound| bound - Duration::from_millis(1));
            let end = last.map_or(planned, |last| last.min(planned));
            tokio::select! {
                biased;
                () = self.changed.notified() => {}
                () = sleep_until(end) => return last.is_none_or(|last| planned <= last),
            }
        }
    }
}

/// A request that comes to the worker.
pub(crate) struct Arrival {
    pub(crate) name: u64,
    pub(crate) host: usize,
    pub(crate) lock: usize,
    pub(crate) stands: Stands,
}

/// Sends a request to the worker, which begins it so long after it has come.
pub(crate) fn send(
    world: &Rc<World>,
    arrival: Arrival,
    needs_whole: bool,
    delay: Duration,
    run: Duration,
) -> Rc<Job> {
    let Arrival { name, host, lock, stands } = arrival;
    if let Stands::On(place, false) = stands {
        world.worker.check_written(lock, place, name);
        world.worker.check_entering(lock, place);
    }
    let job = Rc::new(Job {
        name,
        host,
        lock,
        stands,
        is_whole: Cell::new(!needs_whole),
        begun: Cell::new(false),
        bound: Cell::new(None),
        changed: Notify::new(),
        ended: Cell::new(false),
        end: Notify::new(),
    });
    world.worker.jobs.borrow_mut().push(Rc::clone(&job));
    let (there, sent) = (Rc::clone(world), Rc::clone(&job));
    world.executor.spawn(Class::Worker, None, async move {
        sent.whole().await;
        let begins = Instant::now() + delay;
        if sent.until(begins).await {
            there.note(|| format!("worker: begins #{name}, {stands:?}"));
            there.worker.begins(&sent);
            sent.until(begins + run).await;
            there.note(|| format!("worker: ends #{name}"));
        }
        there.worker.ends(&sent);
    });
    job
}
