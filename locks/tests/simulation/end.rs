//! The end of a run: nothing fails any more, so every holder of a lock gets in.

use std::rc::Rc;
use std::time::Duration;

use fencepost_policy::Layout;
use tokio::time::{Instant, sleep};

use crate::executor::Class;
use crate::proxy::{ANSWER_MAX, Outcome, Request, arrive};
use crate::script::{delete, put};
use crate::truth::{Token, Written};
use crate::world::World;

/// By when nothing is left of what was sent before, and all is known again: an orphan's time, the
/// longest pause between two attempts.
const SETTLED_AFTER: Duration = Duration::from_millis(1_000);

/// How long a holder's request takes then at most, even if it is the first of its tenure and one of
/// the predecessor is still at the worker.
const ADMITTED_WITHIN: Duration = Duration::from_millis(250);

/// Waits until all is answered, ends all faults, and has holders come and go.
pub(crate) async fn play(world: &Rc<World>) {
    world.clients_rest.set(true);
    sleep(ANSWER_MAX + Duration::from_millis(100)).await;
    assert_eq!(world.unanswered.get(), 0, "not all requests were answered");
    world.calm_down();
    sleep(SETTLED_AFTER).await;
    assert!(world.ledger.is_empty(), "something counts on that has ended");
    accept_regression(world).await;
    // The store may have gone back and have grown again before anyone could notice. Then only
    // another process learns all anew.
    let is_lost = world.trusted.get().is_none();
    if is_lost {
        let seen = world.kill_proxy();
        world.start_proxy(seen);
        sleep(SETTLED_AFTER).await;
    }
    world.shadows.borrow_mut().fill(false); // Routes turn to enforce: what only passed before bars nobody.
    for lock in 0..world.plan.locks.len() {
        let is_held = world.truth.borrow().locks[lock].present().is_some();
        if !is_held || is_lost {
            take_over(world, lock, "x");
        }
        get_in(world, lock, 0).await;
        take_over(world, lock, "y");
        get_in(world, lock, 1).await;
    }
}

/// What of a store that went back nobody has accepted yet, an operator accepts now.
async fn accept_regression(world: &Rc<World>) {
    let proxy = world.proxy().expect("it is started again after each kill");
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

/// The present holder sends a request, and gets in at the first attempt.
pub(crate) async fn get_in(world: &Rc<World>, lock: usize, nth: u64) {
    let token = world.truth.borrow().locks[lock].token(lock).expect("somebody holds it");
    let revision = match world.plan.locks[lock].1 {
        Layout::Mutex => world.store.revision().get(),
        Layout::Key | Layout::Election => token.revision,
    };
    let name = 1_000_000 + 2 * lock as u64 + nth;
    let token = Token { revision, ..token };
    let request = Request {
        name,
        token,
        linearizable: nth == 1,
        is_fence: false,
        is_exempt: false,
        leaves: None,
    };
    let sent = Instant::now();
    let life = world.proxy().map(|proxy| proxy.life);
    let (sender, answer) = tokio::sync::oneshot::channel();
    let there = Rc::clone(world);
    world.executor.spawn(Class::Proxy, life, async move {
        let _ = sender.send(arrive(there, request).await);
    });
    let answer = answer.await.expect("it is answered");
    let key = world.plan.locks[lock].0;
    assert_eq!(
        answer,
        Some(Ok(Outcome::Admitted)),
        "nothing fails any more, but the holder of {key} does not get in"
    );
    assert!(
        sent.elapsed() <= ADMITTED_WITHIN,
        "the holder of {key} got in only after {:?}",
        sent.elapsed()
    );
}
