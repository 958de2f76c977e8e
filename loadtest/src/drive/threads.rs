//! The threads that send: each has its connections, its runtime and its records to itself.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinSet, LocalSet};

use super::lane::{Pace, Shared};
use super::plan::Plan;
use super::recorder::{Recorder, Window};
use super::schedule::{GRACE, Schedule};
use super::stop::Stop;
use super::tenures::Tenures;
use super::wire::Wire;
use crate::machine::{CpuShare, CpuTime, stay_on};

/// How long the last answers may take after the end of a run.
const LAST_ANSWERS: Duration = Duration::from_secs(5);
/// The same if somebody wants it to end now.
const LAST_ANSWERS_STOPPED: Duration = Duration::from_millis(500);

/// How long a proxy may take that was started just now.
const STARTS_WITHIN: Duration = Duration::from_secs(3);

/// What all threads have in common.
#[derive(Clone)]
pub(crate) struct Common {
    pub(crate) plan: Plan,
    pub(crate) tenures: Arc<Tenures>,
    pub(crate) stop: Arc<Stop>,
    pub(crate) answered: Arc<AtomicU64>,
}

/// A thread that sends.
pub(crate) struct Sender {
    ready: oneshot::Receiver<anyhow::Result<()>>,
    thread: JoinHandle<anyhow::Result<Sent>>,
}

/// What a thread has done.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) recorder: Recorder,
    /// How much of a CPU it had, and waited for, while requests were due.
    pub(crate) cpu: CpuShare,
    /// When it had its last answer, or did not wait for one any more.
    pub(crate) ended: Instant,
}

impl Sender {
    /// Starts the thread of that number. It opens its connections, then waits for the beginning.
    pub(crate) fn start(
        common: Common,
        number: usize,
        begin: watch::Receiver<Option<Instant>>,
    ) -> anyhow::Result<Sender> {
        let (tell, ready) = oneshot::channel();
        let builder = std::thread::Builder::new().name(format!("load-{number}"));
        let thread = builder.spawn(move || {
            // From the last: others that are started on the same CPUs are drawn to the first.
            if let Some(cpu) = common.plan.cpus.iter().rev().cycle().nth(number) {
                stay_on(&[*cpu])?;
            }
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            LocalSet::new().block_on(&runtime, run(common, number, tell, begin))
        });
        Ok(Sender { ready, thread: thread.context("cannot start a thread")? })
    }

    /// Waits until its connections are open.
    pub(crate) async fn ready(&mut self) -> anyhow::Result<()> {
        // Without a word from it, why it ended shows when it is joined.
        (&mut self.ready).await.unwrap_or_else(|_| Err(anyhow!("a thread that sends has ended")))
    }

    /// Whether it is done.
    pub(crate) fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// What it has done, once it is done.
    pub(crate) fn join(self) -> anyhow::Result<Sent> {
        self.thread.join().map_err(|_| anyhow!("a thread that sends panicked"))?
    }
}

async fn run(
    common: Common,
    number: usize,
    ready: oneshot::Sender<anyhow::Result<()>>,
    mut begin: watch::Receiver<Option<Instant>>,
) -> anyhow::Result<Sent> {
    let Common { plan, tenures, stop, answered } = common;
    let plan = Rc::new(plan);
    let opened = open(&plan, plan.connections_of(number)).await;
    let (wires, told) = match opened {
        Ok(wires) => (wires, ready.send(Ok(()))),
        Err(error) => (Vec::new(), ready.send(Err(error))),
    };
    let begin = begin.wait_for(Option::is_some).await.map(|begin| *begin);
    let (Ok(Some(begin)), Ok(())) = (begin, told) else { anyhow::bail!("the run did not begin") };

    let window = Window { begin: begin + plan.warm_up, length: plan.duration };
    let end = begin + plan.length();
    let pace = match plan.rate {
        None => Pace::Closed { until: end },
        Some(rate) => {
            let share = (number as u64, plan.threads as u64);
            let schedule = Arc::new(Schedule::new(begin, plan.length(), rate, share));
            schedule.start(&stop)?;
            Pace::Open(schedule)
        }
    };
    let shared = Rc::new(Shared {
        // Threads begin far apart, so that they do not send the same sequence.
        begun: Cell::new((number as u64) << 40),
        under_way: RefCell::new(vec![None; wires.len()]),
        recorder: RefCell::new(Recorder::new(window)),
        plan,
        tenures,
        stop,
        answered,
    });
    let before = CpuTime::of_this_thread()?;
    let at_end = tokio::task::spawn_local(async move {
        tokio::time::sleep_until(end.into()).await;
        CpuTime::of_this_thread()
    });
    let mut lanes = JoinSet::new();
    for (lane, wire) in wires.into_iter().enumerate() {
        lanes.spawn_local(Rc::clone(&shared).drive(lane, wire, pace.clone()));
    }
    last_answer(&mut lanes, &shared, begin).await?;
    let ended = Instant::now();
    // Waiting for the last answers is no work, and would make a busy thread look idle.
    let after = if at_end.is_finished() { at_end.await?? } else { CpuTime::of_this_thread()? };
    let mut recorder = shared.recorder.borrow().clone();
    if let Pace::Open(schedule) = &pace {
        schedule.unsent().for_each(|due| recorder.unsent(due, ended));
    }
    Ok(Sent { recorder, cpu: after.share_since(&before), ended })
}

/// Opens connections. The proxy may have been started just now, and not take any yet.
async fn open(plan: &Rc<Plan>, connections: usize) -> anyhow::Result<Vec<Wire>> {
    let begun = Instant::now();
    let mut wires = Vec::with_capacity(connections * plan.streams);
    for _ in 0..connections {
        let mut opened = Wire::open(plan).await;
        while opened.is_err() && wires.is_empty() && begun.elapsed() < STARTS_WITHIN {
            tokio::time::sleep(STARTS_WITHIN / 50).await;
            opened = Wire::open(plan).await;
        }
        wires.append(&mut opened?);
    }
    Ok(wires)
}

/// Waits until all lanes are done, but not for ever: what is left without an answer then is recorded as that.
async fn last_answer(lanes: &mut JoinSet<()>, shared: &Shared, begin: Instant) -> anyhow::Result<()> {
    let too_long = no_more_answers(&shared.plan, begin, &shared.stop);
    let all = async {
        while let Some(lane) = lanes.join_next().await {
            lane.context("a sender panicked")?;
        }
        anyhow::Ok(())
    };
    tokio::select! {
        done = all => done?,
        () = too_long => {}
    }
    let left = shared.under_way.take();
    left.into_iter().flatten().for_each(|(due, standing)| shared.recorder.borrow_mut().abandoned(due, standing));
    Ok(())
}

/// Completes when the last answers of a run should have come that began then, or soon after it was stopped.
pub(crate) async fn no_more_answers(plan: &Plan, begin: Instant, stop: &Stop) {
    let grace = if plan.rate.is_some() { GRACE } else { Duration::ZERO };
    tokio::select! {
        () = tokio::time::sleep_until((begin + plan.length() + grace + LAST_ANSWERS).into()) => {}
        () = async { stop.stopped().await; tokio::time::sleep(LAST_ANSWERS_STOPPED).await } => {}
    }
}
