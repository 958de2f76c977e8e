//! A request before the gate of its lock: by which rules it waits there, and what operators see of
//! that. How it waits is [`fencepost_fence::enter`].

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fencepost_config::OnHandoffTimeout;
use fencepost_fence::claim::{Claim, Confirmed};
use fencepost_fence::enter::{AtGate, WaitEnd};
use fencepost_locks::Timing;
use fencepost_policy::{Rejection, Revision};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::metrics::OneMore;
use crate::observe::Wait;
use crate::observe::text::shown_owner;
use crate::observe::timeline::WaitStep;
use crate::recording::{Answer, Subject};
use crate::request_context::RequestContext;

/// A request, or a call of the fence, before the gate of its lock.
pub struct Arrived<'c> {
    context: &'c Rc<RequestContext>,
    claim: &'c Claim,
    /// Whether it is a call of the fence, which has nothing in flight.
    is_call: bool,
}

impl<'c> Arrived<'c> {
    /// A request.
    pub fn request(context: &'c Rc<RequestContext>, claim: &'c Claim) -> Arrived<'c> {
        Arrived { context, claim, is_call: false }
    }

    /// A call of the fence.
    pub fn call(context: &'c Rc<RequestContext>, claim: &'c Claim) -> Arrived<'c> {
        Arrived { context, claim, is_call: true }
    }

    /// Refuses the request for that reason.
    pub fn refuse(&self, reason: Rejection) -> Answer {
        let retry_after = if reason == Rejection::HandoffTimeout {
            let now = Instant::now();
            let barred = self
                .context
                .barred_until(now)
                .map_or(0, |until| (until - now).as_millis().div_ceil(1_000) as u64);
            self.claim.retry_after().max(barred)
        } else {
            1
        };
        self.context.refuse_for(reason, Subject::of(self.claim), retry_after)
    }
}

impl AtGate for Arrived<'_> {
    type HeldUp = HeldUp;

    fn claim(&self) -> &Claim {
        self.claim
    }

    fn timing(&self) -> Timing {
        self.context.timing()
    }

    fn handoff_timeout(&self) -> Duration {
        self.context.route().handoff_timeout
    }

    fn confirm_timeout(&self) -> Duration {
        self.context.share.generation.config.limits.confirm_timeout
    }

    fn waiting_room(&self) -> &Arc<Semaphore> {
        &self.context.share.generation.process.waiting_room
    }

    fn hold_up(&self) -> HeldUp {
        let Arrived { context, claim, is_call } = self;
        tracing::debug!(lock = %claim.lock.key(), client = %context.client, "waits for requests of an earlier tenure");
        HeldUp {
            since: Instant::now(),
            is_noted: note_begin(context, claim),
            context: Rc::clone(context),
            claim: (*claim).clone(),
            has_ended: false,
            _counted: (!is_call).then(|| OneMore::new(context.metrics().waiting.clone())),
        }
    }

    fn wait_ended(&self, held_up: &mut HeldUp, how: WaitEnd) {
        held_up.end(match how {
            WaitEnd::Entered => WaitStep::Entered,
            WaitEnd::TimedOut => WaitStep::TimedOut,
        });
    }

    fn confirmed(&self, confirmed: Confirmed) {
        self.context.metrics().confirmed(confirmed).inc();
    }

    async fn record(&self, tenure: Revision) -> Result<(), Rejection> {
        // Without a memory no gate asks for this.
        let Some(memory) = &self.context.share.generation.process.memory else {
            return Err(Rejection::Unverifiable);
        };
        let record =
            memory.record(&self.claim.lock, tenure, self.context.active_route().orphan_timeout_max);
        self.context.share.generation.process.unless_over(record).await?
    }

    fn opened(&self) -> impl Future<Output = ()> {
        // What does not bar now never will again.
        let is_barred = self.context.barred_until(Instant::now()).is_some();
        async move { if is_barred { self.context.opened().await } else { std::future::pending().await } }
    }

    async fn interrupted(&self) -> Rejection {
        self.context.share.generation.process.over().await;
        Rejection::Draining
    }

    fn goes_past_barrier(&self) -> bool {
        let goes = self.context.route().on_handoff_timeout == OnHandoffTimeout::DangerousProceed;
        if goes {
            self.context.metrics().dangerous_proceed.inc();
            self.context.let_past(Rejection::HandoffTimeout, Subject::of(self.claim));
        }
        goes
    }
}

/// Counts and shows a request that the barrier holds up, whatever comes of that: its client may
/// leave, or its tenure end.
pub struct HeldUp {
    since: Instant,
    context: Rc<RequestContext>,
    claim: Claim,
    /// Whether operators were shown that the wait began. Otherwise its end is not shown either.
    is_noted: bool,
    has_ended: bool,
    _counted: Option<OneMore>,
}

impl HeldUp {
    fn end(&mut self, step: WaitStep) {
        let HeldUp { since, context, claim, is_noted, .. } = self;
        let waited = since.elapsed();
        if step == WaitStep::Entered {
            tracing::debug!(lock = %claim.lock.key(), client = %context.client, ?waited, "let in after a wait");
        }
        context.metrics().handoff_waited(waited);
        let share = &context.share;
        if let Some(observations) =
            share.generation.process.observations.as_ref().filter(|_| *is_noted)
        {
            observations.note_end(wait(claim, step));
        }
        self.has_ended = true;
    }
}

impl Drop for HeldUp {
    fn drop(&mut self) {
        if !self.has_ended {
            self.end(WaitStep::GivenUp);
        }
    }
}

/// Notes that a wait begins. False if nobody looks, or there is no room for another note.
fn note_begin(context: &RequestContext, claim: &Claim) -> bool {
    let Some(observations) = &context.share.generation.process.observations else { return false };
    let gate = claim.lock.describe(Instant::now()).gate;
    let earlier = gate.at_worker.iter().filter(|there| there.tenure < claim.token.revision);
    let began =
        WaitStep::Began { drained: earlier.map(|there| there.running + there.orphans).sum() };
    observations.note_wait(wait(claim, began))
}

fn wait(Claim { token, lock }: &Claim, step: WaitStep) -> Wait {
    Wait {
        at: SystemTime::now(),
        source: lock.source().into(),
        lock: lock.key().clone(),
        layout: lock.layout(),
        owner: shown_owner(token.owner.as_bytes()),
        revision: token.revision,
        step,
    }
}
