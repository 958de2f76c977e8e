//! `open` and `closed`: load that is measured and judged, with locks that may move meanwhile.
//! `compare` uses it too.

mod lane;
mod mover;
mod outcome;
mod plan;
mod recorder;
mod schedule;
mod tenures;
pub(crate) mod verdict;

use std::cell::RefCell;
use std::num::NonZeroU64;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures_util::stream::FuturesUnordered;
use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::time::{sleep, timeout};

pub(crate) use self::outcome::{Generator, Outcome};
pub(crate) use self::plan::Plan;
pub(crate) use self::recorder::Latencies;
pub(crate) use self::schedule::due_within;
pub(crate) use self::tenures::Tenures;

use self::lane::{Lane, Pace, Run};
use self::mover::Mover;
use self::recorder::{Recorder, Window};
use crate::Conclusion;
use crate::cli::DriveOptions;
use crate::client::{Connection, Token};
use crate::lock::HeldLocks;
use crate::machine::CpuTime;
use crate::report::{Progress, ReportFile, print};
use crate::stop::Stop;
use crate::worker::Worker;

const LOOK: Duration = Duration::from_millis(50);
/// How long a proxy may take that was started just now.
const STARTS_WITHIN: Duration = Duration::from_secs(3);
const TOUCHED_AT_ONCE: usize = 64;

/// Runs `open`, at that rate, or `closed`; prints what it found.
pub(crate) async fn run(options: DriveOptions, rate: Option<NonZeroU64>) -> Result<Conclusion> {
    crate::machine::open_many_files()?;
    let file = ReportFile::open(options.json.as_deref())?;
    let worker = Worker::listen(options.proxy.worker_listen, options.time_at_worker()).await?;
    let plan = Plan::of(&options, rate)?;
    let stop = Stop::when_asked()?;
    let (measured, released) = if let Some(token) = given_token(&options)? {
        (drive(&plan, Tenures::new([token]), &stop, None, true).await, Ok(()))
    } else {
        let mut held = tokio::select! {
            held = HeldLocks::open(&options.lock, options.locks, plan.length()) => held?,
            () = stop.stopped() => bail!("ended before all locks were taken"),
        };
        let measured = drive_holding(&plan, &mut held, &stop).await;
        // Released in any case. A store that is gone keeps no report from being printed.
        (measured, held.release().await)
    };
    let mut outcome = measured?;
    outcome.worker_saw(worker.map(|worker| worker.seen()));
    let written = file.write(outcome.as_json());
    print(&outcome);
    written.and(released)?;
    Ok(outcome.conclusion())
}

fn given_token(options: &DriveOptions) -> Result<Option<(Token, Option<Token>)>> {
    let given = options.owner.as_deref().zip(options.revision);
    let Some((owner, revision)) = given else { return Ok(None) };
    let before = if revision > 1 { Some(Token::new(owner, revision - 1)?) } else { None };
    Ok(Some((Token::new(owner, revision)?, before)))
}

async fn drive_holding(plan: &Plan, held: &mut HeldLocks, stop: &Stop) -> Result<Outcome> {
    let tokens = tokio::select! {
        tokens = held.take(!plan.stale.is_none()) => tokens?,
        () = stop.stopped() => bail!("ended before all locks were taken"),
    };
    drive(plan, Tenures::new(tokens), stop, Some(held), true).await
}

pub(crate) async fn drive(
    plan: &Plan,
    tenures: Tenures,
    stop: &Stop,
    held: Option<&mut HeldLocks>,
    shows_progress: bool,
) -> Result<Outcome> {
    let connections = tokio::select! {
        connections = open(plan) => connections?,
        () = stop.stopped() => bail!("ended before all connections were open"),
    };
    let begin = Instant::now();
    let window = Window { begin: begin + plan.warm_up, length: plan.duration };
    let run = Run {
        plan: Rc::new(plan.clone()),
        tenures: Rc::new(tenures),
        recorder: Rc::new(RefCell::new(Recorder::new(window, plan.refusal))),
        begin,
        stop: stop.clone(),
    };
    let (pace, lanes) = (Pace::of(&run), FuturesUnordered::new());
    for connection in connections.into_iter().map(Rc::new) {
        let lane = |_| lanes.push(Lane::new(&run, &connection).send_all(pace.clone()));
        (0..plan.streams).for_each(lane);
    }
    let sending = async {
        lanes.collect::<()>().await;
        Instant::now()
    };
    let mut mover = Mover::new(&run);
    let moving = async {
        if let Some((held, every)) = held.zip(plan.handoff_every) {
            mover.move_locks(held, every).await;
        }
    };
    let before = CpuTime::of_this_thread()?;
    let (ended, (), cpu, after) = tokio::join!(
        sending,
        moving,
        cpu_within(window, plan.process, stop),
        watch_over(&run, shows_progress)
    );
    pace.unsent(stop).for_each(|due| run.recorder.borrow_mut().unsent(due, ended));
    let generator = Generator(after?.share_since(&before));
    let ended_early = stop.at().map(|_| ended - begin);
    Ok(Outcome::of(&run, generator, mover.seen(), cpu?, ended_early))
}

async fn open(plan: &Plan) -> Result<Vec<Connection>> {
    let (begun, mut connections) = (Instant::now(), Vec::new());
    while connections.len() < plan.connections {
        match Connection::open(&plan.target, plan.requests_per_connection).await {
            Ok(connection) => connections.push(connection),
            Err(_) if connections.is_empty() && begun.elapsed() < STARTS_WITHIN => {
                sleep(LOOK).await
            }
            Err(error) => return Err(error),
        }
    }
    Ok(connections)
}

/// The CPU time of a process and its children when the window begins, and when it ends.
async fn cpu_within(
    window: Window,
    process: Option<u32>,
    stop: &Stop,
) -> Result<Option<(CpuTime, CpuTime)>> {
    let Some(process) = process else { return Ok(None) };
    let until = async |moment: Instant| {
        tokio::select! {
            () = tokio::time::sleep_until(moment.into()) => {}
            () = stop.stopped() => {}
        }
        CpuTime::of_tree(process)
    };
    Ok(Some((until(window.begin).await?, until(window.begin + window.length).await?)))
}

/// Shows the progress until no more requests are due, and returns this thread's CPU time of then.
/// Waiting for the last answers would make a busy generator look idle.
async fn watch_over(run: &Run, shows_progress: bool) -> Result<CpuTime> {
    let seconds = run.plan.length().as_secs_f64().ceil() as u64;
    let mut progress = shows_progress.then(|| Progress::new(seconds, "seconds"));
    while Instant::now() < run.end() && !run.stop.is_stopped() {
        sleep(LOOK.min(run.end().saturating_duration_since(Instant::now()))).await;
        if let Some(progress) = &mut progress {
            progress.done(run.begin.elapsed().as_secs());
        }
    }
    CpuTime::of_this_thread()
}

/// Sends at least one request on each connection, and one for each lock. Returns the connections.
pub(crate) async fn touch(
    plan: &Plan,
    tenures: &Tenures,
    limit: Duration,
) -> Result<Vec<Connection>> {
    let touch_one = async |number: usize| {
        let connection = Connection::open(&plan.target, None).await?;
        let first = number % tenures.count();
        for lock in (first..tenures.count()).step_by(plan.connections) {
            let request = plan.request(&tenures.presented(lock, false))?;
            let answer = timeout(limit, connection.send(request)).await;
            let late = || format!("{} does not answer within {limit:?}", plan.target);
            let answer = answer.with_context(late)??;
            ensure!(answer.is_success(), "{} answered {answer}", plan.target);
        }
        anyhow::Ok(connection)
    };
    let touching = stream::iter((0..plan.connections).map(touch_one));
    touching.buffer_unordered(TOUCHED_AT_ONCE).try_collect().await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{Protocol, Target};

    /// A proxy with too many connections takes them and says nothing.
    #[tokio::test]
    async fn silent_proxy_is_named_after_the_limit() {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", silent.local_addr().unwrap());
        let target = Target::new(&url.parse().unwrap(), Protocol::Http1, None).unwrap();
        let tenures = Tenures::new([(Token::new("a", 7).unwrap(), None)]);
        let touching = touch(&Plan::get(target), &tenures, Duration::from_millis(50)).await;
        let error = touching.map(|_| ()).unwrap_err();
        assert_eq!(error.to_string(), format!("{url} does not answer within 50ms"));
    }
}
