//! The end of a run: nothing fails any more, so every holder of a lock gets in.

use std::rc::Rc;
use std::time::Duration;

use fencepost_policy::{Layout, Rejection};
use tokio::time::{Instant, sleep};

use crate::executor::Class;
use crate::proxy::{ANSWER_MAX, Outcome, Request, arrive};
use crate::script::{delete, put};
use crate::truth::{Token, Written};
use crate::world::{ORPHAN_TIMEOUT, World};

/// By when nothing is left of what was sent before, and all is known again: an orphan's time, the
/// longest pause between two attempts.
const SETTLED_AFTER: Duration = Duration::from_millis(1_000);

/// How long a holder's request takes then at most, even if it is the first of its tenure and one of
/// the predecessor is still at the worker.
const ADMITTED_WITHIN: Duration = Duration::from_millis(250);

/// How long it takes at most in a group, whose watches may be late: the asked and the asking member
/// read all keys once a second, and each of them needs a few calls.
const ADMITTED_BY_GROUP_WITHIN: Duration = Duration::from_millis(2_500);

/// Waits until all is answered, ends all faults, and has holders come and go.
pub(crate) async fn play(world: &Rc<World>) {
    settle(world, SETTLED_AFTER).await;
    accept_regression(world).await;
    // The store may have gone back and have grown again before anyone could notice. Then only
    // another process learns all anew.
    let is_lost = world.trusted.get().is_none();
    if is_lost {
        let host = &world.hosts[0];
        let seen = world.kill_proxy(host);
        world.start_proxy(host, seen);
        sleep(SETTLED_AFTER).await;
    }
    world.shadows.borrow_mut().fill(false); // Routes turn to enforce: what only passed before bars nobody.
    for lock in 0..world.plan.locks.len() {
        let is_held = world.truth.borrow().locks[lock].present().is_some();
        if !is_held || is_lost {
            take_over(world, lock, "x");
        }
        get_in(world, 0, lock, 0).await;
        take_over(world, lock, "y");
        get_in(world, 0, lock, 1).await;
    }
}

/// [`play`], for a group: each member in turn is the first that the next holder comes to.
pub(crate) async fn play_group(world: &Rc<World>) {
    // Who was silent is given up by a member that has been in touch for as long, and is waited for;
    // before that, a member may have to join anew.
    let member_ttl = world.plan.member_ttl;
    settle(world, SETTLED_AFTER + 2 * member_ttl + ORPHAN_TIMEOUT).await;
    let members = world.hosts.len();
    for lock in 0..world.plan.locks.len() {
        if world.truth.borrow().locks[lock].present().is_none() {
            take_over(world, lock, "x");
        }
        get_in(world, lock % members, lock, 0).await;
        take_over(world, lock, "y");
        for nth in 1..=members {
            get_in(world, (lock + nth) % members, lock, nth as u64).await;
        }
    }
}

/// Waits until all is answered, and ends all faults.
async fn settle(world: &Rc<World>, time: Duration) {
    world.clients_rest.set(true);
    sleep(ANSWER_MAX + Duration::from_millis(100)).await;
    for host in &world.hosts {
        assert_eq!(host.unanswered.get(), 0, "{host}: not all requests were answered");
    }
    world.calm_down();
    sleep(time).await;
    for host in &world.hosts {
        assert!(host.ledger.is_empty(), "{host}: something counts on that has ended");
    }
}

/// What of a store that went back nobody has accepted yet, an operator accepts now.
async fn accept_regression(world: &Rc<World>) {
    let proxy = world.hosts[0].proxy().expect("it is started again after each kill");
    if proxy.source.status(Instant::now()).distrusted_through.is_some() {
        world.accept_regression(proxy);
        sleep(Duration::from_millis(1)).await;
    }
}

/// Another owner takes the lock, and all who wait for it leave.
fn take_over(world: &Rc<World>, lock: usize, owner: &str) {
    let (key, layout) = world.plan.locks[lock];
    let writes: Vec<Written> = match layout {
        Layout::Key => vec![put(key, owner)],
        Layout::Election | Layout::Mutex => {
            let queue = world.truth.borrow().locks[lock].queue();
            let leaving = queue.iter().map(|(_, key, _)| delete(key));
            leaving.chain([put(&format!("{key}/{owner}"), owner)]).collect()
        }
    };
    world.write(writes);
}

/// The present holder sends a request to a host, and gets in: at the first attempt, unless a group
/// has to be asked.
pub(crate) async fn get_in(world: &Rc<World>, host: usize, lock: usize, nth: u64) {
    let token = world.truth.borrow().locks[lock].token(lock).expect("somebody holds it");
    let revision = match world.plan.locks[lock].1 {
        Layout::Mutex => world.store.revision().get(),
        Layout::Key | Layout::Election => token.revision,
    };
    let name = 1_000_000 + 100 * lock as u64 + nth;
    let token = Token { revision, ..token };
    let request = Request {
        name,
        host,
        token,
        linearizable: nth % 2 == 1,
        is_fence: false,
        is_exempt: false,
        leaves: None,
    };
    let sent = Instant::now();
    let life = world.hosts[host].proxy().map(|proxy| proxy.life);
    let within = if world.is_group() { ADMITTED_BY_GROUP_WITHIN } else { ADMITTED_WITHIN };
    let answer = loop {
        let (sender, answer) = tokio::sync::oneshot::channel();
        let (there, request) = (Rc::clone(world), request.clone());
        world.executor.spawn(Class::Proxy, life, async move {
            let _ = sender.send(arrive(there, request).await);
        });
        let answer = answer.await.expect("it is answered");
        let asks = answer == Some(Err(Rejection::HandoffTimeout)) && world.is_group();
        if !asks || sent.elapsed() > within {
            break answer;
        }
    };
    let key = world.plan.locks[lock].0;
    assert_eq!(
        answer,
        Some(Ok(Outcome::Admitted)),
        "nothing fails any more, but the holder of {key} does not get in"
    );
    assert!(sent.elapsed() <= within, "the holder of {key} got in only after {:?}", sent.elapsed());
}
