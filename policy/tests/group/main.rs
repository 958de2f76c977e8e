//! Several members before one worker, looked at in every state that they can get into within a small
//! scope.

mod member;
mod world;

use std::collections::BTreeSet;

use fencepost_policy::Layout;
use stateright::{Checker, HasDiscoveries, Model};

use world::{Action, GETS_IN, Mutant, NO_OVERLAP, ORDER, Scope, World};

const PAIR: Scope = Scope {
    layout: Layout::Key,
    start: 2,
    joins: 0,
    restarts: 0,
    tenures: 2,
    crashes: 0,
    losses: 0,
    stops: 0,
    ticks: 0,
    leaves: false,
    slow_writes: false,
    one_step: true,
};

fn check(scope: Scope) {
    let checker = World { scope, mutant: Mutant::None }
        .checker()
        .threads(2)
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    println!("{} states, {} deep: {scope:?}", checker.unique_state_count(), checker.max_depth());
    checker.assert_properties();
}

/// The shortest way to break that property.
fn counterexample(scope: Scope, mutant: Mutant, property: &'static str) -> Option<Vec<Action>> {
    World { scope, mutant }
        .checker()
        .threads(2)
        .finish_when(HasDiscoveries::AnyOf(BTreeSet::from([property])))
        .spawn_bfs()
        .join()
        .discovery(property)
        .map(|path| path.into_actions())
}

#[test]
fn pair() {
    check(PAIR);
}

#[test]
fn each_mistake() {
    let crash = Scope { crashes: 1, ticks: 2, ..PAIR };
    let crash1 = Scope { crashes: 1, ticks: 1, ..PAIR };
    let stop = Scope { stops: 1, ticks: 2, ..PAIR };
    let lone = Scope { start: 1, ..PAIR };
    let restart = Scope { crashes: 1, restarts: 1, ticks: 1, ..lone };
    for (mutant, scope, property) in [
        (Mutant::NoGroup, PAIR, NO_OVERLAP),
        (Mutant::NeverLapses, stop, NO_OVERLAP),
        (Mutant::LooksOnlyAtEnter, Scope { one_step: false, ..stop }, NO_OVERLAP),
        (Mutant::StopsBetweenLookAndWrite, Scope { one_step: false, ..stop }, NO_OVERLAP),
        (Mutant::ClockStops, stop, NO_OVERLAP),
        (Mutant::MarkedIsOver, crash1, NO_OVERLAP),
        (Mutant::WaitsOnlyForOrphans, crash1, NO_OVERLAP),
        (Mutant::GivingUpDeletes, crash1, NO_OVERLAP),
        (Mutant::JoinerTakesMarkForOver, Scope { joins: 1, ..crash1 }, NO_OVERLAP),
        (Mutant::MarkTakenForWrite, Scope { start: 3, ..crash1 }, NO_OVERLAP),
        (Mutant::SuccessorDeletes, Scope { restarts: 1, ..crash1 }, NO_OVERLAP),
        (Mutant::SuccessorIgnoresPast, restart, NO_OVERLAP),
        (Mutant::AnswersBeforeEmpty, PAIR, NO_OVERLAP),
        (Mutant::AnswersWithoutSeal, PAIR, NO_OVERLAP),
        (Mutant::OldAnswersCount, PAIR, NO_OVERLAP),
        (Mutant::AnswerTakenForFact, PAIR, NO_OVERLAP),
        (Mutant::TellsBeforeEmpty, Scope { start: 3, ..PAIR }, NO_OVERLAP),
        (Mutant::ClearForAnyTenure, PAIR, NO_OVERLAP),
        (Mutant::JoinsWithOldNews, Scope { joins: 1, leaves: true, ..lone }, ORDER),
        (Mutant::RollFromWatch, Scope { joins: 1, ..lone }, NO_OVERLAP),
        (Mutant::DatedByAcknowledgement, Scope { slow_writes: true, ..stop }, NO_OVERLAP),
        (Mutant::PlainPut, stop, NO_OVERLAP),
        (Mutant::SameNameAfterRestart, Scope { restarts: 1, ..crash1 }, NO_OVERLAP),
        (Mutant::LeavesWithOrphans, Scope { losses: 1, leaves: true, ..PAIR }, NO_OVERLAP),
        (Mutant::CutLeavesNoOrphan, Scope { losses: 1, ..PAIR }, NO_OVERLAP),
        (Mutant::NobodyGivesUp, crash, GETS_IN),
    ] {
        let started = std::time::Instant::now();
        match counterexample(scope, mutant, property) {
            Some(steps) => println!(
                "{mutant:?} breaks {property} in {} steps {:?}: {steps:?}",
                steps.len(),
                started.elapsed()
            ),
            None => println!("NOT FOUND {mutant:?} {:?}", started.elapsed()),
        }
    }
}
