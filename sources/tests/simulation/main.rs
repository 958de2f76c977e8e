//! Judge, cache and gate as a whole, on virtual time, in worlds made from seeds: the store and the network delay, lose, repeat,
//! stall, compact and go back, the worker is slow and can't be stopped, clients come late and leave early, the proxy is killed.
//! Whatever the proxy promises is checked after every step against what is true.
//!
//! - `FENCEPOST_SIM_SEED=17 cargo test -p fencepost-sources --test simulation` runs one seed and prints what happened.
//! - `FENCEPOST_SIM_SEEDS=10000 …` runs so many.
//!
//! One seed is one run: time is virtual, chance comes from the seed, and no `select!` of the cache picks by chance of its own.

mod chance;
mod executor;
mod proxy;
mod script;
mod store;
mod truth;
mod worker;
mod world;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::executor::Class;
use crate::world::World;

/// How many seeds are run unless the environment says otherwise.
const SEEDS: u64 = 1_000;
const SEEDS_TWICE: u64 = 100;
const THREADS: u64 = 2;

/// What happened in a run.
struct Run {
    trace: Vec<String>,
    /// How often what happened.
    counts: BTreeMap<String, u64>,
    /// Which tasks took which steps when.
    steps: u64,
}

/// Tells the seed and all that happened if a run fails, wherever in the code under test it does.
struct TellIfItFails(Rc<World>);

impl Drop for TellIfItFails {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let seed = self.0.seed;
            eprintln!(
                "{:?}\n{}\nseed {seed} failed: FENCEPOST_SIM_SEED={seed} cargo test -p fencepost-sources --test simulation",
                self.0.plan,
                self.0.trace().join("\n")
            );
        }
    }
}

fn run(seed: u64) -> Run {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let world = World::new(seed);
        let _tell = TellIfItFails(Rc::clone(&world));
        world.executor.spawn(Class::World, None, script::play(Rc::clone(&world)));
        let after_step = |class| {
            if class == Class::Driver {
                world.check_floors();
            }
        };
        world.executor.run(after_step, || world.is_over.get()).await;
        Run { trace: world.trace(), counts: world.counts.borrow().clone(), steps: world.executor.fingerprint() }
    })
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{variable} is a number")))
}

#[test]
fn whatever_happens_the_promises_are_kept() {
    if let Some(seed) = number("FENCEPOST_SIM_SEED") {
        return println!("{}", run(seed).trace.join("\n"));
    }
    let (seeds, next) = (number("FENCEPOST_SIM_SEEDS").unwrap_or(SEEDS), AtomicU64::new(0));
    let counts = Mutex::new(BTreeMap::<String, u64>::new());
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds {
                return;
            }
            let run = run(seed);
            let mut counts = counts.lock().unwrap();
            run.counts.into_iter().for_each(|(what, times)| *counts.entry(what).or_default() += times);
        }
    };
    std::thread::scope(|scope| (0..THREADS).for_each(|_| drop(scope.spawn(work))));
    let counts = counts.into_inner().unwrap();
    println!("{seeds} seeds: {counts:?}");
    // A simulation in which nothing happens finds nothing.
    for what in
        ["admitted", "waits", "lost", "left", "stale-tenure", "replayed-tenure", "unverifiable", "handoff-timeout"]
    {
        assert!(seeds < 1000 || counts.contains_key(what), "{what} never happened");
    }
}

/// Without this a seed that failed would be of little use.
#[test]
fn one_seed_is_one_run() {
    for seed in 0..SEEDS_TWICE {
        let (first, second) = (run(seed), run(seed));
        let differs = first.trace.iter().zip(&second.trace).find(|(line, again)| line != again);
        assert!(first.trace == second.trace, "seed {seed} is not one run: {differs:?}");
        assert_eq!(first.steps, second.steps, "seed {seed} takes other steps the second time");
    }
}

/// After a kill and a restored store, history was shown farther back than the tenure that was recorded. The gate asked to record
/// the one that the floor left of it, the memory held that against the whole, and the request went round for ever.
#[test]
fn a_tenure_that_is_shown_farther_back_than_it_was_recorded_gets_in() {
    assert!(run(3021).counts.contains_key("admitted"));
}
