//! Members of a group over one store, and what can befall their keys. What they promise at the worker
//! is tested with the proxy.

use std::sync::Arc;
use std::time::Duration;

use fencepost_locks::{
    AskView, GroupOptions, LockSource, LockSpec, MemberStateView, Membership, MemoryStore,
    RecordFormat, SourceOptions, Timing, TrackedLock,
};
use fencepost_policy::group::{self, Standing};
use fencepost_policy::{Admission, EnterError, FenceToken, Layout, LockKey, Rejection, Revision};
use fencepost_tests::{eventually, until};
use tokio::time::Instant;

const KEY: &str = "/lock";
const MEMBERS: &str = "/g/members/";
const SHORT: Duration = Duration::from_millis(600);
const LONG: Duration = Duration::from_secs(300);

struct Member {
    source: LockSource,
    lock: Arc<TrackedLock>,
}

impl Member {
    /// A member that has joined and knows the lock.
    async fn join(store: &MemoryStore, member_ttl: Duration) -> Member {
        Member::join_reading(store, member_ttl, Layout::Key).await
    }

    async fn join_reading(store: &MemoryStore, member_ttl: Duration, layout: Layout) -> Member {
        let group = GroupOptions {
            name: "g".to_owned(),
            prefix: MEMBERS.to_owned(),
            timing: group::Timing { member_ttl, orphan_timeout: Duration::from_millis(100) },
            host: "here".to_owned(),
            version: "0".to_owned(),
        };
        let period = Duration::from_millis(50);
        let options = SourceOptions { period, group: Some(group), ..SourceOptions::default() };
        let store = store.clone();
        let source = LockSource::spawn("main", options, move || store).unwrap();
        let format = RecordFormat::plain(layout).into();
        let lock = source.track(LockSpec { key: LockKey::new(KEY).unwrap(), format }).unwrap();
        let member = Member { source, lock };
        until("it has joined", async || member.group().stands() && member.lock.is_known()).await;
        member
    }

    fn group(&self) -> &Membership {
        self.source.group().expect("it is in one")
    }

    fn id(&self) -> String {
        self.group().view().me.expect("it has joined").to_string()
    }

    fn own_key(&self) -> String {
        format!("{MEMBERS}{}", self.id())
    }

    fn enter(&self, owner: &'static str, revision: Revision) -> Result<Admission, EnterError> {
        let token = FenceToken { owner, revision };
        let now = Instant::now();
        let max_age = Duration::from_secs(5);
        let timing = Timing { arrived: now, not_before: None, now, max_age, linearizable: false };
        self.lock.enter(&token, &timing)
    }

    /// Returns once a request has entered.
    async fn lets_in(&self, owner: &'static str, revision: Revision) -> Admission {
        eventually("it enters", async || self.enter(owner, revision).ok()).await
    }

    /// Returns once a request has entered, and left.
    async fn serves(&self, owner: &'static str, revision: Revision) {
        let entered = self.lets_in(owner, revision).await;
        self.lock.leave(entered);
    }

    async fn until_others(&self, state: MemberStateView, count: usize) {
        until("members of that state", async || {
            let view = self.group().view();
            view.others.iter().filter(|other| other.state == state).count() == count
        })
        .await;
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.source.stop();
    }
}

fn waits(entered: &Result<Admission, EnterError>) -> bool {
    matches!(entered, Err(EnterError::Wait))
}

#[tokio::test]
async fn who_alters_or_deletes_a_members_key_ends_its_membership_and_it_joins_anew() {
    let store = MemoryStore::new();
    let member = Member::join(&store, LONG).await;
    let tenure = store.put(KEY, "a");
    member.serves("a", tenure).await;
    for round in 0..2 {
        let (id, key) = (member.id(), member.own_key());
        if round == 0 {
            store.put(key, "not what it wrote");
        } else {
            store.delete(key);
        }
        until("it has another name", async || {
            member.group().view().me.is_some_and(|me| me.to_string() != id)
        })
        .await;
        until("it stands", async || member.group().stands()).await;
        // What holds up tenures that begin is its own former self; this one had begun.
        member.serves("a", tenure).await;
    }
}

#[tokio::test]
async fn a_store_that_does_not_answer_ends_the_standing_and_its_answer_brings_it_back() {
    let store = MemoryStore::new();
    let member = Member::join(&store, SHORT).await;
    let tenure = store.put(KEY, "a");
    member.serves("a", tenure).await;
    let id = member.id();
    store.pause();
    until("it has lapsed", async || member.group().standing() != Standing::Stands).await;
    let refused = member.enter("a", tenure);
    assert!(
        matches!(refused, Err(EnterError::Refused(Rejection::OutOfGroup))),
        "{:?}",
        refused.err()
    );
    until("it is cut", async || member.group().standing() == Standing::Cut).await;
    store.resume();
    until("it stands", async || member.group().stands()).await;
    assert_eq!(member.id(), id, "nobody has given it up");
    member.serves("a", tenure).await;
}

#[tokio::test]
async fn a_key_that_cannot_be_read_is_waited_for_and_ages_when_it_is_gone() {
    let store = MemoryStore::new();
    let strange = format!("{MEMBERS}{}", "a".repeat(32));
    store.put(strange.clone(), "{\"v\":9}");
    let member = Member::join(&store, SHORT).await;
    member.until_others(MemberStateView::Live, 1).await;
    let tenure = store.put(KEY, "a");
    until("it asks", async || {
        let entered = member.enter("a", tenure);
        assert!(entered.is_err(), "who wrote that may have requests at the worker");
        waits(&entered) && member.group().view().asks.iter().any(|ask| ask.waits_for.is_some())
    })
    .await;
    store.delete(strange);
    member.serves("a", tenure).await;
    until("it is forgotten", async || member.group().view().others.is_empty()).await;
}

#[tokio::test]
async fn a_silent_members_key_deleted_by_hand_is_waited_for() {
    let store = MemoryStore::new();
    let (one, other) = (Member::join(&store, LONG).await, Member::join(&store, LONG).await);
    other.until_others(MemberStateView::Live, 1).await;
    let (id, key) = (one.group().view().me.unwrap(), one.own_key());
    let first = store.put(KEY, "a");
    drop(one.lets_in("a", first).await); // It runs on at the worker.
    drop(one);
    store.delete(key);
    other.until_others(MemberStateView::GivenUp, 1).await;
    let second = store.put(KEY, "b");
    until("it is waited for", async || {
        assert!(other.enter("b", second).is_err(), "who has seen the key waits");
        let waits_for = |ask: &AskView| ask.waits_for.as_ref().is_some_and(|ids| ids.contains(&id));
        other.group().view().asks.iter().any(waits_for)
    })
    .await;
}

#[tokio::test]
async fn asks_are_answered_though_watches_lose_what_happens() {
    let store = MemoryStore::new();
    let (one, other) = (Member::join(&store, SHORT).await, Member::join(&store, SHORT).await);
    one.until_others(MemberStateView::Live, 1).await;
    other.until_others(MemberStateView::Live, 1).await;
    store.hold_watches();
    let first = store.put(KEY, "a");
    let running = one.lets_in("a", first).await;
    let second = store.put(KEY, "b");
    assert!(other.enter("b", second).is_err());
    one.lock.leave(running);
    other.serves("b", second).await;
    store.release_watches();
}

#[tokio::test]
async fn members_that_read_a_lock_in_two_ways_let_no_tenure_begin() {
    let store = MemoryStore::new();
    let one = Member::join(&store, LONG).await;
    let other = Member::join_reading(&store, LONG, Layout::Mutex).await;
    one.until_others(MemberStateView::Live, 1).await;
    let tenure = store.put(KEY, "a");
    until("the other one says why", async || {
        let entered = one.enter("a", tenure);
        assert!(entered.is_err());
        other.group().counts().mismatches.load(std::sync::atomic::Ordering::Relaxed) > 0
    })
    .await;
    assert!(waits(&one.enter("a", tenure)));
}

#[tokio::test]
async fn a_member_that_left_is_deleted_after_its_last_word() {
    let store = MemoryStore::new();
    let (one, other) = (Member::join(&store, LONG).await, Member::join(&store, LONG).await);
    let key = one.own_key();
    one.group().leave().await;
    assert!(!one.group().stands());
    let last = store.get(&key).expect("it leaves a mark");
    assert!(String::from_utf8_lossy(&last.value).contains("\"left\""), "{last:?}");
    other.until_others(MemberStateView::Left, 1).await;
    let tenure = store.put(KEY, "a");
    other.serves("a", tenure).await;
}

#[tokio::test]
async fn a_silent_member_is_given_up_by_a_mark_and_its_key_goes_when_it_is_over() {
    let store = MemoryStore::new();
    let (one, other) = (Member::join(&store, SHORT).await, Member::join(&store, SHORT).await);
    other.until_others(MemberStateView::Live, 1).await;
    let key = one.own_key();
    let tenure = store.put(KEY, "a");
    one.serves("a", tenure).await;
    drop(one);
    eventually("it is given up", async || {
        let mark = store.get(&key)?;
        String::from_utf8_lossy(&mark.value).contains("given-up").then_some(())
    })
    .await;
    until("its key is gone", async || store.get(&key).is_none()).await;
    let next = store.put(KEY, "b");
    other.serves("b", next).await;
}
