//! Locks that change hands while requests are sent.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::http::uri::PathAndQuery;

use super::held::HeldLocks;
use super::plan::Plan;
use super::recorder::Recorder;
use super::stop::Stop;
use super::tenures::{Presented, Tenures};
use super::threads::no_more_answers;
use super::verdict::Finding;
use crate::client::Client;

/// A lock that changed hands, and how long that took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moved {
    /// When its release was sent to etcd, counted from the beginning of the window. `None` if that was during the warm-up.
    pub(crate) at: Option<Duration>,
    /// From the sending of the release to the successor's hearing of it.
    pub(crate) told: Duration,
    /// From there until etcd has answered that the lock is the successor's.
    pub(crate) held: Duration,
    /// From the sending of the release to the answer to the successor's first request that was served.
    pub(crate) answered: Duration,
}

/// Moves one lock after the other.
pub(crate) struct Mover<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) tenures: &'a Tenures,
    pub(crate) every: Duration,
    /// What its own requests were answered.
    pub(crate) recorder: Recorder,
    /// How many handoffs there were, whether their successor was served or not.
    pub(crate) handed_over: usize,
    pub(crate) moved: Vec<Moved>,
}

/// What a mover has seen.
pub(crate) struct Moves {
    pub(crate) moved: Vec<Moved>,
    /// Handoffs whose successor's first request was not served.
    pub(crate) unserved: usize,
    pub(crate) recorder: Recorder,
}

/// Names successors: the two of a lock take turns.
const OWNERS: [&str; 2] = ["loadtest-a", "loadtest-b"];

impl Mover<'_> {
    /// What it has seen.
    pub(crate) fn seen(self) -> Moves {
        Moves { unserved: self.handed_over - self.moved.len(), moved: self.moved, recorder: self.recorder }
    }

    /// Moves locks for as long as a run lasts that begins then, or until it is stopped.
    ///
    /// # Errors
    /// If etcd or the proxy no longer answers: then the run has nothing more to say of handoffs.
    pub(crate) async fn run(&mut self, held: &mut HeldLocks, begun: Instant, stop: &Arc<Stop>) -> anyhow::Result<()> {
        let connecting = Client::connect(&self.plan.target, self.plan.protocol);
        let mut client = tokio::select! {
            connected = connecting => connected?,
            () = no_more_answers(self.plan, begun, stop) => return Ok(()),
        };
        let (until, mut turn) = (begun + self.plan.length(), 0);
        let mut next = Instant::now() + self.every;
        while next < until {
            tokio::select! {
                () = tokio::time::sleep_until(next.into()) => {}
                () = stop.stopped() => return Ok(()),
            }
            let lock = turn % self.tenures.count();
            let owner = OWNERS[(turn / self.tenures.count()) % OWNERS.len()];
            self.hand_over(held, lock, owner, &mut client, (begun, stop)).await?;
            turn += 1;
            // A handoff that took longer does not make the next ones come faster.
            next = (next + self.every).max(Instant::now());
        }
        Ok(())
    }

    async fn hand_over(
        &mut self,
        held: &mut HeldLocks,
        lock: usize,
        owner: &str,
        client: &mut Client,
        run: (Instant, &Stop),
    ) -> anyhow::Result<()> {
        // Whoever holds the lock goes on holding it if this fails.
        let successor = held.successor(lock, owner).await?;
        self.tenures.present(lock).note_ending();
        let (token, times) = held.hand_over(lock, successor).await?;
        let tenure = self.tenures.begins(lock, token);
        self.handed_over += 1;
        // The successor's first request; others of its tenure may be faster, and then theirs counts.
        if !self.send(client, self.tenures.presented(lock, false), run).await? {
            return Ok(());
        }
        if let Some(answered) = tenure.first_served() {
            self.moved.push(Moved {
                at: times.released.checked_duration_since(self.recorder.window().begin),
                told: times.told - times.released,
                held: times.held - times.told,
                answered: answered - times.released,
            });
        }
        // A late one of the predecessor.
        self.send(client, self.tenures.presented(lock, true), run).await.map(|_| ())
    }

    /// Whether it was answered before the end of the run.
    async fn send(
        &mut self,
        client: &mut Client,
        presented: Presented,
        (begun, stop): (Instant, &Stop),
    ) -> anyhow::Result<bool> {
        let sent = Instant::now();
        // Like all others: a route may let whatever is only read pass unjudged.
        let (method, body) = (self.plan.method.clone(), self.plan.body.clone());
        let path = PathAndQuery::try_from(self.plan.path.of(presented.lock))?;
        let more = self.plan.more_headers(presented.lock)?;
        let answer = tokio::select! {
            answer = client.send_with(method, &path, &presented.token, more, body) => answer?,
            () = no_more_answers(self.plan, begun, stop) => {
                self.recorder.abandoned(sent, presented.standing());
                return Ok(false);
            }
        };
        let standing = presented.standing();
        let finding = Finding::of(standing, &answer, self.plan.expected);
        if finding == Finding::Served {
            presented.note_served();
        }
        self.recorder.answered(sent, standing, answer, finding);
        Ok(true)
    }
}
