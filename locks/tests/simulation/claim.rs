//! A claim, and what it has to wait for, as `fencing` and `gate` of the proxy have it.

use std::sync::Arc;
use std::time::Duration;

use fencepost_locks::{Queued, Timing, TrackedLock};
use fencepost_policy::{
    Admission, EnterError, FenceToken, Layout, Rejection, Revision, Tenure, Verdict,
};
use tokio::time::{Instant, sleep, sleep_until};

use crate::chance::Chance;
use crate::checks;
use crate::host::Host;
use crate::life::Proxy;
use crate::proxy::Request;
use crate::truth::Point;
use crate::world::{MAX_AGE, World};

const CONFIRM_TIMEOUT: Duration = Duration::from_millis(200);
const HANDOFF_TIMEOUT: Duration = Duration::from_millis(300);

/// A token, and the lock that it claims to hold.
pub(crate) struct Claim {
    pub(crate) request: Request,
    pub(crate) arrived: Point,
    pub(crate) token: FenceToken<String>,
    pub(crate) lock: Arc<TrackedLock>,
}

/// A wait at the barrier, and then for its turn.
#[derive(Default)]
pub(crate) struct Handoff {
    since: Option<Instant>,
    turn: Option<Queued>,
    /// It has a connection, or needs none.
    pub(crate) is_connected: bool,
    /// It has waited for long enough, and its route says `dangerous_proceed`.
    pub(crate) proceeds: bool,
}

impl Handoff {
    /// Lets the request in, unless it has to wait for that.
    pub(crate) fn enter(&self, claim: &Claim) -> Result<Admission, EnterError> {
        let Claim { lock, token, .. } = claim;
        if self.proceeds {
            return lock.enter_dangerously(token, &claim.timing());
        }
        if self.is_behind(lock) {
            lock.may_enter(token, &claim.timing())?;
            return Err(EnterError::Wait);
        }
        lock.enter(token, &claim.timing())
    }

    /// Checks like [`enter`](Self::enter), without counting the request.
    pub(crate) fn may_enter(&self, claim: &Claim) -> Result<Revision, EnterError> {
        let tenure = claim.lock.may_enter(&claim.token, &claim.timing())?;
        if self.is_behind(&claim.lock) { Err(EnterError::Wait) } else { Ok(tenure) }
    }

    /// Whether others came before it.
    fn is_behind(&self, lock: &TrackedLock) -> bool {
        self.turn.as_ref().map_or_else(|| !lock.queue().is_clear(), |turn| !turn.is_first())
    }
}

impl Claim {
    /// Finds the lock, which is read first if need be.
    pub(crate) async fn of(
        world: &World,
        proxy: &Proxy,
        request: &Request,
        arrived: Point,
    ) -> Result<Claim, Rejection> {
        let key = world.plan.locks[request.token.lock].0;
        let lock = proxy
            .lock(key, Instant::now() + CONFIRM_TIMEOUT)
            .await
            .ok_or(Rejection::Unverifiable)?;
        let revision = Revision::new(request.token.revision).expect("tokens name revisions");
        let token = FenceToken { owner: request.token.owner.clone(), revision };
        Ok(Claim { request: request.clone(), arrived, token, lock })
    }

    pub(crate) fn host<'a>(&self, world: &'a World) -> &'a Host {
        &world.hosts[self.request.host]
    }

    pub(crate) fn timing(&self) -> Timing {
        Timing {
            arrived: self.arrived.at,
            not_before: None,
            now: Instant::now(),
            max_age: MAX_AGE,
            linearizable: self.request.linearizable,
        }
    }

    pub(crate) async fn confirm(&self) -> Result<(), Rejection> {
        let deadline = Instant::now() + CONFIRM_TIMEOUT;
        let mut asked_at = self.arrived.at;
        loop {
            let is_decided =
                || self.lock.view().judge(&self.token, &self.timing()) != Verdict::Confirm;
            let answered = self.lock.confirm_unless(asked_at, deadline, is_decided).await;
            match self.lock.view().judge(&self.token, &self.timing()) {
                Verdict::Admit => return Ok(()),
                Verdict::Reject(reason) => return Err(reason),
                Verdict::Confirm if answered.is_err() || Instant::now() >= deadline => {
                    return Err(Rejection::Unverifiable);
                }
                Verdict::Confirm => asked_at = Instant::now(),
            }
        }
    }

    pub(crate) async fn wait(&self, world: &World, handoff: &mut Handoff) -> Result<(), Rejection> {
        world.count("waits");
        let deadline = *handoff.since.get_or_insert_with(Instant::now) + HANDOFF_TIMEOUT;
        let Handoff { turn, is_connected, .. } = handoff;
        let place = turn.get_or_insert_with(|| self.lock.queue().join());
        loop {
            let changed = self.lock.gate_changed();
            match self.lock.may_enter(&self.token, &self.timing()) {
                Err(EnterError::Wait) => {
                    place.hold_up(usize::MAX);
                    *is_connected = false;
                }
                Ok(_) if *is_connected && !place.is_first() => {}
                Ok(_) | Err(_) => return Ok(()),
            }
            let now = Instant::now();
            if now >= deadline {
                *turn = None; // It is in nobody's way any longer.
                return Err(Rejection::HandoffTimeout);
            }
            let seen_off = self.lock.next_unseen(now).unwrap_or(deadline);
            tokio::select! {
                biased;
                () = changed => {}
                () = place.turn(), if *is_connected => {}
                () = sleep_until(deadline.min(seen_off)) => {
                    if !*is_connected {
                        let entry = self.lock.may_enter(&self.token, &self.timing());
                        checks::waited(world, self, &entry);
                    }
                }
            }
        }
    }

    pub(crate) async fn record(
        &self,
        world: &World,
        tenure: Revision,
        chance: &mut Chance,
    ) -> Result<(), Rejection> {
        let mut recorded_as = tenure;
        loop {
            // The operator may have accepted meanwhile that the store went back.
            let is_present = |present: &&Tenure| (present.first..=present.last).contains(&tenure);
            if self.lock.view().believed_tenure().filter(is_present).is_none() {
                return Ok(());
            }
            let acceptances = self.host(world).disk.written().acceptances;
            sleep(world.delay(chance, 4, 20)).await;
            if world.fails(chance, 30) {
                return Err(Rejection::Unverifiable); // The disk is full.
            }
            let mut written = self.host(world).disk.written();
            if acceptances != written.acceptances {
                return Ok(()); // It was handed over before all that had been was forgotten.
            }
            match written.let_in(self.lock.key(), recorded_as) {
                Ok(()) => {
                    self.lock.recorded(tenure);
                    return Ok(());
                }
                Err(known) if self.is_named(known) => recorded_as = known,
                Err(_) => return Err(Rejection::Unverifiable),
            }
        }
    }

    /// Whether that revision too names the tenure that holds the lock: its history may be shown
    /// farther back than before.
    pub(crate) fn is_named(&self, revision: Revision) -> bool {
        let outlook = self.lock.view();
        let present = outlook.believed_tenure().filter(|_| self.lock.layout() == Layout::Key);
        present.is_some_and(|present| (present.first..=present.last).contains(&revision))
    }
}
