//! What a worker thread notes between two collections.

use std::mem;
use std::time::{Duration, SystemTime};

use super::record::{Decision, Likeness};
use super::timeline::{TenureNews, Wait};

/// Something that happened. Boxed, because it is moved several times until it is collected.
#[derive(Debug)]
pub enum Event {
    /// A request was decided on, and in a flood so many more that are like it.
    Decision {
        /// What was decided.
        decision: Box<Decision>,
        /// Of how many more only that is known.
        alike: u32,
    },
    /// A tenure began or ended.
    Tenure(Box<TenureNews>),
    /// A request waits at a barrier, or has ceased to.
    Wait(Box<Wait>),
}

impl Event {
    pub(super) fn at(&self) -> SystemTime {
        match self {
            Event::Decision { decision, .. } => decision.at,
            Event::Tenure(news) => news.at,
            Event::Wait(wait) => wait.at,
        }
    }
}

/// How many decisions a thread may note between two collections, and how much else; what comes
/// after that is lost, and counted. The ends of what has begun come on top.
pub(super) const NOTES_MAX: usize = 8_192;
/// How many decisions a thread notes one by one whatever they are like: so many at once, as many as
/// are kept by default,
const EACH_AT_ONCE: u32 = 10_000;
/// and so many more each second, so that it takes a sender without end ten seconds to push out all
/// that is kept by default. Of further ones that are like one before them only that is noted, which
/// takes 2 % off what each refusal costs.
const EACH_A_SECOND: u32 = 1_000;
/// How far back one is looked for that is like another, waits and tenures counted in: as many
/// senders may take turns.
const LIKE_WITHIN: usize = 16;

/// What a thread has noted since the last collection, in its order.
#[derive(Debug)]
pub(super) struct Notes {
    events: Vec<Event>,
    /// How many of them are decisions.
    decisions: usize,
    /// How many more are noted one by one.
    each: u32,
    /// How many found no room.
    dropped: u64,
}

/// What was noted.
pub(super) struct Noted {
    /// In its order.
    pub(super) events: Vec<Event>,
    /// How many decisions found no room.
    pub(super) dropped: u64,
}

impl Default for Notes {
    fn default() -> Notes {
        Notes { events: Vec::new(), decisions: 0, each: EACH_AT_ONCE, dropped: 0 }
    }
}

impl Notes {
    /// Notes a decision if there is room, in a flood by counting it with one that is like it.
    /// `None`: it is not to be counted with another.
    pub(super) fn note_decision(
        &mut self,
        like: Option<&Likeness<'_>>,
        decision: impl FnOnce() -> Box<Decision>,
    ) {
        let has_room = self.decisions < NOTES_MAX;
        let is_flood = self.each == 0 || !has_room;
        if is_flood && let Some(alike) = like.and_then(|like| self.alike(like)) {
            *alike = alike.saturating_add(1);
        } else if has_room {
            self.events.push(Event::Decision { decision: decision(), alike: 0 });
            self.decisions += 1;
            self.each = self.each.saturating_sub(1);
        } else {
            self.dropped += 1;
        }
    }

    /// How many were like the latest decision that is like that.
    fn alike(&mut self, like: &Likeness<'_>) -> Option<&mut u32> {
        self.events.iter_mut().rev().take(LIKE_WITHIN).find_map(|event| match event {
            Event::Decision { decision, alike } => decision.is_like(like).then_some(alike),
            Event::Tenure(_) | Event::Wait(_) => None,
        })
    }

    /// Notes what else happened, and says whether there was room, of which a flood of refusals
    /// takes none.
    pub(super) fn note(&mut self, event: impl FnOnce() -> Event) -> bool {
        let has_room = self.events.len() - self.decisions < NOTES_MAX;
        if has_room {
            self.events.push(event());
        }
        has_room
    }

    /// Notes the end of what was noted as begun.
    pub(super) fn note_end(&mut self, end: Event) {
        self.events.push(end);
    }

    /// Takes what was noted, that long after it was last taken.
    pub(super) fn take(&mut self, after: Duration) -> Noted {
        self.decisions = 0;
        let more = after.as_nanos() * u128::from(EACH_A_SECOND) / Duration::from_secs(1).as_nanos();
        self.each =
            self.each.saturating_add(u32::try_from(more).unwrap_or(u32::MAX)).min(EACH_AT_ONCE);
        Noted { events: mem::take(&mut self.events), dropped: mem::take(&mut self.dropped) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use fencepost_policy::Revision;

    use super::*;

    /// A refusal of the claim to that revision.
    fn refusal(revision: u64) -> Box<Decision> {
        static ONE: LazyLock<Decision> = LazyLock::new(|| Decision::for_tests("d"));
        Box::new(Decision { revision: Revision::new(revision), ..ONE.clone() })
    }

    /// Notes so many of them.
    fn note(notes: &mut Notes, revision: u64, count: u32) {
        let like = refusal(revision);
        (0..count).for_each(|_| notes.note_decision(Some(&like.likeness()), || refusal(revision)));
    }

    /// The revisions of what was noted, and how many were counted with each.
    fn take(notes: &mut Notes, after: Duration) -> Vec<(u64, u32)> {
        let decision = |event| match event {
            Event::Decision { decision, alike } => (decision.revision.unwrap().get(), alike),
            Event::Tenure(_) | Event::Wait(_) => panic!("only decisions were noted"),
        };
        notes.take(after).events.into_iter().map(decision).collect()
    }

    /// As many as may be noted one by one.
    fn flooded() -> Notes {
        let mut notes = Notes::default();
        for _ in 0..2 {
            note(&mut notes, 10, EACH_AT_ONCE / 2);
            assert_eq!(take(&mut notes, Duration::ZERO), vec![(10, 0); EACH_AT_ONCE as usize / 2]);
        }
        notes
    }

    #[test]
    fn of_a_flood_each_is_counted_and_others_are_noted_one_by_one_in_the_midst_of_it() {
        let mut notes = flooded();
        note(&mut notes, 10, 20_000);
        for other in [11, 12] {
            note(&mut notes, other, 1);
            note(&mut notes, 10, 5);
        }
        assert_eq!(take(&mut notes, Duration::ZERO), [(10, 20_009), (11, 0), (12, 0)]);
    }

    #[test]
    fn after_a_flood_there_is_room_again_for_so_many_a_second() {
        let mut notes = flooded();
        take(&mut notes, Duration::from_millis(100));
        note(&mut notes, 10, EACH_A_SECOND / 10 + 3);
        let noted = take(&mut notes, Duration::from_secs(3_600));
        assert_eq!((noted.len(), noted.last()), (EACH_A_SECOND as usize / 10, Some(&(10, 3))));
        assert_eq!(notes.each, EACH_AT_ONCE, "not more than at first");
    }

    #[test]
    fn a_flood_of_which_none_is_like_another_is_bounded() {
        let mut notes = flooded();
        (1..=NOTES_MAX as u64 + 1).for_each(|revision| note(&mut notes, revision, 1));
        let noted = notes.take(Duration::ZERO);
        assert_eq!((noted.events.len(), noted.dropped), (NOTES_MAX, 1));
        assert_eq!(notes.take(Duration::ZERO).dropped, 0);
    }

    #[test]
    fn what_is_more_than_a_list_holds_is_counted_if_it_is_like_one_on_it() {
        let mut notes = Notes::default();
        note(&mut notes, 10, EACH_AT_ONCE);
        let noted = take(&mut notes, Duration::ZERO);
        let more = EACH_AT_ONCE - NOTES_MAX as u32;
        assert_eq!((noted.len(), noted.last()), (NOTES_MAX, Some(&(10, more))));
        note(&mut notes, 10, more + 1);
        assert_eq!(
            take(&mut notes, Duration::ZERO).last(),
            Some(&(10, 1)),
            "what was not noted one by one took nothing of what may be"
        );
    }

    #[test]
    fn of_senders_that_take_turns_each_is_counted_with_its_own() {
        let mut notes = flooded();
        let senders = 1..=LIKE_WITHIN as u64;
        (0..10).for_each(|_| senders.clone().for_each(|revision| note(&mut notes, revision, 1)));
        assert_eq!(
            take(&mut notes, Duration::ZERO),
            senders.map(|revision| (revision, 9)).collect::<Vec<_>>()
        );
    }

    #[test]
    fn what_is_not_to_be_counted_with_another_is_noted_by_itself() {
        let mut notes = flooded();
        note(&mut notes, 10, 1);
        notes.note_decision(None, || refusal(10));
        assert_eq!(take(&mut notes, Duration::ZERO), [(10, 0), (10, 0)]);
    }
}
