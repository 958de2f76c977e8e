//! Locks that change hands while requests are sent.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;
use hyper::http::uri::PathAndQuery;

use super::held::HeldLocks;
use super::plan::Plan;
use super::recorder::{Recorder, Window};
use super::stop::Stop;
use super::tenures::{Presented, Tenure, Tenures};
use super::threads::no_more_answers;
use super::verdict::Finding;
use crate::answer::Answer;
use crate::client::Client;
use crate::failure::in_words;
use crate::lock::Handoff;
use crate::output::tell;
use crate::token::Token;

/// A lock that changed hands, and how long that took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moved {
    /// When its release was sent to etcd, counted from the beginning of the window. `None` if that was during the warm-up.
    pub(crate) at: Option<Duration>,
    /// From the sending of the release to the successor's hearing of it.
    pub(crate) told: Duration,
    /// From there until etcd has answered that the lock is the successor's.
    pub(crate) held: Duration,
    /// From the sending of the release to the first answer by which the successor was served; if it was not, until it gave the lock up, or the
    /// run was over.
    pub(crate) answered: Duration,
    pub(crate) was_served: bool,
}

/// What a mover has seen.
pub(crate) struct Moves {
    pub(crate) moved: Vec<Moved>,
    /// Handoffs that did not come about.
    pub(crate) not_made: u64,
    /// Why the last of them did not.
    pub(crate) why_not: Option<String>,
    pub(crate) recorder: Recorder,
}

/// Moves one lock after the other.
pub(crate) struct Mover<'a> {
    plan: &'a Plan,
    tenures: &'a Tenures,
    every: Duration,
    /// Connected when it is needed.
    client: Option<Client>,
    /// What its own requests were answered.
    recorder: Recorder,
    /// The tenures that have begun, each with the moments of its handoff.
    begun: Vec<(Arc<Tenure>, Handoff)>,
    not_made: u64,
    why_not: Option<String>,
}

/// Names successors: the two of a lock take turns.
const OWNERS: [&str; 2] = ["loadtest-a", "loadtest-b"];

impl Moves {
    /// No lock was to move.
    pub(crate) fn none(window: Window) -> Moves {
        Moves { moved: Vec::new(), not_made: 0, why_not: None, recorder: Recorder::new(window) }
    }

    /// How many successors were never served.
    pub(crate) fn unserved(&self) -> usize {
        self.moved.iter().filter(|moved| !moved.was_served).count()
    }

    /// What lessens the worth of the figures, in words.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.unserved() > 0 {
            warnings.push(format!(
                "{} successors were not served before they gave their lock up, or the run was over: the times of handoffs have what had passed by then",
                self.unserved()
            ));
        }
        if let Some(why) = &self.why_not {
            warnings.push(format!("{} handoffs did not come about, the last one as {why}", self.not_made));
        }
        warnings
    }
}

impl<'a> Mover<'a> {
    /// One that has moved nothing yet.
    pub(crate) fn new(plan: &'a Plan, tenures: &'a Tenures, every: Duration, window: Window) -> Mover<'a> {
        let recorder = Recorder::new(window);
        Mover { plan, tenures, every, client: None, recorder, begun: Vec::new(), not_made: 0, why_not: None }
    }

    /// What it has seen, all being over.
    pub(crate) fn seen(self) -> Moves {
        let (now, window) = (Instant::now(), self.recorder.window());
        let moved = self.begun.iter().map(|(tenure, Handoff { released, told, held })| {
            // The mover's own request is the successor's first one, and any other of its tenure may be served earlier, or alone.
            let served = tenure.first_served();
            let until = served.or(tenure.ending()).unwrap_or(now);
            Moved {
                at: released.checked_duration_since(window.begin),
                told: *told - *released,
                held: *held - *told,
                answered: until - *released,
                was_served: served.is_some(),
            }
        });
        let moved = moved.collect();
        Moves { moved, not_made: self.not_made, why_not: self.why_not, recorder: self.recorder }
    }

    /// Moves locks for as long as a run lasts that begins then, or until it is stopped. A handoff that does not come about, etcd being away, keeps
    /// the next ones from nothing.
    pub(crate) async fn run(&mut self, held: &mut HeldLocks, begun: Instant, stop: &Arc<Stop>) {
        let (until, mut turn, mut fails) = (begun + self.plan.length(), 0, false);
        let mut next = Instant::now() + self.every;
        while next < until {
            tokio::select! {
                () = tokio::time::sleep_until(next.into()) => {}
                () = stop.stopped() => return,
            }
            let lock = turn % self.tenures.count();
            let owner = OWNERS[(turn / self.tenures.count()) % OWNERS.len()];
            match self.hand_over(held, lock, owner, (begun, stop)).await {
                Ok(()) => fails = false,
                Err(error) => self.was_not_made(in_words(&error), std::mem::replace(&mut fails, true)),
            }
            turn += 1;
            // A handoff that took longer does not make the next ones come faster.
            next = (next + self.every).max(Instant::now());
        }
    }

    /// Takes note of a handoff that did not come about, and says so if it is the first in a row: a run may take hours.
    fn was_not_made(&mut self, why: String, goes_on: bool) {
        if !goes_on {
            tell(format_args!("\na handoff did not come about, and is tried again: {why}\n"));
        }
        self.not_made += 1;
        self.why_not = Some(why);
    }

    async fn hand_over(
        &mut self,
        held: &mut HeldLocks,
        lock: usize,
        owner: &str,
        run: (Instant, &Stop),
    ) -> anyhow::Result<()> {
        let (token, times) = tokio::select! {
            changed = change_hands(self.tenures, held, lock, owner) => changed?,
            () = no_more_answers(self.plan, run.0, run.1) => bail!("the run was over before etcd had answered"),
        };
        let tenure = self.tenures.begins(lock, token);
        self.begun.extend(times.map(|times| (tenure, times)));
        // The successor's first request, and a late one of the predecessor.
        if self.send(self.tenures.presented(lock, false), run).await {
            self.send(self.tenures.presented(lock, true), run).await;
        }
        Ok(())
    }

    /// Whether it was answered before the end of the run.
    async fn send(&mut self, presented: Presented, (begun, stop): (Instant, &Stop)) -> bool {
        let (sent, plan) = (Instant::now(), self.plan);
        let answer = tokio::select! {
            answer = self.exchange(&presented) => answer,
            () = no_more_answers(plan, begun, stop) => {
                self.recorder.abandoned(sent, presented.standing());
                return false;
            }
        };
        let standing = presented.standing();
        match answer {
            Ok(answer) => {
                let finding = Finding::of(standing, &answer, self.plan.expected);
                if finding == Finding::Served {
                    presented.note_served();
                }
                self.recorder.answered(sent, standing, answer, finding);
                true
            }
            Err(error) => {
                self.client = None;
                self.recorder.failed(sent, in_words(&error));
                false
            }
        }
    }

    async fn exchange(&mut self, presented: &Presented) -> anyhow::Result<Answer> {
        let client = match &mut self.client {
            Some(client) => client,
            None => self.client.insert(Client::connect(&self.plan.target, self.plan.protocol).await?),
        };
        // Like all others: a route may let whatever is only read pass unjudged.
        let (method, body) = (self.plan.method.clone(), self.plan.body.clone());
        let path = PathAndQuery::try_from(self.plan.path.of(presented.lock))?;
        let more = self.plan.more_headers(presented.lock)?;
        client.send_with(method, &path, &presented.token, more, body).await
    }
}

/// Has a lock change hands. Without the moments of it where an earlier handoff broke off, and the lock is only taken anew.
async fn change_hands(
    tenures: &Tenures,
    held: &mut HeldLocks,
    lock: usize,
    owner: &str,
) -> anyhow::Result<(Token, Option<Handoff>)> {
    if !held.is_settled(lock) {
        return Ok((held.take_anew(lock, owner).await?, None));
    }
    // Whoever holds the lock goes on holding it if this fails.
    let successor = held.successor(lock, owner).await?;
    tenures.present(lock).note_ending();
    let (token, times) = held.hand_over(lock, successor).await?;
    Ok((token, Some(times)))
}
