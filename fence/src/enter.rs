//! A request's way into the gate of its lock: get ready, judge, wait, enter. The proxy and the
//! layer share it. It does not decide what a refusal means: that is for its callers.

use std::future::{pending, ready};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use fencepost_locks::{Queued, Timing};
use fencepost_policy::{Admission, EnterError, Rejection, Revision};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until, timeout};

use crate::claim::{Claim, Confirmed};
use crate::permit::Entry;

/// How many requests wait at the barrier of one lock. Further requests are refused as if they had
/// waited.
const WAITING_PER_LOCK_MAX: usize = 1_000;

/// How many requests wait at barriers in all.
pub const WAITING_MAX: usize = 10_000;

/// How long the queue waits for a request that is not ready itself, because it lacks a connection
/// or the store is asked. In a network that works, a request is ready much sooner, so the order is
/// kept. The limit is too short to hold up the requests behind it.
const TURN_MAX: Duration = Duration::from_millis(100);

/// How many tenures a request has recorded before it is refused.
const RECORDS_MAX: u32 = 8;

/// A request before the gate of its lock: what differs between the proxy and the layer.
pub trait AtGate {
    /// What goes along with a request that the barrier holds up, until the request has begun or
    /// given up.
    type HeldUp;

    /// What the request claims.
    fn claim(&self) -> &Claim;

    /// Now, and how old news may be that admit the request.
    fn timing(&self) -> Timing;

    /// How long the request may wait at the barrier.
    fn handoff_timeout(&self) -> Duration;

    /// How long the request may wait for the store.
    fn confirm_timeout(&self) -> Duration;

    /// Has a permit for each request that may still wait at a barrier, of [`WAITING_MAX`].
    fn waiting_room(&self) -> &Arc<Semaphore>;

    /// Called when the barrier begins to hold the request up.
    fn hold_up(&self) -> Self::HeldUp;

    /// Called when a request that was held up has entered, or has waited for too long.
    fn wait_ended(&self, _: &mut Self::HeldUp, _: WaitEnd) {}

    /// Called with the result of a confirming read.
    fn confirmed(&self, _: Confirmed) {}

    /// Records a tenure for later processes, before its first request enters.
    fn record(&self, _: Revision) -> impl Future<Output = Result<(), Rejection>> {
        ready(Err(Rejection::Unverifiable)) // Only gates that remember ask for this.
    }

    /// Completes when [`Timing::not_before`] may have become earlier.
    fn opened(&self) -> impl Future<Output = ()> {
        pending()
    }

    /// Completes with a reason once no request may wait any longer.
    fn interrupted(&self) -> impl Future<Output = Rejection> {
        pending()
    }

    /// Whether a request that has waited for too long enters past the barrier.
    fn goes_past_barrier(&self) -> bool {
        false
    }
}

/// How a request's wait at a barrier ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitEnd {
    /// The request has entered.
    Entered,
    /// The request has waited for too long.
    TimedOut,
}

/// A place in the queue of a lock. The requests behind it wait until it is dropped.
#[derive(Debug)]
pub struct QueuePlace<W> {
    queued: Queued,
    /// `None` unless the barrier holds the request up.
    held_up: Option<(W, OwnedSemaphorePermit)>,
}

/// A request that has entered the gate.
#[derive(Debug)]
pub struct Entered<R, W> {
    /// Its entry, which leaves the gate when it is dropped.
    pub entry: Entry,
    /// What the request has got ready.
    pub ready: R,
    /// Its place in the queue, to be dropped when the request has begun. Boxed, because it is rare
    /// and every request is moved.
    pub place: Option<Box<QueuePlace<W>>>,
    /// When it entered.
    pub at: Instant,
}

/// Gets a request ready, waits until no request of an earlier tenure is at the worker, and counts
/// the request in. `get_ready` is given what was got ready before, if that was not needed yet.
///
/// # Errors
/// Those of `get_ready`; why the gate keeps the request out, `handoff-timeout` if that takes too
/// long.
pub async fn enter<G, R, E, F>(
    at: &G,
    get_ready: impl Fn(Option<R>) -> F,
) -> Result<Entered<R, G::HeldUp>, E>
where
    G: AtGate,
    E: From<Rejection>,
    F: Future<Output = Result<R, E>>,
{
    let mut wait = Wait::new(at);
    let mut kept = None;
    loop {
        let ready = match &wait.place {
            None => get_ready(kept.take()).await?,
            Some(_) => Box::pin(wait.in_turn(get_ready(kept.take()))).await?,
        };
        let timing = at.timing();
        match wait.try_enter(&timing) {
            Ok(admission) => {
                let entry = Entry::new(Arc::clone(&at.claim().lock), admission);
                wait.end(WaitEnd::Entered);
                return Ok(Entered { entry, ready, place: wait.place.take(), at: timing.now });
            }
            Err(EnterError::Wait) => match Box::pin(wait.at_barrier(ready)).await {
                Ok(ready) => kept = ready,
                Err(Rejection::HandoffTimeout) if !wait.is_crowded && at.goes_past_barrier() => {
                    wait.past_barrier = true
                }
                Err(reason) => return Err(reason.into()),
            },
            Err(kept_out) => {
                drop(ready); // Others may have it meanwhile; it would not stay fresh.
                Box::pin(wait.resolve(kept_out)).await?;
            }
        }
    }
}

/// Waits like [`enter`], without counting a request: from then on no request of an earlier tenure
/// is at the worker, or ever will be.
///
/// # Errors
/// Why the gate keeps the caller out, `handoff-timeout` if that takes too long.
pub async fn close_door<G: AtGate>(at: &G) -> Result<(), Rejection> {
    let mut wait = Wait::new(at);
    loop {
        match wait.look(&at.timing()) {
            Ok(()) => break,
            Err(EnterError::Wait) => drop(wait.at_barrier(()).await?),
            Err(kept_out) => wait.resolve(kept_out).await?,
        }
    }
    wait.end(WaitEnd::Entered);
    Ok(())
}

/// Asks the store until the claim is decided.
///
/// # Errors
/// Why the claim is refused; `unverifiable` if the store does not answer in time.
pub async fn confirm<G: AtGate>(at: &G) -> Result<(), Rejection> {
    let confirmed = tokio::select! {
        biased;
        confirmed = at.claim().confirm(Instant::now() + at.confirm_timeout(), || at.timing()) => confirmed,
        reason = at.interrupted() => return Err(reason),
    };
    at.confirmed(confirmed);
    match confirmed {
        Confirmed::Admitted => Ok(()),
        Confirmed::Refused(reason) => Err(reason),
        Confirmed::Unanswered => Err(Rejection::Unverifiable),
    }
}

/// A request's wait at the gate. It allocates nothing as long as there is nothing to wait for.
struct Wait<'g, G: AtGate> {
    at: &'g G,
    since: Option<Instant>,
    place: Option<Box<QueuePlace<G::HeldUp>>>,
    /// No room was left to wait in.
    is_crowded: bool,
    /// It has waited for long enough, and enters past the barrier.
    past_barrier: bool,
    records: u32,
}

impl<'g, G: AtGate> Wait<'g, G> {
    fn new(at: &'g G) -> Wait<'g, G> {
        Wait { at, since: None, place: None, is_crowded: false, past_barrier: false, records: 0 }
    }

    /// Judges once more and counts the request in, unless others come first: one step, nothing in
    /// between.
    fn try_enter(&self, timing: &Timing) -> Result<Admission, EnterError> {
        let Claim { token, lock } = self.at.claim();
        if self.past_barrier {
            return lock.enter_dangerously(token, timing);
        }
        if self.is_behind() {
            lock.may_enter(token, timing)?;
            return Err(EnterError::Wait);
        }
        lock.enter(token, timing)
    }

    /// Judges like [`try_enter`](Wait::try_enter), without counting the request.
    fn look(&self, timing: &Timing) -> Result<(), EnterError> {
        let Claim { token, lock } = self.at.claim();
        lock.may_enter(token, timing)?;
        if self.is_behind() { Err(EnterError::Wait) } else { Ok(()) }
    }

    /// Whether others come first.
    fn is_behind(&self) -> bool {
        match &self.place {
            None => !self.at.claim().lock.queue().is_clear(),
            Some(place) => !place.queued.is_first(),
        }
    }

    /// Waits until the gate may answer otherwise, in the order of arrival. Gives `ready` back,
    /// unless the barrier was closed: `ready` would not stay fresh.
    async fn at_barrier<R>(&mut self, ready: R) -> Result<Option<R>, Rejection> {
        let Claim { token, lock } = self.at.claim();
        let deadline = *self.since.get_or_insert_with(Instant::now) + self.at.handoff_timeout();
        let place = self.place.get_or_insert_with(|| {
            Box::new(QueuePlace { queued: lock.queue().join(), held_up: None })
        });
        let mut ready = Some(ready);
        loop {
            // Before the look, so that no change is missed.
            let (changed, opened) = (lock.gate_changed(), self.at.opened());
            let timing = self.at.timing();
            let look = lock.may_enter(token, &timing);
            if matches!(look, Err(EnterError::Wait)) {
                if !place.hold_up(self.at) {
                    self.is_crowded = true;
                    break;
                }
                ready = None;
            } else if look.is_err() || ready.is_none() || place.queued.is_first() {
                return Ok(ready);
            }
            if timing.now >= deadline {
                break;
            }
            let seen_off = lock.next_unseen(timing.now).unwrap_or(deadline);
            tokio::select! {
                biased;
                () = changed => {}
                () = place.queued.turn(), if ready.is_some() => {}
                () = sleep_until(deadline.min(seen_off)) => {}
                () = opened => {}
                reason = self.at.interrupted() => return Err(reason),
            }
        }
        self.end(WaitEnd::TimedOut);
        self.place = None; // It is in nobody's way any longer.
        Err(Rejection::HandoffTimeout)
    }

    /// Does what the gate asks for before it may be tried again.
    async fn resolve(&mut self, kept_out: EnterError) -> Result<(), Rejection> {
        match kept_out {
            EnterError::Refused(reason) => Err(reason),
            EnterError::Wait => Ok(()),
            EnterError::Confirm => self.in_turn(confirm(self.at)).await,
            EnterError::Record(_) if self.records == RECORDS_MAX => Err(Rejection::Unverifiable),
            EnterError::Record(tenure) => {
                self.records += 1;
                self.in_turn(self.at.record(tenure)).await
            }
        }
    }

    /// Does what the request needs before its turn. The turn passes to those behind it if that
    /// takes long.
    async fn in_turn<T>(&self, work: impl Future<Output = T>) -> T {
        let Some(place) = &self.place else { return work.await };
        let mut work = pin!(work);
        match timeout(TURN_MAX, &mut work).await {
            Ok(done) => done,
            Err(_) => {
                let _aside = place.queued.step_aside();
                work.await
            }
        }
    }

    fn end(&mut self, how: WaitEnd) {
        let held_up = self.place.iter_mut().filter_map(|place| place.held_up.as_mut());
        held_up.for_each(|(held_up, _)| self.at.wait_ended(held_up, how));
    }
}

impl<W> QueuePlace<W> {
    /// False if there is no room for the request to wait.
    fn hold_up(&mut self, at: &impl AtGate<HeldUp = W>) -> bool {
        if self.held_up.is_none() && self.queued.hold_up(WAITING_PER_LOCK_MAX) {
            let waiting = Arc::clone(at.waiting_room()).try_acquire_owned();
            self.held_up = waiting.ok().map(|waiting| (at.hold_up(), waiting));
        }
        self.held_up.is_some()
    }
}

#[cfg(test)]
mod tests {
    use fencepost_locks::{LockSource, LockSpec, MemoryStore, RecordFormat, SourceOptions};
    use fencepost_policy::{FenceToken, Layout, LockKey};
    use http::HeaderValue;

    use super::*;

    struct Request(Claim, Arc<Semaphore>);

    impl AtGate for Request {
        type HeldUp = ();

        fn claim(&self) -> &Claim {
            &self.0
        }

        fn timing(&self) -> Timing {
            let now = Instant::now();
            Timing { arrived: now, not_before: None, now, max_age: TURN_MAX, linearizable: false }
        }

        fn handoff_timeout(&self) -> Duration {
            TURN_MAX
        }

        fn confirm_timeout(&self) -> Duration {
            TURN_MAX
        }

        fn waiting_room(&self) -> &Arc<Semaphore> {
            &self.1
        }

        fn hold_up(&self) {}
    }

    #[test]
    fn newcomers_queue_behind_requests_that_a_barrier_held_up() {
        let (source, _driver) =
            LockSource::build("test", SourceOptions::default(), MemoryStore::new());
        let spec = LockSpec {
            key: LockKey::new("/lock").unwrap(),
            format: RecordFormat::plain(Layout::Key).into(),
        };
        let token = FenceToken { owner: HeaderValue::from_static("a"), revision: Revision::MIN };
        let request = Request(
            Claim { token, lock: source.track(spec).unwrap() },
            Arc::new(Semaphore::new(1)),
        );
        let queue = request.claim().lock.queue();
        let newcomer = Wait::new(&request);
        assert!(!newcomer.is_behind());
        let mut held_up = queue.join();
        assert!(held_up.hold_up(WAITING_PER_LOCK_MAX));
        assert!(newcomer.is_behind());
        let place = QueuePlace { queued: queue.join(), held_up: None };
        let queued = Wait { place: Some(Box::new(place)), ..Wait::new(&request) };
        assert!(queued.is_behind());
        drop(held_up);
        assert!(!newcomer.is_behind() && !queued.is_behind());
    }
}
