use super::*;
use crate::{News, Owner};

fn revision(number: u64) -> Revision {
    Revision::new(number).unwrap()
}

fn held(layout: Layout, owner: &str, first: u64, last: u64) -> Snapshot {
    let tenure = Tenure {
        owner: Owner::new(owner.as_bytes()),
        first: revision(first),
        last: revision(last),
    };
    Snapshot {
        layout,
        as_of: Some(revision(last)),
        holding: Holding::Held(tenure),
        waiters: [].into(),
    }
}

fn free(layout: Layout, as_of: u64) -> Snapshot {
    Snapshot { layout, as_of: Some(revision(as_of)), holding: Holding::Free, waiters: [].into() }
}

fn enter(
    gate: &mut Gate,
    snapshot: &Snapshot,
    owner: &str,
    at: u64,
) -> Result<Admission, &'static str> {
    let token = FenceToken { owner, revision: revision(at) };
    match gate.enter(&token, Known::new(Some(snapshot), News::Fresh), Moment(0)) {
        Ok(admission) => Ok(admission),
        Err(EnterError::Wait) => Err("wait"),
        Err(EnterError::Record(_)) => Err("record"),
        Err(EnterError::Refused(rejection)) => Err(rejection.code()),
        Err(EnterError::Confirm) => Err("confirm"),
    }
}

#[test]
fn the_floor_rises_with_each_tenure_and_each_release_and_never_falls() {
    for (layout, after_release) in [(Layout::Key, 13), (Layout::Election, 11), (Layout::Mutex, 11)]
    {
        let mut gate = Gate::default();
        let mut floors = vec![];
        for snapshot in [
            held(layout, "a", 10, 12),
            free(layout, 15),
            held(layout, "a", 9, 9),
            held(layout, "b", 20, 20),
        ] {
            gate.learn(&snapshot);
            floors.push(gate.state().floor);
        }
        assert_eq!(floors, [10, after_release, after_release, 20], "{layout:?}");
    }
}

#[test]
fn what_an_older_snapshot_would_admit_stays_below_the_floor() {
    let mut gate = Gate::default();
    let old = held(Layout::Key, "a", 10, 10);
    gate.learn(&old);
    gate.learn(&held(Layout::Key, "b", 20, 20));
    assert_eq!(enter(&mut gate, &old, "a", 10).unwrap_err(), "replayed-tenure");
}

#[test]
fn a_request_counts_as_at_the_worker_from_enter_to_leave() {
    let mut gate = Gate::default();
    let now = held(Layout::Key, "a", 10, 12);
    gate.learn(&now);
    let first = enter(&mut gate, &now, "a", 10).unwrap();
    let second = enter(&mut gate, &now, "a", 12).unwrap();
    assert_eq!(
        gate.state().at_worker,
        [TenureAtWorker { tenure: revision(10), running: 2, orphans: 0 }]
    );
    gate.leave(first);
    gate.leave(second);
    assert_eq!(gate.state().at_worker, []);
}

#[test]
fn a_tenure_waits_until_its_predecessors_requests_have_left_the_worker() {
    let mut gate = Gate::default();
    let (before, after) = (held(Layout::Key, "a", 10, 10), held(Layout::Key, "b", 20, 20));
    gate.learn(&before);
    let first = enter(&mut gate, &before, "a", 10).unwrap();
    let second = enter(&mut gate, &before, "a", 10).unwrap();
    assert!(!gate.has_ended(first.term()));
    gate.learn(&after);
    assert!(gate.has_ended(first.term()));
    assert_eq!(enter(&mut gate, &after, "b", 20).unwrap_err(), "wait");
    gate.leave(first);
    assert_eq!(enter(&mut gate, &after, "b", 20).unwrap_err(), "wait");
    gate.leave(second);
    let third = enter(&mut gate, &after, "b", 20).unwrap();
    gate.leave(third);
}

/// The driver of the gate wakes the waiters when `leave` returns true. An orphan that ends by the
/// clock alone wakes nobody.
#[test]
fn the_last_request_that_runs_may_open_the_barrier_though_an_orphan_is_left() {
    let mut gate = Gate::default();
    let (before, after) = (held(Layout::Key, "a", 10, 10), held(Layout::Key, "b", 20, 20));
    gate.learn(&before);
    let [lost, first, last] = [(); 3].map(|()| enter(&mut gate, &before, "a", 10).unwrap());
    gate.lose(lost, Moment(0));
    gate.learn(&after);
    assert!(!gate.leave(first));
    assert_eq!(enter(&mut gate, &after, "b", 20).unwrap_err(), "wait");
    assert!(gate.leave(last));
    assert!(enter(&mut gate, &after, "b", 20).is_ok());
}

#[test]
fn a_request_whose_end_was_not_seen_counts_until_its_time_has_come_or_its_end_is_seen() {
    let (before, after) = (held(Layout::Key, "a", 10, 10), held(Layout::Key, "b", 20, 20));
    let token = FenceToken { owner: "b", revision: revision(20) };
    let known = Known::new(Some(&after), News::Fresh);
    let orphaned = || {
        let mut gate = Gate::default();
        gate.learn(&before);
        let admission = enter(&mut gate, &before, "a", 10).unwrap();
        gate.learn(&after);
        let orphan = gate.lose(admission, Moment(30));
        (gate, orphan)
    };
    let (mut gate, _) = orphaned();
    assert_eq!(
        gate.state().at_worker,
        [TenureAtWorker { tenure: revision(10), running: 0, orphans: 1 }]
    );
    assert!(matches!(gate.enter(&token, known, Moment(29)), Err(EnterError::Wait)));
    assert_eq!(gate.unseen_until(), Some(Moment(30)));
    assert!(gate.enter(&token, known, Moment(30)).is_ok());

    let (mut gate, orphan) = orphaned();
    assert!(gate.end_orphan(orphan));
    assert!(!gate.end_orphan(orphan));
    assert!(gate.enter(&token, known, Moment(0)).is_ok());

    let (mut gate, _) = orphaned();
    assert_eq!(gate.clear_orphans(), 1);
    assert!(
        matches!(gate.may_enter(&token, known, Moment(0)), Ok(tenure) if tenure == revision(20))
    );
    assert_eq!(gate.state().at_worker, []);
}

#[test]
fn an_orphan_that_is_heard_of_counts_for_longer_and_never_for_less_long() {
    let mut gate = Gate::default();
    let (before, after) = (held(Layout::Key, "a", 10, 10), held(Layout::Key, "b", 20, 20));
    let token = FenceToken { owner: "b", revision: revision(20) };
    let known = Known::new(Some(&after), News::Fresh);
    gate.learn(&before);
    let [heard, silent] = [30, 20].map(|until| {
        let admission = enter(&mut gate, &before, "a", 10).unwrap();
        gate.lose(admission, Moment(until))
    });
    gate.learn(&after);
    for until in [50, 40] {
        gate.postpone(heard, Moment(until));
        assert_eq!(gate.unseen_until(), Some(Moment(50)));
    }
    assert!(gate.end_orphan(silent));
    assert!(matches!(gate.enter(&token, known, Moment(49)), Err(EnterError::Wait)));
    assert!(gate.may_enter(&token, known, Moment(50)).is_ok());
    gate.end_orphan(heard);
    gate.postpone(heard, Moment(90));
    assert_eq!(
        (gate.unseen_until(), gate.counts(heard)),
        (None, false),
        "it was forgotten for good"
    );
}

/// A process that had been stopped let in the next tenure although the worker's words lay unread in
/// its socket.
#[test]
fn an_orphan_that_somebody_listens_for_is_not_ended_by_the_clock() {
    let mut gate = Gate::default();
    let (before, after) = (held(Layout::Key, "a", 10, 10), held(Layout::Key, "b", 20, 20));
    let token = FenceToken { owner: "b", revision: revision(20) };
    let known = Known::new(Some(&after), News::Fresh);
    gate.learn(&before);
    let admission = enter(&mut gate, &before, "a", 10).unwrap();
    let orphan = gate.lose(admission, Moment(30));
    gate.set_heard(orphan, true);
    gate.learn(&after);
    assert!(matches!(gate.may_enter(&token, known, Moment(99)), Err(EnterError::Wait)));
    assert!(!gate.is_clear(Moment(99)));
    gate.postpone(orphan, Moment(110));
    gate.set_heard(orphan, false);
    assert!(matches!(gate.may_enter(&token, known, Moment(109)), Err(EnterError::Wait)));
    assert!(gate.may_enter(&token, known, Moment(110)).is_ok());
    gate.set_heard(orphan, true);
    assert!(gate.end_orphan(orphan));
    assert!(gate.may_enter(&token, known, Moment(0)).is_ok());
    gate.set_heard(orphan, true);
    assert!(gate.is_clear(Moment(0)), "it was forgotten for good");
}

#[test]
fn only_who_says_dangerous_passes_the_barrier_and_is_counted_all_the_same() {
    let mut gate = Gate::default();
    let (before, after) = (held(Layout::Key, "a", 10, 10), held(Layout::Key, "b", 20, 20));
    gate.learn(&before);
    let first = enter(&mut gate, &before, "a", 10).unwrap();
    gate.learn(&after);
    let mut enter_dangerously = |owner, at| {
        let token = FenceToken { owner, revision: revision(at) };
        gate.enter_dangerously(&token, Known::new(Some(&after), News::Fresh), Moment(0))
    };
    assert!(matches!(enter_dangerously("a", 10), Err(EnterError::Refused(Rejection::StaleTenure))));
    let Ok(second) = enter_dangerously("b", 20) else { panic!("it is the holder") };
    assert_eq!(gate.state().at_worker.len(), 2);
    gate.leave(first);
    gate.leave(second);
    assert_eq!(gate.state().at_worker, []);
}

/// What an earlier process left behind was forgotten with the first that went past it.
#[test]
fn who_passes_what_a_crash_left_behind_leaves_it_standing_for_all_others() {
    let left = Predecessor { tenure: Some(revision(10)), until: Some(Moment(30)), others: false };
    let mut gate = Gate::recording(Some(left));
    let next = held(Layout::Key, "b", 20, 20);
    gate.learn(&next);
    gate.recorded(revision(20));
    let token = FenceToken { owner: "b", revision: revision(20) };
    let known = Known::new(Some(&next), News::Fresh);
    let Ok(first) = gate.enter_dangerously(&token, known, Moment(0)) else {
        panic!("it is the holder")
    };
    assert!(matches!(gate.enter(&token, known, Moment(29)), Err(EnterError::Wait)));
    assert_eq!((gate.unseen_until(), gate.is_clear(Moment(29))), (Some(Moment(30)), false));
    gate.leave(first);
    assert!(matches!(gate.enter(&token, known, Moment(29)), Err(EnterError::Wait)));
    assert!(gate.enter(&token, known, Moment(30)).is_ok());
}

#[test]
fn a_tenure_is_recorded_before_its_first_request_enters() {
    let mut gate = Gate::recording(None);
    let (before, after) = (held(Layout::Key, "a", 10, 10), held(Layout::Key, "b", 20, 20));
    gate.learn(&before);
    assert_eq!(enter(&mut gate, &before, "a", 10).unwrap_err(), "record");
    gate.recorded(revision(10));
    let first = enter(&mut gate, &before, "a", 10).unwrap();
    gate.learn(&after);
    assert_eq!(enter(&mut gate, &after, "b", 20).unwrap_err(), "wait"); // Recorded only once the barrier has opened.
    gate.leave(first);
    assert_eq!(enter(&mut gate, &after, "b", 20).unwrap_err(), "record");
}

#[test]
fn after_a_crash_only_the_last_tenure_let_in_goes_on_at_once() {
    let (same, next) = (held(Layout::Key, "a", 10, 10), held(Layout::Key, "b", 20, 20));
    let restarted = |until| {
        Gate::recording(Some(Predecessor { tenure: Some(revision(10)), until, others: false }))
    };
    let mut gate = restarted(Some(Moment(30)));
    gate.learn(&same);
    assert_eq!(enter(&mut gate, &same, "a", 10).unwrap_err(), "record");
    gate.recorded(revision(10));
    let admission = enter(&mut gate, &same, "a", 10).unwrap();
    gate.leave(admission);
    gate.learn(&next);
    assert_eq!(enter(&mut gate, &next, "b", 20).unwrap_err(), "wait");
    assert_eq!((gate.unseen_until(), gate.is_clear(Moment(29))), (Some(Moment(30)), false));
    let token = FenceToken { owner: "b", revision: revision(20) };
    let entry = gate.enter(&token, Known::new(Some(&next), News::Fresh), Moment(30));
    assert!(matches!(entry, Err(EnterError::Record(tenure)) if tenure == revision(20)));

    let mut gate = restarted(None);
    gate.learn(&next);
    assert_eq!(enter(&mut gate, &next, "b", 20).unwrap_err(), "record");
    let mut gate = restarted(None);
    assert_eq!(
        enter(&mut gate, &held(Layout::Key, "z", 9, 9), "z", 9).unwrap_err(),
        "replayed-tenure"
    );
}

#[test]
fn history_that_is_shown_farther_back_than_before_locks_nobody_out() {
    // An earlier process saw the tenure begin at 50; now it is shown to have begun at 40. Its
    // holder presents 60.
    let mut gate = Gate::recording(Some(Predecessor {
        tenure: Some(revision(50)),
        until: None,
        others: false,
    }));
    let now = held(Layout::Key, "a", 40, 60);
    gate.learn(&now);
    assert_eq!(enter(&mut gate, &now, "a", 49).unwrap_err(), "replayed-tenure");
    assert_eq!(enter(&mut gate, &now, "a", 60).unwrap_err(), "record");
    gate.recorded(revision(50));
    let admission = enter(&mut gate, &now, "a", 50).unwrap();
    assert!(!gate.has_ended(admission.term()));
    assert_eq!(admission.tenure(), revision(50));
    gate.leave(admission);
    assert_eq!(gate.state().floor, 50);
}

#[test]
fn a_tenure_that_is_known_to_have_ended_admits_nobody_though_its_successor_is_not_known_yet() {
    let mut gate = Gate::default();
    let before = held(Layout::Key, "a", 10, 12);
    gate.learn(&before);
    gate.end_present();
    assert_eq!(gate.state().floor, 13);
    assert_eq!(enter(&mut gate, &before, "a", 12).unwrap_err(), "replayed-tenure");
}

#[test]
fn what_a_crash_left_behind_lets_no_tenure_of_a_restored_store_pass_by_its_number() {
    let mut gate = Gate::recording(Some(Predecessor {
        tenure: Some(revision(30)),
        until: Some(Moment(9)),
        others: false,
    }));
    gate.forget_floor();
    let reused = held(Layout::Key, "b", 30, 30);
    gate.learn(&reused);
    assert_eq!(enter(&mut gate, &reused, "b", 30).unwrap_err(), "wait");
}

#[test]
fn an_accepted_regression_lets_the_floor_start_anew_and_keeps_the_barrier() {
    let mut gate = Gate::default();
    let (before, restored) = (held(Layout::Key, "a", 40, 40), held(Layout::Key, "b", 7, 7));
    gate.learn(&before);
    let admission = enter(&mut gate, &before, "a", 40).unwrap();
    gate.learn(&restored);
    assert_eq!(enter(&mut gate, &restored, "b", 7).unwrap_err(), "replayed-tenure");
    gate.forget_floor();
    gate.learn(&restored);
    assert!(gate.has_ended(admission.term()));
    assert_eq!(enter(&mut gate, &restored, "b", 7).unwrap_err(), "wait");
    gate.leave(admission);
    let after = enter(&mut gate, &restored, "b", 7).unwrap();
    gate.leave(after);
}

#[test]
fn the_next_that_stops_to_count_is_not_the_last() {
    let mut gate = Gate::default();
    let now = held(Layout::Key, "a", 10, 10);
    gate.learn(&now);
    for until in [60, 5] {
        let token = FenceToken { owner: "a", revision: revision(10) };
        let Ok(admission) = gate.enter(&token, Known::new(Some(&now), News::Fresh), Moment(0))
        else {
            panic!("it is the holder's");
        };
        gate.lose(admission, Moment(until));
    }
    assert_eq!(gate.next_unseen(Moment(0)), Some(Moment(5)));
    assert_eq!(gate.next_unseen(Moment(5)), Some(Moment(60)));
    assert_eq!(gate.next_unseen(Moment(60)), None);
}

#[test]
fn what_whoever_enters_looks_at_takes_two_lines_of_memory_with_the_word_of_a_mutex_before_it() {
    let looked_at = size_of::<u64>() + std::mem::offset_of!(Gate, orphans_made);
    assert!(looked_at <= 2 * 64, "{looked_at} bytes");
}
