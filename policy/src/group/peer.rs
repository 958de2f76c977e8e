//! Another member, as its key was last seen.

use std::collections::BTreeMap;

use super::{Answer, Ask, CLEAR_MAX, MemberId, MemberRecord, MemberState, NamedTenure, after};
use crate::{Moment, Revision};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Peer {
    pub(super) record: MemberRecord,
    /// The revision of the write that was last seen.
    pub(super) revision: Revision,
    /// When the newest write of its own was first seen, or if that was never seen, the mark that
    /// replaced it.
    pub(super) seen: Moment,
    /// `false` once the key has vanished without a mark.
    pub(super) has_key: bool,
    /// What we have answered, of the asks that are open.
    answered: BTreeMap<u64, Answer>,
    /// What it has told to be clear, the newest last: a record carries less.
    clear: Vec<NamedTenure>,
}

impl Peer {
    pub(super) fn new(revision: Revision, record: MemberRecord, now: Moment) -> Peer {
        let clear = record.clear.clone();
        Peer { record, revision, seen: now, has_key: true, answered: BTreeMap::new(), clear }
    }

    /// A later write was seen.
    pub(super) fn update(&mut self, revision: Revision, record: MemberRecord, now: Moment) {
        // The mark of another member says nothing new about the one that is silent.
        if record.state != MemberState::GivenUp(self.revision) {
            self.seen = now;
        }
        self.answered.retain(|number, _| record.asks.iter().any(|ask| ask.number == *number));
        self.revision = revision;
        self.record = record;
    }

    /// It has told that to be clear.
    pub(super) fn remember(&mut self, fact: &NamedTenure) {
        self.clear.retain(|known| known.lock != fact.lock);
        self.clear.push(fact.clone());
        let surplus = self.clear.len().saturating_sub(CLEAR_MAX);
        self.clear.drain(..surplus);
    }

    /// What it has told to be clear, as far as we remember.
    pub(super) fn clear(&self) -> &[NamedTenure] {
        &self.clear
    }

    /// The key is not there as of that revision, and no mark was seen. Late news of earlier writes
    /// are ignored from now on: they would show a member that is live.
    pub(super) fn vanish(&mut self, as_of: Revision, now: Moment) {
        self.record.state = MemberState::GivenUp(self.revision);
        (self.revision, self.seen, self.has_key) = (as_of, now, false);
    }

    /// Its asks that we have not answered.
    pub(super) fn unanswered(&self) -> impl Iterator<Item = &Ask> {
        let is_live = self.record.state == MemberState::Live;
        let open = move |ask: &&Ask| is_live && !self.answered.contains_key(&ask.number);
        self.record.asks.iter().filter(open)
    }

    pub(super) fn answer(&mut self, number: u64, answer: Answer) {
        if self.record.asks.iter().any(|ask| ask.number == number) {
            self.answered.insert(number, answer);
        }
    }

    /// What our key says to its asks; `None` if it has none.
    pub(super) fn answers(&self) -> Option<super::Answers> {
        let through = self.record.asks.last()?.number;
        let unfenced =
            |(number, answer): (&u64, &Answer)| (*answer == Answer::Unfenced).then_some(*number);
        Some(super::Answers {
            through,
            open: self.unanswered().map(|ask| ask.number).collect(),
            unfenced: self.answered.iter().filter_map(unfenced).collect(),
        })
    }

    /// What it says to that ask of ours.
    pub(super) fn answer_to(&self, me: MemberId, number: u64) -> Option<Answer> {
        let answers = self.record.answers.get(&me).filter(|answers| answers.contain(number))?;
        let unfenced = answers.unfenced.contains(&number);
        Some(if unfenced { Answer::Unfenced } else { Answer::Sealed })
    }

    /// From when on nothing that it let in can be at the worker; `None` while it may let in more.
    pub(super) fn over_at(&self) -> Option<Moment> {
        match &self.record.state {
            MemberState::Live => None,
            MemberState::Left(busy) if busy.is_empty() => Some(self.seen),
            MemberState::Left(_) => Some(after(self.seen, self.record.orphan_timeout)),
            MemberState::GivenUp(_) if !self.record.has_let_in => Some(self.seen),
            MemberState::GivenUp(_) => {
                let silence = self.record.member_ttl + self.record.orphan_timeout;
                Some(after(self.seen, silence))
            }
        }
    }

    /// How we wait for it before that ask counts as answered: `None` if we do not.
    pub(super) fn settles(&self, me: MemberId, ask: &Ask, now: Moment) -> Option<Answer> {
        match &self.record.state {
            MemberState::Live => self.answer_to(me, ask.number),
            MemberState::Left(busy) if !busy.contains(&ask.tenure.lock) => Some(Answer::Sealed),
            MemberState::Left(_) | MemberState::GivenUp(_) => {
                self.over_at().filter(|over| *over <= now).map(|_| Answer::Sealed)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::group::{Group, Timing};

    const TTL: Duration = Duration::from_secs(3);

    fn live() -> MemberRecord {
        MemberRecord {
            member_ttl: TTL,
            orphan_timeout: TTL,
            state: MemberState::Live,
            has_let_in: true,
            asks: Vec::new(),
            answers: BTreeMap::new(),
            clear: Vec::new(),
        }
    }

    /// The watch delivered what the member had written after a read had shown that its key was
    /// gone. It counted as live for ever, and every tenure that began waited for it.
    #[test]
    fn late_news_of_a_vanished_member_do_not_revive_it() {
        let revision = |number| Revision::new(number).unwrap();
        let other = MemberId(2);
        let mut group = Group::new(MemberId(1), Timing { member_ttl: TTL, orphan_timeout: TTL });
        group.see(other, revision(5), live(), Moment(0));
        group.see_none(other, revision(9), Moment(1));
        group.see(other, revision(7), live(), Moment(2));
        let waits_until = group.others().next().and_then(|other| other.over_at);
        assert_eq!(waits_until, Some(after(Moment(1), 2 * TTL)));
        assert_eq!(group.over(after(Moment(1), 2 * TTL)), [], "there is no key to delete");
        assert_eq!(group.others().count(), 0);
    }
}
