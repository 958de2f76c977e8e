//! The gate and its surroundings, looked at in every state that they can get into within a small
//! scope.
//!
//! It is `policy` itself that runs here: the gate, `judge` and `KeyTrack`. What is modelled is all
//! that surrounds them:
//!
//! - `store`: a `key` lock that two owners acquire, renew, take over without a release, release and
//!   acquire again. Of any revision so far a watch or a read may tell, any number of times and in
//!   any order, and it counts as fresh: nothing here leans on `max_age`. The store is ahead of what
//!   the proxy has heard of only where a scope says so, since what nobody has heard of makes no
//!   difference to anybody. History may be compacted away.
//! - `proxy`: one proxy, as it should drive the gate and as it should not. Its tenures are recorded
//!   in a `state_dir`, by writes that take their time, may overtake each other, and may be durable
//!   though they seem to have failed.
//! - `world`: clients that send any token again at any time, wait and leave; `POST
//!   /.well-known/fence`; connections to the worker that take nothing of a request, or are lost
//!   when it was sent; late answers; a proxy that is killed, or stops in good order, and starts
//!   again. Cut bodies, timeouts and resets are all losses of the connection, which may come at any
//!   time.
//!
//! An entered request may arrive at the worker at any later moment until it has left the gate:
//!
//! - Nobody cuts anything when a tenure ends. The request may arrive then, and while it is an
//!   orphan.
//! - The worker may answer before the request is written. More of the request may arrive after the
//!   answer.
//! - A request leaves the gate when its response has ended and the request is written. A late
//!   response ends an orphan under the same condition.
//! - The proxy closes an orphan's connection before the gate stops to count the orphan.
//! - After a kill a kernel may deliver what was written, until `orphan_timeout` after the next
//!   start. With `SO_LINGER` 0 the kernel drops it, so that nothing more arrives.
//! - The worker is done with what it has begun `orphan_timeout` after the connection or the proxy
//!   was lost.
//!
//! What must hold in every state, and what must be reachable so that this is not true for lack of
//! events, stands in `world::properties`. Each mistake of `proxy::Mutant` must break it.
//!
//! Not modelled: the queue layouts; `Confirm` (nothing here is old or doubtful: a request that
//! would ask the store and come again is one that arrives later); passes; orphans that an operator
//! clears; a store that went back and was accepted; two proxies; anything that has a size or a
//! duration; that each step happens at last (`gets-in` checks that one is left); and what a kernel
//! delivers of a request that has left the gate: an answered worker's later reads count as work
//! after its answer.
//!
//! `cargo test -p fencepost-policy --test model -- --nocapture` prints the number of states and the
//! counterexamples.

mod proxy;
mod store;
mod world;

use std::collections::BTreeSet;

use stateright::{Checker, HasDiscoveries, Model};

use proxy::{Driving, Mutant};
use world::{
    ADMISSION_MEANS_TENURE, Action, FLOOR_RISES, GETS_IN, NO_OVERLAP, ORDER, Scope, World,
};

/// Up to three tenures, two requests at a time, and nothing gets lost.
const SMALL: Scope = Scope {
    writes: 3,
    unheard: 0,
    requests: 2,
    losses: 0,
    restarts: 0,
    ticks: 0,
    compaction: false,
};

/// Looks at every state within the scope.
fn check(scope: Scope, driving: Driving) {
    let checker = World { scope, driving }
        .checker()
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    let (states, steps) = (checker.unique_state_count(), checker.state_count());
    println!(
        "{states} states, {steps} steps, {} deep: {driving:?} within {scope:?}",
        checker.max_depth() - 1
    );
    checker.assert_properties();
}

/// The shortest way to break that property.
fn counterexample(scope: Scope, mutant: Mutant, property: &'static str) -> Option<Vec<Action>> {
    let mut shortest = None;
    let mut states_max = usize::MAX;
    loop {
        let found = World { scope, driving: Driving::Mutant(mutant) }
            .checker()
            .target_max_depth(states_max)
            .finish_when(HasDiscoveries::AnyOf(BTreeSet::from([property])))
            .spawn_bfs()
            .join()
            .discovery(property);
        // The checker goes on for a while after it has found one, and then tells of the last.
        let Some(path) = found else {
            return shortest;
        };
        let actions = path.into_actions();
        states_max = actions.len() + 1; // One less than there were, and the first state at that depth is not looked at.
        shortest = Some(actions);
    }
}

#[test]
fn tenures_never_meet_at_the_worker_however_late_news_is() {
    check(Scope { writes: 5, ..SMALL }, Driving::Right);
    check(Scope { writes: 4, unheard: 1, ..SMALL }, Driving::Right);
}

#[test]
fn tenures_never_meet_at_the_worker_when_connections_to_it_are_lost() {
    check(Scope { requests: 3, losses: 1, ticks: 1, ..SMALL }, Driving::Right);
    check(Scope { losses: 2, ticks: 2, ..SMALL }, Driving::Right);
}

#[test]
fn tenures_never_meet_at_the_worker_when_the_proxy_crashes_and_restarts() {
    check(Scope { losses: 1, restarts: 2, ticks: 2, ..SMALL }, Driving::Right);
    check(Scope { requests: 3, restarts: 1, ticks: 1, ..SMALL }, Driving::Right);
    check(Scope { unheard: 1, restarts: 1, ticks: 1, compaction: true, ..SMALL }, Driving::Right);
}

#[test]
fn the_floor_alone_refuses_what_has_ended_since_a_request_arrived() {
    check(Scope { unheard: 1, losses: 1, restarts: 1, ticks: 1, ..SMALL }, Driving::NewsOfArrival);
}

#[test]
fn each_mistake_in_driving_the_gate_is_found() {
    let handoffs = Scope { unheard: 1, ..SMALL };
    let losses = Scope { losses: 1, ticks: 1, ..SMALL };
    let restarts = Scope { restarts: 2, ticks: 1, ..SMALL };
    for (mutant, scope, property) in [
        (Mutant::ReadPerRequest, handoffs, ORDER),
        (Mutant::NoFloor, handoffs, ORDER),
        (Mutant::NoDrain, handoffs, NO_OVERLAP),
        (Mutant::NoRecheck, handoffs, ORDER),
        (Mutant::NoRecheck, handoffs, ADMISSION_MEANS_TENURE),
        (Mutant::PermitLeavesWithClient, handoffs, NO_OVERLAP),
        (Mutant::ClaimWithoutBarrier, handoffs, NO_OVERLAP),
        (Mutant::LeavesUnwritten, handoffs, ORDER),
        (Mutant::PermitKept, handoffs, GETS_IN),
        (Mutant::OrphansNotCounted, losses, NO_OVERLAP),
        (Mutant::LateAnswerEndsUnwritten, losses, ORDER),
        (Mutant::ConnectionOutlivesOrphan, losses, ORDER),
        (Mutant::NoWaitAfterRestart, restarts, NO_OVERLAP),
        (Mutant::FloorForgottenByRestart, restarts, ORDER),
        (Mutant::FloorForgottenByRestart, restarts, FLOOR_RISES),
        (Mutant::RecordedTooLate, restarts, NO_OVERLAP),
        (Mutant::RecordsOvertake, restarts, ORDER),
    ] {
        let Some(steps) = counterexample(scope, mutant, property) else {
            panic!("{mutant:?} was not found: it keeps {property} within {scope:?}");
        };
        println!("{mutant:?} breaks {property} in {} steps: {steps:?}", steps.len());
    }
}
