//! Random histories of a store, with a watch that lags or loses events, reads that take their time,
//! and walks that end late: whatever is known of a lock as of a revision is what the store was
//! then.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fencepost_policy::{
    Content, Holding, Layout, LockKey, QueueTrack, Reading, Revision, Snapshot, Tenure, Walk,
};
use proptest::prelude::*;
use tokio::time::Instant;

use super::common::{Common, Inbox};
use super::record::{LockSpec, RecordFormat, contender};
use super::scope::Scope;
use super::tracked::TrackedLock;
use super::trust::{Sent, Standing, Trust};
use super::watching::apply_to_scope;
use crate::store::{Event, KeyValue};

/// What can happen. Numbers choose among the keys, or the locks.
#[derive(Debug, Clone, Copy)]
enum Act {
    Put(usize, u8),
    Delete(usize),
    /// A deletion that no watch tells of: etcd before 3.4.36 and 3.5.18 can lose it when it is
    /// compacted (etcd-io/etcd#19179).
    Lose(usize),
    /// One key goes and another comes, at one revision.
    Swap(usize, usize),
    /// The watch delivers what happened at the next revision.
    Deliver,
    /// The watch ends, and what it has not delivered is compacted: it begins again at a read of the
    /// store.
    Compact,
    SendRead(usize),
    AnswerRead(usize),
    MergeRead(usize),
    EndWalk(usize),
}
use Act::{AnswerRead, Compact, Delete, Deliver, EndWalk, Lose, MergeRead, Put, SendRead, Swap};

fn any_act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (0..4usize, b'a'..b'c').prop_map(|(key, owner)| Put(key, owner)),
        4 => (0..4usize).prop_map(Delete),
        1 => (0..4usize, 0..4usize).prop_map(|(gone, new)| Swap(gone, new)),
        6 => Just(Deliver),
        1 => Just(Compact),
        3 => (0..2usize).prop_map(SendRead),
        3 => (0..2usize).prop_map(AnswerRead),
        3 => (0..2usize).prop_map(MergeRead),
        2 => (0..2usize).prop_map(EndWalk),
    ]
}

const fn read(lock: usize) -> [Act; 3] {
    [SendRead(lock), AnswerRead(lock), MergeRead(lock)]
}

fn revision(number: u64) -> Revision {
    Revision::new(number).unwrap()
}

type Keys = BTreeMap<Bytes, KeyValue>;

/// A store, a watch of it, and two locks that are read meanwhile.
struct World {
    layout: Layout,
    keys: [Bytes; 4],
    /// What the store holds after each revision, and what happened at it; revision 1 is the empty
    /// store.
    states: Vec<Keys>,
    happened: Vec<Vec<Event>>,
    common: Arc<Common>,
    _inbox: Inbox,
    scope: Arc<Scope>,
    delivered: u64,
    /// The revisions at which something happened that no watch tells of.
    lost: Vec<u64>,
    /// The store's revision whenever a read was sent.
    sent: Vec<(Instant, u64)>,
    reads: [Option<(Sent, Option<Revision>)>; 2],
    walks: [Option<(Sent, Walk)>; 2],
    locks: [Arc<TrackedLock>; 2],
}

impl World {
    fn new(layout: Layout) -> World {
        let (common, inbox) =
            Common::new("test", Trust::new(None), Duration::from_secs(1), None, None);
        let (common, format) = (Arc::new(common), Arc::new(RecordFormat::plain(layout)));
        let scope = Arc::new(Scope::new("s/", Arc::clone(&format)));
        let keys = match layout {
            Layout::Key => ["s/0", "s/1", "s/2", "s/3"],
            Layout::Election | Layout::Mutex => ["s/0/a", "s/0/b", "s/1/a", "s/2/a"],
        };
        let locks = [0, 1].map(|index| {
            let key = LockKey::new(&format!("s/{index}")).unwrap();
            let make = |spec| TrackedLock::new(spec, Some(Arc::clone(&scope)), Arc::clone(&common));
            common
                .registry
                .find_or_make(LockSpec { key, format: Arc::clone(&format) }, make)
                .unwrap()
        });
        let mut world = World {
            layout,
            keys: keys.map(|key| Bytes::from_static(key.as_bytes())),
            states: vec![Keys::new()],
            happened: vec![vec![]],
            common,
            _inbox: inbox,
            scope,
            delivered: 0,
            lost: vec![],
            sent: vec![],
            reads: [None, None],
            walks: [None, None],
            locks,
        };
        world.begin_watch();
        world
    }

    fn now(&self) -> u64 {
        self.states.len() as u64
    }

    fn at(&self, at: Revision) -> &Keys {
        &self.states[at.get() as usize - 1]
    }

    fn write(&mut self, gone: Option<usize>, new: Option<(usize, u8)>) {
        let at = revision(self.now() + 1);
        let mut state = self.states.last().unwrap().clone();
        let mut events = vec![];
        if let Some(key) = gone.map(|gone| self.keys[gone].clone())
            && state.remove(&key).is_some()
        {
            events.push(Event::Delete { key, revision: at });
        }
        if let Some((new, owner)) = new {
            let key = self.keys[new].clone();
            let (created, version) =
                state.get(&key).map_or((at, 1), |before| (before.created, before.version + 1));
            let stored = KeyValue {
                key: key.clone(),
                value: vec![owner].into(),
                created,
                modified: at,
                version,
            };
            state.insert(key, stored.clone());
            events.push(Event::Put(stored));
        }
        if !events.is_empty() {
            self.states.push(state);
            self.happened.push(events);
        }
    }

    fn begin_watch(&mut self) {
        self.scope.forget();
        let (sent, at) = (self.sending(), revision(self.now()));
        assert!(self.scope.note_read(&self.trusted(sent, at), at));
        self.delivered = self.now();
    }

    fn sending(&mut self) -> Sent {
        let sent = self.common.trust.sending();
        self.sent.push((sent.at, self.now()));
        sent
    }

    fn trusted(&self, sent: Sent, at: Revision) -> Sent {
        assert_eq!(self.common.trust.received(&sent, at, None), Standing::Trusted);
        sent
    }

    fn act(&mut self, act: Act) {
        match act {
            Put(key, owner) => self.write(None, Some((key, owner))),
            Delete(key) => self.write(Some(key), None),
            Lose(key) => {
                let before = self.now();
                self.write(Some(key), None);
                if self.now() > before {
                    self.happened.last_mut().unwrap().clear();
                    self.lost.push(self.now());
                }
            }
            Swap(gone, new) if gone == new => {}
            Swap(gone, new) => self.write(Some(gone), Some((new, b'a'))),
            Deliver if self.delivered < self.now() => {
                let events = &self.happened[self.delivered as usize];
                self.delivered += 1;
                apply_to_scope(&self.common, &self.scope, self.common.trust.era(), events);
            }
            Compact => self.begin_watch(),
            SendRead(lock) if self.reads[lock].is_none() && self.walks[lock].is_none() => {
                self.reads[lock] = Some((self.sending(), None));
            }
            AnswerRead(lock) => {
                let now = revision(self.now());
                self.reads[lock]
                    .iter_mut()
                    .for_each(|(_, answered)| _ = answered.get_or_insert(now));
            }
            MergeRead(index) => {
                if let Some((sent, Some(at))) =
                    self.reads[index].take_if(|(_, answered)| answered.is_some())
                {
                    let (sent, lock) = (self.trusted(sent, at), &self.locks[index]);
                    let of_lock =
                        self.at(at).values().filter(|stored| lock.range().contains(&stored.key));
                    let walk = lock.read(&sent, at, &of_lock.cloned().collect::<Vec<_>>());
                    self.walks[index] = walk.map(|walk| (sent, walk));
                }
            }
            EndWalk(index) => {
                if let Some((sent, mut walk)) = self.walks[index].take() {
                    let lock = &self.locks[index];
                    loop {
                        let stored = self.at(walk.reads_at()).get(lock.key().as_str().as_bytes());
                        match walk.shown(stored.map(|stored| lock.spec().write(stored))) {
                            Reading::Known(track) => return lock.walked(&sent, track),
                            Reading::Walk(next) => walk = next,
                        }
                    }
                }
            }
            Deliver | SendRead(_) => {}
        }
    }

    /// Has these happen. What is known of the locks is true after each.
    fn play(&mut self, acts: impl IntoIterator<Item = Act>) {
        for act in acts {
            self.act(act);
            self.locks.iter().for_each(|lock| self.check(lock));
        }
    }

    fn check(&self, lock: &TrackedLock) {
        let view = lock.view();
        let (Some(snapshot), Some(dated)) = (view.snapshot(), view.dated()) else { return };
        let sent_at =
            self.sent.iter().filter(|(at, _)| *at == dated).map(|(_, at)| *at).min().unwrap();
        if self.lost.iter().any(|lost| *lost > sent_at) {
            return; // Only a read that was sent since shows it.
        }
        let as_of = snapshot.as_of.unwrap();
        let truth = self.truth(lock, as_of);
        assert_eq!(
            (&snapshot.holding, &snapshot.waiters),
            (&truth.holding, &truth.waiters),
            "{lock:?} at {as_of}"
        );
        assert!(
            as_of.get() >= sent_at,
            "{lock:?} is dated by a read at {sent_at}, but known as of {as_of}"
        );
    }

    /// The lock as the store had it, found by looking at the whole history.
    fn truth(&self, lock: &TrackedLock, at: Revision) -> Snapshot {
        if self.layout != Layout::Key {
            let keys = self.at(at).values().filter(|stored| lock.range().contains(&stored.key));
            return QueueTrack::read(self.layout, at, keys.map(contender)).snapshot();
        }
        let write = |at: u64| {
            Some(lock.spec().write(self.at(revision(at)).get(lock.key().as_str().as_bytes())?))
        };
        let owner = |at: u64| match write(at)?.content {
            Content::Owner(owner) => Some(owner),
            Content::Free | Content::Unreadable => None,
        };
        let holding = match (owner(at.get()), write(at.get())) {
            (Some(held_by), Some(newest)) => {
                let since = (1..=at.get())
                    .rev()
                    .take_while(|at| owner(*at).as_ref() == Some(&held_by))
                    .last()
                    .unwrap();
                Holding::Held(Tenure {
                    owner: held_by,
                    first: revision(since),
                    last: newest.revision,
                })
            }
            (_, _) => Holding::Free,
        };
        Snapshot { layout: Layout::Key, as_of: Some(at), holding, waiters: [].into() }
    }

    /// Once everything has been delivered and each lock read, the watch alone keeps the locks
    /// known.
    fn settle(mut self) {
        self.play([EndWalk(0), EndWalk(1)]);
        while self.delivered < self.now() {
            self.play([Deliver]);
        }
        for lock in [0, 1, 0, 1] {
            self.play(
                [AnswerRead(lock), MergeRead(lock), EndWalk(lock)]
                    .into_iter()
                    .chain(read(lock))
                    .chain([EndWalk(lock)]),
            );
        }
        self.play([Put(0, b'c'), Deliver]);
        let lock = &self.locks[0];
        assert!(lock.is_settled(), "{lock:?} has missed nothing");
        assert_eq!(lock.as_of(), Some(revision(self.now())), "{lock:?}");
    }
}

fn play(layout: Layout, acts: &[&[Act]]) -> World {
    let mut world = World::new(layout);
    world.play(acts.concat());
    world
}

/// Whatever the watch has lost, a read that was sent since shows the truth.
fn check_with_losses(layout: Layout, acts: &[Act]) {
    let mut world = play(layout, &[&read(0), &read(1), acts]);
    for lock in [0, 1] {
        for _ in 0..2 {
            world.play([AnswerRead(lock), MergeRead(lock), EndWalk(lock)]);
            world.play(read(lock).into_iter().chain([EndWalk(lock)]));
        }
        let (now, lock) = (revision(world.now()), &world.locks[lock]);
        assert_eq!(
            lock.view().snapshot().unwrap().holding,
            world.truth(lock, now).holding,
            "{lock:?}"
        );
    }
}

const LAYOUTS: [Layout; 3] = [Layout::Key, Layout::Election, Layout::Mutex];

proptest! {
    // `PROPTEST_CASES` makes it more.
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases.max(1000),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn what_is_known_was_true_then(layout in prop::sample::select(&LAYOUTS), acts in prop::collection::vec(any_act(), 1..80)) {
        play(layout, &[&acts]).settle();
    }

    #[test]
    fn read_is_truth_whatever_the_watch_has_lost(
        layout in prop::sample::select(&LAYOUTS),
        acts in prop::collection::vec(prop_oneof![6 => any_act(), 1 => (0..4usize).prop_map(Lose)], 1..80),
    ) {
        check_with_losses(layout, &acts);
    }
}

#[test]
fn read_shows_what_the_watch_has_lost_though_it_is_no_newer() {
    for layout in [Layout::Election, Layout::Mutex] {
        let come = [Put(0, b'a'), Put(1, b'b'), Deliver, Deliver];
        let lost = [Lose(0), SendRead(0), AnswerRead(0), Put(1, b'b'), Deliver, Deliver];
        let world = play(layout, &[&come, &read(0), &lost, &[MergeRead(0)]]);
        let snapshot = world.locks[0].view().snapshot().cloned().unwrap();
        assert_eq!(
            snapshot.tenure().map(|tenure| tenure.first),
            Some(revision(3)),
            "{layout:?}: the first one is gone"
        );
    }
}

#[test]
fn event_after_a_gap_is_not_applied() {
    for layout in LAYOUTS {
        let missed = [Put(0, b'a'), Compact, Put(0, b'a'), Deliver];
        let world = play(layout, &[&read(0), &missed]);
        assert!(!world.locks[0].is_settled(), "{layout:?}");
        assert_eq!(world.locks[0].as_of(), Some(revision(1)), "{layout:?}");
        world.settle();
    }
}

/// The lock was known to be free, and then it was held again, by a tenure that had ended.
#[test]
fn walk_that_ends_late_takes_back_nothing() {
    let mut world =
        play(Layout::Key, &[&[Put(0, b'a')], &read(0), &[Put(0, b'b'), Put(0, b'b')], &read(0)]);
    let walk = world.walks[0].take().expect("there are writes to be looked at");
    world.play([Delete(0)].into_iter().chain(read(0)));
    let known = |world: &World| {
        (world.locks[0].as_of(), world.locks[0].view().snapshot().unwrap().holding.clone())
    };
    assert_eq!(known(&world), (Some(revision(5)), Holding::Free));
    world.walks[0] = Some(walk);
    world.play([EndWalk(0)]);
    assert_eq!(known(&world), (Some(revision(5)), Holding::Free));
}
