//! A gate and what is published of its lock change in one step, and requests that wait there are
//! woken.

use std::sync::Arc;

use fencepost_policy::{Admission, EnterError};
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use tokio::time::Instant;

use crate::cache::common::{Common, Inbox};
use crate::cache::tracked::TrackedLock;
use crate::cache::trust::Trust;
use crate::store::KeyValue;
use crate::world::{
    any_news, block_on, common, enter_when_open, every_interleaving, revision, taken, token,
    track_watched,
};

/// A lock that `a` holds since 10, as a read has shown.
fn held_by_a() -> (Arc<TrackedLock>, Arc<Common>, Inbox) {
    let (common, commands) = common(Trust::new(None));
    let lock = track_watched(&common, None);
    learn(&lock, &common, 10, taken("a", 10));
    (lock, common, commands)
}

/// A quorum read shows that record.
fn learn(lock: &TrackedLock, common: &Common, at: u64, record: KeyValue) {
    assert!(
        lock.read(&common.trust.sending(), revision(at), &[record]).is_none(),
        "all is known without a walk"
    );
}

fn admit(lock: &TrackedLock, owner: &'static str, at: u64) -> Admission {
    lock.enter(&token(owner, at), &any_news()).unwrap()
}

#[test]
fn nobody_is_admitted_by_news_that_the_gate_has_not_learnt() {
    every_interleaving(|| {
        let (lock, common, _commands) = held_by_a();
        let other = {
            let lock = Arc::clone(&lock);
            thread::spawn(move || {
                if let Ok(admission) = lock.enter(&token("b", 20), &any_news()) {
                    assert_eq!(
                        lock.describe(Instant::now()).gate.floor,
                        20,
                        "the gate knew of what it let in"
                    );
                    lock.leave(admission);
                }
            })
        };
        learn(&lock, &common, 20, taken("b", 20));
        other.join().unwrap();
    });
}

#[test]
fn older_token_does_not_enter_after_a_newer_tenure() {
    every_interleaving(|| {
        let (lock, common, _commands) = held_by_a();
        let learnt = Arc::new(AtomicBool::new(false));
        let late = {
            let (lock, learnt) = (Arc::clone(&lock), Arc::clone(&learnt));
            thread::spawn(move || {
                let after = learnt.load(Ordering::Acquire);
                match lock.enter(&token("a", 10), &any_news()) {
                    Ok(admission) => {
                        assert!(!after);
                        lock.leave(admission);
                    }
                    Err(EnterError::Refused(_)) => {}
                    Err(kept_out) => panic!("{kept_out:?}"),
                }
            })
        };
        learn(&lock, &common, 20, taken("b", 20));
        learnt.store(true, Ordering::Release);
        late.join().unwrap();
    });
}

#[test]
fn two_tenures_are_never_at_the_worker_together() {
    every_interleaving(|| {
        let (lock, common, _commands) = held_by_a();
        let others = ["a", "b"].map(|owner| {
            let lock = Arc::clone(&lock);
            thread::spawn(move || {
                let at = if owner == "a" { 10 } else { 20 };
                if let Ok(admission) = lock.enter(&token(owner, at), &any_news()) {
                    assert_eq!(lock.describe(Instant::now()).gate.at_worker.len(), 1);
                    lock.leave(admission);
                }
            })
        });
        learn(&lock, &common, 20, taken("b", 20));
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}

/// A request of `b` waits, since one of `a` is at the worker; `open` is what ends that.
fn is_woken_by(open: impl Fn(&TrackedLock, Admission) + Clone + Send + Sync + 'static) {
    every_interleaving(move || {
        let (lock, common, _commands) = held_by_a();
        let admission = admit(&lock, "a", 10);
        learn(&lock, &common, 20, taken("b", 20));
        let waiting = {
            let lock = Arc::clone(&lock);
            thread::spawn(move || {
                lock.leave(block_on(enter_when_open(&lock, &token("b", 20))).unwrap())
            })
        };
        open(&lock, admission);
        waiting.join().unwrap();
    });
}

#[test]
fn who_waits_is_woken_by_the_last_request_that_leaves() {
    is_woken_by(|lock, admission| lock.leave(admission));
}

#[test]
fn who_waits_is_woken_by_the_end_of_an_orphan() {
    is_woken_by(|lock, admission| {
        let orphan = lock.lose(admission, Instant::now() + std::time::Duration::from_secs(3600));
        assert!(lock.end_orphan(orphan));
    });
}

#[test]
fn who_waits_is_woken_by_the_operator_who_clears_orphans() {
    is_woken_by(|lock, admission| {
        lock.lose(admission, Instant::now() + std::time::Duration::from_secs(3600));
        assert_eq!(lock.clear_orphans(), 1);
    });
}

#[test]
fn who_waits_is_woken_by_the_news_that_its_own_tenure_has_ended() {
    every_interleaving(|| {
        let (lock, common, _commands) = held_by_a();
        let _stays = admit(&lock, "a", 10);
        learn(&lock, &common, 20, taken("b", 20));
        let waiting = {
            let lock = Arc::clone(&lock);
            thread::spawn(move || {
                let entry = block_on(enter_when_open(&lock, &token("b", 20)));
                assert!(matches!(entry, Err(EnterError::Refused(_))), "{entry:?}");
            })
        };
        learn(&lock, &common, 30, taken("c", 30));
        waiting.join().unwrap();
    });
}
