//! Tests of [`super`].

use std::pin::pin;
use std::sync::Barrier;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Wake};
use std::thread::{self, Thread};

use super::*;

/// Wakes a thread, and tells whether it did.
struct Bell(Thread, AtomicBool);

impl Bell {
    fn new() -> Arc<Bell> {
        Arc::new(Bell(thread::current(), AtomicBool::new(false)))
    }

    fn has_rung(&self) -> bool {
        self.1.swap(false, Ordering::SeqCst)
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.1.store(true, Ordering::SeqCst);
        self.0.unpark();
    }
}

/// Polls once.
fn has_turn(place: &Queued, bell: &Arc<Bell>) -> bool {
    let waker = Waker::from(Arc::clone(bell));
    pin!(place.turn()).poll(&mut Context::from_waker(&waker)).is_ready()
}

fn wait_for_turn(place: &Queued) {
    let bell = Bell::new();
    let waker = Waker::from(bell);
    let mut turn = pin!(place.turn());
    while turn.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
        thread::park();
    }
}

fn joined(queue: &Queue) -> Queued {
    let mut place = queue.join();
    assert!(place.hold_up(usize::MAX));
    place
}

#[test]
fn turns_are_taken_in_the_order_of_arrival_across_threads() {
    const THREADS: usize = 3;
    const PLACES: usize = 600;
    let queue = Queue::default();
    let mut shares: [Vec<(usize, Queued)>; THREADS] = Default::default();
    for arrival in 0..PLACES {
        // In runs, so that a thread that does not wait for the others is found out.
        shares[arrival / 7 % THREADS].push((arrival, joined(&queue)));
    }
    let went = Mutex::new(Vec::new());
    let ready = Barrier::new(THREADS);
    thread::scope(|scope| {
        for share in shares {
            scope.spawn(|| {
                ready.wait();
                for (arrival, place) in share {
                    wait_for_turn(&place);
                    went.lock().unwrap().push(arrival);
                }
            });
        }
    });
    assert_eq!(went.into_inner().unwrap(), (0..PLACES).collect::<Vec<_>>());
    assert!(queue.is_clear());
}

#[test]
fn whoever_leaves_first_or_from_the_middle_passes_its_turn_on() {
    let queue = Queue::default();
    let bell = Bell::new();
    let [first, second, third, fourth] = [(); 4].map(|()| joined(&queue));
    assert!(has_turn(&first, &bell));
    assert!([&second, &third, &fourth].into_iter().all(|later| !has_turn(later, &bell)));
    drop(third);
    assert!(!bell.has_rung(), "it was nobody's turn");
    drop(first);
    assert!(bell.has_rung() && has_turn(&second, &bell) && !has_turn(&fourth, &bell));
    drop(second);
    assert!(bell.has_rung() && has_turn(&fourth, &bell));
}

/// Its task may be gone between the wake-up and the poll that would have followed.
#[test]
fn whoever_leaves_after_it_was_told_of_its_turn_passes_it_on() {
    let queue = Queue::default();
    let [first, second, third] = [(); 3].map(|()| joined(&queue));
    let bells = [Bell::new(), Bell::new()];
    assert!(!has_turn(&second, &bells[0]) && !has_turn(&third, &bells[1]));
    drop(first);
    assert!(bells[0].has_rung() && !bells[1].has_rung());
    drop(second);
    assert!(bells[1].has_rung() && has_turn(&third, &bells[1]));
}

#[test]
fn place_aside_is_passed_and_comes_back_before_later_ones() {
    let queue = Queue::default();
    let bell = Bell::new();
    let [first, second, third] = [(); 3].map(|()| joined(&queue));
    assert!(!has_turn(&second, &bell) && !has_turn(&third, &bell));
    let aside = first.step_aside();
    assert!(bell.has_rung());
    // It comes back after the second was woken and before that has looked.
    drop(aside);
    assert!(first.is_first() && !has_turn(&second, &bell));
    drop(first.step_aside());
    let aside = first.step_aside();
    assert!(has_turn(&second, &bell));
    drop(second);
    assert!(has_turn(&third, &bell));
    drop(aside);
    assert!(first.is_first() && !has_turn(&third, &bell));
    bell.has_rung();
    drop(first);
    assert!(bell.has_rung() && has_turn(&third, &bell));
}

#[test]
fn newcomers_queue_only_behind_those_held_up() {
    let queue = Queue::default();
    let bell = Bell::new();
    let mut held_up = queue.join();
    assert!(queue.is_clear(), "it has only come");
    assert!(held_up.hold_up(1) && held_up.hold_up(1));
    assert!(!queue.is_clear());
    let mut newcomer = queue.join();
    assert!(!newcomer.hold_up(1), "there is no room for two");
    let aside = held_up.step_aside();
    assert!(queue.is_clear() && has_turn(&newcomer, &bell));
    drop(aside);
    assert!(!queue.is_clear() && !has_turn(&newcomer, &bell));
    drop(held_up);
    assert!(queue.is_clear() && has_turn(&newcomer, &bell), "though the newcomer is still there");
    assert!(newcomer.hold_up(1));
}

/// Many threads whose places leave, stand aside and come back as it happens: each gets its turn, or
/// this never ends.
#[test]
fn nobody_is_left_waiting_whoever_leaves_when() {
    const THREADS: u64 = 4;
    let queue = Queue::default();
    let bell = Bell::new();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (queue, bell) = (&queue, &bell);
            scope.spawn(move || {
                for round in 0..2_000 {
                    let place = joined(queue);
                    match (thread + round) % 5 {
                        0 => drop(has_turn(&place, bell)),
                        1 => drop(place.step_aside()),
                        2 => wait_for_turn(&place),
                        3 => {
                            let _aside = place.step_aside();
                            thread::yield_now();
                        }
                        _ => {
                            drop(place.step_aside());
                            wait_for_turn(&place);
                        }
                    }
                }
            });
        }
    });
    assert!(queue.is_clear());
    let places = queue.line.get().expect("somebody has joined").places();
    assert!(places.line.is_empty() && places.held_up == 0);
}
