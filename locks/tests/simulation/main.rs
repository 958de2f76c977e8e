//! Judge, cache and gate as a whole, on virtual time, in worlds made from seeds: the store and the
//! network delay, lose, repeat, stall, compact and go back, the worker is slow and can't be
//! stopped, clients come late and leave early, the proxy is killed. Whatever the proxy promises is
//! checked after every step against what is true.
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
mod ledger;
mod life;
mod plan;
mod proxy;
mod regressions;
mod script;
mod store;
mod truth;
mod worker;
mod world;

use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::executor::Class;
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
                "{:?}\n{}\nseed {seed} failed: FENCEPOST_SIM_SEED={seed} cargo test -p fencepost-locks --test simulation",
                self.0.plan,
                self.0.trace().join("\n")
            );
        }
    }
}

fn run(seed: u64) -> Run {
    simulate(seed, Plan::of(seed), script::play)
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
        let after_step = |class| {
            if class == Class::Driver {
                checks::notice(&world);
                checks::gates(&world);
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

#[test]
fn whatever_happens_the_promises_are_kept() {
    if let Some(seed) = number("FENCEPOST_SIM_SEED") {
        return println!("{}", run(seed).trace.join("\n"));
    }
    let (seeds, next) = (number("FENCEPOST_SIM_SEEDS").unwrap_or(SEEDS), AtomicU64::new(0));
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
    for what in EXPECTED {
        assert!(
            seeds < SEEDS || counts.get(what).is_some_and(|times| *times > 0),
            "{what} never happened"
        );
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
