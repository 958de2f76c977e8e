//! Judge, cache and gate as a whole, on virtual time, in worlds made from seeds: the store and the
//! network delay, lose, repeat, stall, compact and go back, the worker is slow and can't be
//! stopped, clients come late and leave early, the proxy is killed. Whatever the proxy promises is
//! checked after every step against what is true.
//!
//! Some worlds have two or three proxies, the members of one group, which also stand still, are cut
//! off from the store, and drain (`group`).
//!
//! - `FENCEPOST_SIM_SEED=17 cargo test -p fencepost-locks --test simulation` runs one seed and
//!   prints what happened.
//! - `FENCEPOST_SIM_SEEDS=10000 …` runs so many.
//!
//! One seed is one run: time is virtual, chance comes from the seed, and no `select!` of the cache
//! picks by chance of its own.

mod chance;
mod checks;
mod claim;
mod disk;
mod end;
mod exchange;
mod executor;
mod group;
mod host;
mod ledger;
mod life;
mod plan;
mod proxy;
mod regressions;
mod script;
mod standing;
mod store;
mod truth;
mod worker;
mod world;

use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::executor::{Class, Life};
use crate::host::Host;
use crate::plan::Plan;
use crate::world::World;

/// How many seeds are run unless the environment says otherwise.
const SEEDS: u64 = 10_000;
/// What has to happen in so many.
const EXPECTED: [&str; 20] = [
    "admitted",
    "cached",
    "cached while reads fail",
    "dangerous-admit",
    "dangerous-proceed",
    "distrusted",
    "exempt",
    "fenced",
    "forgotten",
    "handoff-timeout",
    "left",
    "let in above",
    "lost",
    "overlaps",
    "replayed-tenure",
    "shadow",
    "stale-tenure",
    "store-regressed",
    "unverifiable",
    "waits",
];
/// How many seeds of a group are run unless the environment says otherwise.
const GROUP_SEEDS: u64 = 300;
/// What has to happen in so many.
const EXPECTED_OF_GROUP: [&str; 12] = [
    "admitted",
    "cut off",
    "deleted by hand",
    "drained",
    "fenced",
    "handoff-timeout",
    "killed",
    "lost",
    "never written",
    "out-of-group",
    "stale-tenure",
    "stood still",
];
const SEEDS_TWICE: u64 = 100;
const GROUP_SEEDS_TWICE: u64 = 10;
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
            let test = if self.0.is_group() { "group_under" } else { "whatever" };
            eprintln!(
                "{:?}\n{}\nseed {seed} failed: FENCEPOST_SIM_SEED={seed} cargo test -p fencepost-locks --test simulation {test}",
                self.0.plan,
                self.0.trace().join("\n")
            );
        }
    }
}

fn run(seed: u64) -> Run {
    simulate(seed, Plan::of(seed), script::play)
}

fn run_group(seed: u64) -> Run {
    simulate(seed, Plan::of_group(seed), group::play)
}

fn simulate<P: Future<Output = ()> + 'static>(
    seed: u64,
    plan: Plan,
    play: impl FnOnce(Rc<World>) -> P,
) -> Run {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let world = World::new(seed, plan);
        let _tell = TellIfItFails(Rc::clone(&world));
        let (playing, played) = (Rc::clone(&world), play(Rc::clone(&world)));
        world.executor.spawn(Class::World, None, async move {
            played.await;
            playing.is_over.set(true);
        });
        let after_step = |class, life: Life| {
            if class == Class::Driver {
                let lives = |host: &&Rc<Host>| host.proxy().map(|proxy| proxy.life) == life;
                if let Some(host) = world.hosts.iter().find(lives) {
                    checks::notice(&world, host);
                    checks::gates(&world, host);
                    group::notice(&world, host);
                }
            }
        };
        world.executor.run(after_step, || world.is_over.get()).await;
        let mut counts = world.counts.borrow().clone();
        counts.insert("overlaps".to_owned(), world.worker.overlaps());
        Run { trace: world.trace(), counts, steps: world.executor.fingerprint() }
    })
}

/// Ends the work of the other threads too.
struct StopIfItFails<'a>(&'a AtomicU64);

impl Drop for StopIfItFails<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(u64::MAX / 2, Ordering::Relaxed);
        }
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable)
        .ok()
        .map(|text| text.parse().unwrap_or_else(|_| panic!("{variable} is a number")))
}

/// Runs one seed if the environment says which, else as many as it says, or as usual.
fn run_all(usual: u64, expected: &[&str], run: impl Fn(u64) -> Run + Sync) {
    if let Some(seed) = number("FENCEPOST_SIM_SEED") {
        return println!("{}", run(seed).trace.join("\n"));
    }
    let (seeds, next) = (number("FENCEPOST_SIM_SEEDS").unwrap_or(usual), AtomicU64::new(0));
    let counts = Mutex::new(BTreeMap::<String, u64>::new());
    let work = || {
        let _stop = StopIfItFails(&next);
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds {
                return;
            }
            let run = run(seed);
            let mut counts = counts.lock().unwrap();
            run.counts
                .into_iter()
                .for_each(|(what, times)| *counts.entry(what).or_default() += times);
        }
    };
    std::thread::scope(|scope| (0..THREADS).for_each(|_| drop(scope.spawn(work))));
    let counts = counts.into_inner().unwrap();
    println!("{seeds} seeds: {counts:?}");
    // A simulation in which nothing happens finds nothing.
    for what in expected {
        assert!(
            seeds < usual || counts.get(*what).is_some_and(|times| *times > 0),
            "{what} never happened"
        );
    }
}

#[test]
fn whatever_happens_the_promises_are_kept() {
    run_all(SEEDS, &EXPECTED, run);
}

#[test]
fn group_under_any_fault_keeps_its_promises() {
    run_all(GROUP_SEEDS, &EXPECTED_OF_GROUP, run_group);
}

/// Without this a seed that failed would be of little use.
#[test]
fn one_seed_is_one_run() {
    (0..SEEDS_TWICE).for_each(|seed| is_one_run(seed, run));
}

#[test]
fn one_seed_is_one_run_of_a_group() {
    (0..GROUP_SEEDS_TWICE).for_each(|seed| is_one_run(seed, run_group));
}

fn is_one_run(seed: u64, run: fn(u64) -> Run) {
    let (first, second) = (run(seed), run(seed));
    let differs = first.trace.iter().zip(&second.trace).find(|(line, again)| line != again);
    assert!(first.trace == second.trace, "seed {seed} is not one run: {differs:?}");
    assert_eq!(first.steps, second.steps, "seed {seed} takes other steps the second time");
}
