//! Counts the requests that a route lets past unjudged, for the routes of later configurations that wait for their end.
//! There is one counter per route and configuration. It does not know which lock a request is of.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// Why a request may pass without having been admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PassReason {
    /// Its route only watches.
    Shadow,
    /// Its method is exempt.
    Exempt,
    /// Its route is off.
    Off,
    /// We could not tell, and its route says `dangerous_admit`.
    DangerousAdmit,
}

/// The requests that one route lets past under one configuration.
#[derive(Debug, Default)]
pub struct LetPast {
    counts: Mutex<Counts>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Counts {
    at_worker: usize,
    closed: Option<Closed>,
}

/// A later configuration judges what the route let past.
#[derive(Debug, Clone, Copy)]
struct Closed {
    since: Instant,
    /// When the worker is done with all of it, whether or not its end is seen.
    until: Instant,
}

/// The proof that a request may go upstream though no token of it was admitted. It counts until it is dropped.
#[derive(Debug)]
#[must_use = "a request counts for as long as its pass is there"]
pub struct Pass {
    reason: PassReason,
    let_past: Arc<LetPast>,
}

/// What routes of earlier configurations let past, and a route that judges it waits for.
#[derive(Debug)]
pub struct EarlierPasses {
    /// Gone with the last request of its configuration.
    let_past: Vec<Weak<LetPast>>,
    have_ended: AtomicBool,
}

impl LetPast {
    /// Lets a request past, counted. `None` if the route only watched when the request came and is closed by now: then the request
    /// has to be judged.
    pub fn pass(self: &Arc<LetPast>, reason: PassReason) -> Option<Pass> {
        let mut counts = self.counts();
        if reason == PassReason::Shadow && counts.closed.is_some() {
            return None;
        }
        counts.at_worker += 1;
        Some(Pass { reason, let_past: Arc::clone(self) })
    }

    /// From now on nothing more is let past because the route only watches, and what is at the worker bars until it has ended, for
    /// that long at most. Returns whether anything is there. A second call may put the end off.
    pub fn close(&self, counts_for: Duration) -> bool {
        let now = Instant::now();
        let mut counts = self.counts();
        let closed = counts.closed.get_or_insert(Closed { since: now, until: now });
        closed.until = closed.until.max(closed.since + counts_for);
        let is_any_there = counts.at_worker > 0;
        drop(counts);
        self.changed.notify_waiters();
        is_any_there
    }

    /// Whether a later configuration judges what the route let past.
    pub fn is_closed(&self) -> bool {
        self.counts().closed.is_some()
    }

    /// How many are at the worker, or may be.
    pub fn at_worker(&self) -> usize {
        self.counts().at_worker
    }

    /// Until when those bar at most that are at the worker. `None` if they do not bar, or not any more.
    pub fn bars_until(&self, now: Instant) -> Option<Instant> {
        let counts = self.counts();
        let closed = counts.closed.filter(|closed| counts.at_worker > 0 && closed.until > now);
        closed.map(|closed| closed.until)
    }

    /// Completes when the route is closed, or the last of those has ended. To miss nothing, take it before looking, and await it after.
    pub fn changed(&self) -> impl Future<Output = ()> + '_ {
        let mut changed = Box::pin(self.changed.notified());
        changed.as_mut().enable();
        changed
    }

    /// Completes when nothing bars.
    pub async fn opened(&self) {
        loop {
            let changed = self.changed();
            let Some(until) = self.bars_until(Instant::now()) else { return };
            tokio::select! {
                () = changed => {}
                () = sleep_until(until) => {}
            }
        }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pass {
    /// Where it is counted, if its route only watches: of what it let past then, nothing more is to go out once it is closed.
    pub fn watched(&self) -> Option<&Arc<LetPast>> {
        (self.reason == PassReason::Shadow).then_some(&self.let_past)
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut counts = self.let_past.counts();
        counts.at_worker -= 1;
        let was_last = counts.at_worker == 0;
        drop(counts);
        if was_last {
            self.let_past.changed.notify_waiters();
        }
    }
}

impl EarlierPasses {
    /// Those, all of them closed.
    pub fn new(let_past: Vec<Weak<LetPast>>) -> EarlierPasses {
        EarlierPasses { let_past, have_ended: AtomicBool::new(false) }
    }

    /// Until when they bar at most; `None` once they have ended, which is for good.
    pub fn bar_until(&self, now: Instant) -> Option<Instant> {
        if self.have_ended.load(Ordering::Relaxed) {
            return None;
        }
        let until = self.let_past.iter().filter_map(|let_past| let_past.upgrade()?.bars_until(now)).max();
        self.have_ended.store(until.is_none(), Ordering::Relaxed);
        until
    }

    /// Completes when they bar no more.
    pub async fn opened(&self) {
        for let_past in self.let_past.iter().filter_map(Weak::upgrade) {
            let_past.opened().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_closed_route_bars_until_its_last_request_ends() {
        let let_past = Arc::<LetPast>::default();
        let passes = [PassReason::Shadow, PassReason::Exempt].map(|reason| let_past.pass(reason).unwrap());
        let now = Instant::now();
        assert_eq!((let_past.at_worker(), let_past.bars_until(now)), (2, None), "nobody judges it");
        assert!(let_past.close(5 * SECOND) && let_past.close(3 * SECOND), "the longer time counts");
        assert!(let_past.pass(PassReason::Shadow).is_none(), "it has to be judged");
        let earlier = EarlierPasses::new(vec![Arc::downgrade(&let_past)]);
        for pass in passes {
            assert_eq!(earlier.bar_until(now), Some(now + 5 * SECOND));
            drop(pass);
        }
        assert_eq!((let_past.at_worker(), earlier.bar_until(now)), (0, None));
        drop(let_past.pass(PassReason::Exempt).expect("it needs no judge"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_closed_route_bars_for_its_time_at_most() {
        let let_past = Arc::<LetPast>::default();
        let _pass = let_past.pass(PassReason::Shadow);
        assert!(let_past.close(SECOND));
        let (earlier, began) = (EarlierPasses::new(vec![Arc::downgrade(&let_past)]), Instant::now());
        earlier.opened().await;
        assert_eq!(began.elapsed(), SECOND);
        assert_eq!(earlier.bar_until(Instant::now()), None);
        assert!(let_past.close(2 * SECOND), "another route has a longer time, from the same moment");
        assert_eq!(let_past.bars_until(Instant::now()), Some(began + 2 * SECOND));
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_a_closed_route_hears_of_its_last_end() {
        let let_past = Arc::<LetPast>::default();
        let pass = let_past.pass(PassReason::Shadow);
        let_past.close(SECOND);
        let began = Instant::now();
        tokio::join!(let_past.opened(), async { drop(pass) });
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
}
