//! Load that is measured and judged: at a constant rate or as fast as answers come, with locks that may move meanwhile.

mod durations;
mod held;
mod lane;
mod mover;
mod outcome;
mod plan;
mod recorder;
mod schedule;
mod stop;
mod tenures;
mod threads;
mod verdict;
mod wire;

use std::num::NonZeroU64;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

pub(crate) use self::durations::Durations;
pub(crate) use self::outcome::{Figure, Outcome, PARTS, milliseconds};
pub(crate) use self::plan::Plan;
pub(crate) use self::recorder::{Slot, Window};
pub(crate) use self::schedule::due_within;
pub(crate) use self::stop::Stop;
pub(crate) use self::tenures::Tenures;
pub(crate) use self::verdict::{Expected, Fault};

use self::held::HeldLocks;
use self::mover::Mover;
use self::threads::{Common, Sender};
use self::wire::Wire;
use crate::Conclusion;
use crate::cli::DriveSettings;
use crate::occasion::Occasion;
use crate::progress::Progress;
use crate::token::Token;
use crate::worker::alarms::Alarms;
use crate::worker::quick::{self, Duty, Orders};

/// How often to look how far a run is.
const LOOK: Duration = Duration::from_millis(50);
/// How many connections are opened at a time where all stay open.
const TOUCHED_AT_ONCE: usize = 64;

/// Runs `open`, at that rate, or `closed`; prints what was found.
pub(crate) async fn run(settings: DriveSettings, rate: Option<NonZeroU64>) -> anyhow::Result<Conclusion> {
    let occasion = Occasion::of_this_run();
    crate::machine::open_many_files()?;
    [&settings.json, &settings.html].into_iter().flatten().try_for_each(|file| crate::output::check(file))?;
    let orders = match settings.worker_listen {
        Some(address) => Some(serve(address, settings.time_at_worker()).await?),
        None => None,
    };
    let plan = Plan::of(&settings, rate)?;
    let stop = crate::signals::stop_when_asked()?;
    let (measured, released) = if settings.etcd.is_empty() {
        (drive_unmoved(&plan, given_token(&settings)?, &stop).await, Ok(()))
    } else {
        let mut held = tokio::select! {
            held = HeldLocks::open(&settings, plan.length()) => held?,
            () = stop.stopped() => bail!("ended before all locks were taken"),
        };
        let measured = drive_holding(&plan, &mut held, &stop).await;
        // Whatever came of it: the locks are free when a run is over. What was measured is told in any case.
        (measured, held.release().await)
    };
    let mut outcome = measured?;
    outcome.worker_saw(orders.map(|orders| orders.seen()));
    let mut report = outcome.as_json();
    report["run"] = occasion.as_json();
    let json = settings.json.as_ref().map(|file| crate::output::write(file, &format!("{report:#}\n")));
    let html = settings.html.as_ref().map(|file| crate::output::write(file, &crate::page::page(&outcome, &occasion)));
    crate::output::print(&outcome);
    json.unwrap_or(Ok(())).and(html.unwrap_or(Ok(()))).and(released)?;
    Ok(outcome.conclusion())
}

/// Sends what is planned under tenures that stay, and says nothing of how far it is, but, as soon as it begins, which time is measured.
pub(crate) async fn drive_quietly(
    plan: &Plan,
    tenures: Tenures,
    stop: &Arc<Stop>,
    begins: oneshot::Sender<Window>,
) -> anyhow::Result<Outcome> {
    drive(plan, tenures, stop, None, Told::Beginning(begins)).await
}

/// The same, and shows how far it is.
pub(crate) async fn drive_unmoved(plan: &Plan, tenures: Tenures, stop: &Arc<Stop>) -> anyhow::Result<Outcome> {
    drive(plan, tenures, stop, None, Told::Progress).await
}

/// Sends at least one request on each connection, and at least one for each lock, and leaves the connections open: as long as the
/// value lives that comes back.
///
/// # Errors
/// If one of them is not served within that time.
pub(crate) async fn touch(plan: &Plan, tenures: &Tenures, limit: Duration) -> anyhow::Result<impl Sized + use<>> {
    let (plan, connections) = (Rc::new(plan.clone()), plan.connections);
    let run = async |number: usize| {
        let mut wires = Wire::open(&plan).await?;
        let wire = wires.first_mut().context("a connection without a stream")?;
        let first = number % tenures.count();
        for lock in (first..tenures.count()).step_by(connections) {
            let presented = tenures.presented(lock, false);
            let answer = timeout(limit, wire.exchange(&presented)).await;
            let answer = answer.with_context(|| format!("{} does not answer within {limit:?}", plan.target))??;
            ensure!(answer.is_success(), "{} answered {answer}", plan.target);
        }
        anyhow::Ok(wires)
    };
    stream::iter((0..connections).map(run)).buffer_unordered(TOUCHED_AT_ONCE).try_collect::<Vec<_>>().await
}

/// Takes the locks, and sends what is planned.
async fn drive_holding(plan: &Plan, held: &mut HeldLocks, stop: &Arc<Stop>) -> anyhow::Result<Outcome> {
    let tenures = tokio::select! {
        tenures = held.take(!plan.stale.is_none()) => tenures?,
        () = stop.stopped() => bail!("ended before all locks were taken"),
    };
    drive(plan, tenures, stop, Some(held), Told::Progress).await
}

/// What is told of a run while it goes on.
enum Told {
    /// To whoever looks at the terminal: how far it is.
    Progress,
    /// To whoever measures it: which time counts.
    Beginning(oneshot::Sender<Window>),
}

/// Sends what is planned, while locks move if they are to.
async fn drive(
    plan: &Plan,
    tenures: Tenures,
    stop: &Arc<Stop>,
    held: Option<&mut HeldLocks>,
    told: Told,
) -> anyhow::Result<Outcome> {
    let tenures = Arc::new(tenures);
    let answered = Arc::new(AtomicU64::new(0));
    let common = Common {
        plan: plan.clone(),
        tenures: Arc::clone(&tenures),
        stop: Arc::clone(stop),
        answered: Arc::clone(&answered),
    };
    let (tell, begin) = watch::channel(None);
    let senders = (0..plan.threads).map(|number| Sender::start(common.clone(), number, begin.clone()));
    let mut senders = senders.collect::<anyhow::Result<Vec<Sender>>>()?;
    for sender in &mut senders {
        tokio::select! {
            ready = sender.ready() => ready?,
            () = stop.stopped() => bail!("ended before all connections were open"),
        }
    }
    let begun = Instant::now();
    tell.send_replace(Some(begun));

    let window = Window { begin: begun + plan.warm_up, length: plan.duration };
    let shown = match told {
        Told::Progress => Some(&*answered),
        Told::Beginning(begins) => {
            let _ = begins.send(window); // Whoever asked may be gone.
            None
        }
    };
    let mut mover = None;
    let moves = async {
        let Some((held, every)) = held.zip(plan.handoff_every) else { return };
        mover.insert(Mover::new(plan, &tenures, every, window)).run(held, begun, stop).await;
    };
    let watched = watch_over(&senders, plan, begun, shown);
    tokio::join!(moves, watched);
    let mut sent = Vec::new();
    for sender in senders {
        sent.push(sender.join()?);
    }
    let moves_seen = mover.map(Mover::seen);
    // Not what passed until somebody looked, or locks had come to rest: in that time nothing was sent.
    let ended = sent.iter().map(|sent| sent.ended).max().filter(|_| stop.is_stopped());
    let ended_early = ended.map(|ended| ended - begun);
    Ok(Outcome::of(plan, window, sent, moves_seen, ended_early))
}

async fn watch_over(senders: &[Sender], plan: &Plan, begun: Instant, shown: Option<&AtomicU64>) {
    let seconds = plan.length().as_secs_f64().ceil() as u64;
    let mut progress = shown.map(|answered| (Progress::new(seconds, "seconds"), answered));
    let mut look = tokio::time::interval(LOOK);
    let so_far = || begun.elapsed().as_secs().min(seconds);
    while !senders.iter().all(Sender::has_ended) {
        look.tick().await;
        if let Some((progress, answered)) = &mut progress {
            progress.done_with(so_far(), &format!("{} answered", answered.load(Ordering::Relaxed)));
        }
    }
    if let Some((progress, _)) = progress {
        progress.end(so_far());
    }
}

/// What all requests present if no lock is taken here.
fn given_token(settings: &DriveSettings) -> anyhow::Result<Tenures> {
    let (owner, revision) =
        settings.owner.as_deref().zip(settings.revision).context("there is neither --etcd nor --owner")?;
    let before = if revision > 1 { Some(Token::new(owner, revision - 1)?) } else { None };
    Ok(Tenures::new([(Token::new(owner, revision)?, before)]))
}

/// Plays the worker on a thread of its own.
async fn serve(address: std::net::SocketAddr, takes: Duration) -> anyhow::Result<Orders> {
    let listener = quick::bind(address).await?.into_std()?;
    let orders = Orders::default();
    let duty = Duty { orders: orders.clone(), takes, alarms: Alarms::start()? };
    let thread = std::thread::Builder::new().name("worker".to_owned());
    let serving = thread.spawn(move || quick::run(listener, Some(duty)));
    serving.context("cannot start a thread")?;
    Ok(orders)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    /// What takes connections and says nothing, as a proxy does that has too many of them, was waited for until it closed them.
    #[tokio::test]
    async fn whoever_does_not_answer_a_touch_is_named() {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", silent.local_addr().unwrap());
        let words = ["fencepost-loadtest", "closed", "--proxy", &url, "--owner", "a", "--revision", "7"];
        let Command::Closed(settings) = Cli::try_parse_from(words).unwrap().command else {
            panic!("this is a closed loop")
        };
        let (plan, tenures) = (Plan::of(&settings, None).unwrap(), given_token(&settings).unwrap());
        let error = touch(&plan, &tenures, Duration::from_millis(50)).await.map(|_| ()).unwrap_err();
        assert_eq!(error.to_string(), format!("{url} does not answer within 50ms"));
    }
}
