//! From the keys of a queue to the tenure of its lock: the oldest holds it, whatever was seen
//! first.

use std::collections::BTreeMap;
use std::sync::Arc;

use fencepost_policy::{Contender, Holding, Layout, QueueEvent, QueueTrack, Revision};

use crate::chance::Chance;

type Keys = BTreeMap<Arc<[u8]>, Contender>;

/// A store with one queue: what it was at each revision from 1, and what changed then.
struct Store {
    states: Vec<Keys>,
    events: Vec<Vec<QueueEvent>>,
}

impl Store {
    fn made_by(chance: &mut Chance<'_>) -> Store {
        let (mut states, mut events) = (vec![Keys::new()], vec![Vec::new()]);
        for _ in 0..chance.below(24) {
            let at = revision(states.len() + 1);
            let mut keys = states.last().cloned().expect("a store begins at revision 1");
            let mut told = Vec::new();
            // Each key changes once in a transaction at most.
            for name in [&b"q/a"[..], b"q/b", b"q/c"] {
                let key: Arc<[u8]> = name.into();
                match chance.below(5) {
                    0 => {
                        let created = keys.get(&key).map_or(at, |known| known.created);
                        let value: Arc<[u8]> = chance.pick(&[&b"x"[..], b"y"]).into();
                        let contender =
                            Contender { key: key.clone(), created, revision: at, value };
                        keys.insert(key, contender.clone());
                        told.push(QueueEvent::Put(contender));
                    }
                    1 if keys.remove(&key).is_some() => {
                        told.push(QueueEvent::Delete { key, revision: at })
                    }
                    _ => {}
                }
            }
            states.push(keys);
            events.push(told);
        }
        Store { states, events }
    }

    fn at(&self, at: Revision) -> &Keys {
        &self.states[at.get() as usize - 1]
    }
}

pub(crate) fn run(input: &[u8]) {
    let chance = &mut Chance::new(input);
    let layout = chance.pick(&[Layout::Election, Layout::Mutex]);
    let store = Store::made_by(chance);
    let read = |chance: &mut Chance<'_>| {
        let at = revision(1 + chance.below(store.states.len()));
        QueueTrack::read(layout, at, store.at(at).values().cloned())
    };
    let mut known = read(chance);
    while !chance.is_used_up() {
        let before = known.as_of();
        known = match chance.below(2) {
            0 => Some(read(chance)).filter(|read| known.as_of() < read.as_of()).unwrap_or(known),
            _ => watched(&store, known, chance),
        };
        assert!(before <= known.as_of(), "no-step-back");
        check(&store, layout, &known);
    }
}

/// The events of a watch, each revision's together, from wherever it began.
fn watched(store: &Store, known: QueueTrack, chance: &mut Chance<'_>) -> QueueTrack {
    let newest = known.as_of().get() as usize;
    let from = newest + 1 - chance.below(newest);
    let through = (from + chance.below(12)).min(store.states.len());
    let events = (from..=through).flat_map(|at| store.events[at - 1].iter().cloned());
    let next = known.events(events).expect("no event is missing");
    next.unwrap_or(known)
}

fn check(store: &Store, layout: Layout, known: &QueueTrack) {
    let mut queued: Vec<&Contender> = store.at(known.as_of()).values().collect();
    queued.sort_by_key(|contender| (contender.created, contender.key.clone()));
    let snapshot = known.snapshot();
    let owner_of = |contender: &Contender| match layout {
        Layout::Mutex => contender.key.to_vec(),
        Layout::Key | Layout::Election => contender.value.to_vec(),
    };
    let holder = snapshot.tenure().map(|tenure| (tenure.owner.as_bytes().to_vec(), tenure.first));
    let is_tied = queued.get(1).is_some_and(|second| second.created == queued[0].created);
    let oldest = queued.first().filter(|_| !is_tied).map(|first| (owner_of(first), first.created));
    assert_eq!(holder, oldest, "the oldest holds the lock, unless there are two");
    assert_eq!(is_tied, snapshot.holding == Holding::Unreadable);
    assert_eq!(known.tie(), queued.first().filter(|_| is_tied).map(|first| first.created));
    if let (Some(tenure), Some(first)) = (snapshot.tenure(), queued.first()) {
        assert!(
            first.created <= tenure.last && tenure.last <= first.revision,
            "{tenure:?} is not {first:?}"
        );
    }
    let waiting: Vec<_> = snapshot.waiters.iter().map(|waiter| waiter.created).collect();
    assert_eq!(
        waiting,
        queued
            .iter()
            .skip(usize::from(holder.is_some()))
            .map(|contender| contender.created)
            .collect::<Vec<_>>()
    );
}

fn revision(number: usize) -> Revision {
    Revision::new(number as u64).expect("revisions count from 1")
}
