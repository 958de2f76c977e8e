//! Lanes: each sends one request after the other on a connection, or on a stream of it.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::pin::Pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::plan::Plan;
use super::recorder::Recorder;
use super::schedule::{GRACE, Schedule};
use super::tenures::{Presented, Tenures};
use super::verdict::Finding;
use crate::client::Connection;
use crate::stop::Stop;

/// How long the last answers may take after the end of a run, and after a signal.
const LAST_ANSWERS: Duration = Duration::from_secs(5);
const LAST_ANSWERS_STOPPED: Duration = Duration::from_millis(500);
/// A proxy that is gone must not be flooded.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(50);

/// What all lanes of a run, and its mover, share.
#[derive(Clone)]
pub(crate) struct Run {
    pub(crate) plan: Rc<Plan>,
    pub(crate) tenures: Rc<Tenures>,
    pub(crate) recorder: Rc<RefCell<Recorder>>,
    pub(crate) begin: Instant,
    pub(crate) stop: Stop,
}

impl Run {
    pub(crate) fn end(&self) -> Instant {
        self.begin + self.plan.length()
    }

    /// Completes when the last answers should have come.
    pub(crate) async fn no_more_answers(self) {
        let grace = if self.plan.rate.is_some() { GRACE } else { Duration::ZERO };
        let stopped = async {
            self.stop.stopped().await;
            sleep(LAST_ANSWERS_STOPPED).await;
        };
        tokio::select! {
            () = tokio::time::sleep_until((self.end() + grace + LAST_ANSWERS).into()) => {}
            () = stopped => {}
        }
    }
}

#[derive(Clone)]
pub(crate) struct Pace {
    /// Of an open loop; in a closed loop a request is due when the last one is answered.
    schedule: Option<Rc<Schedule>>,
    sent: Rc<Cell<u64>>,
}

impl Pace {
    pub(crate) fn of(run: &Run) -> Pace {
        let schedule = |rate| Rc::new(Schedule::new(run.begin, run.plan.length(), rate));
        Pace { schedule: run.plan.rate.map(schedule), sent: Rc::default() }
    }

    /// When each request became due that was not sent.
    pub(crate) fn unsent(&self, stop: &Stop) -> impl Iterator<Item = Instant> {
        self.schedule.iter().flat_map(|schedule| schedule.unsent(stop))
    }

    /// Waits for the next request; `None` if there are no more.
    async fn next(&self, run: &Run) -> Option<Instant> {
        let Some(schedule) = &self.schedule else {
            let now = Instant::now();
            return (now < run.end() && !run.stop.is_stopped()).then_some(now);
        };
        let (at, was_awaited) = schedule.next(&run.stop).await?;
        let latencies = &mut run.recorder.borrow_mut().latencies;
        let late = if was_awaited { &mut latencies.lag } else { &mut latencies.queued };
        late.add(at.elapsed());
        Some(at)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Answered,
    Failed,
    /// The run was over before the answer.
    Abandoned,
}

pub(crate) struct Lane {
    run: Run,
    connection: Rc<Connection>,
    /// Completes when no more answers are awaited.
    over: Pin<Box<dyn Future<Output = ()>>>,
}

impl Lane {
    pub(crate) fn new(run: &Run, connection: &Rc<Connection>) -> Lane {
        let over = Box::pin(run.clone().no_more_answers());
        Lane { run: run.clone(), connection: Rc::clone(connection), over }
    }

    pub(crate) async fn send_all(mut self, pace: Pace) {
        let Run { plan, tenures, .. } = self.run.clone();
        while let Some(due) = pace.next(&self.run).await {
            let number = pace.sent.replace(pace.sent.get() + 1);
            // Hashed, so that a request's lock says nothing of its standing.
            let spread = BuildHasherDefault::<DefaultHasher>::default().hash_one(number);
            let lock = (spread % tenures.count() as u64) as usize;
            let presented = tenures.presented(lock, plan.stale.takes(number));
            match self.send(due, &presented).await {
                Fate::Answered => {}
                Fate::Failed => sleep(PAUSE_AFTER_FAILURE).await,
                Fate::Abandoned => return,
            }
        }
    }

    /// Sends a request that was due then, and records its answer.
    pub(crate) async fn send(&mut self, due: Instant, presented: &Presented) -> Fate {
        let Run { plan, recorder, .. } = &self.run;
        let sending = async { self.connection.send(plan.request(presented)?).await };
        let answer = tokio::select! {
            biased;
            answer = sending => answer,
            () = &mut self.over => {
                recorder.borrow_mut().abandoned(due, presented.standing());
                return Fate::Abandoned;
            }
        };
        match answer {
            Ok(answer) => {
                let finding = recorder.borrow_mut().answered(due, presented.standing(), answer);
                if finding == Finding::Served {
                    presented.note_served();
                }
                Fate::Answered
            }
            Err(error) => {
                recorder.borrow_mut().failed(due, format!("{error:#}"));
                Fate::Failed
            }
        }
    }
}
