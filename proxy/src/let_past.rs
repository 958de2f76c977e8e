//! Counts the requests that a route lets past unjudged, for the routes of later configurations that
//! wait for their end. There is one counter per route and configuration. It does not know which
//! lock a request is of.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// Why a request may pass without having been admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PassReason {
    /// Its route is in shadow mode.
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
pub struct LetPast(watch::Sender<Counts>);

#[derive(Debug, Default)]
struct Counts {
    at_worker: usize,
    /// How many of those came when the route was closed: they need no judge, and bar nobody.
    late: usize,
    /// When the worker is done with the others, whether or not their end is seen; `None` until a
    /// later configuration judges what the route let past.
    closed_until: Option<Instant>,
}

/// The proof that a request may go upstream though no token of it was admitted. It counts until it
/// is dropped.
#[derive(Debug)]
#[must_use = "a request counts for as long as its pass is there"]
pub struct Pass {
    reason: PassReason,
    is_late: bool,
    let_past: Arc<LetPast>,
}

impl LetPast {
    /// Lets a request past and counts it. `None` if the request came in shadow mode and the route
    /// is closed now: then the request has to be judged.
    pub fn pass(self: &Arc<LetPast>, reason: PassReason) -> Option<Pass> {
        let mut is_late = None;
        self.0.send_if_modified(|counts| {
            is_late = Some(counts.closed_until.is_some())
                .filter(|is_late| reason != PassReason::Shadow || !is_late);
            counts.at_worker += usize::from(is_late.is_some());
            counts.late += usize::from(is_late == Some(true));
            false // Nobody waits for one more.
        });
        Some(Pass { reason, is_late: is_late?, let_past: Arc::clone(self) })
    }

    /// From now on nothing more is let past because the route only watches, and what is at the
    /// worker bars until it has ended, for that long at most. Nothing that comes later does, and a
    /// second call changes nothing: what does not bar never will again. Returns whether anything
    /// bars.
    pub fn close(&self, counts_for: Duration) -> bool {
        let now = Instant::now();
        self.0.send_modify(|counts| _ = counts.closed_until.get_or_insert(now + counts_for));
        self.bars_until(now).is_some()
    }

    /// Whether a later configuration judges what the route let past.
    pub fn is_closed(&self) -> bool {
        self.0.borrow().closed_until.is_some()
    }

    /// How many are at the worker, or may be.
    pub fn at_worker(&self) -> usize {
        self.0.borrow().at_worker
    }

    /// Until when those bar at most that are at the worker. `None` if they do not bar, or not any
    /// more.
    pub fn bars_until(&self, now: Instant) -> Option<Instant> {
        let counts = self.0.borrow();
        counts.closed_until.filter(|until| counts.at_worker > counts.late && *until > now)
    }

    /// Completes when the route is closed, or the last of those has ended. To miss nothing, take it
    /// before looking, and await it after.
    pub fn changed(&self) -> impl Future<Output = ()> + use<> {
        let mut counts = self.0.subscribe();
        async move { drop(counts.changed().await) }
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
}

impl Pass {
    /// Where it is counted, if its route only watches: of what it let past then, nothing more is to
    /// go out once it is closed.
    pub fn watched(&self) -> Option<&Arc<LetPast>> {
        (self.reason == PassReason::Shadow).then_some(&self.let_past)
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.let_past.0.send_if_modified(|counts| {
            counts.at_worker -= 1;
            counts.late -= usize::from(self.is_late);
            counts.at_worker == counts.late
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_closed_route_bars_until_its_last_request_ends() {
        let let_past = Arc::<LetPast>::default();
        let passes =
            [PassReason::Shadow, PassReason::Exempt].map(|reason| let_past.pass(reason).unwrap());
        let now = Instant::now();
        assert_eq!((let_past.at_worker(), let_past.bars_until(now)), (2, None), "nobody judges it");
        assert!(let_past.close(5 * SECOND) && let_past.close(9 * SECOND), "the first time counts");
        assert!(let_past.pass(PassReason::Shadow).is_none(), "it has to be judged");
        for pass in passes {
            assert_eq!(let_past.bars_until(now), Some(now + 5 * SECOND));
            drop(pass);
        }
        assert_eq!((let_past.at_worker(), let_past.bars_until(now)), (0, None));
        let late = let_past.pass(PassReason::Exempt).expect("it needs no judge");
        assert_eq!(
            (let_past.at_worker(), let_past.bars_until(now)),
            (1, None),
            "who has looked would miss its end"
        );
        assert!(!let_past.close(9 * SECOND));
        drop(late);
        assert_eq!(let_past.at_worker(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_closed_route_bars_for_its_time_at_most() {
        let let_past = Arc::<LetPast>::default();
        let _pass = let_past.pass(PassReason::Shadow);
        assert!(let_past.close(SECOND));
        let began = Instant::now();
        let_past.opened().await;
        assert_eq!(began.elapsed(), SECOND);
        assert!(!let_past.close(9 * SECOND), "it is over");
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
