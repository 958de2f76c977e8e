//! The lives of the proxy: it is started, killed and started again, and remembers what it has
//! recorded.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use fencepost_locks::{
    GateMemory, LockSource, LockSpec, MemberSystem, RecordFormat, SourceOptions, TemplateSpec,
    TemplatedLocks, TrackedLock,
};
use fencepost_policy::{LockKey, Revision};
use tokio::time::Instant;

use crate::chance::Chance;
use crate::executor::Class;
use crate::host::Host;
use crate::plan::TEMPLATE;
use crate::store::SimulatedStore;
use crate::truth::FREE;
use crate::world::{MAX_AGE, ORPHAN_TIMEOUT, World};

/// One life of the proxy: from its start until it is killed.
pub(crate) struct Proxy {
    pub(crate) life: u64,
    pub(crate) source: LockSource,
    static_locks: BTreeMap<&'static str, Arc<TrackedLock>>,
    templated: TemplatedLocks,
}

impl Proxy {
    pub(crate) async fn lock(
        &self,
        key: &'static str,
        deadline: Instant,
    ) -> Option<Arc<TrackedLock>> {
        match self.static_locks.get(key) {
            Some(lock) => Some(Arc::clone(lock)),
            None => self.templated.load(key, deadline).await.ok(),
        }
    }
}

impl World {
    /// Starts the proxy of a host, after one that saw revisions up to that one.
    pub(crate) fn start_proxy(self: &Rc<Self>, host: &Rc<Host>, highest_seen: Option<Revision>) {
        let life = self.lives.replace(self.lives.get() + 1);
        let memory = host.disk.memory(Instant::now() + ORPHAN_TIMEOUT);
        let memory = self.plan.remembers.then(|| Arc::new(memory) as Arc<dyn GateMemory>);
        let options = SourceOptions {
            period: MAX_AGE / 5,
            jitter_seed: self.seed + host.number as u64,
            highest_seen,
            distrusted_through: host.disk.written().distrusted,
            memory,
            group: self.plan.group(host.number),
            member_system: Arc::clone(&self.member_system) as Arc<dyn MemberSystem>,
            tracked_locks_max: self.plan.tracked_locks_max,
            ..SourceOptions::default()
        };
        let (source, driver) = LockSource::build(
            "simulated",
            options,
            SimulatedStore::new(Rc::clone(self), Rc::clone(host)),
        );
        let (mut static_locks, mut template) = (BTreeMap::new(), None);
        for (key, layout) in self.plan.locks {
            let format = RecordFormat::plain(layout);
            let format = Arc::new(RecordFormat { free_values: vec![FREE.into()], ..format });
            if key.starts_with(TEMPLATE) {
                template =
                    Some(source.template(&TemplateSpec { prefix: TEMPLATE.to_owned(), format }));
            } else {
                let lock =
                    source.track(LockSpec { key: LockKey::new(key).unwrap(), format }).unwrap();
                static_locks.insert(key, lock);
            }
        }
        let templated = template.expect("every plan has templated locks");
        self.executor.spawn(Class::Driver, Some(life), driver);
        host.started.set(Instant::now());
        host.distrusted.set(source.status(Instant::now()).distrusted_through);
        host.drains.set(false);
        self.note(|| format!("{host}: starts, having seen {highest_seen:?}"));
        *host.proxy.borrow_mut() = Some(Rc::new(Proxy { life, source, static_locks, templated }));
    }

    /// Kills the proxy of a host. Returns the highest revision that it had seen.
    pub(crate) fn kill_proxy(&self, host: &Host) -> Option<Revision> {
        let proxy = host.proxy.borrow_mut().take()?;
        self.note(|| format!("{host}: killed"));
        let seen = proxy.source.status(Instant::now()).revision;
        self.executor.kill(proxy.life);
        host.unanswered.set(0);
        host.ledger.clear();
        host.seen.borrow_mut().clear();
        self.worker.lose_all(host.number, Instant::now() + ORPHAN_TIMEOUT);
        seen
    }

    /// An operator accepts that the store went back, and may be gone before hearing what became of
    /// that.
    pub(crate) fn accept_regression(self: &Rc<Self>, proxy: Rc<Proxy>) {
        let world = Rc::clone(self);
        let leaves =
            Chance::of(self.seed, ("operator", proxy.life, self.executor.steps())).one_in(2);
        self.executor.spawn(Class::Operator, Some(proxy.life), async move {
            let mut answer = pin!(proxy.source.accept_regression());
            let asked = poll_fn(|context| Poll::Ready(answer.as_mut().poll(context))).await;
            if leaves {
                world.count("operator left");
            } else if asked.is_pending() {
                let _ = answer.await; // It shows.
            }
        });
    }

    /// The proxy has taken over what an operator accepted.
    pub(crate) fn accepted(&self, host: &Host) {
        self.note(|| "operator: accepted that the store went back".to_owned());
        self.accepted.set(self.accepted.get() + 1);
        host.noticed.set(None);
        self.trusted.set(Some(self.now()));
    }
}
