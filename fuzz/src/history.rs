//! From the writes of one key to the tenure of its lock, however much of them is seen: `no-bridge`,
//! `no-step-back`.

use fencepost_policy::{Content, KeyEvent, KeyTrack, Owner, Reading, Revision, Step, Write};

use crate::chance::Chance;

/// What a key was from one revision on.
#[derive(Clone)]
enum State {
    Absent,
    Written(Write),
}

/// The history of a store with one key, and what it came to at each revision from 1.
struct Store {
    states: Vec<State>,
}

impl Store {
    fn made_by(chance: &mut Chance<'_>) -> Store {
        let mut states = vec![State::Absent];
        for _ in 0..chance.below(24) {
            let revision = revision(states.len() + 1);
            let (created, version) = match states.last() {
                Some(State::Written(write)) => (write.created, write.version + 1),
                Some(State::Absent) | None => (revision, 1),
            };
            let write = |content| State::Written(Write { revision, created, version, content });
            let before = states.last().cloned().expect("a store begins at revision 1");
            states.push(match chance.below(8) {
                0 | 1 => write(owner("a")),
                2 | 3 => write(owner("b")),
                4 => write(Content::Free),
                5 => write(Content::Unreadable),
                6 => State::Absent,
                _ => before, // Another key was written.
            });
        }
        Store { states }
    }

    fn at(&self, at: Revision) -> Option<Write> {
        match &self.states[at.get() as usize - 1] {
            State::Absent => None,
            State::Written(write) => Some(write.clone()),
        }
    }

    /// What a watch tells of one revision.
    fn event(&self, at: Revision) -> Option<KeyEvent> {
        let before = at.before().and_then(|before| self.at(before));
        match (before, self.at(at)) {
            (_, Some(write)) if write.revision == at => Some(KeyEvent::Put(write)),
            (Some(_), None) => Some(KeyEvent::Delete(at)),
            _ => None,
        }
    }

    /// Who held the lock at a revision, by looking at each write: the owner, and the tenure's first
    /// and last write.
    fn truth(&self, at: Revision) -> Option<(Owner, Revision, Revision)> {
        let Write { content: Content::Owner(owner), revision: last, created, .. } = self.at(at)?
        else {
            return None;
        };
        let mut first = last;
        let mut earlier = last.before();
        while let Some(write) = earlier.and_then(|at| self.at(at)) {
            if write.created != created || write.content != Content::Owner(owner.clone()) {
                break;
            }
            first = write.revision;
            earlier = write.revision.before();
        }
        Some((owner, first, last))
    }
}

pub(crate) fn run(input: &[u8]) {
    let chance = &mut Chance::new(input);
    let store = Store::made_by(chance);
    let newest = store.states.len();
    let mut known: Option<KeyTrack> = None;
    // Whether all was there to be seen.
    let mut whole = true;
    while !chance.is_used_up() {
        let before = known.clone();
        let next = match (chance.below(3), &known) {
            (0, Some(track)) => watched(&store, track, chance),
            _ => {
                let (track, saw_all) = read(&store, known.as_ref(), chance);
                whole &= saw_all;
                Some(track)
            }
        };
        known = next.or(known);
        if let (Some(before), Some(now)) = (&before, &known) {
            assert!(before.as_of() <= now.as_of(), "no-step-back");
        }
        if let Some(track) = &known {
            assert!(track.as_of() <= revision(newest));
            check(&store, track, whole);
        }
    }
}

/// Applies the events of a watch without a gap; `None` if the key has to be read.
fn watched(store: &Store, track: &KeyTrack, chance: &mut Chance<'_>) -> Option<KeyTrack> {
    let mut track = track.clone();
    // A watch may begin before what is known, and then tells it again.
    let from = track.as_of().get() as usize - chance.below(track.as_of().get() as usize);
    let through = (from + chance.below(12)).min(store.states.len());
    for at in (from..=through).map(revision) {
        let Some(event) = store.event(at) else { continue };
        track = match track.event(event) {
            Step::Ignored => track,
            Step::Next(next) => next,
            Step::Gap => return None,
        };
    }
    Some(track)
}

/// Reads the key, and its history as far as that is there; says whether it was.
fn read(store: &Store, known: Option<&KeyTrack>, chance: &mut Chance<'_>) -> (KeyTrack, bool) {
    let at = revision(1 + chance.below(store.states.len()));
    let compacted = revision(1 + chance.below(store.states.len()));
    let forgets = chance.below(4) == 0;
    let mut reading = KeyTrack::read(known, at, store.at(at));
    loop {
        match reading {
            Reading::Known(track) => return (track, true),
            Reading::Walk(walk) if forgets && walk.reads_at() < compacted => {
                return (walk.ends_here(), false);
            }
            Reading::Walk(walk) => {
                let at = walk.reads_at();
                reading = walk.shown(store.at(at));
            }
        }
    }
}

fn check(store: &Store, track: &KeyTrack, whole: bool) {
    let snapshot = track.snapshot();
    let shown = snapshot.tenure().map(|tenure| (tenure.owner.clone(), tenure.first, tenure.last));
    let truth = store.truth(track.as_of());
    match (&shown, &truth) {
        (None, None) => {}
        (Some((owner, first, last)), Some((holder, true_first, true_last))) => {
            assert_eq!((owner, last), (holder, true_last));
            assert!(
                true_first <= first,
                "no-bridge: {first:?} is before the tenure, which began at {true_first:?}"
            );
            assert!(
                !whole || first == true_first,
                "all was seen, yet {first:?} is not {true_first:?}"
            );
        }
        (shown, truth) => panic!("{shown:?} is not {truth:?}"),
    }
}

fn revision(number: usize) -> Revision {
    Revision::new(number as u64).expect("revisions count from 1")
}

fn owner(name: &str) -> Content {
    Content::Owner(Owner::new(name.as_bytes()))
}
