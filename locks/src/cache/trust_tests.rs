use std::sync::Arc;
use std::time::Duration;

use fencepost_policy::Revision;
use tokio::time::{Instant, advance};

use super::identity::StoreIdentity;
use super::trust::{Standing, StorePast, Trust, WatchState};
use crate::store::Answerer;

fn revision(number: u64) -> Revision {
    Revision::new(number).unwrap()
}

fn read(trust: &Trust, at: u64) -> Standing {
    trust.received(&trust.sending(), revision(at), None)
}

#[test]
fn three_reads_in_a_row_behind_are_a_regression() {
    let trust = Trust::new(None);
    assert_eq!(read(&trust, 50), Standing::Trusted);
    assert_eq!(read(&trust, 49), Standing::Behind);
    assert_eq!(read(&trust, 50), Standing::Trusted);
    assert_eq!(
        [49, 49, 49].map(|at| read(&trust, at)),
        [Standing::Behind, Standing::Behind, Standing::Regressed]
    );
    assert_eq!(trust.distrusted_through(), Some(revision(50)));
    assert_eq!(read(&trust, 50), Standing::Regressed);
    assert_eq!(read(&trust, 51), Standing::Recovered);
    assert_eq!(read(&trust, 51), Standing::Trusted);
    assert_eq!(trust.distrusted_through(), Some(revision(50)));
}

#[test]
fn an_answer_is_held_against_what_was_seen_when_it_was_sent() {
    let trust = Trust::new(None);
    let sent = trust.sending();
    trust.saw(revision(20));
    assert_eq!(trust.received(&sent, revision(10), None), Standing::Trusted);
    assert_eq!(read(&trust, 19), Standing::Behind);
}

#[test]
fn old_answers_to_reads_that_were_in_flight_together_count_once() {
    let trust = Trust::new(Some(revision(9)));
    let together = [trust.sending(), trust.sending(), trust.sending(), trust.sending()];
    for sent in together {
        assert_eq!(trust.received(&sent, revision(8), None), Standing::Behind);
    }
    assert_eq!(trust.anomalies(), 4);
    assert_eq!(read(&trust, 9), Standing::Trusted);
}

/// A member of cluster 1.
fn member(member: u64, term: u64) -> Answerer {
    Answerer { cluster: 1, member, term }
}

fn read_by(trust: &Trust, at: u64, by: Answerer) -> Standing {
    trust.received(&trust.sending(), revision(at), Some(by))
}

fn seen(cluster: u64, terms: &[(u64, u64)]) -> StoreIdentity {
    StoreIdentity { cluster: Some(cluster), terms: terms.iter().copied().collect() }
}

#[test]
fn another_cluster_is_distrusted_until_accepted() {
    let trust = Trust::new(Some(revision(50))).in_store(seen(2, &[(7, 9)]));
    assert_eq!(read_by(&trust, 60, member(7, 2)), Standing::AnotherCluster { found: 1, seen: 2 });
    assert_eq!(trust.identity(), seen(1, &[(7, 2)]));
    assert_eq!(trust.distrusted_through(), Some(revision(50)));
    assert_eq!(read_by(&trust, 60, member(7, 2)), Standing::Trusted);
    assert_eq!(trust.distrusted_through(), Some(revision(50)));
    trust.accept(|| {});
    assert_eq!(
        (read_by(&trust, 60, member(7, 2)), trust.distrusted_through()),
        (Standing::Trusted, None)
    );
}

#[test]
fn which_cluster_it_is_says_nothing_where_none_was_seen() {
    for trust in [Trust::new(None), Trust::new(Some(revision(50)))] {
        assert_eq!(
            (read_by(&trust, 60, member(7, 2)), trust.distrusted_through()),
            (Standing::Trusted, None)
        );
        assert_eq!(trust.identity(), seen(1, &[(7, 2)]));
    }
}

#[test]
fn cluster_of_an_earlier_process_counts_for_the_next_source() {
    let first = Arc::new(Trust::new(Some(revision(50))).in_store(seen(2, &[])));
    assert_eq!(
        read_by(&after(&first), 60, member(7, 2)),
        Standing::AnotherCluster { found: 1, seen: 2 }
    );
}

#[test]
fn three_reads_in_a_row_of_another_log_are_a_regression() {
    // What an earlier process was told, and what this one was.
    for trust in [Trust::new(Some(revision(40))).in_store(seen(1, &[(7, 5)])), Trust::new(None)] {
        assert_eq!(read_by(&trust, 50, member(7, 5)), Standing::Trusted);
        tick();
        let reads = [60, 61, 62].map(|at| read_by(&trust, at, member(7, 2)));
        assert_eq!(reads, [Standing::Behind, Standing::Behind, Standing::Regressed]);
        assert_eq!(trust.distrusted_through(), Some(revision(50)));
        assert_eq!(read_by(&trust, 63, member(7, 2)), Standing::Recovered);
        assert_eq!(trust.identity(), seen(1, &[(7, 2)]), "this log is the store's now");
        assert_eq!(read_by(&trust, 63, member(7, 2)), Standing::Trusted);
        assert_eq!(trust.distrusted_through(), Some(revision(50)));
        trust.accept(|| {});
        assert_eq!(trust.identity(), seen(1, &[]));
    }
}

/// Of two that may be true: a member knows its term only from its next entry on if it was brought
/// up by a snapshot.
#[test]
fn member_with_an_older_term_or_none_has_the_known_log() {
    let trust = Trust::new(None);
    for (id, term) in [(7, 5), (8, 3), (9, 0), (7, 0), (8, 4), (9, 2), (7, 6)] {
        assert_eq!(
            read_by(&trust, 50, member(id, term)),
            Standing::Trusted,
            "member {id}, term {term}"
        );
        tick();
    }
    assert_eq!(trust.identity(), seen(1, &[(7, 6), (8, 4), (9, 2)]));
}

#[test]
fn answer_is_compared_with_its_members_earlier_term() {
    let trust = Trust::new(None);
    let sent = trust.sending();
    tick();
    assert_eq!(read_by(&trust, 50, member(7, 5)), Standing::Trusted);
    assert_eq!(trust.received(&sent, revision(50), Some(member(7, 4))), Standing::Trusted);
    assert_eq!(trust.identity(), seen(1, &[(7, 5)]));
    tick();
    assert_eq!(read_by(&trust, 50, member(7, 4)), Standing::Behind);
}

#[test]
fn of_how_many_members_is_known_what_they_told_is_bounded() {
    let trust = Trust::new(None);
    for id in 0..1000 {
        assert_eq!(read_by(&trust, 50, member(id, 5)), Standing::Trusted);
    }
    assert_eq!(trust.identity().terms.len(), 64);
}

/// Later than all that was told before.
fn tick() {
    let now = Instant::now();
    while Instant::now() <= now {}
}

#[test]
fn inherited_distrust_lasts_until_it_is_accepted() {
    // How far it has seen the store may have been written down last before it saw what it
    // distrusts.
    let trust = Trust::new(Some(revision(48))).distrusting(Some(revision(50)));
    assert_eq!(read(&trust, 49), Standing::Behind);
    assert_eq!(read(&trust, 60), Standing::Trusted);
    assert_eq!(trust.distrusted_through(), Some(revision(50)));
    assert_eq!([59, 59, 59].map(|at| read(&trust, at))[2], Standing::Regressed);
    assert_eq!(trust.distrusted_through(), Some(revision(60)));
    trust.accept(|| {});
    assert_eq!((trust.distrusted_through(), trust.max_seen()), (None, None));
}

#[test]
fn what_was_sent_before_the_operator_accepted_is_of_no_use() {
    let trust = Trust::new(Some(revision(50)));
    assert_eq!([1, 1, 1].map(|at| read(&trust, at))[2], Standing::Regressed);
    let sent = trust.sending();
    trust.accept(|| {
        assert_eq!(trust.received(&sent, revision(60), None), Standing::Outdated);
        assert_eq!(trust.distrusted_through(), Some(revision(50)));
    });
    assert_eq!(trust.distrusted_through(), None);
    assert_eq!(read(&trust, 2), Standing::Trusted);
}

/// The trust of a source that goes on where another has ended.
fn after(trust: &Arc<Trust>) -> Arc<Trust> {
    Arc::new(Trust::after(&StorePast::of(trust)))
}

#[test]
fn what_a_source_has_seen_counts_for_the_next_one() {
    let first = Arc::new(Trust::new(None));
    assert_eq!(read(&first, 40), Standing::Trusted);
    first.saw(revision(50));
    let second = after(&first);
    assert_eq!(
        [49, 49, 49].map(|at| read(&second, at)),
        [Standing::Behind, Standing::Behind, Standing::Regressed]
    );
    assert_eq!(second.distrusted_through(), Some(revision(50)));
    assert_eq!(
        (first.distrusted_through(), second.anomalies()),
        (None, 3),
        "each is one source's own"
    );
    // What was found out is, too.
    let third = after(&second);
    assert_eq!((third.distrusted_through(), third.anomalies()), (Some(revision(50)), 0));
    assert_eq!(read(&third, 50), Standing::Regressed);
    assert_eq!(read(&third, 51), Standing::Recovered);
    assert_eq!(after(&third).distrusted_through(), Some(revision(50)));
}

#[test]
fn acceptance_holds_for_the_next_source() {
    let first = Arc::new(Trust::new(Some(revision(50))));
    let past = StorePast::of(&first);
    assert!(!past.accept_regression(|| panic!("nobody has noticed anything")));
    let sent = first.sending();
    assert_eq!([1, 1, 1].map(|at| read(&first, at))[2], Standing::Regressed);
    let mut forgotten = 0;
    assert!(past.went_back() && past.accept_regression(|| forgotten += 1));
    assert!(!past.went_back() && !past.accept_regression(|| forgotten += 1));
    assert_eq!(forgotten, 1);
    let second = after(&first);
    assert_eq!(
        second.received(&sent, revision(60), None),
        Standing::Outdated,
        "its era is the next one"
    );
    assert_eq!((second.distrusted_through(), second.max_seen()), (None, None));
    assert_eq!(read(&second, 2), Standing::Trusted);
}

/// A read that hung while later ones were answered let an ended holder in by old news.
#[tokio::test(start_paused = true)]
async fn a_failed_read_older_than_an_answer_proves_nothing() {
    let trust = Trust::new(None);
    trust.watch_caught_up();
    trust.watch_fell_behind();
    let slow = trust.sending();
    advance(Duration::from_millis(1)).await;
    assert_eq!(read(&trust, 50), Standing::Trusted);
    assert!(!trust.confirm_failed(&slow));
    assert_eq!(trust.glance().watch, WatchState::Down);
    advance(Duration::from_millis(1)).await;
    assert!(trust.confirm_failed(&trust.sending()));
    assert_eq!(trust.glance().watch, WatchState::DownReadsFail);
}
