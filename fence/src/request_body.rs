//! The body of a request that has been let in: whole within its tenure, or cut.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use fencepost_locks::TrackedLock;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::time::{Instant, sleep};

use crate::rules::Rules;
use crate::running::Running;

/// Why a body does not go on.
#[derive(Debug, thiserror::Error)]
pub enum BodyError<E> {
    /// The tenure that its request was let in under has ended, or may have for too long.
    #[error("cut, since the tenure of its request has ended")]
    Cut,
    /// The body's own error.
    #[error(transparent)]
    Body(E),
}

pin_project! {
    /// The body of a request that has been let in.
    ///
    /// Nothing more of it comes once its tenure has ended: then it fails with [`BodyError::Cut`], and what came so far is not the
    /// whole. While news of the lock is older than `max_age`, or not believed because etcd went back, it pauses, since nobody knows whether the
    /// tenure goes on; after `handoff_timeout` of that it is cut as well. The request counts as running for as long as this is kept.
    pub struct RequestBody<B> {
        #[pin]
        body: B,
        stage: Stage,
        vigil: Vigil,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Coming,
    Whole,
    Cut,
}

/// Looks after the tenure while a body is coming.
struct Vigil {
    max_age: Duration,
    pause_max: Duration,
    paused_since: Option<Instant>,
    /// Ready when it is time to look again.
    next_look: Option<Pin<Box<dyn Future<Output = ()> + Send + Sync>>>,
    running: Running,
}

/// Whether the next piece may come.
enum Way {
    Open,
    Paused,
    Cut,
}

impl<B: Body> RequestBody<B> {
    pub(crate) fn new(body: B, running: Running, rules: &Rules) -> RequestBody<B> {
        let stage = if body.is_end_stream() { Stage::Whole } else { Stage::Coming };
        let (max_age, pause_max) = (rules.max_age, rules.handoff_timeout);
        RequestBody { body, stage, vigil: Vigil { max_age, pause_max, paused_since: None, next_look: None, running } }
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
        match this.vigil.poll_way(cx) {
            Way::Open => {}
            Way::Paused => return Poll::Pending,
            Way::Cut => {
                *this.stage = Stage::Cut;
                return Poll::Ready(Some(Err(BodyError::Cut)));
            }
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
        // Not before this has said so itself: the end of a body is a piece of it.
        self.stage != Stage::Coming
    }

    fn size_hint(&self) -> SizeHint {
        match self.stage {
            Stage::Coming => self.body.size_hint(),
            Stage::Whole | Stage::Cut => SizeHint::with_exact(0),
        }
    }
}

impl Vigil {
    /// Looks whether the next piece may come. `cx` hears when the answer may be another.
    fn poll_way(&mut self, cx: &mut Context<'_>) -> Way {
        loop {
            // Before the look, so that no change is missed.
            let (lock, period) = (self.running.tracked(), self.max_age / 10);
            let next_look = self.next_look.get_or_insert_with(|| Box::pin(until_next_look(Arc::clone(lock), period)));
            if next_look.as_mut().poll(cx).is_pending() {
                return self.way();
            }
            self.next_look = None;
        }
    }

    fn way(&mut self) -> Way {
        if self.running.has_ended() {
            return Way::Cut;
        }
        let now = Instant::now();
        let lock = self.running.tracked();
        if lock.good_for(self.max_age, now).is_some() {
            self.paused_since = None;
            return Way::Open;
        }
        let since = *self.paused_since.get_or_insert(now);
        if now.saturating_duration_since(since) >= self.pause_max { Way::Cut } else { Way::Paused }
    }
}

/// News of a lock that is found in requests may get younger without a word.
async fn until_next_look(lock: Arc<TrackedLock>, period: Duration) {
    let changed = lock.gate_changed();
    tokio::select! {
        () = changed => {}
        () = sleep(period) => {}
    }
}

impl<B> std::fmt::Debug for RequestBody<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Vigil { running, .. } = &self.vigil;
        f.debug_struct("RequestBody").field("stage", &self.stage).field("running", running).finish_non_exhaustive()
    }
}
