use std::sync::Arc;
use std::time::Duration;

use fencepost_policy::{FenceToken, Holding, Layout, Owner, Revision, Snapshot, Tenure, Verdict};
use tokio::time::Instant;

use super::cache_view::{CacheView, Published, Timing};
use super::trust::{Glance, WatchNumber, WatchState};
use crate::sync::ArcSwap;

const SECOND: Duration = Duration::from_secs(1);

fn revision(number: u64) -> Revision {
    Revision::new(number).unwrap()
}

fn up_since(number: u32) -> WatchState {
    WatchState::Up { since: WatchNumber::new(number).unwrap() }
}

/// A lock that `a` holds since 10, read `dated` seconds after the start, under the watch of that
/// number.
fn published(start: Instant, dated: u32, dated_in: u32) -> Published {
    let tenure = Tenure { owner: Owner::new(*b"a"), first: revision(10), last: revision(10) };
    let (as_of, holding) = (revision(10), Holding::Held(tenure));
    let snapshot =
        Snapshot { layout: Layout::Key, as_of: Some(as_of), holding, waiters: [].into() };
    let dated = Some(start + dated * SECOND);
    let dated_in = WatchNumber::new(dated_in);
    Published {
        snapshot: Some(snapshot),
        dated,
        exists: true,
        problem: None,
        dated_in,
        distrusted_through: None,
    }
}

fn view(published: Published, watch: WatchState, distrusted: Option<u64>) -> CacheView {
    let glance = Glance { distrusted_through: distrusted.and_then(Revision::new), watch };
    CacheView::new(glance, ArcSwap::new(Arc::new(published)).load())
}

fn verdict(
    view: &CacheView,
    at: u64,
    arrived: Instant,
    now: Instant,
    linearizable: bool,
) -> String {
    let token = FenceToken { owner: "a", revision: revision(at) };
    match view.judge(
        &token,
        &Timing { arrived, not_before: None, now, max_age: 5 * SECOND, linearizable },
    ) {
        Verdict::Admit => "admit".to_owned(),
        Verdict::Confirm => "confirm".to_owned(),
        Verdict::Reject(rejection) => rejection.code().to_owned(),
    }
}

#[test]
fn news_admits_up_to_max_age_or_by_a_read_of_its_own() {
    let start = Instant::now();
    let look = view(published(start, 10, 1), up_since(1), None);
    for (arrived, now, linearizable, expected) in [
        (11, 15, false, "admit"),
        (16, 16, false, "confirm"),
        (11, 15, true, "confirm"),
        (10, 15, true, "admit"),
        (9, 11, true, "admit"),
    ] {
        let (arrived, now) = (start + arrived * SECOND, start + now * SECOND);
        assert_eq!(verdict(&look, 10, arrived, now, linearizable), expected);
    }
}

#[test]
fn confirmed_refusal_is_final_at_any_age_and_admission_is_not() {
    let start = Instant::now();
    let look = view(published(start, 10, 1), up_since(1), None);
    let (arrived, late) = (start + 9 * SECOND, start + 16 * SECOND);
    assert_eq!(verdict(&look, 11, arrived, late, false), "ahead-of-store");
    assert_eq!(verdict(&look, 10, arrived, late, false), "confirm");
}

#[test]
fn distrusted_source_admits_only_tenures_that_began_above() {
    let start = Instant::now();
    let check = |published, distrusted, at, expected| {
        let look = view(published, up_since(1), Some(distrusted));
        assert_eq!(verdict(&look, at, start, start, false), expected);
    };
    check(published(start, 0, 1), 9, 10, "admit");
    check(published(start, 0, 1), 10, 10, "store-regressed");
    check(published(start, 0, 1), 10, 9, "store-regressed");
    check(Published::default(), 9, 10, "store-regressed");
}

#[test]
fn cached_news_admits_if_dated_under_a_watch_that_is_up() {
    let start = Instant::now();
    for (watch, dated_in, cached) in [
        (up_since(2), 2, "admit"),
        (up_since(2), 3, "admit"),
        (up_since(2), 1, "confirm"),
        (up_since(2), 0, "confirm"),
        (WatchState::Down, 2, "confirm"),
        (WatchState::DownReadsFail, 0, "admit"),
    ] {
        let look = view(published(start, 10, dated_in), watch, None);
        let at = |second: u32| start + second * SECOND;
        assert_eq!(verdict(&look, 10, at(11), at(12), false), cached, "{watch:?}, {dated_in}");
        assert_eq!(
            verdict(&look, 10, at(11), at(16), false),
            "confirm",
            "too old: {watch:?}, {dated_in}"
        );
        assert_eq!(
            verdict(&look, 10, at(9), at(12), false),
            "admit",
            "confirmed: {watch:?}, {dated_in}"
        );
    }
}
