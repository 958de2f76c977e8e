use super::*;
use crate::{FenceToken, Known, News, Verdict, judge};

fn revision(number: u64) -> Revision {
    Revision::new(number).unwrap()
}

fn put(key: &str, created: u64, at: u64, value: &str) -> Contender {
    Contender {
        key: key.as_bytes().into(),
        created: revision(created),
        revision: revision(at),
        value: value.as_bytes().into(),
    }
}

fn delete(key: &str, at: u64) -> QueueEvent {
    QueueEvent::Delete { key: key.as_bytes().into(), revision: revision(at) }
}

/// The holder's spelling and `first`, and the waiters' create revisions.
fn seen(track: &QueueTrack) -> (Option<(String, u64)>, Vec<u64>) {
    let snapshot = track.snapshot();
    let holder = snapshot.tenure().map(|tenure| (tenure.owner.to_string(), tenure.first.get()));
    (holder, snapshot.waiters.iter().map(|waiter| waiter.created.get()).collect())
}

#[test]
fn the_oldest_key_holds_the_lock_and_the_others_wait() {
    let queue = [put("l/1", 7, 7, "a"), put("l/2", 5, 9, "b"), put("l/3", 8, 8, "c")];
    let election = QueueTrack::read(Layout::Election, revision(9), queue.clone());
    assert_eq!(seen(&election), (Some(("b".into(), 5)), vec![7, 8]));
    let mutex = QueueTrack::read(Layout::Mutex, revision(9), queue);
    assert_eq!(seen(&mutex), (Some(("l/2".into(), 5)), vec![7, 8]));
    let gone = election.events([delete("l/2", 10)]).unwrap().unwrap();
    assert_eq!(seen(&gone), (Some(("a".into(), 7)), vec![8]));
}

#[test]
fn a_lock_is_free_when_nobody_has_queued() {
    let queues =
        [vec![], vec![put("l/1", 7, 7, "")], vec![put("l/1", 7, 7, "a"), put("l/2", 7, 7, "b")]];
    for queue in queues {
        for layout in [Layout::Election, Layout::Mutex] {
            let track = QueueTrack::read(layout, revision(9), queue.clone());
            assert_eq!(track.is_empty(), queue.is_empty());
            assert_eq!(track.is_empty(), track.snapshot().holding == Holding::Free, "{track:?}");
        }
    }
}

#[test]
fn of_keys_that_one_transaction_created_none_holds_the_lock_while_others_are_there() {
    for layout in [Layout::Election, Layout::Mutex] {
        let queue = [put("l/1", 7, 7, "a"), put("l/2", 7, 7, "b"), put("l/3", 8, 8, "c")];
        let tied = QueueTrack::read(layout, revision(9), queue);
        assert_eq!((seen(&tied), tied.tie()), ((None, vec![7, 7, 8]), Some(revision(7))));
        assert_eq!(tied.snapshot().holding, Holding::Unreadable);
        let alone = tied.events([delete("l/1", 10)]).unwrap().unwrap();
        let holder = if layout == Layout::Election { "b" } else { "l/2" };
        assert_eq!((seen(&alone), alone.tie()), ((Some((holder.into(), 7)), vec![8]), None));
        // Behind a holder they only wait.
        let waiting = QueueTrack::read(
            layout,
            revision(9),
            [put("l/0", 6, 6, "x"), put("l/1", 7, 7, "a"), put("l/2", 7, 7, "b")],
        );
        assert_eq!((seen(&waiting).1, waiting.tie()), (vec![7, 7], None));
    }
}

#[test]
fn proclaim_changes_the_name_and_not_the_tenure() {
    let election = QueueTrack::read(Layout::Election, revision(5), [put("l/1", 5, 5, "a")]);
    let renamed = election.events([QueueEvent::Put(put("l/1", 5, 6, "b"))]).unwrap().unwrap();
    assert_eq!(seen(&renamed), (Some(("b".into(), 5)), vec![]));
    assert_eq!(renamed.snapshot().tenure().unwrap().last, revision(5));
}

#[test]
fn old_events_are_ignored_and_missing_ones_noticed() {
    let queue = QueueTrack::read(Layout::Mutex, revision(9), [put("l/1", 7, 7, "")]);
    assert_eq!(queue.events([delete("l/1", 8)]).unwrap(), None);
    assert_eq!(queue.events([QueueEvent::Put(put("l/2", 8, 10, ""))]), Err(MissedEvent));
    assert_eq!(queue.events([QueueEvent::Put(put("l/1", 8, 10, ""))]), Err(MissedEvent));
    assert!(queue.events([QueueEvent::Put(put("l/2", 10, 10, ""))]).unwrap().is_some());
}

/// One thing that can happen to a queue of two possible keys.
#[derive(Debug, Clone, Copy)]
enum Act {
    Put(usize),
    Delete(usize),
}

const KEYS: [&str; 2] = ["l/1", "l/2"];

/// Every state that a history passes through, beginning with the empty queue as of revision 1, and
/// the event to each.
fn play(history: &[Act]) -> Vec<(QueueTrack, QueueEvent)> {
    let mut contenders: Vec<Contender> = vec![];
    let mut states = vec![];
    for (at, act) in (2..).zip(history) {
        let event = match *act {
            Act::Put(key) => {
                let created = contenders
                    .iter()
                    .find(|c| *c.key == *KEYS[key].as_bytes())
                    .map_or(at, |c| c.created.get());
                contenders.retain(|c| *c.key != *KEYS[key].as_bytes());
                contenders.push(put(KEYS[key], created, at, &format!("v{at}")));
                QueueEvent::Put(contenders.last().unwrap().clone())
            }
            Act::Delete(key) => {
                contenders.retain(|c| *c.key != *KEYS[key].as_bytes());
                delete(KEYS[key], at)
            }
        };
        states.push((QueueTrack::read(Layout::Election, revision(at), contenders.clone()), event));
    }
    states
}

fn histories(length: usize) -> Vec<Vec<Act>> {
    let acts = [Act::Put(0), Act::Put(1), Act::Delete(0), Act::Delete(1)];
    (0..length).fold(vec![vec![]], |all, _| {
        all.iter()
            .flat_map(|history| acts.iter().map(|act| [history.as_slice(), &[*act]].concat()))
            .collect()
    })
}

#[test]
fn reads_and_events_in_any_mixture_end_in_what_the_store_holds() {
    for history in histories(5) {
        let states = play(&history);
        // A read at each possible point, then the watch from there on: late, repeated events
        // included.
        for (from, (read, _)) in states.iter().enumerate() {
            let mut track = read.clone();
            for (truth, event) in &states {
                if let Some(next) = track.events([event.clone()]).unwrap() {
                    track = next;
                }
                assert!(track.as_of() >= truth.as_of() || track.as_of() == read.as_of());
            }
            assert_eq!(&track, &states.last().unwrap().0, "{history:?} read at {from}");
        }
    }
}

#[test]
fn a_refusal_of_a_queue_lock_stays_a_refusal_under_every_later_snapshot() {
    for history in histories(5) {
        let states = play(&history);
        for owner in states
            .iter()
            .filter_map(|(state, _)| state.snapshot().tenure().map(|t| t.owner.clone()))
        {
            for at in 1..=6 {
                let token = FenceToken { owner: owner.as_bytes(), revision: revision(at) };
                let verdicts: Vec<Verdict> = states
                    .iter()
                    .map(|(state, _)| {
                        judge(&token, Known::new(Some(&state.snapshot()), News::Fresh))
                    })
                    .collect();
                if let Some(refused) =
                    verdicts.iter().position(|verdict| matches!(verdict, Verdict::Reject(_)))
                {
                    assert!(
                        !verdicts[refused..].contains(&Verdict::Admit),
                        "{history:?} {token:?} {verdicts:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_key_that_says_something_else_is_another_though_all_its_numbers_are_the_same() {
    let track = QueueTrack::read(Layout::Election, revision(9), [put("l/1", 7, 7, "a")]);
    assert!(track.is_contradicted_by(revision(9), [put("l/1", 7, 7, "b")]));
    assert!(!track.is_contradicted_by(revision(9), [put("l/1", 7, 7, "a")]));
}
