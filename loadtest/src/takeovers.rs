//! A lock that changes hands many times.

mod handoffs;
mod report;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use bytes::Bytes;
use hyper::http::uri::PathAndQuery;

use crate::Conclusion;
use crate::cli::TakeoverSettings;
use crate::client::{Client, Protocol};
use crate::drive::Stop;
use crate::lock::{Handoff, Held, Lock};
use crate::occasion::Occasion;
use crate::progress::Progress;
use crate::token::Token;
use crate::worker::Worker;

use self::report::Report;

/// Moves the lock and prints what was found.
pub(crate) async fn run(settings: TakeoverSettings) -> anyhow::Result<Conclusion> {
    let occasion = Occasion::of_this_run();
    settings.json.iter().try_for_each(|file| crate::output::check(file))?;
    let worker = match settings.worker_listen {
        Some(address) => Some(Worker::listen(address).await?),
        None => None,
    };
    let mut masters = Masters::start(&settings).await?;
    let mut report = Report::new(settings.layout, settings.count.get());
    let stop = crate::signals::stop_when_asked()?;
    if let Err(error) = masters.take_turns(&mut report, &stop).await {
        report.broke_off(crate::failure::in_words(&error));
    }
    if let Some(worker) = worker {
        report.worker_saw(&worker.log());
    }
    let mut json = report.as_json();
    json["run"] = occasion.as_json();
    let written = settings.json.as_ref().map(|file| crate::output::write(file, &format!("{json:#}\n")));
    crate::output::print(&report);
    written.unwrap_or(Ok(()))?;
    Ok(report.conclusion())
}

/// Two masters that take the lock from each other.
struct Masters {
    lock: Lock,
    path: PathAndQuery,
    masters: [Master; 2],
    held: Option<Held>,
    /// The tokens of the last tenures that have ended, the newest first, and whose they were.
    retired: VecDeque<(usize, Token)>,
}

#[derive(Debug)]
struct Master {
    name: &'static str,
    client: Client,
}

/// How long a takeover may still take when the run is to end.
const LAST_TAKEOVER: Duration = Duration::from_secs(5);

async fn stopped_long_ago(stop: &Stop) {
    stop.stopped().await;
    tokio::time::sleep(LAST_TAKEOVER).await;
}

/// The predecessor's, and the successor's own from its tenure before: other owner, other revision; same owner, other revision.
const RETIRED_MAX: usize = 2;

impl Masters {
    async fn start(settings: &TakeoverSettings) -> anyhow::Result<Masters> {
        let target = &settings.proxy.at.target()?;
        let master = async |name| anyhow::Ok(Master { name, client: Client::connect(target, Protocol::Http1).await? });
        Ok(Masters {
            lock: Lock::open(&settings.lock, settings.layout).await?,
            path: settings.proxy.path.clone(),
            masters: [master("shard-1").await?, master("shard-2").await?],
            held: None,
            retired: VecDeque::new(),
        })
    }

    /// Ends early, with an error, when etcd or the proxy no longer answers at all, or when it is stopped.
    async fn take_turns(&mut self, report: &mut Report, stop: &Stop) -> anyhow::Result<()> {
        let mut progress = Progress::new(report.wanted(), "takeovers");
        let mut result = Ok(());
        while result.is_ok() && report.done() < report.wanted() {
            result = tokio::select! {
                biased;
                () = stop.stopped(), if stop.is_stopped() => Err(anyhow!("ended early")),
                taken = self.take_over(report) => taken,
                () = stopped_long_ago(stop) => Err(anyhow!("ended early, within a takeover")),
            };
            progress.done(report.done());
        }
        progress.end(report.done());
        result.and(self.lock.give_back().await)
    }

    async fn take_over(&mut self, report: &mut Report) -> anyhow::Result<()> {
        let number = report.done();
        let successor = (number % 2) as usize;
        let (token, handoff) = self.pass_on(successor, number % 4 >= 2).await?;
        let acquired = Instant::now();
        let answer = self.masters[successor].client.send(&self.path, &token, FIRST).await?;
        let admitted = answer.is_success();
        report.first_request(&token, answer, acquired.elapsed());
        if admitted {
            if let Some(handoff) = handoff {
                report.handed_over(&token, handoff);
            }
            for (master, late) in &self.retired {
                let answer = self.masters[*master].client.send(&self.path, late, LATE).await?;
                report.late_request(late, &token, answer);
            }
        }
        self.retired.push_front((successor, token));
        self.retired.truncate(RETIRED_MAX);
        Ok(())
    }

    /// Ends one tenure and begins the next. Returns the moment the successor is told that the lock is its own, with the moments
    /// before that if it waited for its predecessor.
    async fn pass_on(&mut self, successor: usize, waits: bool) -> anyhow::Result<(Token, Option<Handoff>)> {
        let name = self.masters[successor].name;
        let (held, handoff) = match self.held.take() {
            None => (self.lock.acquire(name).await?, None),
            Some(predecessor) if waits => {
                let waiting = self.lock.successor(name).await?;
                let (held, handoff) = self.lock.hand_over(&predecessor, waiting).await?;
                (held, Some(handoff))
            }
            Some(predecessor) => (self.lock.take_from(predecessor, name).await?, None),
        };
        Ok((self.held.insert(held).token.clone(), handoff))
    }
}

/// What the bodies say: for whoever looks at the traffic.
const FIRST: Bytes = Bytes::from_static(b"the first request of a tenure");
const LATE: Bytes = Bytes::from_static(b"a request of a tenure that has ended");
