//! What must hold in every state, and what must be reachable.

use stateright::Property;

use super::{Counted, Request, Stage, State, Work, World};
use crate::store::Name;

/// Once the worker has begun a request of a tenure, or that tenure was told that it has the worker
/// to itself, nothing of a request of an earlier one arrives at the worker.
pub(crate) const ORDER: &str = "order";
/// Once the worker has begun a request of a tenure, or that tenure was told that it has the worker
/// to itself, no request of an earlier tenure runs there.
pub(crate) const NO_OVERLAP: &str = "no-overlap";
/// An admitted request presents a tenure that the store has granted and that the proxy knows of.
pub(crate) const ADMISSION_MEANS_TENURE: &str = "admission means tenure";
/// The floor never falls; after a restart it is not below the last tenure let in.
pub(crate) const FLOOR_RISES: &str = "floor-rises";
/// A claim at the barrier waits for a request that the proxy watches, or for a time that will come:
/// no barrier stays closed.
pub(crate) const GETS_IN: &str = "gets-in";
/// The gate counts each request once, for as long as it has its permit.
const PERMITS_BALANCE: &str = "permits balance";

/// What must hold in every state.
pub(super) fn always() -> Vec<Property<World>> {
    vec![
        Property::always(ORDER, |_, state: &State| !state.wrong.began_out_of_order),
        Property::always(NO_OVERLAP, |_, state: &State| {
            state.runs().all(|request| state.tenure_of(request) >= state.newest)
        }),
        Property::always(ADMISSION_MEANS_TENURE, |_, state: &State| {
            !state.wrong.admitted_without_tenure
        }),
        Property::always(FLOOR_RISES, |_, state: &State| !state.wrong.floor_fell),
        Property::always(GETS_IN, |_, state: &State| {
            let earlier = |counted| matches!(counted, Counted::Running(tenure) if tenure.get() < state.proxy.present());
            let is_watched = state.requests.iter().filter_map(Request::counted).any(earlier);
            let waits = |request: &Request| request.stage == Stage::Waiting;
            is_watched
                || state.proxy.unseen_until().is_some_and(|until| until > state.now())
                || !state
                    .requests
                    .iter()
                    .any(|each| waits(each) && state.proxy.is_barred(each.token, state.now()))
        }),
        Property::always(PERMITS_BALANCE, |_, state: &State| {
            let permits = state
                .requests
                .iter()
                .filter(|request| matches!(request.counted(), Some(Counted::Running(_))));
            permits.count() == state.proxy.permits()
        }),
    ]
}

/// What must be reachable.
pub(super) fn sometimes() -> Vec<Property<World>> {
    vec![
        Property::sometimes(
            "the third tenure is served, of the first one's owner",
            |_, state: &State| {
                let third = |tenure| state.history.ordinal(tenure) == 3;
                state.runs().any(|request| {
                    request.token.name == Name::A && state.tenure_of(request).is_some_and(third)
                })
            },
        ),
        Property::sometimes(
            "requests of one tenure are served side by side",
            |_, state: &State| state.runs().count() == 2,
        ),
        Property::sometimes("whoever waited at the barrier is served", |_, state: &State| {
            state.runs().any(|request| request.waited)
        }),
        Property::sometimes("a tenure ends while its request waits", |_, state: &State| {
            let ended = |request: &Request| request.token.at.get() < state.proxy.floor();
            state.requests.iter().any(|request| request.stage == Stage::Waiting && ended(request))
        }),
        Property::sometimes(
            "an answered request of an ended tenure is not written yet",
            |_, state: &State| {
                let unwritten = |request: &Request| {
                    matches!(request.stage, Stage::AtWorker(Work::Unwritten, _))
                };
                let ended = |request: &Request| request.token.at.get() < state.proxy.floor();
                state.requests.iter().any(|request| unwritten(request) && ended(request))
            },
        ),
        Property::sometimes(
            "a tenure ends while its request is at the worker",
            |_, state: &State| {
                let ended = |request: &Request| request.token.at.get() < state.proxy.floor();
                state.runs().any(ended)
            },
        ),
    ]
}

/// What must be reachable if the proxy restarts.
pub(super) fn of_restarts() -> Vec<Property<World>> {
    vec![
        Property::sometimes(
            "a later tenure is served after a crash's wait",
            |world: &World, state: &State| {
                let restarted = state.restarts_left < world.scope.restarts;
                restarted && state.clock > 0 && state.runs().any(|request| request.waited)
            },
        ),
        Property::sometimes(
            "a crash leaves bytes of an answered request in a kernel",
            |_, state: &State| {
                let left =
                    |stage| matches!(stage, Stage::AtWorker(Work::Done, Counted::Nobody(Some(_))));
                state.requests.iter().any(|request| left(request.stage))
            },
        ),
    ]
}
