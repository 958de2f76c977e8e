use proptest::prelude::*;

use super::*;
use crate::{FenceToken, Known, News, Verdict, judge};

fn revision(number: u64) -> Revision {
    Revision::new(number).unwrap()
}

/// One thing that can happen to a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    Put(u8),
    Free,
    Garbage,
    Delete,
    /// A write to some other key of the store.
    Elsewhere,
}

/// What the store holds of the key after each revision; revision 1 is the empty store.
struct History {
    states: Vec<Option<Write>>,
    events: Vec<Option<KeyEvent>>,
}

impl History {
    fn of(acts: &[Act]) -> History {
        let mut history = History { states: vec![None], events: vec![None] };
        for (at, act) in (2..).map(revision).zip(acts) {
            let before = history.states.last().unwrap().clone();
            let put = |content| {
                let (created, version) =
                    before.as_ref().map_or((at, 1), |w| (w.created, w.version + 1));
                Some(Write { revision: at, created, version, content })
            };
            let (state, event) = match act {
                Act::Put(owner) => (put(Content::Owner(Owner::new([*owner]))), true),
                Act::Free => (put(Content::Free), true),
                Act::Garbage => (put(Content::Unreadable), true),
                Act::Delete => (None, before.is_some()),
                Act::Elsewhere => (before.clone(), false),
            };
            let event = event.then(|| state.clone().map_or(KeyEvent::Delete(at), KeyEvent::Put));
            history.states.push(state);
            history.events.push(event);
        }
        history
    }

    fn end(&self) -> u64 {
        self.states.len() as u64
    }

    fn at(&self, at: u64) -> Option<Write> {
        self.states[at as usize - 1].clone()
    }

    /// The tenure as of `at`, found by reading the whole history: the reference.
    fn tenure(&self, at: u64) -> Option<(Owner, u64, u64)> {
        let holder = |at: u64| match self.at(at)?.content {
            Content::Owner(owner) => Some(owner),
            Content::Free | Content::Unreadable => None,
        };
        let owner = holder(at)?;
        let mut since = at;
        while since > 1 && holder(since - 1).as_ref() == Some(&owner) {
            // The same owner before and after a deletion in between cannot happen at neighbouring
            // revisions.
            since -= 1;
        }
        Some((owner, since, self.at(at)?.revision.get()))
    }

    /// A read of the key at `at`, and all the reads of history it asks for; those below `compacted`
    /// fail.
    fn read(&self, known: Option<&KeyTrack>, at: u64, compacted: u64) -> KeyTrack {
        self.walk(KeyTrack::read(known, revision(at), self.at(at)), compacted)
    }

    fn walk(&self, mut reading: Reading, compacted: u64) -> KeyTrack {
        loop {
            reading = match reading {
                Reading::Known(track) => return track,
                Reading::Walk(walk) if walk.reads_at().get() < compacted => {
                    return walk.ends_here();
                }
                Reading::Walk(walk) => {
                    let reads_at = walk.reads_at().get();
                    walk.shown(self.at(reads_at))
                }
            };
        }
    }
}

fn seen(track: &KeyTrack) -> Option<(Owner, u64, u64)> {
    track.snapshot().tenure().map(|t| (t.owner.clone(), t.first.get(), t.last.get()))
}

fn histories(length: usize) -> Vec<Vec<Act>> {
    let acts =
        [Act::Put(b'a'), Act::Put(b'b'), Act::Free, Act::Garbage, Act::Delete, Act::Elsewhere];
    (0..length).fold(vec![vec![]], |all, _| {
        all.iter()
            .flat_map(|history| acts.iter().map(|act| [history.as_slice(), &[*act]].concat()))
            .collect()
    })
}

#[test]
fn two_writes_of_one_owner_with_another_owners_between_them_are_two_tenures() {
    let history = History::of(&[Act::Put(b'a'), Act::Put(b'b'), Act::Put(b'a')]);
    let known = history.read(None, 2, 1);
    assert_eq!(seen(&known), Some((Owner::new(*b"a"), 2, 2)));
    let bridged = history.read(Some(&known), 4, 1);
    assert_eq!(seen(&bridged), Some((Owner::new(*b"a"), 4, 4)));
}

#[test]
fn every_short_history_is_known_exactly_however_its_news_arrive() {
    for acts in histories(5) {
        let history = History::of(&acts);
        // Cold at `cold`, then a watch up to `watched`, then only a read at the end.
        for cold in 1..=history.end() {
            for watched in cold..=history.end() {
                let mut track = history.read(None, cold, 1);
                for event in history.events[..watched as usize].iter().flatten() {
                    match track.event(event.clone()) {
                        Step::Ignored => {}
                        Step::Next(next) => track = next,
                        Step::Gap => panic!("a gapless watch left a gap: {acts:?}"),
                    }
                }
                assert_eq!(
                    seen(&track),
                    history.tenure(watched),
                    "{acts:?} cold {cold} watched {watched}"
                );
                let track = history.read(Some(&track), history.end(), 1);
                assert_eq!(
                    seen(&track),
                    history.tenure(history.end()),
                    "{acts:?} cold {cold} watched {watched} read"
                );
            }
        }
    }
}

#[test]
fn a_watch_that_lost_events_is_noticed_or_harmless() {
    for acts in histories(5) {
        let history = History::of(&acts);
        for cold in 1..=history.end() {
            for lost in 0..(1u32 << acts.len()) {
                let mut track = history.read(None, cold, 1);
                for (at, event) in (1u64..).zip(&history.events) {
                    let Some(event) =
                        event.clone().filter(|_| at == 1 || lost & (1 << (at - 2)) == 0)
                    else {
                        continue;
                    };
                    match track.event(event) {
                        Step::Ignored => {}
                        Step::Next(next) => track = next,
                        Step::Gap => break,
                    }
                    // What it holds for true as of an event is never wider than the truth.
                    if let Some((owner, first, _)) = seen(&track) {
                        let (true_owner, true_first, _) =
                            history.tenure(track.as_of().get()).expect("somebody holds it");
                        assert!(
                            owner == true_owner && first >= true_first,
                            "{acts:?} lost {lost:b}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn a_compacted_history_narrows_a_tenure_and_never_widens_it() {
    for acts in histories(5) {
        let history = History::of(&acts);
        for known_at in 1..=history.end() {
            for compacted in 1..=history.end() {
                let known = history.read(None, known_at, 1);
                let track = history.read(Some(&known), history.end(), compacted);
                let (Some((owner, first, last)), Some(truth)) =
                    (seen(&track), history.tenure(history.end()))
                else {
                    assert_eq!(seen(&track), history.tenure(history.end()));
                    continue;
                };
                assert_eq!((owner, last), (truth.0, truth.2));
                assert!((truth.1..=last).contains(&first), "{acts:?} compacted below {compacted}");
            }
        }
    }
}

#[test]
fn a_refusal_of_a_key_lock_stays_a_refusal_under_every_later_snapshot_and_admission_means_tenure() {
    for acts in histories(5) {
        let history = History::of(&acts);
        let snapshots: Vec<Snapshot> =
            (1..=history.end()).map(|at| history.read(None, at, 1).snapshot()).collect();
        for owner in [b'a', b'b'] {
            for at in 1..=history.end() {
                // A number that no write of the key has names no tenure. Nobody was ever given it;
                // should its claimed owner write again later, it comes to lie within that owner's
                // own tenure, so admitting it then is right too.
                if history.at(at).is_none_or(|write| write.revision != revision(at)) {
                    continue;
                }
                let token = FenceToken { owner: [owner], revision: revision(at) };
                let mut refused = false;
                for snapshot in &snapshots {
                    let verdict = judge(&token, Known::new(Some(snapshot), News::Fresh));
                    refused |= matches!(verdict, Verdict::Reject(_));
                    if verdict == Verdict::Admit {
                        assert!(!refused, "{acts:?} {token:?} was refused before {snapshot:?}");
                        let (holder, first, last) =
                            history.tenure(snapshot.as_of.unwrap().get()).unwrap();
                        assert!(holder == Owner::new([owner]) && (first..=last).contains(&at));
                    }
                }
            }
        }
    }
}

#[test]
fn a_write_that_shows_the_end_of_a_tenure_is_never_part_of_it() {
    for acts in histories(5) {
        let history = History::of(&acts);
        for known_at in 1..=history.end() {
            let known = history.read(None, known_at, 1);
            for later in known_at..=history.end() {
                let (Some(write), Some((owner, first, _))) = (history.at(later), seen(&known))
                else {
                    continue;
                };
                let still_held = history
                    .tenure(later)
                    .is_some_and(|(now, since, _)| now == owner && since == first);
                assert!(
                    !(known.is_ended_by(&write) && still_held),
                    "{acts:?} known {known_at} later {later}"
                );
            }
        }
    }
}

fn any_act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (b'a'..b'd').prop_map(Act::Put),
        1 => Just(Act::Free),
        1 => Just(Act::Garbage),
        1 => Just(Act::Delete),
        2 => Just(Act::Elsewhere),
    ]
}

proptest! {
    #[test]
    fn long_histories_read_here_and_there_are_known_exactly(
        acts in prop::collection::vec(any_act(), 1..60),
        reads in prop::collection::vec(any::<prop::sample::Index>(), 1..12),
    ) {
        let history = History::of(&acts);
        let mut track: Option<KeyTrack> = None;
        for read in reads {
            let at = read.index(history.end() as usize) as u64 + 1;
            let next = history.read(track.as_ref(), at, 1);
            prop_assert!(track.is_none_or(|before| before.as_of() <= next.as_of()));
            prop_assert_eq!(seen(&next), history.tenure(next.as_of().get()));
            track = Some(next);
        }
    }
}

/// One history does not have two writes of one revision: another does, that of a restored store.
#[test]
fn a_write_that_says_something_else_is_another_though_all_its_numbers_are_the_same() {
    let written = |owner: u8| Write {
        revision: revision(5),
        created: revision(2),
        version: 2,
        content: Content::Owner(Owner::new([owner])),
    };
    let track = KeyTrack::settled(revision(5), written(b'b'), revision(5));
    assert!(track.is_contradicted_by(revision(5), Some(&written(b'c'))));
    assert!(!track.is_contradicted_by(revision(5), Some(&written(b'b'))));
    let read = |owner: u8| KeyTrack::read(Some(&track), revision(9), Some(written(owner)));
    assert!(
        matches!(read(b'c'), Reading::Walk(_)),
        "who wrote before it is another's history, too"
    );
    assert_eq!(
        read(b'b'),
        Reading::Known(KeyTrack::settled(revision(9), written(b'b'), revision(5)))
    );
}
