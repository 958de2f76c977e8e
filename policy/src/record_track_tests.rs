use proptest::prelude::*;

use super::*;

fn revision(number: u64) -> Revision {
    Revision::new(number).unwrap()
}

fn stamp(text: &str) -> Stamp {
    text.as_bytes().into()
}

fn held(owner: &str, at: u64, of: &str) -> Seen {
    Seen::Held { owner: Owner::new(owner.as_bytes()), revision: revision(at), stamp: stamp(of) }
}

fn sighting(seen: Seen) -> Sighting {
    Sighting { lineage: 1, reach: None, seen, waiters: Arc::from([]) }
}

/// What is known after these, each of which is of use: who holds the lock, with the first and the
/// last revision.
fn known(sightings: impl IntoIterator<Item = Seen>) -> Option<(String, u64, u64)> {
    let mut track = RecordTrack::new(None);
    for seen in sightings {
        assert_eq!(track.see(sighting(seen)), Worth::Known);
    }
    let Holding::Held(Tenure { owner, first, last }) = track.snapshot().unwrap().holding else {
        return None;
    };
    Some((owner.to_string(), first.get(), last.get()))
}

fn tenure(owner: &str, first: u64, last: u64) -> Option<(String, u64, u64)> {
    Some((owner.to_owned(), first, last))
}

#[test]
fn a_stamp_joins_the_writes_of_one_tenure_and_parts_two_of_one_owner() {
    assert_eq!(known([held("a", 3, "x"), held("a", 7, "x")]), tenure("a", 3, 7));
    assert_eq!(known([held("a", 3, "x"), held("a", 7, "y")]), tenure("a", 7, 7));
    assert_eq!(known([held("a", 3, "x"), held("b", 7, "y")]), tenure("b", 7, 7));
    assert_eq!(known([held("a", 3, "x"), Seen::Free]), None);
    assert_eq!(known([held("a", 3, "x"), Seen::Free, held("a", 8, "y")]), tenure("a", 8, 8));
}

#[test]
fn what_was_unreadable_meanwhile_may_have_been_anybodys() {
    assert_eq!(known([held("a", 3, "x"), Seen::Unreadable]), None);
    let again = [held("a", 3, "x"), Seen::Unreadable, held("a", 5, "x")];
    assert_eq!(known(again), tenure("a", 5, 5));
}

/// What comes of sightings in a row that show less than the first did.
fn behind(first: Seen, then: Sighting) -> [Worth; 3] {
    let mut track = RecordTrack::new(None);
    assert_eq!(track.see(Sighting { reach: Some(revision(9)), ..sighting(first) }), Worth::Known);
    let before = track.snapshot();
    let worths = [(); 3].map(|()| track.see(then.clone()));
    if worths[1] == Worth::Behind {
        assert_eq!(track.distrusted_through(), Some(revision(9)));
        assert_ne!(track.snapshot(), before, "what it shows is known");
    }
    worths
}

#[test]
fn a_store_that_shows_less_three_times_in_a_row_went_back() {
    let went_back = [Worth::Behind, Worth::Behind, Worth::WentBack { through: revision(9) }];
    let lower = sighting(held("a", 3, "x"));
    assert_eq!(behind(held("a", 8, "x"), lower), went_back, "the number of one tenure fell");
    let same = sighting(held("b", 8, "y"));
    assert_eq!(behind(held("a", 8, "x"), same), went_back, "a number was given out twice");
    let reach = Sighting { reach: Some(revision(8)), ..sighting(Seen::Free) };
    assert_eq!(behind(held("a", 8, "x"), reach), went_back, "the store counts less");
}

#[test]
fn a_tenure_that_has_ended_does_not_come_back() {
    let mut track = RecordTrack::new(None);
    for seen in [held("a", 3, "x"), Seen::Free] {
        assert_eq!(track.see(sighting(seen)), Worth::Known);
    }
    assert_eq!(track.see(sighting(held("a", 3, "x"))), Worth::Behind);
    assert_eq!(track.snapshot().unwrap().holding, Holding::Free, "it is not used");
    assert_eq!(track.see(sighting(held("b", 4, "y"))), Worth::Known);
    assert_eq!(track.see(sighting(held("a", 3, "x"))), Worth::Behind, "not three in a row");
}

#[test]
fn another_history_is_believed_only_above_what_was_seen() {
    let mut track = RecordTrack::new(None);
    assert_eq!(track.see(sighting(held("a", 3, "x"))), Worth::Known);
    let other = Sighting { lineage: 2, ..sighting(held("a", 3, "x")) };
    assert_eq!(track.see(other.clone()), Worth::WentBack { through: revision(3) });
    assert_eq!(track.distrusted_through(), Some(revision(3)));
    assert_eq!(track.see(Sighting { seen: held("b", 4, "y"), ..other }), Worth::Known);
    assert_eq!(track.distrusted_through(), Some(revision(3)), "that stays");
}

#[test]
fn a_lock_of_which_nothing_was_seen_has_lost_nothing() {
    let mut track = RecordTrack::new(None);
    assert_eq!(track.see(sighting(Seen::Free)), Worth::Known);
    let other = Sighting { lineage: 2, ..sighting(held("a", 1, "x")) };
    assert_eq!(track.see(other), Worth::Known);
    assert_eq!(track.distrusted_through(), None);
}

#[test]
fn what_an_earlier_process_let_in_is_the_least_that_is_believed() {
    let mut track = RecordTrack::new(Some(revision(5)));
    assert_eq!(track.see(sighting(held("a", 5, "x"))), Worth::Known);
    let mut track = RecordTrack::new(Some(revision(5)));
    let lower = sighting(held("a", 4, "x"));
    let worths = [(); 3].map(|()| track.see(lower.clone()));
    assert_eq!(worths[2], Worth::WentBack { through: revision(5) });
}

#[derive(Debug, Clone, Copy)]
enum Act {
    Take(u8),
    Renew,
    Release,
}

proptest! {
    /// However many writes are never seen, no revision of an ended tenure names the present one.
    #[test]
    fn what_is_known_is_part_of_the_present_tenure(
        acts in prop::collection::vec((prop_oneof![
            (0u8..3).prop_map(Act::Take), Just(Act::Renew), Just(Act::Release)], any::<bool>()), 0..40)
    ) {
        let mut track = RecordTrack::new(None);
        // The present tenure: its owner, its first revision, its number among all.
        let (mut present, mut tenures) = (None, 0);
        for (at, (act, is_read)) in (1..).zip(acts) {
            match act {
                Act::Take(owner) => {
                    tenures += 1;
                    present = Some((owner, at, tenures));
                }
                Act::Renew => {}
                Act::Release => present = None,
            }
            if !is_read {
                continue;
            }
            let seen = present.map_or(Seen::Free, |(owner, _, number)| {
                held(&owner.to_string(), at, &number.to_string())
            });
            let reach = Some(revision(at));
            prop_assert_eq!(track.see(Sighting { reach, ..sighting(seen) }), Worth::Known);
            let snapshot = track.snapshot().unwrap();
            prop_assert_eq!(snapshot.as_of, Some(revision(at)));
            match (&snapshot.holding, present) {
                (Holding::Free, None) => {}
                (Holding::Held(tenure), Some((owner, first, _))) => {
                    prop_assert_eq!(tenure.owner.to_string(), owner.to_string());
                    prop_assert!(first <= tenure.first.get() && tenure.last == revision(at));
                }
                other => prop_assert!(false, "{other:?}"),
            }
        }
    }
}
