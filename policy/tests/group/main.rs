//! Several members of a group before one worker.
//!
//! It is `policy` itself that runs here: [`Group`](fencepost_policy::group::Group) and the gate.
//! `member` has the driver around them, `world` the store, the worker, faults and what must hold. A
//! lock passes from tenure to tenure at any time. Each member's view of each other key is as late as
//! it likes. A tick is `member_ttl` and `orphan_timeout` at once; a partition is a member without
//! turns. The worker is done with a request one tick after its connection was lost, or its proxy was
//! stopped for a tick.
//!
//! Two members without faults are looked at in every state. All else is walked at random, by numbers
//! that are the same each time, since faults and time make millions of states. Each mistake in
//! `Mutant` must be found: most by walks, two by the steps that show them.
//!
//! Not modelled: several locks, shadow mode, restores, how much one write can carry, a successor of
//! a successor, and keys that are removed by hand.
//!
//! `cargo test -p fencepost-policy --test group -- --nocapture` prints states, walks and steps.

mod member;
mod world;

use std::fmt;

use fencepost_policy::Layout;
use fencepost_policy::group::MemberId;
use stateright::{Checker, HasDiscoveries, Model, Property};

use world::{Action, GETS_IN, Mutant, NO_OVERLAP, ORDER, Scope, World};

/// Two members, two tenures, no faults.
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
/// All that may happen, to three members at most.
const ALL: Scope = Scope {
    joins: 1,
    restarts: 1,
    tenures: 3,
    crashes: 1,
    losses: 1,
    stops: 1,
    ticks: 4,
    leaves: true,
    slow_writes: true,
    one_step: false,
    ..PAIR
};
const STEPS_MAX: usize = 60;

/// Steps until a property breaks, and in which walk.
struct Counterexample {
    property: &'static str,
    walk: u64,
    steps: Vec<Action>,
}

impl fmt::Debug for Counterexample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counterexample { property, walk, steps } = self;
        write!(f, "{property} breaks in walk {walk}: {steps:?}")
    }
}

fn properties(world: &World, names: &[&str]) -> Vec<Property<World>> {
    world.properties().into_iter().filter(|property| names.contains(&property.name)).collect()
}

/// Walks at random until one of these properties breaks.
fn walk(scope: Scope, mutant: Mutant, names: &[&str], walks: u64) -> Option<Counterexample> {
    let world = World { scope, mutant };
    let properties = properties(&world, names);
    let start = world.init_states().remove(0);
    for walk in 1..=walks {
        let (mut random, mut state, mut steps) = (walk, start.clone(), vec![]);
        while steps.len() < STEPS_MAX {
            let Some((action, next)) = any_step(&world, &state, &mut random) else { break };
            state = next;
            steps.push(action);
            let broken = properties.iter().find(|each| !(each.condition)(&world, &state));
            if let Some(Property { name: property, .. }) = broken {
                return Some(Counterexample { property, walk, steps });
            }
        }
    }
    None
}

fn any_step(
    world: &World,
    state: &world::State,
    random: &mut u64,
) -> Option<(Action, world::State)> {
    let mut actions = vec![];
    world.actions(state, &mut actions);
    while !actions.is_empty() {
        let at = below(actions.len(), random);
        if actions[at].is_rare() && below(6, random) != 0 {
            continue;
        }
        let action = actions.swap_remove(at);
        if let Some(next) = world.next_state(state, action) {
            return Some((action, next));
        }
    }
    None
}

/// A number below `end`, by SplitMix64.
fn below(end: usize, random: &mut u64) -> usize {
    *random = random.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut mixed = *random;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (mixed ^ (mixed >> 31)) as usize % end
}

/// Does these steps one after the other, as far as they can happen. Says whether tenures met.
fn tenures_meet(scope: Scope, mutant: Mutant, steps: &[Action]) -> bool {
    let world = World { scope, mutant };
    let properties = properties(&world, &[NO_OVERLAP]);
    let mut state = world.init_states().remove(0);
    for (done, step) in steps.iter().enumerate() {
        let mut actions = vec![];
        world.actions(&state, &mut actions);
        assert!(actions.contains(step), "{step:?} is no step after {done} others");
        let Some(next) = world.next_state(&state, *step) else {
            println!("{mutant:?}: {step:?} does nothing after {done} steps");
            return false;
        };
        state = next;
    }
    properties.iter().any(|each| !(each.condition)(&world, &state))
}

#[test]
fn two_members_share_a_gate_in_every_state() {
    for scope in [PAIR, Scope { layout: Layout::Election, ..PAIR }] {
        let checker = World { scope, mutant: Mutant::None }
            .checker()
            .threads(2)
            .finish_when(HasDiscoveries::AnyFailures)
            .spawn_bfs()
            .join();
        let states = checker.unique_state_count();
        println!("{states} states, {} deep: {scope:?}", checker.max_depth());
        checker.assert_properties();
    }
}

#[test]
fn tenures_never_meet_whatever_befalls_the_members() {
    let stop = Scope { stops: 1, ticks: 2, one_step: false, ..PAIR };
    let restart = Scope { crashes: 1, restarts: 1, ticks: 2, ..PAIR };
    let join = Scope { start: 1, joins: 1, leaves: true, losses: 1, ticks: 1, ..PAIR };
    let three = Scope { start: 3, crashes: 1, ticks: 2, ..PAIR };
    let election = Scope { layout: Layout::Election, ..ALL };
    for scope in [stop, restart, join, three, ALL, election] {
        let broken = walk(scope, Mutant::None, &[NO_OVERLAP, ORDER, GETS_IN], 1_000);
        assert!(broken.is_none(), "{broken:?} within {scope:?}");
    }
}

#[test]
fn each_mistake_of_a_member_is_found() {
    let crash = Scope { crashes: 1, ticks: 1, ..PAIR };
    let stop = Scope { stops: 1, ticks: 2, ..PAIR };
    let slow = Scope { one_step: false, ..stop };
    let lone = Scope { start: 1, ..PAIR };
    for (mutant, scope, property) in [
        (Mutant::NoGroup, PAIR, NO_OVERLAP),
        (Mutant::NeverLapses, stop, NO_OVERLAP),
        (Mutant::LooksOnlyAtEnter, slow, NO_OVERLAP),
        (Mutant::StopsBetweenLookAndWrite, slow, NO_OVERLAP),
        (Mutant::ClockStops, stop, NO_OVERLAP),
        (Mutant::MarkedIsOver, crash, NO_OVERLAP),
        (Mutant::WaitsOnlyForOrphans, crash, NO_OVERLAP),
        (Mutant::GivingUpDeletes, crash, NO_OVERLAP),
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
        (Mutant::SameNameAfterRestart, Scope { restarts: 1, ..crash }, NO_OVERLAP),
        (Mutant::LeavesWithOrphans, Scope { losses: 1, leaves: true, ..PAIR }, NO_OVERLAP),
        (Mutant::CutLeavesNoOrphan, Scope { losses: 1, ..PAIR }, NO_OVERLAP),
        (Mutant::NobodyGivesUp, crash, GETS_IN),
    ] {
        let Some(found) = walk(scope, mutant, &[property], 30_000) else {
            panic!("{mutant:?} was not found: it keeps {property} within {scope:?}");
        };
        println!("{mutant:?}: {found:?}");
    }
}

#[test]
fn mistakes_about_a_silent_member_are_found() {
    use Action::{
        Crashes, GivesUp, Joins, JoinsAfter, Learns, LetsIn, Moves, Sees, SuccessorDeletes, Tick,
        WorkerEnds, Writes,
    };
    let [p, q, r] = [1, 2, 3].map(MemberId);
    let late_joiner = [
        vec![Learns(p, 1), Writes(p), Learns(q, 1), Sees(q, p), Writes(q), Sees(p, q), LetsIn(p)],
        vec![Moves, Tick, Writes(q), GivesUp(q, p), Joins, Learns(r, 2), Writes(r), Learns(q, 2)],
        vec![Sees(q, r), Writes(q), Sees(r, q), LetsIn(r)],
    ];
    let last_write_unseen = [
        vec![Learns(p, 1), Writes(p), Learns(q, 1), Learns(r, 1), Sees(q, p), Sees(r, p)],
        vec![
            Writes(q),
            Writes(r),
            Sees(p, q),
            Sees(p, r),
            LetsIn(p),
            WorkerEnds(p, 1),
            Moves,
            Tick,
        ],
        vec![
            Writes(q),
            Writes(r),
            Writes(p),
            Sees(q, p),
            LetsIn(p),
            Tick,
            Writes(q),
            GivesUp(q, p),
        ],
        vec![Learns(r, 2), Writes(r), Sees(r, p), Learns(q, 2), Sees(q, r), Writes(q), Sees(r, q)],
        vec![LetsIn(r)],
    ];
    let restart = [
        vec![Learns(p, 1), Writes(p), LetsIn(p), Moves, Crashes(p), JoinsAfter(p)],
        vec![SuccessorDeletes(q), Learns(q, 2), Writes(q), LetsIn(q)],
    ];
    for (mutant, scope, steps) in [
        (
            Mutant::JoinerTakesMarkForOver,
            Scope { joins: 1, ticks: 1, ..PAIR },
            late_joiner.concat(),
        ),
        (
            Mutant::MarkTakenForWrite,
            Scope { start: 3, ticks: 2, ..PAIR },
            last_write_unseen.concat(),
        ),
        (
            Mutant::SuccessorIgnoresPast,
            Scope { start: 1, crashes: 1, restarts: 1, ..PAIR },
            restart.concat(),
        ),
    ] {
        assert!(tenures_meet(scope, mutant, &steps), "{mutant:?} within {scope:?}");
        assert!(!tenures_meet(scope, Mutant::None, &steps), "{steps:?}");
    }
}
