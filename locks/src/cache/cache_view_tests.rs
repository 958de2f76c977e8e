use std::sync::Arc;
use std::time::Duration;

use fencepost_policy::{FenceToken, Holding, Layout, Owner, Revision, Snapshot, Tenure, Verdict};
use tokio::time::Instant;

use super::cache_view::{CacheView, Published, ScopeClock, Timing};
use super::trust::{Glance, WatchNumber, WatchState};
use crate::sync::{ArcSwap, ArcSwapOption};

fn revision(number: u64) -> Revision {
    Revision::new(number).unwrap()
}

const SECOND: Duration = Duration::from_secs(1);

/// A lock that `a` holds since 10, known as of 10, dated `dated` seconds after the start.
fn published(dated: u32, start: Instant) -> Published {
    let tenure = Tenure { owner: Owner::new(*b"a"), first: revision(10), last: revision(10) };
    let snapshot =
        Snapshot { layout: Layout::Key, as_of: revision(10), holding: Holding::Held(tenure), waiters: [].into() };
    Published {
        snapshot: Some(snapshot),
        dated: Some(start + dated * SECOND),
        settled_since: Some(revision(10)),
        exists: true,
        problem: None,
        dated_in: None,
        era: 1,
    }
}

fn view(published: Published, clock: Option<ScopeClock>, distrusted: Option<u64>) -> CacheView {
    let glance = Glance { distrusted_through: distrusted.and_then(Revision::new), watch: up_since(1) };
    outlook_at(glance, WatchNumber::new(1), published, clock)
}

fn up_since(number: u32) -> WatchState {
    WatchState::Up { since: WatchNumber::new(number).unwrap() }
}

fn outlook_at(
    glance: Glance,
    dated_in: Option<WatchNumber>,
    published: Published,
    clock: Option<ScopeClock>,
) -> CacheView {
    let clock = ArcSwapOption::new(clock.map(Arc::new)).load();
    CacheView::new(glance, Some(clock), ArcSwap::new(Arc::new(Published { dated_in, ..published })).load())
}

fn verdict(outlook: &CacheView, owner: &str, at: u64, arrived: Instant, now: Instant, linearizable: bool) -> String {
    let token = FenceToken { owner, revision: revision(at) };
    match outlook.judge(&token, &Timing { arrived, not_before: None, now, max_age: 5 * SECOND, linearizable }) {
        Verdict::Admit => "admit".to_owned(),
        Verdict::Confirm => "confirm".to_owned(),
        Verdict::Reject(rejection) => rejection.code().to_owned(),
    }
}

#[test]
fn news_admit_up_to_max_age_and_a_linearizable_route_wants_a_read_of_its_own() {
    let start = Instant::now();
    let look = view(published(10, start), None, None);
    for (arrived, now, linearizable, expected) in [
        (11, 15, false, "admit"),
        (16, 16, false, "confirm"),
        (11, 15, true, "confirm"),
        (10, 15, true, "admit"),
        (9, 11, true, "admit"),
    ] {
        let (arrived, now) = (start + arrived * SECOND, start + now * SECOND);
        assert_eq!(verdict(&look, "a", 10, arrived, now, linearizable), expected);
    }
}

#[test]
fn a_confirmed_refusal_is_final_at_any_age_and_a_confirmed_admission_is_not() {
    let start = Instant::now();
    let look = view(published(10, start), None, None);
    let (arrived, late) = (start + 9 * SECOND, start + 16 * SECOND);
    assert_eq!(verdict(&look, "a", 11, arrived, late, false), "ahead-of-store");
    assert_eq!(verdict(&look, "a", 10, arrived, late, false), "confirm");
}

#[test]
fn a_clock_dates_only_settled_locks_read_since_its_base() {
    let start = Instant::now();
    let clock = |base, era| ScopeClock {
        era,
        base: revision(base),
        reach: revision(20),
        dated: start + 20 * SECOND,
        dated_in: None,
    };
    let now = start + 20 * SECOND;
    let check = |published, clock, expected| {
        assert_eq!(verdict(&view(published, Some(clock), None), "a", 10, now, now, false), expected);
    };
    check(published(1, start), clock(10, 1), "admit");
    check(published(1, start), clock(11, 1), "confirm");
    check(published(1, start), clock(10, 2), "confirm");
    check(Published { settled_since: None, ..published(1, start) }, clock(10, 1), "confirm");
    // What a watch has brought since may be only a part.
    check(Published { settled_since: Some(revision(9)), ..published(1, start) }, clock(10, 1), "confirm");
}

#[test]
fn while_a_source_is_distrusted_only_a_tenure_that_began_above_is_admitted() {
    let start = Instant::now();
    let check = |published, distrusted, at, expected| {
        let look = view(published, None, Some(distrusted));
        assert_eq!(verdict(&look, "a", at, start, start, false), expected);
    };
    check(published(0, start), 9, 10, "admit");
    check(published(0, start), 10, 10, "store-regressed");
    check(published(0, start), 10, 9, "store-regressed");
    check(Published::default(), 9, 10, "store-regressed");
}

#[test]
fn cached_news_admits_if_dated_under_a_watch_that_is_up() {
    let start = Instant::now();
    let clock = |number| ScopeClock {
        era: 1,
        base: revision(10),
        reach: revision(20),
        dated: start + 10 * SECOND,
        dated_in: WatchNumber::new(number),
    };
    for (watch, by_itself, by_clock, cached) in [
        (up_since(2), 2, 0, "admit"),
        (up_since(2), 3, 0, "admit"),
        (up_since(2), 1, 2, "admit"),
        (up_since(2), 1, 1, "confirm"),
        (up_since(2), 0, 0, "confirm"),
        (WatchState::Down, 2, 2, "confirm"),
        (WatchState::DownReadsFail, 0, 0, "admit"),
    ] {
        let glance = Glance { distrusted_through: None, watch };
        let look = outlook_at(glance, WatchNumber::new(by_itself), published(10, start), Some(clock(by_clock)));
        let at = |second: u32| start + second * SECOND;
        let case = format!("{watch:?}, {by_itself}, {by_clock}");
        assert_eq!(verdict(&look, "a", 10, at(11), at(12), false), cached, "{case}");
        assert_eq!(verdict(&look, "a", 10, at(11), at(16), false), "confirm", "too old: {case}");
        assert_eq!(verdict(&look, "a", 10, at(9), at(12), false), "admit", "confirmed: {case}");
    }
}
