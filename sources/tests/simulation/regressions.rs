//! What the simulation has found, played again by itself: a seed is another run as soon as the simulation changes.

use fencepost_policy::Revision;

use crate::end::get_in;
use crate::plan::Plan;
use crate::script::put;
use crate::simulate;

/// After a kill and a restored store, history was shown farther back than the tenure that was recorded. The gate asked to record
/// the one that the floor left of it, the memory held that against the whole, and the request went round for ever.
#[test]
fn a_tenure_that_is_shown_farther_back_than_it_was_recorded_gets_in() {
    let plan = Plan { remembers: true, ..Plan::of(0) };
    simulate(0, plan, |world| async move {
        world.calm_down();
        world.write(vec![put("key", "a")]);
        world.write(vec![put("key", "a")]);
        world.recorded.borrow_mut().insert("key".to_owned(), Revision::new(3));
        world.start_proxy(None);
        get_in(&world, 0, 0).await;
    });
}
