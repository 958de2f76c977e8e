//! What becomes of a request once it is let out. From here on it is nothing to its client.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use fencepost_locks::TrackedLock;
use fencepost_policy::Admission;
use tokio::time::{Instant, sleep, sleep_until};

use crate::chance::Chance;
use crate::executor::Class;
use crate::proxy::Passed;
use crate::worker::{self, Job, Place, Stands};
use crate::world::{ORPHAN_TIMEOUT, World};

const UPSTREAM_TIMEOUT: Duration = Duration::from_millis(120);

/// A request at the worker, or on its way there.
pub(crate) struct Exchange {
    pub(crate) world: Rc<World>,
    pub(crate) name: u64,
    pub(crate) lock: usize,
    pub(crate) chance: Chance,
}

/// How an exchange with the worker goes.
#[derive(Debug)]
enum Fate {
    Answered,
    /// The connection is gone at that time, of which the worker knows nothing.
    Reset(Duration),
    /// There is a large body, whole at that time.
    Uploads(Duration),
}

impl Fate {
    fn of(world: &World, chance: &mut Chance) -> Fate {
        match chance.within(0..=9) {
            0 if !world.is_calm() => Fate::Reset(chance.millis(0..=60)),
            1 | 2 if !world.is_calm() => Fate::Uploads(chance.millis(5..=200)),
            _ => Fate::Answered,
        }
    }
}

impl Exchange {
    /// An admitted request goes out.
    pub(crate) fn admitted(
        mut self,
        life: u64,
        lock: Arc<TrackedLock>,
        admission: Admission,
        proceeds: bool,
    ) {
        let world = Rc::clone(&self.world);
        let place = (world.era(self.lock), admission.tenure().get());
        world.note(|| format!("#{}: let out under {place:?}", self.name));
        world.ledger.entered(self.lock, place);
        let risked =
            world.worker.enters_at_a_risk(self.lock, place, proceeds && world.plan.proceeds);
        let fate = Fate::of(&world, &mut self.chance);
        let upload = if let Fate::Uploads(time) = fate { time } else { Duration::ZERO };
        // The worker may use the part of a body that it has.
        let before = if self.chance.one_in(2) { upload } else { Duration::ZERO };
        let job = self.send(Stands::On(place, risked), before);
        let sent = Sent { exchange: self, place, lock, job };
        world.executor.spawn(Class::Proxy, Some(life), sent.admitted(admission, fate));
    }

    /// A request goes out that only passes.
    pub(crate) fn passed(mut self, life: u64, reason: Passed) {
        let world = Rc::clone(&self.world);
        world.note(|| format!("#{}: passes, {reason:?}", self.name));
        let is_allowed = match reason {
            Passed::Shadow => world.plan.shadows,
            Passed::DangerousAdmit => world.plan.admits,
            Passed::Exempt => true,
        };
        assert!(is_allowed, "#{} passes, but no setting says {reason:?}", self.name);
        let job = self.send(Stands::Passed, Duration::ZERO);
        world.executor.spawn(Class::Proxy, Some(life), async move { job.ended().await });
    }

    fn send(&mut self, stands: Stands, before: Duration) -> Rc<Job> {
        let delay = before + self.world.delay(&mut self.chance, 8, 100);
        let run = self.world.delay(&mut self.chance, 30, 600);
        worker::send(&self.world, self.name, self.lock, stands, delay, run)
    }
}

/// An exchange under way, of a request that was admitted.
struct Sent {
    exchange: Exchange,
    place: Place,
    lock: Arc<TrackedLock>,
    job: Rc<Job>,
}

impl Sent {
    async fn admitted(mut self, admission: Admission, fate: Fate) {
        match fate {
            Fate::Reset(after) => {
                tokio::select! {
                    biased;
                    () = sleep(after) => {}
                    () = self.job.ended() => return self.leave(admission),
                }
                return self.lose(admission, "reset", std::future::pending()).await;
            }
            Fate::Uploads(time) => {
                let whole = Instant::now() + time;
                loop {
                    let changed = self.lock.gate_changed();
                    if self.lock.has_ended(admission.term()) {
                        drop(changed);
                        return self
                            .lose(admission, "its body is cut", std::future::pending())
                            .await;
                    }
                    tokio::select! {
                        biased;
                        () = changed => {}
                        () = sleep_until(whole) => {
                            let is_told = !self.lock.has_ended(admission.term());
                            assert!(is_told, "an upload's tenure has ended, but it was not told");
                            break;
                        }
                    }
                }
            }
            Fate::Answered => {}
        }
        let back = self.exchange.world.delay(&mut self.exchange.chance, 4, 40);
        let job = Rc::clone(&self.job);
        let mut answered = Box::pin(async move {
            job.ended().await;
            sleep(back).await;
        });
        tokio::select! {
            biased;
            () = &mut answered => return self.leave(admission),
            () = sleep(UPSTREAM_TIMEOUT) => {}
        }
        // The connection stays open: a late answer ends the orphan.
        self.lose(admission, "no answer in time", answered).await;
    }

    fn leave(&self, admission: Admission) {
        self.lock.leave(admission);
        self.exchange.world.ledger.left(self.exchange.lock, self.place);
    }

    /// The request counts until its time has come, or its end is seen after all.
    async fn lose(&self, admission: Admission, how: &str, seen: impl Future<Output = ()>) {
        let Exchange { world, name, lock, .. } = &self.exchange;
        let until = Instant::now() + ORPHAN_TIMEOUT;
        world.note(|| format!("#{name}: {how}, it may be at the worker still"));
        world.count("lost");
        self.job.lose(until);
        let orphan = self.lock.lose(admission, until);
        world.ledger.lost(*lock, self.place, until);
        tokio::select! {
            biased;
            () = seen => {}
            () = sleep_until(until) => {}
        }
        self.lock.end_orphan(orphan);
        world.ledger.orphan_ended(*lock, self.place, until);
    }
}
