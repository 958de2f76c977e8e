//! Rows, bars and waits, as the dashboard page receives them.

use std::time::Duration;

use fencepost_policy::{Owner, Rejection};
use serde_json::{Value, json};

use super::*;

fn at(second: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(second)
}

fn revision(number: u64) -> Revision {
    Revision::new(number).unwrap()
}

fn tenure(owner: &str, first: u64, last: u64) -> Tenure {
    Tenure { owner: Owner::new(owner.as_bytes()), first: revision(first), last: revision(last) }
}

fn change(second: u64, ended: Option<Tenure>, began: Option<Tenure>) -> TenureNews {
    let (lock, is_first_news) = (LockKey::new("/shards/2/lock").unwrap(), second == 0);
    let learnt = tokio::time::Instant::now();
    let change =
        TenureChange { at: learnt, lock, layout: Layout::Key, ended, began, is_first_news };
    TenureNews { at: at(second), source: "main".into(), change }
}

/// News of a lock of which the source knew nothing just before.
fn known_again(second: u64, began: Option<Tenure>) -> TenureNews {
    let mut news = change(second, None, began);
    news.change.is_first_news = true;
    news
}

fn refused(timeline: &mut Timeline, revision_: u64, second: u64) {
    let (revision, at) = (Some(revision(revision_)), at(second));
    timeline.refused(&Decision { at, revision, ..Decision::for_tests("d") });
}

fn wait(step: WaitStep, second: u64) -> Wait {
    Wait {
        at: at(second),
        source: "main".into(),
        lock: LockKey::new("/shards/2/lock").unwrap(),
        layout: Layout::Key,
        owner: "shard-2".into(),
        revision: revision(20),
        step,
    }
}

fn rows_after(timeline: &Timeline, version: u64, context: &RowContext) -> Vec<Value> {
    timeline
        .changed_after(version)
        .iter()
        .map(|id| timeline.row_json(id, context).unwrap())
        .collect()
}

fn row(timeline: &Timeline) -> Value {
    let context =
        RowContext { routes: vec!["shards".to_owned()], present: Some(tenure("shard-1", 30, 33)) };
    let rows = rows_after(timeline, 0, &context);
    assert_eq!(rows.len(), 1);
    rows[0].clone()
}

#[test]
fn a_refusal_is_on_the_bar_of_its_ended_tenure() {
    let mut timeline = Timeline::default();
    timeline.tenure(change(0, None, Some(tenure("shard-1", 10, 10))));
    timeline.tenure(change(2, Some(tenure("shard-1", 10, 10)), None));
    timeline.tenure(change(3, None, Some(tenure("shard-2", 20, 20))));
    timeline.tenure(change(5, Some(tenure("shard-2", 20, 25)), Some(tenure("shard-1", 30, 30))));
    refused(&mut timeline, 10, 6);
    refused(&mut timeline, 10, 7);
    refused(&mut timeline, 12, 8); // Of no tenure.
    refused(&mut timeline, 31, 8); // A renewal that is not known yet: it can only be of the present tenure.
    let row = row(&timeline);
    let bar = |index: usize| {
        let bar = &row["tenures"][index];
        (
            bar["owner"].as_str().unwrap(),
            bar["last"].as_u64(),
            bar["ended_ms"].as_u64(),
            bar["refused"].as_u64(),
        )
    };
    assert_eq!(bar(0), ("shard-1", Some(10), Some(2_000), Some(2)));
    assert_eq!(bar(1), ("shard-2", Some(25), Some(5_000), Some(0)));
    assert_eq!(bar(2), ("shard-1", Some(33), None, Some(1)), "renewed since");
    assert_eq!(row["tenures"][0]["last_refused_ms"], 7_000);
    assert_eq!(
        (&row["tenures"][0]["began_seen"], &row["tenures"][1]["began_seen"]),
        (&json!(false), &json!(true))
    );
    assert_eq!((&row["routes"], &row["layout"]), (&json!(["shards"]), &json!("key")));
}

#[test]
fn an_admission_is_no_dot_nor_is_what_a_setting_lets_past() {
    let mut timeline = Timeline::default();
    timeline.tenure(change(1, None, Some(tenure("shard-1", 10, 10))));
    for outcome in [Outcome::Admitted, Outcome::LetPast(Rejection::Unverifiable)] {
        timeline.refused(&Decision { outcome, ..Decision::for_tests("d") });
    }
    let outcome = Outcome::WouldBeRefused(Rejection::NotOwner);
    (0..3).for_each(|_| timeline.refused(&Decision { outcome, ..Decision::for_tests("d") }));
    let counted = |field: &str| row(&timeline)["tenures"][0][field].as_u64();
    assert_eq!(
        (counted("refused"), counted("would_be_refused")),
        (Some(0), Some(3)),
        "they were forwarded"
    );
}

#[test]
fn a_forgotten_lock_resumes_its_bar_when_known_again() {
    let mut timeline = Timeline::default();
    timeline.tenure(change(1, None, Some(tenure("shard-1", 10, 10))));
    timeline.tenure(known_again(2, Some(tenure("shard-1", 10, 12))));
    timeline.tenure(known_again(3, Some(tenure("shard-1", 30, 30))));
    let row = row(&timeline);
    assert_eq!(row["tenures"].as_array().unwrap().len(), 2);
    assert_eq!(
        (&row["tenures"][0]["last"], &row["tenures"][0]["ended_ms"]),
        (&json!(12), &json!(3_000))
    );
    assert_eq!(row["tenures"][1]["began_seen"], false);
}

#[test]
fn requests_that_wait_together_are_one_wait() {
    let mut timeline = Timeline::default();
    timeline.wait(wait(WaitStep::Began { drained: 2 }, 1));
    timeline.wait(wait(WaitStep::Began { drained: 1 }, 2));
    timeline.wait(wait(WaitStep::GivenUp, 3));
    let noted = row(&timeline)["waits"][0].take();
    assert_eq!(
        (&noted["ended_ms"], &noted["requests"], &noted["waiting"]),
        (&Value::Null, &json!(2), &json!(1))
    );
    timeline.wait(wait(WaitStep::Entered, 4));
    timeline.wait(wait(WaitStep::Entered, 5)); // One whose beginning was lost.
    let expected = json!([{ "owner": "shard-2", "revision": 20, "began_ms": 1_000, "ended_ms": 4_000,
                            "requests": 2, "waiting": 0, "drained": 2, "outcome": "entered" }]);
    assert_eq!(row(&timeline)["waits"], expected);
}

#[test]
fn outages_begin_end_and_change_their_kind() {
    let mut timeline = Timeline::default();
    let seen = timeline.version();
    let mut changes = |trouble, second| {
        let before = timeline.version();
        timeline.source("main", trouble, at(second));
        timeline.version() != before
    };
    assert!(!changes(None, 1));
    assert!(changes(Some(Trouble::Unreachable), 2));
    assert!(!changes(Some(Trouble::Unreachable), 3));
    assert!(changes(Some(Trouble::Regressed), 4));
    assert!(changes(None, 5));
    let expected = json!([
        { "source": "main", "kind": "unreachable", "began_ms": 2_000, "ended_ms": 4_000, "end": "seen" },
        { "source": "main", "kind": "regressed", "began_ms": 4_000, "ended_ms": 5_000, "end": "seen" },
    ]);
    assert_eq!(timeline.outages_after(seen), Some(expected));
    assert_eq!(timeline.outages_after(timeline.version()), None);
}

/// They went on for ever.
#[test]
fn an_untracked_lock_ends_and_resumes_when_tracked_again() {
    let mut timeline = Timeline::default();
    let bars = |timeline: &Timeline| {
        let bars = row(timeline)["tenures"].as_array().unwrap().clone();
        bars.iter()
            .map(|bar| json!([bar["first"], bar["ended_ms"], bar["end"]]))
            .collect::<Vec<_>>()
    };
    timeline.source("main", Some(Trouble::Unreachable), at(1));
    timeline.tenure(change(1, None, Some(tenure("shard-1", 10, 10))));
    let before = timeline.version();
    timeline.end_untracked(|_| true, |_, _| true, at(2));
    assert_eq!((timeline.version(), bars(&timeline)), (before, vec![json!([10, null, null])]));

    timeline.end_untracked(|_| false, |_, _| false, at(3));
    let outage = json!([{ "source": "main", "kind": "unreachable", "began_ms": 1_000, "ended_ms": 3_000, "end": "untracked" }]);
    assert_eq!(timeline.outages_after(before), Some(outage));
    assert_eq!(bars(&timeline), [json!([10, 3_000, "untracked"])]);
    let ended = timeline.version();
    timeline.end_untracked(|_| false, |_, _| false, at(4));
    assert_eq!(timeline.version(), ended, "it ends once");

    timeline.tenure(known_again(5, Some(tenure("shard-1", 10, 10))));
    assert_eq!(bars(&timeline), [json!([10, null, null])]);
    timeline.end_untracked(|_| true, |_, _| false, at(6));
    timeline.tenure(known_again(7, Some(tenure("shard-2", 20, 20))));
    assert_eq!(bars(&timeline), [json!([10, 6_000, "untracked"]), json!([20, null, null])]);
}

#[test]
fn followers_get_changed_rows_up_to_a_bound() {
    let mut timeline = Timeline::default();
    timeline.tenure(change(1, None, Some(tenure("shard-1", 10, 10))));
    let seen = timeline.version();
    assert!(rows_after(&timeline, seen, &RowContext::default()).is_empty());
    for number in 0..ROWS_MAX {
        let mut news = change(2, None, Some(tenure("a", 11, 11)));
        news.change.lock = LockKey::new(&format!("/{number}")).unwrap();
        timeline.tenure(news);
    }
    let rows = rows_after(&timeline, seen, &RowContext::default());
    assert_eq!(rows.len(), ROWS_MAX);
    assert!(
        timeline.truncated && rows.iter().all(|row| row["lock"] != "/shards/2/lock"),
        "the quietest has gone"
    );
}

#[test]
fn a_changed_row_outlasts_unchanged_rows() {
    let (mut timeline, key) =
        (Timeline::default(), |number: usize| LockKey::new(&format!("/{number}")).unwrap());
    let began = |timeline: &mut Timeline, number| {
        let mut news = change(1, None, Some(tenure("a", 11, 11)));
        news.change.lock = key(number);
        timeline.tenure(news);
    };
    (0..=ROWS_MAX).for_each(|number| began(&mut timeline, number));
    timeline.refused(&Decision {
        lock: Some(key(1)),
        revision: Some(revision(11)),
        ..Decision::for_tests("d")
    });
    (ROWS_MAX + 1..2 * ROWS_MAX).for_each(|number| began(&mut timeline, number));
    let rows = rows_after(&timeline, 0, &RowContext::default());
    let mut kept: Vec<usize> =
        rows.iter().map(|row| row["lock"].as_str().unwrap()[1..].parse().unwrap()).collect();
    kept.sort_unstable();
    let mut expected = vec![1];
    expected.extend(ROWS_MAX + 1..2 * ROWS_MAX);
    assert_eq!(kept, expected);
}

#[test]
fn lock_loses_its_oldest_tenures_and_waits() {
    let mut timeline = Timeline::default();
    for nth in 1..=2 * BARS_MAX as u64 {
        timeline.tenure(change(nth, None, Some(tenure("a", nth, nth))));
        timeline
            .wait(Wait { revision: revision(nth), ..wait(WaitStep::Began { drained: 0 }, nth) });
    }
    let row = row(&timeline);
    for (kind, named) in [("tenures", "first"), ("waits", "revision")] {
        let told: Vec<_> =
            row[kind].as_array().unwrap().iter().map(|bar| bar[named].as_u64().unwrap()).collect();
        assert_eq!(told, (BARS_MAX as u64 + 1..=2 * BARS_MAX as u64).collect::<Vec<_>>(), "{kind}");
    }
}

#[test]
fn an_owner_takes_no_more_room_than_it_is_shown_in() {
    let (mut timeline, long) = (Timeline::default(), "x".repeat(1 << 20));
    timeline.tenure(change(1, None, Some(tenure(&long, 10, 10))));
    timeline.tenure(known_again(2, Some(tenure(&long, 10, 12))));
    let told = row(&timeline)["tenures"].as_array().unwrap().clone();
    assert_eq!((told.len(), &told[0]["last"]), (1, &json!(12)), "it goes on");
    assert!(told[0]["owner"].as_str().unwrap().len() < 300);
}
