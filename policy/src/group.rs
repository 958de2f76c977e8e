//! Several proxies before one worker: whom a tenure has to wait for.
//!
//! The members of a group share one gate per lock. A tenure is *clear* when no request of an earlier
//! tenure of its lock is at the worker through any member, or ever will be. Once that is true, it
//! stays true. Requests of a clear tenure need no coordination at all.
//!
//! Each member has one key in the store, which it alone rewrites, by compare-and-swap. Who first
//! needs a tenure *asks* by such a write. That transaction also reads which members have keys, and
//! all of them have to answer (`roll-of-the-ask`). A member answers when nothing earlier is at the
//! worker through it, and never will be (`answered-is-sealed`).
//!
//! A member acts only while it *stands*: for two thirds of `member_ttl` after it sent its newest
//! acknowledged write. Who is silent is given up by a mark in its key, never by the absence of one
//! (`marked-not-missing`), and counts as being at the worker for `member_ttl` and its
//! `orphan_timeout` after its last write was seen.
//!
//! [`Group`] is one member's knowledge, a state machine without clock or I/O. Its driver writes what
//! [`Group::write`] returns, passes on what it reads, and asks the gates ([`Gate::answer`]).
//!
//! [`Gate::answer`]: crate::Gate::answer

mod peer;
mod record;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::time::Duration;

use self::peer::Peer;
pub use self::record::{
    Answers, Ask, MemberId, MemberRecord, MemberState, NamedTenure, SharedLock,
};
use crate::{Moment, Revision};

/// How many asks one record carries; the others wait for the next.
const ASKS_MAX: usize = 1_000;
/// How many facts a member remembers of itself, and of each other. One that is forgotten costs an
/// ask.
const CLEAR_MAX: usize = 512;
/// How many of them each record carries, beside those that no record has carried: the others
/// remember the rest, and a store keeps each record until it is compacted.
const CLEAR_SHOWN: usize = 64;
/// How long others see that a member has left in good order, before the key is deleted.
const LEFT_SHOWN: Duration = Duration::from_mins(1);

/// How long a member may be silent, and its requests unseen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Timing {
    /// `member_ttl`.
    pub member_ttl: Duration,
    /// The longest `orphan_timeout` of all routes.
    pub orphan_timeout: Duration,
}

/// What a member says to an ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Answer {
    /// Nothing of an earlier tenure is at the worker through this member, or ever will be.
    Sealed,
    /// This member's route only watches: it forwards what it would refuse.
    Unfenced,
}

/// What a member may still do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Standing {
    /// It lets requests in, and writes them to the worker.
    Stands,
    /// It lets nothing in and writes nothing; what was handed over whole runs on.
    Lapsed,
    /// All that is unfinished is reset: the others will soon not wait for it any more.
    Cut,
}

impl Standing {
    /// What a member may do whose newest acknowledged write was sent then; `None` without one.
    pub fn of(sent: Option<Moment>, member_ttl: Duration, now: Moment) -> Standing {
        let Some(sent) = sent else { return Standing::Cut };
        if now < after(sent, member_ttl * 2 / 3) {
            Standing::Stands
        } else if now < after(sent, member_ttl * 19 / 20) {
            Standing::Lapsed
        } else {
            Standing::Cut
        }
    }
}

/// A tenure that a member found clear after asking.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cleared {
    /// The tenure.
    pub tenure: NamedTenure,
    /// What the others have said. If one of them is not fenced, the tenure may begin, and is not
    /// told to be clear.
    pub by: Answer,
}

/// Another member, as an operator sees it.
#[derive(Debug, Clone, Copy)]
pub struct OtherMember<'a> {
    /// Its name.
    pub id: MemberId,
    /// The revision at which its key was last seen.
    pub revision: Revision,
    /// What its key said then.
    pub record: &'a MemberRecord,
    /// When its own newest write was first seen.
    pub seen: Moment,
    /// From when on nothing that it let in can be at the worker; `None` while it is live.
    pub over_at: Option<Moment>,
}

/// An ask of ours.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct OpenAsk {
    tenure: NamedTenure,
    /// Who has to answer, as of the revision of the write that carried the ask; `None` until that
    /// write is acknowledged.
    roll: Option<(Revision, BTreeSet<MemberId>)>,
}

/// A write under way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Sending {
    since: Moment,
    has_let_in: bool,
    /// The newest ask that it carries.
    through: u64,
    tells_all: bool,
}

/// Whether others can know of a fact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Told {
    Not,
    /// The write under way carries it.
    Sending,
    Written,
}

/// What one member knows of its group.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Group {
    me: MemberId,
    timing: Timing,
    peers: BTreeMap<MemberId, Peer>,
    /// Who was seen to be gone: late news may still name them.
    gone: BTreeSet<MemberId>,
    asks: BTreeMap<u64, OpenAsk>,
    asks_made: u64,
    /// What we have found clear, the newest last.
    told: Vec<(NamedTenure, Told)>,
    /// Whether the next write carries all of that: a member has come that may know nothing of it.
    tells_all: bool,
    /// Whether our key, as acknowledged, says that we let requests in.
    has_let_in: bool,
    wants_to_let_in: bool,
    left: Option<BTreeSet<SharedLock>>,
    /// Whether our key would say something new.
    is_stale: bool,
    sending: Option<Sending>,
    /// When the newest acknowledged write was sent.
    stamped: Option<Moment>,
    /// Since when no two of our acknowledged writes lay farther apart than `member_ttl`.
    in_touch_since: Option<Moment>,
}

impl Group {
    /// A member that has not joined yet: its first acknowledged write is its join.
    ///
    /// From then on only reads of the locks that were sent after that acknowledgement may admit.
    pub fn new(me: MemberId, timing: Timing) -> Group {
        Group {
            me,
            timing,
            peers: BTreeMap::new(),
            gone: BTreeSet::new(),
            asks: BTreeMap::new(),
            asks_made: 0,
            told: Vec::new(),
            tells_all: false,
            has_let_in: false,
            wants_to_let_in: false,
            left: None,
            is_stale: true,
            sending: None,
            stamped: None,
            in_touch_since: None,
        }
    }

    /// What this member may do now. Look at it before each request is let in, and before each write
    /// to the worker.
    pub fn standing(&self, now: Moment) -> Standing {
        Standing::of(self.stamped, self.timing.member_ttl, now)
    }

    /// What to write into our key now, on the condition that nobody else has written it; `None` if
    /// nothing is due. One write is under way at a time.
    pub fn write(&mut self, now: Moment) -> Option<MemberRecord> {
        let heartbeat = self.timing.member_ttl / 5;
        let is_due = self.stamped.is_none_or(|stamped| after(stamped, heartbeat) <= now);
        if self.sending.is_some() || !(self.is_stale || is_due) {
            return None;
        }
        let record = self.record();
        let through = record.asks.last().map_or(0, |ask| ask.number);
        let tells_all = std::mem::take(&mut self.tells_all);
        self.change_told(Told::Not, Told::Sending);
        let has_let_in = record.has_let_in;
        self.sending = Some(Sending { since: now, has_let_in, through, tells_all });
        self.is_stale = self.asks.len() > ASKS_MAX;
        Some(record)
    }

    fn record(&self) -> MemberRecord {
        let ask =
            |(number, open): (&u64, &OpenAsk)| Ask { number: *number, tenure: open.tenure.clone() };
        let answers = |(id, peer): (&MemberId, &Peer)| Some((*id, peer.answers()?));
        let is_news = |(_, told): &(NamedTenure, Told)| *told != Told::Written;
        let known = self.told.iter().position(is_news).unwrap_or(self.told.len());
        let unshown = known.min(self.told.len().saturating_sub(CLEAR_SHOWN));
        let told = if self.tells_all { &self.told[..] } else { &self.told[unshown..] };
        MemberRecord {
            member_ttl: self.timing.member_ttl,
            orphan_timeout: self.timing.orphan_timeout,
            state: self.left.clone().map_or(MemberState::Live, MemberState::Left),
            has_let_in: self.wants_to_let_in,
            asks: self.asks.iter().map(ask).take(ASKS_MAX).collect(),
            answers: self.peers.iter().filter_map(answers).collect(),
            clear: told.iter().map(|(clear, _)| clear.clone()).collect(),
        }
    }

    /// The write under way is acknowledged, at that revision. `roll` has the ids of all keys of the
    /// group, as of the transaction that wrote.
    pub fn written(&mut self, revision: Revision, roll: &BTreeSet<MemberId>) {
        let Some(sent) = self.sending.take() else { return };
        self.change_told(Told::Sending, Told::Written);
        let ttl = self.timing.member_ttl;
        let is_in_touch = self.stamped.is_some_and(|stamped| sent.since <= after(stamped, ttl));
        if !is_in_touch {
            self.in_touch_since = Some(sent.since);
        }
        self.stamped = Some(sent.since);
        self.has_let_in = sent.has_let_in;
        // Also who was seen and has no key any more: its key may have been removed by other means.
        let known = || roll.iter().chain(self.peers.keys());
        let others = || known().filter(|id| **id != self.me && !self.gone.contains(*id));
        for (_, ask) in self.asks.range_mut(..=sent.through) {
            ask.roll.get_or_insert_with(|| (revision, others().copied().collect()));
        }
    }

    /// The write under way was not made: it is due again.
    pub fn not_written(&mut self) {
        self.tells_all |= self.sending.take().is_some_and(|sent| sent.tells_all);
        self.change_told(Told::Sending, Told::Not);
        self.is_stale = true;
    }

    fn change_told(&mut self, from: Told, to: Told) {
        let changing = self.told.iter_mut().filter(|(_, told)| *told == from);
        changing.for_each(|(_, told)| *told = to);
    }

    /// Another member's key was seen, in any order and any number of times. Returns the tenures that
    /// it says are clear and did not say before.
    pub fn see(
        &mut self,
        id: MemberId,
        revision: Revision,
        record: MemberRecord,
        now: Moment,
    ) -> Vec<NamedTenure> {
        if id == self.me || self.gone.contains(&id) {
            return Vec::new();
        }
        let Some(peer) = self.peers.get_mut(&id) else {
            let facts = record.clear.clone();
            self.tells_all |= self.told.len() > CLEAR_SHOWN;
            self.is_stale |= !record.asks.is_empty() || self.tells_all;
            self.peers.insert(id, Peer::new(revision, record, now));
            return facts;
        };
        if revision <= peer.revision {
            return Vec::new();
        }
        let is_new = |fact: &&NamedTenure| !peer.record.clear.contains(fact);
        let facts: Vec<NamedTenure> = record.clear.iter().filter(is_new).cloned().collect();
        peer.update(revision, record, now);
        facts.iter().for_each(|fact| peer.remember(fact));
        facts
    }

    /// Another member's key is not there as of that revision. If it had left, or somebody has waited
    /// for what it left behind, it is gone. Else the key was removed by other means, and we wait for
    /// it as for one that was given up and has written until now.
    pub fn see_none(&mut self, id: MemberId, as_of: Revision, now: Moment) {
        match self.peers.get_mut(&id) {
            Some(peer) if peer.revision > as_of || !peer.has_key => {}
            Some(peer) if peer.record.state == MemberState::Live => peer.vanish(as_of, now),
            Some(_) => self.forget(id),
            // Only the rolls of our asks may name one that we have never seen.
            None => {
                for (asked_at, roll) in self.asks.values_mut().filter_map(|ask| ask.roll.as_mut()) {
                    if *asked_at < as_of {
                        roll.remove(&id);
                    }
                }
            }
        }
    }

    /// The other members, as their keys were last seen.
    pub fn others(&self) -> impl Iterator<Item = OtherMember<'_>> {
        self.peers.iter().map(|(id, peer)| OtherMember {
            id: *id,
            revision: peer.revision,
            record: &peer.record,
            seen: peer.seen,
            over_at: peer.over_at(),
        })
    }

    /// Nothing of that member can be at the worker: its time is up, or somebody knows that it is
    /// gone.
    pub fn forget(&mut self, id: MemberId) {
        self.peers.remove(&id);
        self.gone.insert(id);
        for ask in self.asks.values_mut() {
            ask.roll.as_mut().map(|(_, roll)| roll.remove(&id));
        }
    }

    /// Whether the tenure that has these revisions may begin here: somebody has found it clear. If
    /// not, asks; [`Group::cleared`] has the outcome.
    pub fn want(&mut self, lock: &SharedLock, tenure: &RangeInclusive<Revision>) -> bool {
        if !std::mem::replace(&mut self.wants_to_let_in, true) {
            self.is_stale = true;
        }
        let names_it =
            |named: &NamedTenure| named.lock == *lock && tenure.contains(&named.revision);
        let mut heard = self.peers.values().flat_map(|peer| peer.clear());
        if heard.any(names_it) || self.told.iter().any(|(told, _)| names_it(told)) {
            return self.has_let_in;
        }
        if !self.asks.values().any(|ask| names_it(&ask.tenure)) {
            self.asks_made += 1;
            let named = NamedTenure { lock: lock.clone(), revision: *tenure.start() };
            self.asks.insert(self.asks_made, OpenAsk { tenure: named, roll: None });
            self.is_stale = true;
        }
        false
    }

    /// Whether our key, as acknowledged, says that we let requests in. Before that, no gate may open
    /// by what others tell: [`Group::want`] asks for it.
    pub fn has_let_in(&self) -> bool {
        self.has_let_in
    }

    /// Nobody waits for tenures of that lock any more: drops what we have asked about it.
    pub fn unwant(&mut self, lock: &SharedLock) {
        let asks = self.asks.len();
        self.asks.retain(|_, ask| ask.tenure.lock != *lock);
        self.is_stale |= asks != self.asks.len();
    }

    /// Takes the asks that are settled: everyone on the roll has answered, has left, or is over.
    pub fn cleared(&mut self, now: Moment) -> Vec<Cleared> {
        if !self.has_let_in {
            return Vec::new();
        }
        let settled: Vec<(u64, Answer)> = self
            .asks
            .iter()
            .filter_map(|(number, ask)| Some((*number, self.settled(*number, ask, now)?)))
            .collect();
        self.is_stale |= !settled.is_empty();
        let take =
            |(number, by)| self.asks.remove(&number).map(|ask| Cleared { tenure: ask.tenure, by });
        settled.into_iter().filter_map(take).collect()
    }

    fn settled(&self, number: u64, open: &OpenAsk, now: Moment) -> Option<Answer> {
        let ask = Ask { number, tenure: open.tenure.clone() };
        let mut by = Answer::Sealed;
        let (_, roll) = open.roll.as_ref()?;
        for id in roll {
            if self.peers.get(id)?.settles(self.me, &ask, now)? == Answer::Unfenced {
                by = Answer::Unfenced;
            }
        }
        Some(by)
    }

    /// What we ask, and who has not answered yet; `None` until it is written.
    pub fn open(&self, now: Moment) -> impl Iterator<Item = (&NamedTenure, Option<Vec<MemberId>>)> {
        self.asks.iter().map(move |(number, open)| {
            let ask = Ask { number: *number, tenure: open.tenure.clone() };
            let settles = |id: &&MemberId| {
                self.peers.get(*id).is_some_and(|peer| peer.settles(self.me, &ask, now).is_some())
            };
            let waits = |roll: &BTreeSet<MemberId>| {
                roll.iter().filter(|id| !settles(id)).copied().collect()
            };
            (&open.tenure, open.roll.as_ref().map(|(_, roll)| waits(roll)))
        })
    }

    /// When the newest acknowledged write was sent.
    pub fn sent(&self) -> Option<Moment> {
        self.stamped
    }

    /// Tells the others that a tenure is clear. The caller has found it so by asking, with the answer
    /// [`Answer::Sealed`] of all, and has nothing of an earlier tenure at the worker itself.
    pub fn tell(&mut self, clear: NamedTenure) {
        self.told.retain(|(told, _)| told.lock != clear.lock);
        self.told.push((clear, Told::Not));
        let surplus = self.told.len().saturating_sub(CLEAR_MAX);
        self.told.drain(..surplus);
        self.is_stale = true;
    }

    /// What others ask and we have not answered.
    pub fn unanswered(&self) -> impl Iterator<Item = (MemberId, &Ask)> {
        self.peers.iter().flat_map(|(id, peer)| peer.unanswered().map(|ask| (*id, ask)))
    }

    /// Answers an ask. Who answers [`Answer::Sealed`] has sealed the earlier tenures before, and
    /// seen that nothing of them is at the worker.
    pub fn answer(&mut self, id: MemberId, number: u64, answer: Answer) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.answer(number, answer);
            self.is_stale = true;
        }
    }

    /// Ends in good order: nothing more is let in, and only orphans of these locks may be at the
    /// worker.
    pub fn leave(&mut self, busy: BTreeSet<SharedLock>) {
        self.left = Some(busy);
        self.is_stale = true;
    }

    /// Whom to give up, with the revision of the write that the mark replaces, and the mark: write
    /// it on the condition that this revision is still the newest. None while we were cut off
    /// ourselves: then it may be us who have missed something.
    pub fn silent(&self, now: Moment) -> Vec<(MemberId, Revision, MemberRecord)> {
        let ttl = self.timing.member_ttl;
        let was_in_touch = self.in_touch_since.is_some_and(|since| after(since, ttl) <= now);
        if !was_in_touch || self.standing(now) != Standing::Stands {
            return Vec::new();
        }
        let is_silent = |peer: &Peer| {
            peer.record.state == MemberState::Live
                && after(peer.seen, peer.record.member_ttl) <= now
        };
        let mark = |(id, peer): (&MemberId, &Peer)| {
            let state = MemberState::GivenUp(peer.revision);
            (*id, peer.revision, MemberRecord { state, ..peer.record.clone() })
        };
        self.peers.iter().filter(|(_, peer)| is_silent(peer)).map(mark).collect()
    }

    /// Whose keys to delete, with the revision at which they were last seen: nothing of these
    /// members can be at the worker any more.
    pub fn over(&mut self, now: Moment) -> Vec<(MemberId, Revision)> {
        let is_over = |peer: &Peer| match (&peer.record.state, peer.over_at()) {
            (_, None) => false,
            (MemberState::Left(_), Some(over)) => over.max(after(peer.seen, LEFT_SHOWN)) <= now,
            (_, Some(over)) => over <= now,
        };
        let over = self.peers.iter().filter(|(_, peer)| is_over(peer));
        let (with_key, without): (Vec<_>, Vec<_>) =
            over.map(|(id, peer)| (*id, peer.revision, peer.has_key)).partition(|over| over.2);
        without.into_iter().for_each(|(id, ..)| self.forget(id));
        with_key.into_iter().map(|(id, revision, _)| (id, revision)).collect()
    }
}

/// That long after a moment.
fn after(moment: Moment, duration: Duration) -> Moment {
    let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    Moment(moment.0.saturating_add(nanos))
}

#[cfg(test)]
#[path = "group_tests.rs"]
mod tests;
