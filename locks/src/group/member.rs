//! One membership in a group, from its join to its end: here its own key and what it waits for.
//!
//! - `others`: what the other members have written.
//! - `asks`: tenures that begin, here and there.
//! - `following`: the keys of all, as they are written.
//! - `shown`: what operators see.

mod asks;
mod following;
mod others;
mod shown;

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fencepost_policy::group::{
    Answer, Group, MemberId, MemberState, NamedTenure, SharedLock, Standing,
};
use fencepost_policy::{LockKey, Moment, Revision};
use futures_util::StreamExt;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until};

use self::following::follow;
use super::membership::{Membership, Request};
use super::view::count;
use super::wire::{self, About};
use crate::cache::{Backoff, TrackedLock, Work};
use crate::store::{
    KeyRange, KeyValue, LockStore, RangeRead, ReadAnswer, StoreError, Swap, Swapped, Wanted,
};

/// How often it is looked whether somebody is silent or over, and whether this member still stands.
const LOOK_PERIOD: Duration = Duration::from_millis(100);

/// How far apart writes of the own key begin at least: asks and answers come together meanwhile.
/// Where there are more members than five, it is a millisecond for each.
const WRITES_APART: Duration = Duration::from_millis(5);

/// How often all keys are read while an ask is open, in case a watch has lost an event. Else they
/// are read with each heartbeat: somebody may ask us.
const ROLL_PERIOD: Duration = Duration::from_secs(1);

/// For how long an ask is kept that no request waits for.
const UNWANTED_MAX: Duration = Duration::from_secs(2);

/// How many asks operators are shown.
const ASKS_SHOWN: usize = 100;

/// How a membership ends.
pub(super) enum End {
    /// The process ends, and the others know. Who asked for that is to be told.
    Left(Option<oneshot::Sender<()>>),
    /// The key is not as this member has written it.
    Lost(&'static str),
}

/// What was waited for.
enum Done {
    /// The own key was written, or not.
    Swapped(Result<Swapped, StoreError>),
    /// All keys, to see what came of a write that is not known to have been made.
    Looked(Result<ReadAnswer, StoreError>),
    /// All keys, in case a watch has lost something.
    Roll(Result<ReadAnswer, StoreError>),
    /// An ask can be answered.
    Sealed(MemberId, u64, LockKey),
    /// A tenure is clear, and nothing earlier is here either.
    Clear(NamedTenure),
    /// A tenure has ended before that.
    Ended,
    /// A silent member's key was marked, or a gone one's deleted, or not.
    Marked(MemberId, bool, Result<Swapped, StoreError>),
    /// A member's key was marked as left by the word of an operator, or not.
    Forgotten(MemberId, oneshot::Sender<bool>, Result<Swapped, StoreError>),
}

/// A write of the own key that is not known to have been made. It is tried again, unchanged, until
/// that is known: only then the next one may say something else.
struct Pending {
    value: Bytes,
    since: Moment,
    leaves: bool,
}

/// A tenure that wants to begin.
struct Waiting {
    lock: Arc<TrackedLock>,
    since: Instant,
    /// When a request was last seen that waits for it.
    wanted: Instant,
}

pub(super) struct Member<S: LockStore> {
    work: Rc<Work<S>>,
    membership: Arc<Membership>,
    id: MemberId,
    key: Arc<[u8]>,
    all: KeyRange,
    group: Group,
    /// The revision of our newest acknowledged write.
    written: Option<Revision>,
    joined: Option<Revision>,
    /// The id of the store's cluster.
    cluster: u64,
    writes: u64,
    pending: Option<Pending>,
    backoff: Backoff,
    write_from: Instant,
    problem: Option<String>,
    abouts: BTreeMap<MemberId, About>,
    waiting: BTreeMap<SharedLock, Waiting>,
    /// Whose asks are waited for at a gate.
    answering: BTreeSet<(MemberId, u64)>,
    /// Whose key is being marked.
    marking: BTreeSet<MemberId>,
    mismatches: BTreeSet<(MemberId, SharedLock)>,
    tasks: FuturesUnordered<LocalBoxFuture<'static, Done>>,
    is_reading: bool,
    read_at: Instant,
    stood: bool,
    leaving: Option<oneshot::Sender<()>>,
}

impl<S: LockStore> Member<S> {
    pub(super) fn new(work: Rc<Work<S>>, membership: Arc<Membership>, id: MemberId) -> Member<S> {
        let prefix = &membership.options().prefix;
        let now = Instant::now();
        Member {
            key: format!("{prefix}{id}").into_bytes().into(),
            all: KeyRange::Prefix(prefix.as_bytes().into()),
            group: Group::new(id, membership.options().timing),
            backoff: work.backoff(),
            work,
            membership,
            id,
            written: None,
            joined: None,
            cluster: 0,
            writes: 0,
            pending: None,
            write_from: now,
            problem: None,
            abouts: BTreeMap::new(),
            waiting: BTreeMap::new(),
            answering: BTreeSet::new(),
            marking: BTreeSet::new(),
            mismatches: BTreeSet::new(),
            tasks: FuturesUnordered::new(),
            is_reading: false,
            read_at: now,
            stood: false,
            leaving: None,
        }
    }

    /// Joins, and takes part until that ends.
    pub(super) async fn take_part(
        mut self,
        requests: &mut mpsc::UnboundedReceiver<Request>,
    ) -> End {
        let (sender, mut news) = mpsc::unbounded_channel();
        let follow = follow(Rc::clone(&self.work), self.all.clone(), sender);
        let mut follow = pin!(follow);
        let mut look_at = Instant::now();
        loop {
            self.write();
            self.settle();
            let wake_at = if self.pending.is_none() && self.write_from > Instant::now() {
                look_at.min(self.write_from)
            } else {
                look_at
            };
            let ended = tokio::select! {
                biased;
                request = requests.recv() => match request {
                    Some(request) => self.asked(request),
                    None => return End::Left(None),
                },
                Some(done) = self.tasks.next() => self.done(done),
                Some(news) = news.recv() => self.heard(news),
                () = &mut follow, if self.joined.is_some() => None,
                () = sleep_until(wake_at) => {
                    if wake_at == look_at {
                        self.look();
                        look_at = Instant::now() + LOOK_PERIOD;
                    }
                    None
                }
            };
            if let Some(end) = ended {
                return end;
            }
        }
    }

    /// Begins the next write, if one is due and none is under way.
    fn write(&mut self) {
        if self.pending.is_some() || Instant::now() < self.write_from {
            return;
        }
        let now = self.membership.time();
        let Some(record) = self.group.write(now) else { return };
        self.writes += 1;
        let options = self.membership.options();
        let about =
            About { n: self.writes, host: options.host.clone(), version: options.version.clone() };
        let value = wire::write(&record, &about);
        // A megabyte each second at most.
        let apart = Duration::from_micros(value.len() as u64);
        let members = self.abouts.len() as u32 + 1;
        let apart = apart.max(WRITES_APART).max(Duration::from_millis(1) * members);
        self.write_from = Instant::now() + apart;
        let leaves = matches!(record.state, MemberState::Left(_));
        self.pending = Some(Pending { value, since: now, leaves });
        self.try_write(Duration::ZERO);
    }

    fn try_write(&mut self, pause: Duration) {
        let Some(pending) = &self.pending else { return };
        let swap = Swap {
            key: Arc::clone(&self.key),
            expected: self.written,
            value: Some(pending.value.clone()),
            read: self.all.clone(),
        };
        let work = Rc::clone(&self.work);
        self.tasks.push(Box::pin(async move {
            if !pause.is_zero() {
                sleep(pause).await;
            }
            Done::Swapped(work.store.swap(&swap).await)
        }));
    }

    fn asked(&mut self, request: Request) -> Option<End> {
        match request {
            Request::Want(lock) => {
                lock.begin_asking();
                self.want(lock);
            }
            Request::Leave(done) => {
                self.membership.set_sent(None); // Nothing is let in behind the look at what is there.
                let is_busy = |lock: &Arc<TrackedLock>| !lock.is_clear(Instant::now());
                let locks = self.work.common().registry.all();
                let busy = locks.iter().filter(|lock| is_busy(lock));
                let busy = busy.map(|lock| self.shared(lock)).collect();
                self.group.leave(busy);
                self.leaving = Some(done);
            }
            Request::Forget(id, done) => self.forget(id, done),
        }
        None
    }

    fn done(&mut self, done: Done) -> Option<End> {
        match done {
            Done::Swapped(Ok(swapped)) if swapped.is_written => {
                let names = swapped.names.iter().map(|name| &**name);
                let roll = names.filter_map(|name| self.named(name)).collect();
                self.cluster = swapped.by.map_or(self.cluster, |by| by.cluster);
                return self.was_written(swapped.revision, &roll);
            }
            // By an earlier attempt, perhaps, whose answer was lost.
            Done::Swapped(Ok(_)) => self.look_at_keys(),
            Done::Swapped(Err(error)) => return self.failed(error),
            Done::Looked(Ok(answer)) => return self.found(&answer),
            Done::Looked(Err(error)) => return self.failed(error),
            Done::Roll(answer) => {
                self.is_reading = false;
                return answer.ok().and_then(|answer| self.see_all(&answer));
            }
            Done::Sealed(id, number, lock) => {
                self.answering.remove(&(id, number));
                // It may have come to be only watched meanwhile.
                let is_unfenced = self.membership.is_unfenced(&lock);
                let answer = if is_unfenced { Answer::Unfenced } else { Answer::Sealed };
                self.group.answer(id, number, answer);
            }
            Done::Clear(tenure) => self.group.tell(tenure),
            Done::Ended => {}
            Done::Marked(id, gives_up, outcome) => {
                self.marking.remove(&id);
                if gives_up && outcome.is_ok_and(|swapped| swapped.is_written) {
                    count(&self.membership.counts.given_up);
                    tracing::warn!(
                        group = self.membership.options().name, member = %id, host = self.host(id),
                        "a member of the group is silent and was given up; tenures that begin wait until nothing of it can be at the worker"
                    );
                }
            }
            Done::Forgotten(id, done, outcome) => {
                let is_known = match outcome {
                    Ok(swapped) if swapped.is_written => true,
                    Ok(swapped) if swapped.names.is_empty() => {
                        self.group.forget(id);
                        true
                    }
                    Ok(_) | Err(_) => false,
                };
                if is_known {
                    tracing::warn!(group = self.membership.options().name, member = %id, "an operator says that this member is gone");
                }
                let _ = done.send(is_known); // Who asked may be gone.
            }
        }
        None
    }

    /// The write under way was made.
    fn was_written(&mut self, revision: Revision, roll: &BTreeSet<MemberId>) -> Option<End> {
        if let Some(end) = self.join_is_late() {
            return Some(end);
        }
        let pending = self.pending.take()?;
        self.written = Some(revision);
        self.group.written(revision, roll);
        self.backoff.reset();
        self.problem = None;
        count(&self.membership.counts.writes);
        if self.joined.is_none() {
            self.joined = Some(revision);
            // No read that shows less is believed from now on.
            self.work.common().trust.saw(revision);
            self.membership.joined_at(revision);
            tracing::info!(
                group = self.membership.options().name, member = %self.id, others = roll.len().saturating_sub(1),
                "joined the group"
            );
        }
        self.note_standing();
        if self.leaving.is_none() {
            self.membership.set_sent(Some(pending.since));
        }
        self.reconsider();
        pending.leaves.then(|| End::Left(self.leaving.take()))
    }

    /// The write under way failed, and may have been made, or may be yet.
    fn failed(&mut self, error: StoreError) -> Option<End> {
        count(&self.membership.counts.writes_failed);
        let text = error.to_string();
        if self.problem.as_ref() != Some(&text) {
            tracing::warn!(group = self.membership.options().name, %error, "the group's key cannot be written");
            self.problem = Some(text);
        }
        self.write_again()
    }

    fn write_again(&mut self) -> Option<End> {
        let end = self.join_is_late();
        if end.is_none() {
            let pause = self.backoff.delay();
            self.try_write(pause);
        }
        end
    }

    /// Ends a membership whose first write was sent long ago. The write may have been made soon
    /// after, and the others may have given up that key and deleted it. They wait no longer for a
    /// member of that name.
    fn join_is_late(&self) -> Option<End> {
        let since = self.pending.as_ref().filter(|_| self.joined.is_none())?.since;
        let ttl = self.membership.options().timing.member_ttl;
        let is_late = Standing::of(Some(since), ttl, self.membership.time()) == Standing::Cut;
        is_late.then_some(End::Lost("the store has not confirmed in time that it has joined"))
    }

    /// Looks what came of the write under way.
    fn look_at_keys(&mut self) {
        let (work, all) = (Rc::clone(&self.work), self.all.clone());
        self.tasks.push(Box::pin(async move {
            Done::Looked(work.store.read(&[RangeRead { range: all, wanted: Wanted::All }]).await)
        }));
    }

    fn found(&mut self, answer: &ReadAnswer) -> Option<End> {
        let own = own_key(answer, &self.key);
        match (own, &self.pending) {
            (Some(own), Some(pending)) if own.value == pending.value => {
                let keys = &answer.ranges[0].keys;
                let roll = keys.iter().filter_map(|found| self.named(&found.key)).collect();
                self.cluster = answer.by.map_or(self.cluster, |by| by.cluster);
                let end = self.was_written(own.modified, &roll);
                end.or_else(|| self.see_all(answer))
            }
            (own, Some(_)) if own.map(|own| own.modified) == self.written => self.write_again(),
            (Some(own), Some(_)) if Some(own.modified) < self.written => {
                Some(End::Lost("the store has gone back, as if restored from a backup"))
            }
            (Some(_), Some(_)) => Some(End::Lost("another member has given it up")),
            (None, Some(_)) => Some(End::Lost("its key is gone")),
            (_, None) => None,
        }
    }

    /// Looks whether somebody is silent or over, whether nobody waits any more, and where we stand.
    fn look(&mut self) {
        let now = self.membership.time();
        for (id, revision, mark) in self.group.silent(now) {
            let about = self.abouts.get(&id).cloned().unwrap_or_default();
            self.mark(id, revision, Some(wire::write(&mark, &about)));
        }
        for (id, revision) in self.group.over(now) {
            self.mark(id, revision, None);
        }
        self.drop_unwanted();
        let heartbeat = self.membership.options().timing.member_ttl / 5;
        let period = if self.waiting.is_empty() { heartbeat } else { ROLL_PERIOD };
        if self.joined.is_some() && !self.is_reading && self.read_at.elapsed() >= period {
            (self.is_reading, self.read_at) = (true, Instant::now());
            let (work, all) = (Rc::clone(&self.work), self.all.clone());
            self.tasks.push(Box::pin(async move {
                Done::Roll(work.store.read(&[RangeRead { range: all, wanted: Wanted::All }]).await)
            }));
        }
        self.note_standing();
        self.show(now);
    }

    fn shared(&self, lock: &TrackedLock) -> SharedLock {
        SharedLock { cluster: self.cluster, key: lock.key().clone(), layout: lock.layout() }
    }

    /// Tells when this member ceases to stand, and when it stands again.
    fn note_standing(&mut self) {
        let stands = self.membership.stands();
        if self.stood && !stands && self.leaving.is_none() {
            count(&self.membership.counts.lapses);
            tracing::error!(
                group = self.membership.options().name,
                "the group's key was not written for two thirds of member_ttl: requests are refused (out-of-group) until it is"
            );
        } else if !self.stood && stands && self.membership.counts.has_lapsed() {
            tracing::info!(group = self.membership.options().name, "requests are let in again");
        }
        self.stood = stands;
    }

    fn tracked(&self, lock: &SharedLock) -> Option<Arc<TrackedLock>> {
        let tracked = self.work.common().registry.find(lock.key.as_str())?;
        (tracked.layout() == lock.layout && lock.cluster == self.cluster).then_some(tracked)
    }

    /// The member whose key has that name.
    fn named(&self, key: &[u8]) -> Option<MemberId> {
        let id = key.strip_prefix(self.membership.options().prefix.as_bytes())?;
        wire::member(std::str::from_utf8(id).ok()?)
    }

    fn host(&self, id: MemberId) -> &str {
        self.abouts.get(&id).map_or("", |about| &about.host)
    }
}

fn own_key<'a>(answer: &'a ReadAnswer, key: &[u8]) -> Option<&'a KeyValue> {
    answer.ranges.first()?.keys.iter().find(|found| *found.key == *key)
}
