//! `takeovers`: the lock changes hands many times.

mod report;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use tokio::time::sleep;

use self::report::Report;
use crate::Conclusion;
use crate::cli::TakeoverOptions;
use crate::client::{Connection, Protocol, Target, Token};
use crate::lock::{Handoff, Held, Lock};
use crate::report::{Progress, ReportFile, print};
use crate::stop::Stop;
use crate::worker::Worker;

const LAST_TAKEOVER: Duration = Duration::from_secs(5);
/// The predecessor's token, and the successor's own from its tenure before.
const RETIRED_MAX: usize = 2;

pub(crate) async fn run(options: TakeoverOptions) -> Result<Conclusion> {
    let file = ReportFile::open(options.json.as_deref())?;
    let worker = Worker::listen(options.proxy.worker_listen, Duration::ZERO).await?;
    let mut masters = Masters::start(&options).await?;
    let mut report = Report::new(options.count);
    let stop = Stop::when_asked()?;
    if let Err(error) = masters.take_turns(&mut report, &stop).await {
        report.broke_off(format!("{error:#}"));
    }
    if let Some(worker) = worker {
        report.worker_saw(&worker.order());
    }
    let written = file.write(report.as_json());
    print(&report);
    written?;
    Ok(report.conclusion())
}

struct Masters {
    lock: Lock,
    path: String,
    masters: [(&'static str, Connection); 2],
    held: Option<Held>,
    /// The tokens of the last tenures that have ended, the newest first, and whose they were.
    retired: VecDeque<(usize, Token)>,
}

impl Masters {
    async fn start(options: &TakeoverOptions) -> Result<Masters> {
        let target = Target::of(&options.proxy, Protocol::Http1)?;
        let connect = async || Connection::open(&target, None).await;
        Ok(Masters {
            lock: Lock::open(&options.lock, Duration::ZERO).await?,
            path: options.proxy.path.of(0),
            masters: [("shard-1", connect().await?), ("shard-2", connect().await?)],
            held: None,
            retired: VecDeque::new(),
        })
    }

    /// Fails if etcd or the proxy does not answer at all, or a signal ends the run early.
    async fn take_turns(&mut self, report: &mut Report, stop: &Stop) -> Result<()> {
        let mut progress = Progress::new(report.wanted(), "takeovers");
        let mut result = Ok(());
        while result.is_ok() && report.done() < report.wanted() {
            result = tokio::select! {
                biased;
                () = stop.stopped(), if stop.is_stopped() => Err(anyhow!("ended early")),
                taken = self.take_over(report) => taken,
                () = async { stop.stopped().await; sleep(LAST_TAKEOVER).await } => {
                    Err(anyhow!("ended early, within a takeover"))
                }
            };
            progress.done(report.done());
        }
        result.and(self.lock.give_back().await)
    }

    async fn take_over(&mut self, report: &mut Report) -> Result<()> {
        let number = report.done();
        let successor = (number % 2) as usize;
        let (token, handoff) = self.pass_on(successor, number % 4 >= 2).await?;
        let acquired = Instant::now();
        let first = self.masters[successor].1.ask(&self.path, &token, "a first request").await?;
        let was_served = first.is_success();
        report.first_request(&token, first, acquired.elapsed(), handoff);
        if was_served {
            for (master, late) in &self.retired {
                let answer =
                    self.masters[*master].1.ask(&self.path, late, "a late request").await?;
                report.late_request(answer);
            }
        }
        self.retired.push_front((successor, token));
        self.retired.truncate(RETIRED_MAX);
        Ok(())
    }

    /// Ends one tenure and begins the next; with the moments of the handoff if the successor
    /// waited.
    async fn pass_on(&mut self, successor: usize, waits: bool) -> Result<(Token, Option<Handoff>)> {
        let owner = self.masters[successor].0;
        let (held, handoff) = match self.held.take() {
            None => (self.lock.acquire(owner).await?, None),
            Some(predecessor) if waits => {
                let successor = self.lock.successor(owner).await?;
                let (held, handoff) = self.lock.hand_over(&predecessor, successor).await?;
                (held, Some(handoff))
            }
            Some(predecessor) => (self.lock.take_from(predecessor, owner).await?, None),
        };
        Ok((self.held.insert(held).token.clone(), handoff))
    }
}
