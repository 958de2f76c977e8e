//! Waiting at the gate of a lock: for the requests of earlier tenures, and then for those that came before.
//!
//! The layer and the proxy use it between two looks at the gate. It does not decide what else a request needs before it may
//! enter, such as a connection or a record of its tenure.

use std::pin::pin;
use std::time::Duration;

use fencepost_locks::{Queued, Timing, TrackedLock};
use fencepost_policy::{Admission, EnterError, FenceToken, Rejection};
use tokio::time::{Instant, sleep_until, timeout};

/// How many requests wait at the barrier of one lock. One more is refused as if it had waited.
const WAITING_PER_LOCK_MAX: usize = 1_000;

/// How long the barrier's queue waits for a request that is not ready itself: its connection is missing, or the store is asked.
/// Many times what that takes in a network that works, so that the order is kept; too short to hold up those behind it.
const TURN_MAX: Duration = Duration::from_millis(100);

/// What somebody brings along who waits at a gate.
pub trait AtGate {
    /// Counts a request among those that a barrier holds up, until it is dropped.
    type HeldUp;

    /// Now, and how old news may be that admit the request.
    fn timing(&self) -> Timing;

    /// How long it may wait.
    fn handoff_timeout(&self) -> Duration;

    /// The barrier holds it up from now on. `None`: too many are held up already.
    fn hold_up(&self) -> Option<Self::HeldUp>;
}

/// A request's wait at the gate of its lock. It costs nothing as long as there is nothing to wait for.
#[derive(Debug)]
pub struct Handoff<W> {
    since: Option<Instant>,
    is_crowded: bool,
    /// Boxed, as all that is rare: each request would move the room for it.
    turn: Option<Box<Turn<W>>>,
}

/// A place in the queue of a lock. The requests behind it wait until it is dropped.
#[derive(Debug)]
pub struct Turn<W> {
    place: Queued,
    /// `None` unless the barrier holds it up.
    pub held_up: Option<W>,
}

impl<W> Default for Handoff<W> {
    fn default() -> Handoff<W> {
        Handoff { since: None, is_crowded: false, turn: None }
    }
}

impl<W> Handoff<W> {
    /// Judges the token and counts the request in, unless others come first: one step, nothing in between.
    ///
    /// # Errors
    /// What keeps it out.
    pub fn enter<O: AsRef<[u8]>>(
        &self,
        lock: &TrackedLock,
        token: &FenceToken<O>,
        timing: &Timing,
    ) -> Result<Admission, EnterError> {
        if self.is_behind(lock) {
            self.may_enter(lock, token, timing)?;
            return Err(EnterError::Wait);
        }
        lock.enter(token, timing)
    }

    /// Checks like [`enter`](Self::enter), without counting the request.
    ///
    /// # Errors
    /// What keeps it out.
    pub fn may_enter<O: AsRef<[u8]>>(
        &self,
        lock: &TrackedLock,
        token: &FenceToken<O>,
        timing: &Timing,
    ) -> Result<(), EnterError> {
        lock.may_enter(token, timing)?;
        if self.is_behind(lock) { Err(EnterError::Wait) } else { Ok(()) }
    }

    /// Whether others come first.
    fn is_behind(&self, lock: &TrackedLock) -> bool {
        match &self.turn {
            None => !lock.queue().is_clear(),
            Some(turn) => !turn.place.is_first(),
        }
    }

    /// Waits until the gate may answer otherwise, in the order in which requests came. Gives `ready` back, which the request
    /// needs to go, unless the barrier was closed meanwhile: that would not stay fresh.
    ///
    /// # Errors
    /// `handoff-timeout` if that takes too long, or if there is no room to wait.
    ///
    /// # Cancel safety
    /// Dropping the future keeps the request's place.
    pub async fn wait<G, O, R>(
        &mut self,
        lock: &TrackedLock,
        token: &FenceToken<O>,
        at: &G,
        ready: R,
    ) -> Result<Option<R>, Rejection>
    where
        G: AtGate<HeldUp = W>,
        O: AsRef<[u8]>,
    {
        let deadline = *self.since.get_or_insert_with(Instant::now) + at.handoff_timeout();
        let turn = self.turn.get_or_insert_with(|| Box::new(Turn { place: lock.queue().join(), held_up: None }));
        let mut ready = Some(ready);
        loop {
            let changed = lock.gate_changed();
            // Checked now that no change can be missed. What ends by the clock alone is looked for as of the same moment.
            let timing = at.timing();
            let look = lock.may_enter(token, &timing);
            if matches!(look, Err(EnterError::Wait)) {
                if !turn.hold_up(at) {
                    self.is_crowded = true;
                    return Err(Rejection::HandoffTimeout);
                }
                ready = None;
            } else if look.is_err() || ready.is_none() || turn.place.is_first() {
                return Ok(ready);
            }
            if timing.now >= deadline {
                return Err(Rejection::HandoffTimeout);
            }
            let seen_off = lock.next_unseen(timing.now).unwrap_or(deadline);
            tokio::select! {
                biased;
                () = changed => {}
                () = turn.place.turn(), if ready.is_some() => {}
                () = sleep_until(deadline.min(seen_off)) => {}
            }
        }
    }

    /// Does what a request needs before its turn. The turn passes to those behind it if that takes long.
    pub async fn get_ready<T>(&self, work: impl Future<Output = T>) -> T {
        let Some(turn) = &self.turn else { return work.await };
        let mut work = pin!(work);
        match timeout(TURN_MAX, &mut work).await {
            Ok(done) => done,
            Err(_) => {
                let _aside = turn.place.step_aside();
                work.await
            }
        }
    }

    /// How long it has been waiting, if it had to.
    pub fn waited(&self) -> Option<Duration> {
        self.since.map(|since| since.elapsed())
    }

    /// Whether it has a place among those that wait.
    pub fn is_queued(&self) -> bool {
        self.turn.is_some()
    }

    /// Whether there was no room for it to wait.
    pub fn is_crowded(&self) -> bool {
        self.is_crowded
    }

    /// Takes its place, with which it holds up those behind it.
    pub fn take_turn(&mut self) -> Option<Box<Turn<W>>> {
        self.turn.take()
    }
}

impl<W> Turn<W> {
    /// False if there is no room for it to wait.
    fn hold_up(&mut self, at: &impl AtGate<HeldUp = W>) -> bool {
        if self.held_up.is_none() && self.place.hold_up(WAITING_PER_LOCK_MAX) {
            self.held_up = at.hold_up();
        }
        self.held_up.is_some()
    }
}

/// How many seconds a request that was refused with `handoff-timeout` should wait: as long as an orphan may count, one at least.
pub fn retry_after(lock: &TrackedLock) -> u64 {
    let now = Instant::now();
    let left = lock.unseen_until().map_or(Duration::ZERO, |until| until.saturating_duration_since(now));
    (left.as_secs() + u64::from(left.subsec_nanos() > 0)).max(1)
}

#[cfg(test)]
mod tests {
    use fencepost_locks::{LockSource, LockSpec, MemoryStore, RecordFormat, SourceOptions};
    use fencepost_policy::{Layout, LockKey};

    use super::*;

    #[test]
    fn newcomers_queue_behind_those_that_the_barrier_held_up() {
        let (source, _driver) = LockSource::build("test", SourceOptions::default(), MemoryStore::new());
        let spec = LockSpec { key: LockKey::new("/lock").unwrap(), format: RecordFormat::plain(Layout::Key).into() };
        let lock = source.track(spec).unwrap();
        let newcomer = Handoff::<()>::default();
        assert!(!newcomer.is_behind(&lock));
        let mut held_up = lock.queue().join();
        assert!(held_up.hold_up(WAITING_PER_LOCK_MAX));
        assert!(newcomer.is_behind(&lock));
        let turn = Turn { place: lock.queue().join(), held_up: None };
        let queued = Handoff::<()> { turn: Some(Box::new(turn)), ..Handoff::default() };
        assert!(queued.is_behind(&lock));
        drop(held_up);
        assert!(!newcomer.is_behind(&lock) && !queued.is_behind(&lock));
    }
}
