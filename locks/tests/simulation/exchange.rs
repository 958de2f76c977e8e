//! What becomes of a request once it is let out. From here on it is nothing to its client.

use std::future::pending;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use fencepost_locks::TrackedLock;
use fencepost_policy::Admission;
use tokio::time::{Instant, sleep, sleep_until};

use crate::chance::Chance;
use crate::executor::Class;
use crate::host::Host;
use crate::life::Proxy;
use crate::proxy::Passed;
use crate::standing::Writes;
use crate::truth::Token;
use crate::worker::{self, Arrival, Job, Place, Stands};
use crate::world::{ORPHAN_TIMEOUT, World};

const UPSTREAM_TIMEOUT: Duration = Duration::from_millis(120);

/// A request at the worker, or on its way there.
pub(crate) struct Exchange {
    pub(crate) world: Rc<World>,
    pub(crate) host: Rc<Host>,
    pub(crate) name: u64,
    pub(crate) token: Token,
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
        proxy: &Proxy,
        lock: Arc<TrackedLock>,
        admission: Admission,
        proceeds: bool,
    ) {
        let world = Rc::clone(&self.world);
        let place = (world.era(self.lock), admission.tenure().get());
        world.note(|| format!("#{}: let out under {place:?}", self.name));
        let at_worker = world.place(&self.token, admission.tenure());
        self.host.ledger.entered(self.lock, place);
        let risked =
            world.worker.enters_at_a_risk(self.lock, at_worker, proceeds && world.plan.proceeds);
        let fate = Fate::of(&world, &mut self.chance);
        let let_in =
            LetIn { place, at_worker, risked, lock, writes: Writes::of(proxy.source.group()) };
        let going = self.goes(let_in, admission, fate);
        world.executor.spawn(Class::Proxy, Some(proxy.life), going);
    }

    /// Writes the request to the worker, unless that is too late by now.
    async fn goes(mut self, let_in: LetIn, admission: Admission, fate: Fate) {
        let LetIn { place, at_worker, risked, lock, writes } = let_in;
        if writes.is_in_group() {
            self.host.last_let_in.set(self.lock);
            self.host.lets_in.notify_waiters();
            sleep(self.world.delay(&mut self.chance, 1, 30)).await;
            if !writes.may_write().await {
                self.world.note(|| format!("#{}: is never written", self.name));
                self.world.count("never written");
                lock.leave(admission);
                return self.host.ledger.left(self.lock, place);
            }
        }
        // The worker may use the part of a body that it has.
        let needs_whole = matches!(fate, Fate::Uploads(_)) && self.chance.one_in(2);
        let job = self.send(Stands::On(at_worker, risked), needs_whole);
        Sent { exchange: self, place, lock, job, writes }.admitted(admission, fate).await;
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
        let job = self.send(Stands::Passed, false);
        world.executor.spawn(Class::Proxy, Some(life), async move { job.ended().await });
    }

    fn send(&mut self, stands: Stands, needs_whole: bool) -> Rc<Job> {
        let delay = self.world.delay(&mut self.chance, 8, 100);
        let run = if self.world.is_group() && self.world.fails(&mut self.chance, 4) {
            self.chance.millis(0..=2_000)
        } else {
            self.world.delay(&mut self.chance, 30, 600)
        };
        let arrival = Arrival { name: self.name, host: self.host.number, lock: self.lock, stands };
        worker::send(&self.world, arrival, needs_whole, delay, run)
    }
}

/// What a request that was let in goes out on.
struct LetIn {
    /// The place of its tenure, as its gate has it.
    place: Place,
    /// The place of its tenure, as the worker is judged by it.
    at_worker: Place,
    risked: bool,
    lock: Arc<TrackedLock>,
    writes: Writes,
}

/// An exchange under way, of a request that was admitted.
struct Sent {
    exchange: Exchange,
    place: Place,
    lock: Arc<TrackedLock>,
    job: Rc<Job>,
    writes: Writes,
}

impl Sent {
    async fn admitted(mut self, admission: Admission, fate: Fate) {
        match fate {
            Fate::Reset(after) => {
                tokio::select! {
                    biased;
                    () = sleep(after) => {}
                    () = self.writes.cut() => {}
                    () = self.job.ended() => return self.leave(admission),
                }
                return self.lose(admission, "reset", pending()).await;
            }
            Fate::Uploads(time) => {
                let mut last_piece = Box::pin(async {
                    sleep(time).await;
                    self.writes.may_write().await
                });
                loop {
                    let changed = self.lock.gate_changed();
                    if self.lock.has_ended(admission.term()) {
                        drop(changed);
                        drop(last_piece);
                        return self.lose(admission, "its body is cut", pending()).await;
                    }
                    tokio::select! {
                        biased;
                        () = changed => {}
                        () = self.writes.cut() => {
                            drop(last_piece);
                            return self.lose(admission, "reset with its body", pending()).await;
                        }
                        is_written = &mut last_piece => {
                            assert!(is_written, "a reset would have been noticed before");
                            let is_told = !self.lock.has_ended(admission.term());
                            assert!(is_told, "an upload's tenure has ended, but it was not told");
                            self.job.set_whole(&self.exchange.world);
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
            () = self.writes.cut() => return self.lose(admission, "reset at the end", pending()).await,
            () = sleep(UPSTREAM_TIMEOUT) => {}
        }
        // The connection stays open: a late answer ends the orphan.
        let seen = async {
            tokio::select! {
                biased;
                () = &mut answered => {}
                () = self.writes.cut() => pending().await,
            }
        };
        self.lose(admission, "no answer in time", seen).await;
    }

    fn leave(&self, admission: Admission) {
        self.lock.leave(admission);
        self.exchange.host.ledger.left(self.exchange.lock, self.place);
    }

    /// The request counts until its time has come, or its end is seen after all.
    async fn lose(&self, admission: Admission, how: &str, seen: impl Future<Output = ()>) {
        let Exchange { world, host, name, lock, .. } = &self.exchange;
        let until = Instant::now() + ORPHAN_TIMEOUT;
        world.note(|| format!("#{name}: {how}, it may be at the worker still"));
        world.count("lost");
        self.job.lose(until);
        let orphan = self.lock.lose(admission, until);
        host.ledger.lost(*lock, self.place, until);
        tokio::select! {
            biased;
            () = seen => {}
            () = sleep_until(until) => {}
        }
        self.lock.end_orphan(orphan);
        host.ledger.orphan_ended(*lock, self.place, until);
    }
}
