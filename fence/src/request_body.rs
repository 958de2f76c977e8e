//! The body of an admitted request: whole within its tenure, or cut.
//! It does not stop the handler.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::time::{Instant, timeout};

use crate::permit::WorkerPermit;
use crate::rules::Rules;
use crate::tenure::TenureState;

/// Why a body ends early.
#[derive(Debug, thiserror::Error)]
pub enum BodyError<E> {
    /// The tenure of its request has ended, or may have ended `handoff_timeout` ago.
    #[error("the body was cut, because the tenure of its request has ended")]
    Cut,
    /// The body's own error.
    #[error(transparent)]
    Body(E),
}

pin_project! {
    /// The body of an admitted request.
    ///
    /// It fails with [`BodyError::Cut`] once its tenure has ended: what came before is not the
    /// whole. It pauses while news of the lock is older than `max_age`, or not believed because
    /// etcd went back. After a pause of `handoff_timeout` it is cut as well. The request counts as
    /// running until this is dropped.
    pub struct RequestBody<B> {
        #[pin]
        body: B,
        stage: Stage,
        check: PieceCheck,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Coming,
    Whole,
    Cut,
}

/// Looks at the tenure before each piece of a body.
struct PieceCheck {
    max_age: Duration,
    pause_max: Duration,
    paused_since: Option<Instant>,
    /// Ready when it is time to look again.
    next_look: Option<Pin<Box<dyn Future<Output = ()> + Send + Sync>>>,
    permit: WorkerPermit,
}

impl<B: Body> RequestBody<B> {
    pub(crate) fn new(body: B, permit: WorkerPermit, rules: &Rules) -> RequestBody<B> {
        let stage = if body.is_end_stream() { Stage::Whole } else { Stage::Coming };
        let (max_age, pause_max) = (rules.max_age, rules.handoff_timeout);
        let check = PieceCheck { max_age, pause_max, paused_since: None, next_look: None, permit };
        RequestBody { body, stage, check }
    }
}

impl<B: Body> Body for RequestBody<B> {
    type Data = B::Data;
    type Error = BodyError<B::Error>;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, BodyError<B::Error>>>> {
        let mut this = self.project();
        match this.stage {
            Stage::Coming => {}
            Stage::Whole | Stage::Cut => return Poll::Ready(None),
        }
        if !ready!(this.check.poll_goes_on(cx)) {
            *this.stage = Stage::Cut;
            return Poll::Ready(Some(Err(BodyError::Cut)));
        }
        let frame = ready!(this.body.as_mut().poll_frame(cx));
        let is_last = match &frame {
            Some(Ok(_)) => this.body.is_end_stream(),
            Some(Err(_)) | None => true,
        };
        if is_last {
            *this.stage = Stage::Whole;
        }
        Poll::Ready(frame.map(|frame| frame.map_err(BodyError::Body)))
    }

    fn is_end_stream(&self) -> bool {
        // Not before `poll_frame` has returned the end: that is a piece of the body, too.
        self.stage != Stage::Coming
    }

    fn size_hint(&self) -> SizeHint {
        match self.stage {
            Stage::Coming => self.body.size_hint(),
            Stage::Whole | Stage::Cut => SizeHint::with_exact(0),
        }
    }
}

impl PieceCheck {
    /// Whether the next piece may come; false once the tenure has ended, or may have for too long.
    /// Wakes the task for each change.
    fn poll_goes_on(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        let tenure = &self.permit.tenures()[0];
        loop {
            // Before the look, so that no change is missed. News that date many locks at once wake
            // nobody.
            let next_look = self.next_look.get_or_insert_with(|| {
                let (tenure, period) = (tenure.clone(), self.max_age / 10);
                Box::pin(async move { _ = timeout(period, tenure.changed()).await })
            });
            if next_look.as_mut().poll(cx).is_pending() {
                break;
            }
            self.next_look = None;
        }
        if self.permit.has_ended() {
            return Poll::Ready(false);
        }
        match tenure.state() {
            TenureState::Good { .. } => {
                self.paused_since = None;
                Poll::Ready(true)
            }
            TenureState::Ended => Poll::Ready(false),
            TenureState::Stale => {
                tenure.next_look();
                let since = *self.paused_since.get_or_insert_with(Instant::now);
                if since.elapsed() >= self.pause_max { Poll::Ready(false) } else { Poll::Pending }
            }
        }
    }
}

impl<B> std::fmt::Debug for RequestBody<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let permit = &self.check.permit;
        f.debug_struct("RequestBody")
            .field("stage", &self.stage)
            .field("permit", permit)
            .finish_non_exhaustive()
    }
}
