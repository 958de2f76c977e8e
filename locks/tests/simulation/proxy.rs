//! The proxy's way with a request, as `fencing` and `gate` of the proxy have it, without HTTP.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use fencepost_policy::{EnterError, Rejection, Verdict};
use tokio::time::{sleep, sleep_until};

use crate::chance::Chance;
use crate::checks;
use crate::claim::{Claim, Handoff};
use crate::exchange::Exchange;
use crate::life::Proxy;
use crate::truth::{Point, Token};
use crate::world::World;

const BODY_MILLIS_MAX: u64 = 60;

/// By when every request is answered, or at the worker: a load, a confirmation, a body, a wait at
/// the barrier, and then once more a record, a connection and a confirmation.
pub(crate) const ANSWER_MAX: Duration = Duration::from_millis(1_200);

/// What a client wants.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) name: u64,
    /// Where it arrives.
    pub(crate) host: usize,
    pub(crate) token: Token,
    pub(crate) linearizable: bool,
    /// It asks for the door to be closed behind its predecessor.
    pub(crate) is_fence: bool,
    /// Its method is exempt.
    pub(crate) is_exempt: bool,
    /// When the client goes away.
    pub(crate) leaves: Option<Duration>,
}

/// Why a request passes without having been admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Passed {
    Shadow,
    Exempt,
    DangerousAdmit,
}

/// What became of a request that is not refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Admitted,
    /// The door is closed behind its predecessor.
    Fenced,
    Passed(Passed),
}

impl Outcome {
    fn name(self) -> &'static str {
        match self {
            Outcome::Admitted => "admitted",
            Outcome::Fenced => "fenced",
            Outcome::Passed(Passed::Shadow) => "shadow",
            Outcome::Passed(Passed::Exempt) => "exempt",
            Outcome::Passed(Passed::DangerousAdmit) => "dangerous-admit",
        }
    }
}

/// What a request stands on, before the gate.
enum Standing {
    Claim(Claim),
    Pass(Passed),
}

/// The rules in force when a request arrived.
#[derive(Clone, Copy)]
struct Route {
    is_shadow: bool,
    proceeds: bool,
    admits: bool,
}

impl Route {
    /// What a rejection means: an answer, unless the route only watches or says `dangerous_admit`.
    fn rejected(self, reason: Rejection) -> Result<Standing, Rejection> {
        if self.is_shadow {
            return Ok(Standing::Pass(Passed::Shadow));
        }
        if self.admits && reason == Rejection::Unverifiable {
            return Ok(Standing::Pass(Passed::DangerousAdmit));
        }
        Err(reason)
    }
}

/// A request arrives at the proxy. Returns what its client is told, if it is still there.
pub(crate) async fn arrive(
    world: Rc<World>,
    request: Request,
) -> Option<Result<Outcome, Rejection>> {
    let mut chance = Chance::of(world.seed, ("request", request.name));
    let (name, arrived) = (request.name, world.now());
    // Not a forged one, nor one of a history that is lost.
    let is_genuine = world.told.borrow().contains(&(world.histories.get(), request.token.clone()));
    world.note(|| {
        let Request { token: Token { lock, owner, revision }, linearizable, is_fence, .. } =
            &request;
        let kind = if *is_fence { "fence" } else { "request" };
        let read = if *linearizable { ", linearizable" } else { "" };
        format!("#{name}: {kind} of ({owner}, {revision}) for {}{read}", world.plan.locks[*lock].0)
    });
    let host = &world.hosts[request.host];
    host.unanswered.set(host.unanswered.get() + 1);
    let stood_still = host.stood_still.get();
    let leaves = arrived.at + request.leaves.unwrap_or(Duration::from_secs(3600));
    let outcome = tokio::select! {
        biased;
        outcome = serve(&world, &request, arrived, &mut chance) => Some(outcome),
        () = sleep_until(leaves) => None,
    };
    host.unanswered.set(host.unanswered.get() - 1);
    let Some(outcome) = outcome else {
        world.note(|| format!("#{name}: its client has left"));
        world.count("left");
        return None;
    };
    let answer = outcome.map_or_else(|reason| reason.code(), Outcome::name);
    world.note(|| format!("#{name}: {answer}"));
    world.count(answer);
    let stood_still = host.stood_still.get() - stood_still;
    assert!(
        arrived.at.elapsed() <= ANSWER_MAX + stood_still,
        "#{name} was answered only after {:?}",
        arrived.at.elapsed()
    );
    if let Err(reason) = outcome
        && is_genuine
    {
        checks::refusal(&world, &request, arrived, reason);
    }
    Some(outcome)
}

async fn serve(
    world: &Rc<World>,
    request: &Request,
    arrived: Point,
    chance: &mut Chance,
) -> Result<Outcome, Rejection> {
    let host = &world.hosts[request.host];
    let proxy = host.proxy().filter(|_| !host.drains.get()).ok_or(Rejection::Draining)?;
    let is_shadow = world.shadows.borrow()[request.token.lock];
    let route = Route { is_shadow, proceeds: world.plan.proceeds, admits: world.plan.admits };
    if request.is_fence {
        return if is_shadow {
            Err(Rejection::LockNotAllowed)
        } else {
            close(world, &proxy, request, arrived, chance).await
        };
    }
    let mut standing = judge(world, &proxy, request, arrived, route).await?;
    sleep(world.delay(chance, 4, BODY_MILLIS_MAX)).await;
    let mut handoff = Handoff::default();
    loop {
        if !handoff.is_connected {
            sleep(world.delay(chance, 2, 20)).await; // Until there is a connection.
        }
        handoff.is_connected = true;
        let exchange = Exchange {
            world: Rc::clone(world),
            host: Rc::clone(host),
            name: request.name,
            token: request.token.clone(),
            lock: request.token.lock,
            chance: chance.clone(),
        };
        let claim = match standing {
            Standing::Claim(ref claim) => claim,
            Standing::Pass(reason) => {
                exchange.passed(proxy.life, reason);
                return Ok(Outcome::Passed(reason));
            }
        };
        let outcome = match handoff.enter(claim) {
            Ok(admission) => {
                checks::admission(world, claim, &admission);
                exchange.admitted(&proxy, Arc::clone(&claim.lock), admission, handoff.proceeds);
                return Ok(Outcome::Admitted);
            }
            Err(EnterError::Refused(reason)) => Err(reason),
            Err(EnterError::Record(tenure)) => claim.record(world, tenure, chance).await,
            Err(EnterError::Wait) => claim.wait(world, &mut handoff).await,
            Err(EnterError::Confirm) => claim.confirm().await,
        };
        match outcome {
            Ok(()) => {}
            Err(Rejection::HandoffTimeout) if route.proceeds => {
                world.count("dangerous-proceed");
                handoff.proceeds = true;
            }
            Err(reason) => standing = route.rejected(reason)?,
        }
    }
}

/// Finds the lock, and judges what is claimed of it by what is known, or by what the store says.
async fn judge(
    world: &World,
    proxy: &Proxy,
    request: &Request,
    arrived: Point,
    route: Route,
) -> Result<Standing, Rejection> {
    if request.is_exempt {
        return Ok(Standing::Pass(Passed::Exempt));
    }
    let claim = match Claim::of(world, proxy, request, arrived).await {
        Ok(claim) => claim,
        Err(reason) => return route.rejected(reason),
    };
    let judged = match claim.lock.view().judge(&claim.token, &claim.timing()) {
        Verdict::Admit => Ok(()),
        Verdict::Reject(reason) => Err(reason),
        Verdict::Confirm => claim.confirm().await,
    };
    match judged {
        Ok(()) if route.is_shadow => Ok(Standing::Pass(Passed::Shadow)),
        Ok(()) => Ok(Standing::Claim(claim)),
        Err(reason) => route.rejected(reason),
    }
}

/// Waits until the caller's tenure has the worker to itself.
async fn close(
    world: &Rc<World>,
    proxy: &Proxy,
    request: &Request,
    arrived: Point,
    chance: &mut Chance,
) -> Result<Outcome, Rejection> {
    let claim = Claim::of(world, proxy, request, arrived).await?;
    let mut handoff = Handoff::default();
    loop {
        handoff.is_connected = true; // It needs none.
        match handoff.may_enter(&claim) {
            Ok(tenure) => {
                checks::let_in(world, &claim, tenure);
                world.worker.fence(request.token.lock, world.place(&request.token, tenure));
                return Ok(Outcome::Fenced);
            }
            Err(EnterError::Refused(reason)) => return Err(reason),
            Err(EnterError::Record(tenure)) => claim.record(world, tenure, chance).await?,
            Err(EnterError::Wait) => claim.wait(world, &mut handoff).await?,
            Err(EnterError::Confirm) => claim.confirm().await?,
        }
    }
}
