//! Random histories of a store, with a watch that lags, reads that take their time, locks that are loaded meanwhile and walks
//! that end late: whatever is said of a lock "up to R" is what the store was at R.

use std::time::Duration;

use fencepost_policy::{FenceToken, Holding, Layout, Verdict};
use proptest::prelude::*;
use tokio::time::Instant;

use super::cache_view::Timing;
use super::scope_world::{Act, WINDOW, World, any_act, revision};

const LOAD: [Act; 3] = load(0);
const LOAD_BOTH: [[Act; 3]; 2] = [load(0), load(1)];

const fn load(lock: usize) -> [Act; 3] {
    [Act::SendRead(lock), Act::AnswerRead(lock), Act::MergeRead(lock)]
}

/// The first window begins at 1; a key is created at 2 and gone at 3; at 4 another one comes. With a window at 4 the number of keys is as the
/// events have it, which says nothing of a key that came and went.
const CAME: Act = Act::Put(0, b'a');
const WENT: [Act; 2] = [Act::Delete(0), Act::Put(3, b'a')];

fn play(layout: Layout, acts: &[&[Act]]) -> World {
    let mut world = World::new(layout);
    world.play(acts.concat());
    world
}

fn check(layout: Layout, acts: &[Act]) {
    play(layout, &[acts]).settle();
}

/// As [`check`], where deletions are lost by the watch: what is dated by a read that was sent since is true.
fn check_with_losses(layout: Layout, acts: &[Act]) {
    let mut world = play(layout, &[&WINDOW, &LOAD_BOTH.concat(), acts]);
    world.play([Act::Resume]);
    while world.scope.watch_from().is_some() && world.delivered < world.now() {
        world.play([Act::Deliver]);
    }
    for lock in [0, 1] {
        for _ in 0..2 {
            world.read_lock(lock);
        }
        let lock = world.lock(lock);
        let reach = lock.view().reach().unwrap();
        assert_eq!(reach, revision(world.now()), "{lock:?} is known as of the read");
        assert_eq!(lock.view().snapshot().unwrap().holding, world.truth(&lock, reach).holding, "{lock:?}");
    }
}

fn any_act_or_loss() -> impl Strategy<Value = Act> {
    prop_oneof![6 => any_act(), 1 => (0..4usize).prop_map(Act::Lose)]
}

proptest! {
    // `PROPTEST_CASES` makes it more.
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases.max(1000),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn what_a_clock_says_of_key_locks_is_true(acts in prop::collection::vec(any_act(), 1..80)) {
        check(Layout::Key, &acts);
    }

    #[test]
    fn what_a_clock_says_of_elections_is_true(acts in prop::collection::vec(any_act(), 1..80)) {
        check(Layout::Election, &acts);
    }

    #[test]
    fn what_a_clock_says_of_mutexes_is_true(acts in prop::collection::vec(any_act(), 1..80)) {
        check(Layout::Mutex, &acts);
    }

    #[test]
    fn a_read_of_a_key_lock_is_truth_whatever_the_watch_has_lost(acts in prop::collection::vec(any_act_or_loss(), 1..80)) {
        check_with_losses(Layout::Key, &acts);
    }

    #[test]
    fn a_read_of_an_election_is_truth_whatever_the_watch_has_lost(acts in prop::collection::vec(any_act_or_loss(), 1..80)) {
        check_with_losses(Layout::Election, &acts);
    }

    #[test]
    fn a_read_of_a_mutex_is_truth_whatever_the_watch_has_lost(acts in prop::collection::vec(any_act_or_loss(), 1..80)) {
        check_with_losses(Layout::Mutex, &acts);
    }
}

/// As many keys of the lock were shown as were known, though not the same: the watch had lost the end of one, and brought that of another early.
#[test]
fn a_key_whose_end_was_lost_is_not_taken_for_another_that_a_windowed_read_shows() {
    let lost = [Act::Put(0, b'a'), Act::Lose(0), Act::Put(1, b'a'), Act::Deliver, Act::SendWindow, Act::Deliver];
    let shown = [Act::AnswerWindow, Act::Deliver, Act::Delete(1), Act::Deliver, Act::MergeWindow];
    for layout in [Layout::Election, Layout::Mutex] {
        check_with_losses(layout, &[&lost[..], &shown].concat());
    }
}

/// What follows the loss is brought, and so the lock seems to be known beyond it.
const LOSS: [Act; 4] = [Act::Lose(0), Act::Put(1, b'b'), Act::Deliver, Act::Deliver];

#[test]
fn a_read_that_is_no_newer_than_what_the_watch_has_brought_shows_what_it_has_lost() {
    for layout in [Layout::Election, Layout::Mutex] {
        let early = [Act::Lose(0), Act::SendRead(0), Act::AnswerRead(0), Act::Put(1, b'b'), Act::Deliver, Act::Deliver];
        for loss in [[&LOSS[..], &LOAD].concat(), [&early[..], &[Act::MergeRead(0)]].concat()] {
            let mut world = play(layout, &[&[CAME, Act::Put(1, b'b')], &WINDOW, &LOAD, &loss]);
            let lock = world.lock(0);
            let snapshot = lock.view().snapshot().cloned().unwrap();
            assert_eq!(
                snapshot.tenure().map(|tenure| tenure.first),
                Some(revision(3)),
                "{layout:?}: the first one is gone"
            );
            assert!(world.scope.watch_from().is_none(), "{layout:?}: other locks may have lost something, too");
        }
    }
}

#[test]
fn a_new_window_says_nothing_of_a_lock_that_only_the_watch_has_told_of_since() {
    for layout in [Layout::Election, Layout::Mutex] {
        let mut world = play(layout, &[&[CAME, Act::Put(1, b'b')], &WINDOW, &LOAD, &LOSS, &WINDOW, &[Act::Begin]]);
        assert_eq!(world.lock(0).view().reach(), Some(revision(5)), "{layout:?}: known by itself");
        world.play(LOAD);
        assert!(world.scope.watch_from().is_some(), "{layout:?}: the new window has lost nothing");
    }
}

#[test]
fn a_deletion_that_the_watch_has_not_brought_leaves_the_read_unverified() {
    // One key goes, another comes: the number of keys stays what it was.
    let mut world = play(Layout::Key, &[&[CAME], &WINDOW, &LOAD, &[Act::Swap(0, 3)], &WINDOW]);
    assert!(world.unverified.is_some());
    world.play([Act::Deliver, Act::Verify]);
    assert!(world.unverified.is_none());
    assert_eq!(world.lock(0).view().reach(), Some(revision(3)));
}

#[test]
fn late_events_of_a_key_that_came_and_went_are_not_taken_for_the_present() {
    for layout in [Layout::Key, Layout::Election] {
        let mut world = play(layout, &[&WINDOW, &LOAD, &[CAME], &WENT, &WINDOW, &[Act::Deliver]]);
        assert_eq!(world.lock(0).view().reach(), Some(revision(4)), "{layout:?}");
        world.settle();
    }
}

#[test]
fn a_late_read_of_a_key_that_came_and_went_is_not_taken_for_the_present() {
    for layout in [Layout::Key, Layout::Election] {
        let (asked, answered) = ([Act::SendRead(0), CAME, Act::AnswerRead(0)], [Act::MergeRead(0)]);
        let mut world = play(layout, &[&WINDOW, &LOAD, &asked, &WENT, &WINDOW, &answered]);
        assert_eq!(world.lock(0).view().reach(), Some(revision(4)), "{layout:?}");
        world.settle();
    }
}

#[test]
fn a_lock_first_learnt_for_a_revision_that_the_clock_has_passed_is_read_again() {
    for layout in [Layout::Key, Layout::Election] {
        let (asked, answered) = ([Act::SendRead(0), CAME, Act::AnswerRead(0)], [Act::MergeRead(0)]);
        let mut world = play(layout, &[&WINDOW, &asked, &WENT, &WINDOW, &answered]);
        assert!(!world.lock(0).is_settled(), "{layout:?}");
        world.settle();
    }
}

#[test]
fn an_event_of_a_key_that_is_gone_by_the_next_window_unsettles_the_lock() {
    for layout in [Layout::Key, Layout::Election] {
        let mut world = play(layout, &[&WINDOW, &LOAD, &[CAME, Act::Deliver], &WENT, &WINDOW]);
        assert!(!world.lock(0).is_settled(), "{layout:?}");
        world.settle();
    }
}

/// The first read of the lock is answered at 3, which the clock has reached; the next one shows a lock that has to be looked into.
/// The clock covers it no longer then, yet it was dated by the first one.
#[test]
fn what_is_dated_by_a_read_that_a_clock_has_passed_stays_known_as_of_that_read() {
    let acts = [
        Act::SendRead(1),
        Act::SendWindow,
        Act::Put(3, b'a'),
        Act::AnswerRead(1),
        Act::AnswerWindow,
        Act::MergeWindow,
        Act::Put(2, b'a'),
        Act::MergeRead(1),
        Act::SendRead(1),
        Act::SendWindow,
        Act::AnswerWindow,
        Act::AnswerRead(1),
        Act::Put(1, b'a'),
        Act::Put(1, b'a'),
        Act::Put(0, b'a'),
        Act::MergeWindow,
    ];
    check(Layout::Key, &acts);
}

/// The holder of a mutex was told revision 3, above that of its key. A read that was sent after its request arrived finds the clock
/// there already; before the request goes out, the lock is no longer covered. It was told `ahead-of-store`.
#[test]
fn a_mutex_holder_stays_admitted_when_the_clock_that_its_confirmation_leant_on_covers_the_lock_no_longer() {
    let ends = [
        [&[Act::Put(1, b'a')], &WINDOW[..]].concat(),
        // A key elsewhere is deleted, the watch does not name it, and nobody waits for that any longer: a new window begins.
        [&[Act::Delete(3)], &WINDOW[..], &[Act::Begin]].concat(),
    ];
    for end in ends {
        let told = [Act::Put(3, b'a'), Act::Deliver];
        let mut world = play(Layout::Mutex, &[&[CAME], &WINDOW, &LOAD, &told, &WINDOW]);
        let token = FenceToken { owner: "s/0/a", revision: revision(3) };
        let arrived = Instant::now();
        LOAD.iter().chain(&end).for_each(|act| world.act(*act));
        let timing = Timing {
            arrived,
            not_before: None,
            now: Instant::now(),
            max_age: Duration::from_secs(60),
            linearizable: true,
        };
        assert_eq!(world.lock(0).view().judge(&token, &timing), Verdict::Admit, "after {end:?}");
    }
}

/// A windowed read is answered while a key is there. The watch tells that it came and went; then somebody asks for the lock, and
/// only now the answer arrives. The lock was taken to be held up to whatever the clock reached, by a holder that had released it.
#[test]
fn a_windowed_read_from_before_a_lock_was_asked_for_is_not_the_first_that_is_known_of_it() {
    for layout in [Layout::Key, Layout::Election, Layout::Mutex] {
        let seen = [CAME, Act::SendWindow, Act::AnswerWindow, Act::Deliver];
        let late = [Act::Delete(0), Act::Deliver, Act::SendRead(0), Act::MergeWindow];
        let read = [Act::AnswerRead(0), Act::MergeRead(0)];
        let mut world = play(layout, &[&WINDOW, &seen, &late, &WINDOW, &read]);
        assert_eq!(world.lock(0).view().snapshot().unwrap().holding, Holding::Free, "{layout:?}");
        world.settle();
    }
}

/// The lock's first read is answered before its key is created, a windowed read after; the windowed one arrives first. It is verified by
/// an event from before the key's own.
#[test]
fn what_a_windowed_read_shows_of_a_lock_that_is_being_read_unsettles_an_older_first_read() {
    for layout in [Layout::Key, Layout::Election, Layout::Mutex] {
        let asked = [Act::SendRead(0), Act::AnswerRead(0), Act::Delete(3), CAME];
        let late = [Act::MergeRead(0), Act::Deliver, Act::Verify];
        let mut world = play(layout, &[&[Act::Put(3, b'a')], &WINDOW, &asked, &WINDOW, &late]);
        assert!(world.unverified.is_none() && !world.lock(0).is_settled(), "{layout:?}");
        world.settle();
    }
}

const PROBE: [Act; 3] = [Act::SendProbe, Act::AnswerProbe, Act::VerifyProbe];

#[test]
fn a_probe_moves_the_clock_once_the_watch_has_brought_all_that_happened() {
    for layout in [Layout::Key, Layout::Election, Layout::Mutex] {
        let mut world = play(layout, &[&[CAME], &WINDOW, &LOAD, &PROBE]);
        assert_eq!(world.probed, 1, "nothing was written at all");
        world.play([Act::Put(3, b'a'), Act::Delete(0), Act::Deliver].into_iter().chain(PROBE));
        assert_eq!((world.probed, world.lock(0).view().reach()), (1, Some(revision(2))), "one event is not here yet");
        world.play([Act::Deliver, Act::VerifyProbe]);
        assert_eq!((world.probed, world.lock(0).view().reach()), (2, Some(revision(4))), "{layout:?}");
        world.settle(); // The number of keys is known too, or the windowed read there would not be verified.
    }
}

#[test]
fn a_probe_proves_nothing_if_something_happened_elsewhere_or_was_lost() {
    for missing in [Act::Elsewhere, Act::Delete(0)] {
        let mut world = play(Layout::Key, &[&[CAME], &WINDOW, &LOAD, &[missing, Act::Put(3, b'a')]]);
        world.delivered += 1; // Whatever it was, the watch says nothing of it.
        for act in PROBE {
            world.act(act);
            assert_eq!(world.probed, 0);
        }
        world.act(Act::Deliver);
        world.act(Act::VerifyProbe);
        assert_eq!((world.probed, world.probe.is_none()), (0, true), "what comes later says that it is missing");
        assert_eq!(world.lock(0).view().reach(), Some(revision(2)));
    }
}
