//! Moves locks from owner to owner while requests are sent, and times each handoff.

use std::fmt;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde_json::{Value, json};

use super::lane::{Fate, Lane, Run};
use super::tenures::{Tenure, Tenures};
use crate::client::{Connection, Token};
use crate::durations::Durations;
use crate::lock::{Handoff, HeldLocks};
use crate::report::tell;

/// The owners of a lock take turns.
const OWNERS: [&str; 2] = ["loadtest-a", "loadtest-b"];

pub(crate) struct Moves {
    spans: [(&'static str, Durations); 3],
    unserved: u64,
    /// Whether a lock changed hands at any time.
    pub(crate) moved_any: bool,
    /// Handoffs that failed, and why the last one did.
    pub(crate) failed: u64,
    why: Option<String>,
}

pub(crate) struct Mover {
    run: Run,
    lane: Lane,
    /// The tenures that have begun, each with the moments of its handoff.
    begun: Vec<(Rc<Tenure>, Handoff)>,
    failed: u64,
    why: Option<String>,
}

impl Mover {
    pub(crate) fn new(run: &Run) -> Mover {
        let lane = Lane::new(run, &Rc::new(Connection::new(&run.plan.target, None)));
        Mover { run: run.clone(), lane, begun: Vec::new(), failed: 0, why: None }
    }

    /// Moves one lock after the other until the run ends. A handoff that fails, as while etcd is
    /// away, is tried again in its turn.
    pub(crate) async fn move_locks(&mut self, held: &mut HeldLocks, every: Duration) {
        let (mut next, locks) = (Instant::now() + every, self.run.tenures.count());
        let (mut turn, mut fails) = (0, false);
        while next < self.run.end() {
            tokio::select! {
                () = tokio::time::sleep_until(next.into()) => {}
                () = self.run.stop.stopped() => return,
            }
            let owner = OWNERS[(turn / locks) % OWNERS.len()];
            match self.hand_over(held, turn % locks, owner).await {
                Ok(Fate::Abandoned) => return,
                Ok(Fate::Answered | Fate::Failed) => fails = false,
                Err(error) => {
                    let why = format!("{error:#}");
                    if !std::mem::replace(&mut fails, true) {
                        tell(format_args!("\na handoff failed, and is tried again: {why}\n"));
                    }
                    self.failed += 1;
                    self.why = Some(why);
                }
            }
            turn += 1;
            // A slow handoff does not make the next ones come faster.
            next = (next + every).max(Instant::now());
        }
    }

    async fn hand_over(&mut self, held: &mut HeldLocks, lock: usize, owner: &str) -> Result<Fate> {
        let tenures = Rc::clone(&self.run.tenures);
        let (token, handoff) = tokio::select! {
            changed = change_hands(&tenures, held, lock, owner) => changed?,
            () = self.run.clone().no_more_answers() => bail!("etcd had not answered in time"),
        };
        let tenure = tenures.begins(lock, token);
        self.begun.extend(handoff.map(|handoff| (tenure, handoff)));
        // The successor's first request, and a late one of its predecessor.
        for is_late in [false, true] {
            let presented = tenures.presented(lock, is_late);
            let fate = self.lane.send(Instant::now(), &presented).await;
            if fate != Fate::Answered {
                return Ok(fate);
            }
        }
        Ok(Fate::Answered)
    }

    pub(crate) fn seen(self) -> Moves {
        let [mut answered, mut told_after, mut held_after] = [(); 3].map(|()| Durations::default());
        let (now, mut unserved) = (Instant::now(), 0);
        for (tenure, Handoff { released, told, held }) in &self.begun {
            if *released < self.run.begin + self.run.plan.warm_up {
                continue;
            }
            // Any request of the tenure may be the first served, not only the mover's.
            let served = tenure.first_served.get().copied();
            unserved += u64::from(served.is_none());
            answered.add(served.or(tenure.ending.get().copied()).unwrap_or(now) - *released);
            told_after.add(*told - *released);
            held_after.add(*held - *told);
        }
        Moves {
            spans: [
                ("release_to_answer", answered),
                ("release_to_told", told_after),
                ("told_to_held", held_after),
            ],
            unserved,
            moved_any: !self.begun.is_empty(),
            failed: self.failed,
            why: self.why,
        }
    }
}

/// Without the moments where the last handoff did not end, and the lock is only taken anew.
async fn change_hands(
    tenures: &Tenures,
    held: &mut HeldLocks,
    lock: usize,
    owner: &str,
) -> Result<(Token, Option<Handoff>)> {
    // The holder goes on holding the lock if this fails.
    let Some(successor) = held.successor(lock, owner).await? else {
        return Ok((held.take_anew(lock, owner).await?, None));
    };
    tenures.present(lock).ending.get_or_init(Instant::now);
    let (token, handoff) = held.hand_over(lock, successor).await?;
    Ok((token, Some(handoff)))
}

impl Moves {
    fn count(&self) -> u64 {
        self.spans[0].1.count()
    }

    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.unserved > 0 {
            let count = self.unserved;
            warnings.push(format!("{count} successors were not served before their tenure's end"));
        }
        if let Some(why) = &self.why {
            warnings.push(format!("{} handoffs did not come about, the last: {why}", self.failed));
        }
        warnings
    }

    pub(crate) fn as_json(&self) -> Value {
        let (count, unserved, failed) = (self.count(), self.unserved, self.failed);
        let mut json = json!({ "count": count, "unserved": unserved, "not_made": failed });
        for (name, span) in &self.spans {
            json[name] = span.as_json();
        }
        json
    }
}

impl fmt::Display for Moves {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.count() == 0 {
            return Ok(());
        }
        writeln!(f, "handoffs    {}", self.count())?;
        self.spans
            .iter()
            .try_for_each(|(name, span)| writeln!(f, "  {:<18}  {span}", name.replace('_', " ")))
    }
}
