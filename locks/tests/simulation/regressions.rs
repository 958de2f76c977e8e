//! What the simulation has found, played again by itself: a seed is another run as soon as the
//! simulation changes.

use std::rc::Rc;
use std::time::Duration;

use fencepost_policy::Revision;
use tokio::time::{Instant, sleep};

use crate::end::get_in;
use crate::plan::Plan;
use crate::script::put;
use crate::simulate;

/// After a kill and a restored store, history was shown farther back than the tenure that was
/// recorded. The gate asked to record the one that the floor left of it, the memory held that
/// against the whole, and the request went round for ever.
#[test]
fn tenure_shown_farther_back_than_recorded_gets_in() {
    let plan = Plan { remembers: true, ..Plan::of(0) };
    simulate(0, plan, |world| async move {
        world.calm_down();
        world.write(vec![put("key", "a")]);
        world.write(vec![put("key", "a")]);
        world.disk.written().recorded.insert("key".to_owned(), Revision::new(3));
        world.start_proxy(None);
        get_in(&world, 0, 0).await;
    });
}

/// An operator accepts a regression that nobody can notice yet, because the restored store is away.
/// That changes nothing. The gate keeps what an earlier process has let in, so that no earlier
/// tenure gets in after a later one.
#[test]
fn what_nobody_has_noticed_cannot_be_accepted() {
    let plan = Plan { remembers: true, ..Plan::of(0) };
    simulate(0, plan, |world| async move {
        world.calm_down();
        world.disk.written().recorded.insert("t/1".to_owned(), Revision::new(9));
        world.start_proxy(None);
        let proxy = world.proxy().unwrap();
        world.accept_regression(Rc::clone(&proxy));
        sleep(Duration::from_secs(1)).await;
        assert_eq!(world.accepted.get(), 0, "there was nothing to accept");
        assert_eq!(world.disk.written().acceptances, 0);
        let lock = proxy.lock("t/1", Instant::now() + Duration::from_secs(1)).await.unwrap();
        assert_eq!(lock.describe(Instant::now()).gate.floor, 9);
    });
}
