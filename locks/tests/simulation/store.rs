//! A store that answers late, or never, or with old data, over a network that holds back, repeats
//! and loses.

use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use fencepost_locks::{
    KeyRange, KeyValue, LockStore, Member, MemoryStore, MemoryWatch, RangeRead, RangeWatch,
    ReadAnswer, StoreError, Swap, Swapped, Watch, WatchNews, Write,
};
use fencepost_policy::Revision;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, sleep_until};

use crate::chance::Chance;
use crate::executor::Class;
use crate::host::Host;
use crate::plan::MEMBERS;
use crate::world::World;

/// How long a call may take.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_millis(50);
const ON_THE_WAY_MIN: Duration = Duration::from_millis(1);

pub(crate) struct SimulatedStore {
    world: Rc<World>,
    host: Rc<Host>,
}

/// The watches of the present life of the proxy, as far as it knows of them.
#[derive(Default)]
pub(crate) struct Watches {
    begun: u64,
    /// Those that have caught up and not ended.
    up: BTreeSet<u64>,
    up_since: Option<Instant>,
    losses: u64,
    /// A read that was sent since the last loss has failed.
    read_failed: bool,
}

impl Watches {
    /// Since when one has been up all the time.
    pub(crate) fn up_since(&self) -> Option<Instant> {
        self.up_since
    }

    pub(crate) fn read_failed(&self) -> bool {
        self.read_failed
    }

    fn caught_up(&mut self, watch: u64) {
        self.up.insert(watch);
        self.up_since.get_or_insert_with(Instant::now);
        self.read_failed = false;
    }

    fn ended(&mut self, watch: u64) {
        if self.up.remove(&watch) && self.up.is_empty() {
            self.up_since = None;
            self.losses += 1;
        }
    }

    /// A read failed that was sent when that many losses had happened.
    fn failed(&mut self, losses: u64) {
        self.read_failed |= self.up.is_empty() && losses > 0 && self.losses == losses;
    }
}

/// A member that has not caught up: etcd-io/etcd#20418 would let it answer.
#[derive(Default)]
pub(crate) struct Lagging {
    store: MemoryStore,
    behind: VecDeque<Vec<Write>>,
}

impl Lagging {
    pub(crate) fn wrote(&mut self, writes: Vec<Write>) {
        self.behind.push_back(writes);
    }

    /// Catches up but for so many writes.
    fn catch_up(&mut self, but_for: usize) -> &MemoryStore {
        while self.behind.len() > but_for {
            self.store.transact(self.behind.pop_front().expect("there are more than that"));
        }
        &self.store
    }

    pub(crate) fn rewind_to(&mut self, revision: Revision) {
        self.catch_up(0).rewind_to(revision);
    }
}

impl SimulatedStore {
    /// For a life of the proxy that begins.
    pub(crate) fn new(world: Rc<World>, host: Rc<Host>) -> SimulatedStore {
        let begun = host.watches.borrow().begun;
        host.watches.replace(Watches { begun, ..Watches::default() });
        SimulatedStore { world, host }
    }

    /// The way there and what may happen on it; the way back is left for [`SimulatedStore::back`].
    async fn there(&self, chance: &mut Chance) -> Result<Instant, StoreError> {
        let deadline = Instant::now() + CALL_TIMEOUT;
        // Not at once: a read that arrives at the store in the very instant in which it was sent
        // would be of before the request that asked for it, and yet count as sent after it.
        let arrives = Instant::now() + ON_THE_WAY_MIN + self.world.delay(chance, 6, 60);
        sleep_until(arrives).await;
        if self.world.loses(&self.host, chance) {
            sleep_until(deadline).await;
            return Err(silent());
        }
        in_time(arrives, deadline)?;
        Ok(deadline)
    }

    async fn try_read(&self, ranges: &[RangeRead]) -> Result<ReadAnswer, StoreError> {
        let mut chance = self.world.next_call((self.host.number, format!("{ranges:?}")));
        let deadline = self.there(&mut chance).await?;
        let answer = if self.world.plan.stale_reads && self.world.fails(&mut chance, 4) {
            let but_for = chance.within(1..=6) as usize;
            let old = self.world.lagging.borrow_mut().catch_up(but_for).clone();
            old.read(ranges).await?
        } else {
            self.world.store.read(ranges).await?
        };
        self.back(&mut chance, deadline).await?;
        Ok(answer)
    }

    async fn back(&self, chance: &mut Chance, deadline: Instant) -> Result<(), StoreError> {
        let arrives = Instant::now() + self.world.delay(chance, 6, 60);
        sleep_until(arrives.min(deadline)).await;
        in_time(arrives, deadline)
    }
}

/// What arrives in time counts, though a process that stood still meanwhile looks at it later.
fn in_time(arrives: Instant, deadline: Instant) -> Result<(), StoreError> {
    if arrives < deadline { Ok(()) } else { Err(silent()) }
}

fn silent() -> StoreError {
    StoreError::Unavailable("no answer in time".into())
}

/// Whether that is about the members of the group, and not about locks.
fn is_of_group(range: &KeyRange) -> bool {
    matches!(range, KeyRange::Prefix(prefix) if **prefix == *MEMBERS.as_bytes())
}

impl LockStore for SimulatedStore {
    type Watch = SimulatedWatch;

    async fn read(&self, ranges: &[RangeRead]) -> Result<ReadAnswer, StoreError> {
        let losses = self.host.watches.borrow().losses;
        let is_of_locks = !ranges.iter().any(|read| is_of_group(&read.range));
        self.try_read(ranges).await.inspect_err(|_| {
            if is_of_locks {
                self.host.watches.borrow_mut().failed(losses);
            }
        })
    }

    async fn read_at(&self, key: &[u8], at: Revision) -> Result<Option<KeyValue>, StoreError> {
        let mut chance = self.world.next_call((self.host.number, key, at));
        let deadline = self.there(&mut chance).await?;
        let answer = self.world.store.read_at(key, at).await?;
        self.back(&mut chance, deadline).await?;
        Ok(answer)
    }

    async fn watch(&self, ranges: &[RangeWatch]) -> Result<SimulatedWatch, StoreError> {
        let starts: Vec<Revision> = ranges.iter().map(|watch| watch.from).collect();
        let mut chance = self.world.next_call((self.host.number, "watch", starts));
        let deadline = self.there(&mut chance).await?;
        self.back(&mut chance, deadline).await?;
        let watch = self.world.store.watch(ranges).await?;
        let silent_after = self.world.fails(&mut chance, 6).then(|| chance.within(0..=6));
        let is_of_locks = !ranges.iter().any(|watch| is_of_group(&watch.range));
        let number = is_of_locks.then(|| {
            let mut watches = self.host.watches.borrow_mut();
            watches.begun += 1;
            watches.begun
        });
        Ok(SimulatedWatch {
            world: Rc::clone(&self.world),
            host: Rc::clone(&self.host),
            number,
            watch,
            chance,
            silent_after,
            on_the_way: Vec::new(),
            latest: vec![Instant::now(); ranges.len()],
        })
    }

    /// Once it is sent, it is under way whatever becomes of its sender: it may be done late, and
    /// its answer lost.
    async fn swap(&self, swap: &Swap) -> Result<Swapped, StoreError> {
        let asked = (self.host.number, "swap", &swap.key, swap.expected);
        let mut chance = self.world.next_call(asked);
        let deadline = Instant::now() + CALL_TIMEOUT;
        let (sender, answer) = oneshot::channel();
        let (world, host, swap) = (Rc::clone(&self.world), Rc::clone(&self.host), swap.clone());
        self.world.executor.spawn(Class::World, None, async move {
            sleep(ON_THE_WAY_MIN + world.delay(&mut chance, 6, 60)).await;
            if world.loses(&host, &mut chance) {
                return;
            }
            if world.fails(&mut chance, 20) {
                sleep(chance.millis(50..=1_500)).await;
            }
            let swapped = world.store.swap(&swap).await;
            world.swapped(&host, &swap, &swapped);
            sleep(world.delay(&mut chance, 6, 60)).await;
            if !world.loses(&host, &mut chance) {
                let _ = sender.send(swapped); // Who asked may be gone.
            }
        });
        tokio::select! {
            biased;
            Ok(swapped) = answer => swapped,
            () = sleep_until(deadline) => Err(silent()),
        }
    }

    async fn members(&self) -> Vec<Member> {
        Vec::new()
    }
}

/// Delivers each range's news in order, those of different ranges in any.
pub(crate) struct SimulatedWatch {
    world: Rc<World>,
    host: Rc<Host>,
    /// `None` if it is about the members of the group.
    number: Option<u64>,
    watch: MemoryWatch,
    chance: Chance,
    /// From then on it neither delivers nor ends: its connection leads nowhere.
    silent_after: Option<u64>,
    /// When it arrives, for which range.
    on_the_way: Vec<(Instant, usize, WatchNews)>,
    latest: Vec<Instant>,
}

impl SimulatedWatch {
    fn note_end(&self) {
        if let Some(number) = self.number {
            self.host.watches.borrow_mut().ended(number);
        }
    }

    fn send(&mut self, news: WatchNews) {
        let delay = self.chance.delay(8, self.world.plan.watch_lag);
        let arrives = Instant::now() + delay;
        let (range, arrives) = match news {
            WatchNews::Events { range, .. } | WatchNews::Compacted { range } => {
                self.latest[range] = self.latest[range].max(arrives);
                (range, self.latest[range])
            }
            // Behind the past of all ranges.
            WatchNews::CaughtUp => {
                (usize::MAX, self.latest.iter().copied().fold(arrives, Instant::max))
            }
        };
        if self.chance.one_in(8) && matches!(news, WatchNews::Events { .. }) {
            self.on_the_way.push((arrives, range, news.clone())); // Twice.
        }
        self.on_the_way.push((arrives, range, news));
        self.on_the_way.sort_by_key(|(arrives, range, _)| (*arrives, *range)); // Stable.
    }
}

impl Watch for SimulatedWatch {
    async fn next(&mut self) -> Result<WatchNews, StoreError> {
        loop {
            if self.silent_after == Some(0) {
                std::future::pending::<()>().await;
            }
            let next = self.on_the_way.first().map(|(arrives, ..)| *arrives);
            let is_cut_off = self.world.is_cut_off(&self.host);
            if next.is_some_and(|arrives| arrives <= Instant::now()) && !is_cut_off {
                self.silent_after = self.silent_after.map(|left| left - 1);
                let (_, _, news) = self.on_the_way.remove(0);
                if let (WatchNews::CaughtUp, Some(number)) = (&news, self.number) {
                    self.host.watches.borrow_mut().caught_up(number);
                }
                return Ok(news);
            }
            // While the store is cut off it is looked at again and again, as a network does that
            // sends again.
            let again = next.map(|arrives| arrives.max(Instant::now() + Duration::from_millis(5)));
            let again = if is_cut_off { again } else { next };
            tokio::select! {
                biased;
                news = self.watch.next() => {
                    self.send(news.inspect_err(|_| self.note_end())?);
                }
                () = async { sleep_until(again.expect("it is asked for only if there is one")).await }, if again.is_some() => {}
            }
        }
    }
}

impl Drop for SimulatedWatch {
    fn drop(&mut self) {
        self.note_end();
    }
}
