//! The proxy's way with a request, as `fencing` and `gate` of the proxy have it, without HTTP.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use fencepost_policy::{Admission, Entry, FenceToken, Layout, Rejection, Revision, Snapshot, Tenure, Verdict};
use fencepost_sources::{Queued, Timing, TrackedLock};
use tokio::time::{Instant, sleep, sleep_until};

use crate::chance::Chance;
use crate::executor::Class;
use crate::truth::{Point, Token};
use crate::worker;
use crate::world::{MAX_AGE, ORPHAN_TIMEOUT, World};

const CONFIRM_TIMEOUT: Duration = Duration::from_millis(200);
const HANDOFF_TIMEOUT: Duration = Duration::from_millis(300);
const UPSTREAM_TIMEOUT: Duration = Duration::from_millis(120);
const BODY_MILLIS_MAX: u64 = 60;

/// By when every request is answered, or at the worker: a load, a confirmation, a body, a wait at the barrier, and then
/// once more a record, a connection and a confirmation.
pub(crate) const ANSWER_MAX: Duration = Duration::from_millis(1_200);

/// What a client wants.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) name: u64,
    pub(crate) token: Token,
    pub(crate) linearizable: bool,
    /// It asks for the door to be closed behind its predecessor.
    pub(crate) is_fence: bool,
    /// When the client goes away.
    pub(crate) leaves: Option<Duration>,
}

struct Claim {
    request: Request,
    arrived: Point,
    token: FenceToken<String>,
    lock: Arc<TrackedLock>,
}

impl Claim {
    fn timing(&self) -> Timing {
        Timing {
            arrived: self.arrived.at,
            now: Instant::now(),
            max_age: MAX_AGE,
            linearizable: self.request.linearizable,
        }
    }

    async fn confirm(&self) -> Result<(), Rejection> {
        let deadline = Instant::now() + CONFIRM_TIMEOUT;
        let mut asked_at = self.arrived.at;
        loop {
            let answered = self.lock.confirm(asked_at, deadline).await;
            match self.lock.outlook().judge(&self.token, &self.timing()) {
                Verdict::Admit => return Ok(()),
                Verdict::Reject(reason) => return Err(reason),
                Verdict::Confirm if answered.is_err() || Instant::now() >= deadline => {
                    return Err(Rejection::Unverifiable);
                }
                Verdict::Confirm => asked_at = Instant::now(),
            }
        }
    }

    /// Waits at the barrier, and then for its turn.
    async fn handoff(&self, handoff: &mut Handoff) -> Result<(), Rejection> {
        let deadline = *handoff.since.get_or_insert_with(Instant::now) + HANDOFF_TIMEOUT;
        let turn = handoff.turn.get_or_insert_with(|| self.lock.queue().join());
        loop {
            let changed = self.lock.gate_changed();
            match self.lock.may_enter(&self.token, &self.timing()) {
                Err(Entry::Wait) => {
                    turn.hold_up(usize::MAX);
                    handoff.is_connected = false;
                }
                Ok(_) if handoff.is_connected && !turn.is_first() => {}
                Ok(_) | Err(_) => return Ok(()),
            }
            let now = Instant::now();
            if now >= deadline {
                return Err(Rejection::HandoffTimeout);
            }
            let seen_off = self.lock.unseen_until().filter(|until| *until > now).unwrap_or(deadline);
            tokio::select! {
                biased;
                () = changed => {}
                () = turn.turn(), if handoff.is_connected => {}
                () = sleep_until(deadline.min(seen_off)) => {}
            }
        }
    }
}

/// A wait at the barrier.
#[derive(Default)]
struct Handoff {
    since: Option<Instant>,
    turn: Option<Queued>,
    /// It has a connection, or needs none.
    is_connected: bool,
}

impl Handoff {
    fn is_behind(&self, lock: &TrackedLock) -> bool {
        self.turn.as_ref().map_or_else(|| !lock.queue().is_clear(), |turn| !turn.is_first())
    }
}

/// A request arrives at the proxy.
pub(crate) async fn arrive(world: Rc<World>, request: Request) {
    let mut chance = Chance::of(world.seed, ("request", request.name));
    let (name, arrived) = (request.name, world.now());
    // Not a forged one, nor one of a history that is lost.
    let is_genuine = world.told.borrow().contains(&(world.histories.get(), request.token.clone()));
    world.note(|| {
        let Request { token: Token { lock, owner, revision }, linearizable, is_fence, .. } = &request;
        let kind = if *is_fence { "fence" } else { "request" };
        let read = if *linearizable { ", linearizable" } else { "" };
        format!("#{name}: {kind} of ({owner}, {revision}) for {}{read}", world.plan.locks[*lock].0)
    });
    world.unanswered.set(world.unanswered.get() + 1);
    let leaves = arrived.at + request.leaves.unwrap_or(Duration::from_secs(3600));
    let outcome = tokio::select! {
        biased;
        outcome = serve(&world, &request, arrived, &mut chance) => Some(outcome),
        () = sleep_until(leaves) => None,
    };
    world.unanswered.set(world.unanswered.get() - 1);
    let Some(outcome) = outcome else {
        world.note(|| format!("#{name}: its client has left"));
        return world.count("left");
    };
    let answer = match outcome {
        Ok(()) => "admitted",
        Err(reason) => reason.code(),
    };
    world.note(|| format!("#{name}: {answer}"));
    world.count(answer);
    assert!(arrived.at.elapsed() <= ANSWER_MAX, "#{name} was answered only after {:?}", arrived.at.elapsed());
    if let Err(reason) = outcome
        && is_genuine
    {
        check_refusal(&world, &request, arrived, reason);
    }
}

async fn serve(world: &Rc<World>, request: &Request, arrived: Point, chance: &mut Chance) -> Result<(), Rejection> {
    let proxy = world.proxy().ok_or(Rejection::Draining)?;
    let key = world.plan.locks[request.token.lock].0;
    let Some(lock) = proxy.lock(key, Instant::now() + CONFIRM_TIMEOUT).await else {
        return Err(Rejection::Unverifiable);
    };
    let revision = Revision::new(request.token.revision).expect("tokens name revisions");
    let token = FenceToken { owner: request.token.owner.clone(), revision };
    let claim = Claim { request: request.clone(), arrived, token, lock };
    match claim.lock.outlook().judge(&claim.token, &claim.timing()) {
        Verdict::Admit => {}
        Verdict::Reject(reason) => return Err(reason),
        Verdict::Confirm => claim.confirm().await?,
    }
    if !request.is_fence {
        sleep(chance.delay(4, BODY_MILLIS_MAX)).await;
    }
    let mut handoff = Handoff::default();
    loop {
        if !request.is_fence && !handoff.is_connected {
            sleep(chance.delay(2, 20)).await; // Until there is a connection.
        }
        handoff.is_connected = true;
        let is_behind = handoff.is_behind(&claim.lock);
        let entry = if request.is_fence || is_behind {
            match claim.lock.may_enter(&claim.token, &claim.timing()) {
                Ok(_) if is_behind => Entry::Wait,
                Ok(tenure) => {
                    world.worker.fence(request.token.lock, (world.accepted.get(), tenure.get()));
                    return Ok(());
                }
                Err(entry) => entry,
            }
        } else {
            claim.lock.enter(&claim.token, &claim.timing())
        };
        match entry {
            Entry::Admitted(admission) => {
                entered(world, proxy.life, &claim, admission, chance.clone());
                return Ok(());
            }
            Entry::Refused(reason) => return Err(reason),
            Entry::Record(tenure) => record(world, &claim, tenure, chance).await?,
            Entry::Wait => {
                world.count("waits");
                claim.handoff(&mut handoff).await?;
            }
            Entry::Confirm => claim.confirm().await?,
        }
    }
}

async fn record(world: &World, claim: &Claim, tenure: Revision, chance: &mut Chance) -> Result<(), Rejection> {
    // The operator may have accepted meanwhile that the store went back.
    let is_present = |present: &Tenure| (present.first..=present.last).contains(&tenure);
    if !claim.lock.outlook().snapshot().and_then(Snapshot::tenure).is_some_and(is_present) {
        return Ok(());
    }
    let accepted = world.accepted.get();
    sleep(chance.delay(4, 20)).await;
    if chance.one_in(30) {
        return Err(Rejection::Unverifiable); // The disk is full.
    }
    // Records and acceptances are written in the order in which they were decided.
    if accepted == world.accepted.get() {
        world.recorded.borrow_mut().insert(claim.lock.key().as_str().to_owned(), Some(tenure));
    }
    claim.lock.recorded(tenure);
    Ok(())
}

/// The request goes out. From here on it is nothing to its client.
fn entered(world: &Rc<World>, life: u64, claim: &Claim, admission: Admission, chance: Chance) {
    let lock = Arc::clone(&claim.lock);
    let place = (world.accepted.get(), admission.tenure().get());
    world.note(|| format!("#{}: let out under {place:?}", claim.request.name));
    check_admission(world, claim, &admission);
    let name = claim.request.name;
    let index = claim.request.token.lock;
    world.executor.spawn(
        Class::Proxy,
        Some(life),
        exchange(Rc::clone(world), name, index, place, lock, admission, chance),
    );
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

async fn exchange(
    world: Rc<World>,
    name: u64,
    index: usize,
    place: worker::Place,
    lock: Arc<TrackedLock>,
    admission: Admission,
    mut chance: Chance,
) {
    let fate = match chance.within(0..=9) {
        0 => Fate::Reset(chance.millis(0..=60)),
        1 | 2 => Fate::Uploads(chance.millis(5..=200)),
        _ => Fate::Answered,
    };
    let upload = if let Fate::Uploads(time) = fate { time } else { Duration::ZERO };
    // The worker may use the part of a body that it has.
    let delay = if chance.one_in(2) { upload } else { Duration::ZERO } + chance.delay(8, 100);
    let run = chance.delay(30, 600);
    let job = worker::send(&world, name, index, place, delay, run);
    let sent = Instant::now();
    let term = admission.term();
    let lost = |how: &str| {
        let until = Instant::now() + ORPHAN_TIMEOUT;
        world.note(|| format!("#{name}: {how}, it may be at the worker still"));
        world.count("lost");
        job.lose(until);
        until
    };
    match fate {
        Fate::Reset(after) => {
            let ended = tokio::select! {
                biased;
                () = sleep(after) => false,
                () = job.ended() => true,
            };
            if ended {
                return lock.leave(admission);
            }
            let until = lost("reset");
            let orphan = lock.lose(admission, until);
            sleep_until(until).await;
            lock.end_orphan(orphan);
            return;
        }
        Fate::Uploads(time) => {
            let whole = sent + time;
            loop {
                let changed = lock.gate_changed();
                if lock.has_ended(term) {
                    let until = lost("its body is cut");
                    let orphan = lock.lose(admission, until);
                    sleep_until(until).await;
                    lock.end_orphan(orphan);
                    return;
                }
                tokio::select! {
                    biased;
                    () = changed => {}
                    () = sleep_until(whole) => break,
                }
            }
        }
        Fate::Answered => {}
    }
    let back = chance.delay(4, 40);
    let answered = async {
        job.ended().await;
        sleep(back).await;
    };
    tokio::pin!(answered);
    tokio::select! {
        biased;
        () = &mut answered => return lock.leave(admission),
        () = sleep(UPSTREAM_TIMEOUT) => {}
    }
    // The connection stays open: a late answer ends the orphan.
    let until = lost("no answer in time");
    let orphan = lock.lose(admission, until);
    tokio::select! {
        biased;
        () = answered => {}
        () = sleep_until(until) => {}
    }
    lock.end_orphan(orphan);
}

/// `fresh-admission`, and that nothing is admitted that never was.
fn check_admission(world: &World, claim: &Claim, admission: &Admission) {
    let Request { name, token, .. } = &claim.request;
    let truth = world.truth.borrow();
    let truth = &truth.locks[token.lock];
    let floor = claim.lock.describe(Instant::now()).gate.floor;
    assert!(floor <= admission.tenure().get(), "#{name} is let out below the floor {floor}");
    let named =
        truth.named_by(token).unwrap_or_else(|| panic!("#{name} is let out, but its token never held the lock"));
    let span = &truth.spans[named];
    let is_trusted = world.trusted.get().is_some_and(|since| since <= claim.arrived);
    if !is_trusted {
        return;
    }
    world.worker.check_order(token.lock, named, *name);
    if !world.plan.stale_reads {
        let since = if claim.request.linearizable { claim.arrived.at } else { claim.arrived.at - MAX_AGE };
        assert!(span.held_since(since), "#{name} is let out, but its tenure had ended by {since:?}: {span:?}");
    }
}

/// `final-refusal`: whoever held the lock before it sent its request, and still does, is never told that it does not.
fn check_refusal(world: &World, request: &Request, arrived: Point, reason: Rejection) {
    let says_stale = match reason {
        Rejection::NotOwner
        | Rejection::StaleTenure
        | Rejection::ReplayedTenure
        | Rejection::UnknownRevision
        | Rejection::AheadOfStore
        | Rejection::NoOwner
        | Rejection::NotYetOwner => true,
        Rejection::TokenMissing
        | Rejection::TokenMalformed
        | Rejection::LockNotAllowed
        | Rejection::Unverifiable
        | Rejection::StoreRegressed
        | Rejection::HandoffTimeout
        | Rejection::Draining => false,
    };
    let is_trusted = world.trusted.get().is_some_and(|since| since <= arrived);
    if !says_stale || !is_trusted || world.plan.stale_reads {
        return;
    }
    let truth = world.truth.borrow();
    let lock = &truth.locks[request.token.lock];
    // Where history is compacted away, a holder that has rewritten its key has to present a newer revision.
    let is_compacted = lock.layout == Layout::Key && request.token.revision < world.compacted.get();
    assert!(
        is_compacted || !lock.is_true_since(&request.token, arrived),
        "#{} is told {reason}, but it held the lock when it was sent, and still does",
        request.name
    );
}
