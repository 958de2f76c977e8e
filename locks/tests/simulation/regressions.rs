//! What the simulation has found, played again by itself: a seed is another run as soon as the
//! simulation changes.

use std::rc::Rc;
use std::time::Duration;

use fencepost_policy::Revision;
use fencepost_policy::group::MemberId;
use tokio::time::{Instant, sleep};

use crate::chance::Chance;
use crate::end::get_in;
use crate::plan::{MEMBERS, Plan};
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
        world.hosts[0].disk.written().recorded.insert("key".to_owned(), Revision::new(3));
        world.start_proxy(&world.hosts[0], None);
        get_in(&world, 0, 0, 0).await;
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
        world.hosts[0].disk.written().recorded.insert("t/1".to_owned(), Revision::new(9));
        world.start_proxy(&world.hosts[0], None);
        let proxy = world.hosts[0].proxy().unwrap();
        world.accept_regression(Rc::clone(&proxy));
        sleep(Duration::from_secs(1)).await;
        assert_eq!(world.accepted.get(), 0, "there was nothing to accept");
        assert_eq!(world.hosts[0].disk.written().acceptances, 0);
        let lock = proxy.lock("t/1", Instant::now() + Duration::from_secs(1)).await.unwrap();
        assert_eq!(lock.describe(Instant::now()).gate.floor, 9);
    });
}

/// The first write of a member was made, but never confirmed. The others gave the member up and
/// deleted its key. When it was in touch again it made that write once more, and stood under a name
/// that nobody waited for or answered.
#[test]
fn member_deleted_before_its_join_was_confirmed_gets_in() {
    let seed = 0;
    let plan = Plan { members: 2, ..Plan::of_group(seed) };
    simulate(seed, plan, |world| async move {
        world.calm_down();
        world.start_proxy(&world.hosts[1], None);
        sleep(Duration::from_secs(1)).await;
        world.hosts[0].cut_off(Instant::now() + Duration::from_secs(4));
        world.start_proxy(&world.hosts[0], None);
        let mut names = Chance::of(seed, "names");
        let keys = [(); 2].map(|()| format!("{MEMBERS}{}", MemberId(names.next().into())));
        // Both have the same to say: that they have let in nothing.
        let said = world.store.get(&keys[0]).expect("it has joined").value;
        world.store.put(keys[1].clone(), said);
        sleep(Duration::from_secs(6)).await;
        world.write(vec![put("key", "a")]);
        get_in(&world, 0, 0, 0).await;
    });
}
