use std::pin::pin;
use std::task::{Context, Poll, Waker};

use super::*;
use crate::process::Process;

/// So many that to look at them is more than is done in one go.
const LOCKS: usize = 2 * LOOKED_AT_ONCE;

/// Sources of these names, and routes with these lock keys. Each route comes with further lines for
/// its lock and for itself.
fn config(sources: &[&str], routes: &[(&str, &str, &str)]) -> Config {
    let mut text = "[[listener]]\naddress = \"127.0.0.1:0\"\n".to_owned();
    sources.iter().for_each(|name| text += &format!("[source.{name}]\nkind = \"memory\"\n"));
    for (at, (key, more_of_lock, more)) in routes.iter().enumerate() {
        text += &format!(
            "[[route]]\nname = \"r{at}\"\npath = \"/{at}/{{k}}/{{n}}\"\nupstream = \"http://127.0.0.1:9\"\n\
             lock = {{ key = {key:?}, {more_of_lock} }}\n{more}\n"
        );
    }
    Config::from_toml("f.toml", &text).unwrap_or_else(|problems| panic!("{problems}"))
}

fn in_force(config: Config) -> Generation {
    Generation::new(config, 1, Arc::new(Process::alone().unwrap())).unwrap()
}

/// Locks of its first route, as requests hold them.
fn hold_many(generation: &Generation) -> Vec<Arc<TrackedLock>> {
    let Some(Guard::Templated(locks)) = &generation.routes[0].guard else {
        panic!("its key has a placeholder")
    };
    (0..LOCKS).map(|at| locks.hold(&format!("/l/{at}")).unwrap()).collect()
}

/// What it says, and how often others had their turn before.
fn turns_until<T>(work: impl Future<Output = T>) -> (T, usize) {
    let mut work = pin!(work);
    let mut turns = 0;
    loop {
        match work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(done) => return (done, turns),
            Poll::Pending => turns += 1,
        }
    }
}

const MAIN: &str = "source = \"main\"";
const ELECTION: &str = "source = \"main\", layout = \"election\"";

/// Every reload held each lock against each route, on the thread that feeds the watchdog: with
/// 1,000 routes and 100,000 locks it did not for 26 s.
#[test]
fn reload_looks_at_locks_of_new_routes_that_begin_alike() {
    let routes = [("/l/{k}", MAIN, ""), ("/l/{k}/below", MAIN, "")];
    let generation = in_force(config(&["main"], &routes));
    let _held = hold_many(&generation);
    let turns = |routes: &[(&str, &str, &str)]| {
        let config = config(&["main", "more"], routes);
        let (problems, turns) = turns_until(conflicts(&generation, &Earlier::default(), &config));
        assert_eq!(problems, [""; 0]);
        turns
    };
    let with = |other| [routes.to_vec(), vec![other]].concat();
    let others =
        [("/l/{k}", MAIN, "orphan_timeout = \"7s\""), ("/l/{k}/below", MAIN, "mode = \"shadow\"")];
    assert_eq!(turns(&others), 0);
    assert_eq!(turns(&routes[..1]), 0, "what goes looks at nothing");
    assert_eq!(turns(&with(("/m/{k}", ELECTION, ""))), 0, "another prefix");
    // All of them begin as these keys do.
    assert_eq!(turns(&[routes[0], ("/l/{k}/below", ELECTION, "")]), 2);
    assert_eq!(turns(&with(("/l/{k}/x/y", "source = \"more\"", ""))), 2);
}

#[test]
fn a_lock_that_is_read_in_another_way_is_found() {
    let generation = in_force(config(&["main"], &[("/l/{k}", MAIN, "")]));
    let held = hold_many(&generation);
    let problems = |key, more| {
        let config = config(&["main", "more"], &[(key, more, "")]);
        turns_until(conflicts(&generation, &Earlier::default(), &config)).0.len()
    };
    for lock in [&held[0], &held[17], &held[LOCKS - 1]] {
        let key = lock.key().as_str();
        assert_eq!((problems(key, ELECTION), problems(key, MAIN)), (1, 0), "{key}");
    }
    assert_eq!(
        (
            problems("/l/{k}", ELECTION),
            problems("/{n}/{k}", ELECTION),
            problems("{n}/l/{k}", ELECTION)
        ),
        (1, 1, 0)
    );
}

/// Also where no route names it any more.
#[test]
fn a_lock_with_a_gate_at_another_source_is_found() {
    let first = in_force(config(&["main"], &[("/l/{k}", MAIN, "")]));
    let held = hold_many(&first);
    let without = config(&["main"], &[("/other", MAIN, "")]);
    let generation = Generation::new(without, 2, Arc::clone(&first.process)).unwrap();
    let problems = |key: &str, source: &str| {
        let config = config(&["main", "more"], &[(key, &format!("source = {source:?}"), "")]);
        turns_until(conflicts(&generation, &Earlier::default(), &config)).0.len()
    };
    for lock in [&held[0], &held[17], &held[LOCKS - 1]] {
        let key = lock.key().as_str();
        assert_eq!((problems(key, "more"), problems(key, "main")), (1, 0), "{key}");
    }
    assert_eq!(
        (problems("/l/{k}", "more"), problems("/{n}/{k}", "more"), problems("/m/{k}", "more")),
        (1, 1, 0)
    );
    assert_eq!(problems("/other", "more"), 1, "the configuration in force has it with that source");
}
