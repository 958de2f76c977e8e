//! A store, a watch of it that lags, and locks that are read meanwhile.

#[path = "scope_world/act.rs"]
mod act;
#[path = "scope_world/store.rs"]
mod store;
#[path = "scope_world/truth.rs"]
mod truth;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fencepost_policy::{Layout, LockKey, Reading, Revision, Walk};
use tokio::sync::mpsc;
use tokio::time::Instant;

pub(super) use self::act::{Act, WINDOW, any_act};
use super::common::{Command, Common};
use super::record::{LockSpec, RecordFormat};
use super::scope::{Scope, Unverified};
use super::tracked::TrackedLock;
use super::trust::{Sent, Standing, Trust};
use super::window::Probed;
use crate::store::{Event, KeyValue, RangeAnswer, Wanted};

pub(super) fn revision(number: u64) -> Revision {
    Revision::new(number).unwrap()
}

type Keys = BTreeMap<Bytes, KeyValue>;

/// A read on its way: sent, then answered.
pub(super) struct OnItsWay<T> {
    sent: Sent,
    answer: Option<(Revision, T)>,
}

pub(super) struct World {
    pub(super) layout: Layout,
    pub(super) keys: [Bytes; 4],
    /// What the store holds after each revision, and what happened at it; revision 1 is the empty store.
    pub(super) states: Vec<Keys>,
    pub(super) happened: Vec<Vec<Event>>,
    pub(super) common: Arc<Common>,
    pub(super) _commands: mpsc::UnboundedReceiver<Command>,
    pub(super) scope: Arc<Scope>,
    pub(super) delivered: u64,
    pub(super) is_watched: bool,
    /// The revisions at which something happened that no watch tells of.
    pub(super) lost: Vec<u64>,
    /// The store's revision whenever a read was sent.
    pub(super) sent: Vec<(Instant, u64)>,
    pub(super) window: Option<OnItsWay<RangeAnswer>>,
    pub(super) unverified: Option<Unverified>,
    pub(super) probe: Option<OnItsWay<()>>,
    /// How often the clock has moved to a probe.
    pub(super) probed: u64,
    pub(super) locks: [Option<Arc<TrackedLock>>; 2],
    pub(super) reads: [Option<OnItsWay<Vec<KeyValue>>>; 2],
    pub(super) walks: [Option<(Sent, Walk, KeyValue)>; 2],
}

impl World {
    pub(super) fn new(layout: Layout) -> World {
        let (sender, commands) = mpsc::unbounded_channel();
        let common = Arc::new(Common::new("test", Trust::new(None), Duration::from_secs(1), None, sender));
        let keys = match layout {
            Layout::Key => ["s/0", "s/1", "s/2", "s/3"],
            Layout::Election | Layout::Mutex => ["s/0/a", "s/0/b", "s/1/a", "s/2/a"],
        };
        World {
            layout,
            keys: keys.map(|key| Bytes::from_static(key.as_bytes())),
            states: vec![Keys::new()],
            happened: vec![vec![]],
            common,
            _commands: commands,
            scope: Arc::new(Scope::new("s/", RecordFormat::plain(layout).into())),
            delivered: 1,
            is_watched: true,
            lost: vec![],
            sent: vec![],
            window: None,
            unverified: None,
            probe: None,
            probed: 0,
            locks: [None, None],
            reads: [None, None],
            walks: [None, None],
        }
    }

    /// Whether the store is asked for what has changed in the scope.
    fn is_being_read(&self) -> bool {
        self.window.is_some() || self.probe.is_some() || self.unverified.is_some()
    }

    pub(super) fn sending(&mut self) -> Sent {
        let sent = self.common.trust.sending();
        self.sent.push((sent.at, self.now()));
        sent
    }

    pub(super) fn trusted(&self, sent: &Sent, at: Revision) -> Sent {
        assert_eq!(self.common.trust.received(sent, at, None), Standing::Trusted);
        *sent
    }

    pub(super) fn lock(&mut self, index: usize) -> Arc<TrackedLock> {
        let key = LockKey::new(&format!("s/{index}")).unwrap();
        let spec = LockSpec { key, format: RecordFormat::plain(self.layout).into() };
        let make = |spec| TrackedLock::new(spec, Some(Arc::clone(&self.scope)), Arc::clone(&self.common));
        let lock = self.common.registry.find_or_make(spec, make).unwrap();
        self.locks[index] = Some(Arc::clone(&lock));
        lock
    }

    pub(super) fn deliver(&mut self) {
        // The watch begins with the first window.
        let is_watched = self.is_watched && self.scope.watch_from().is_some();
        if !is_watched || self.delivered >= self.now() {
            return;
        }
        self.delivered += 1;
        let events = &self.happened[self.delivered as usize - 1];
        if events.is_empty() {
            return;
        }
        events.iter().for_each(|event| self.common.trust.saw(event.revision()));
        self.scope.events(&self.common.registry, self.common.trust.era(), events);
    }

    pub(super) fn act(&mut self, act: Act) {
        match act {
            Act::Put(key, owner) => self.write(None, Some((key, owner))),
            Act::Delete(key) => self.write(Some(key), None),
            Act::Lose(key) => self.lose(key),
            Act::Swap(gone, new) if gone == new => {}
            Act::Swap(gone, new) => self.write(Some(gone), Some((new, b'a'))),
            Act::Elsewhere => {
                self.states.push(self.states.last().unwrap().clone());
                self.happened.push(vec![]);
            }
            Act::Deliver => self.deliver(),
            Act::Fail => self.is_watched = false,
            Act::Resume => {
                self.is_watched = true;
                self.delivered = self.scope.watch_from().map_or(self.delivered, |from| from.get() - 1);
            }
            Act::SendWindow if !self.is_being_read() => {
                self.window = Some(OnItsWay { sent: self.sending(), answer: None });
            }
            Act::AnswerWindow => self.answer_window(),
            Act::MergeWindow => {
                let Some(OnItsWay { sent, answer: Some((at, answer)) }) =
                    self.window.take_if(|read| read.answer.is_some())
                else {
                    return;
                };
                let sent = self.trusted(&sent, at);
                let read = self.scope.merge(&self.common.registry, &sent, at, answer);
                if self.scope.watch_from().is_none() {
                    self.scope.begin(&read);
                    self.delivered = at.get();
                } else if !self.scope.verify(&self.common.registry, &read) {
                    self.unverified = Some(read);
                }
            }
            // As the driver does: it was to verify a window that is forgotten by now.
            Act::Verify | Act::Begin if self.scope.watch_from().is_none() => self.unverified = None,
            Act::Verify => {
                if let Some(read) = self.unverified.take()
                    && !self.scope.verify(&self.common.registry, &read)
                {
                    self.unverified = Some(read);
                }
            }
            Act::SendProbe if !self.is_being_read() && self.scope.probe().is_some() => {
                self.probe = Some(OnItsWay { sent: self.sending(), answer: None });
            }
            Act::AnswerProbe => {
                let at = revision(self.now());
                self.probe.iter_mut().for_each(|probe| _ = probe.answer.get_or_insert((at, ())));
            }
            Act::VerifyProbe => self.verify_probe(),
            Act::Begin => {
                if let Some(read) = self.unverified.take() {
                    self.scope.begin(&read);
                }
            }
            Act::SendRead(index) if self.reads[index].is_none() && self.walks[index].is_none() => {
                self.lock(index);
                self.reads[index] = Some(OnItsWay { sent: self.sending(), answer: None });
            }
            Act::AnswerRead(index) => {
                let lock = self.locks[index].clone();
                let (at, state) = (revision(self.now()), self.states.last().unwrap());
                if let (Some(lock), Some(read)) = (lock, &mut self.reads[index]) {
                    let keys = state.values().filter(|stored| lock.range().contains(&stored.key)).cloned().collect();
                    read.answer.get_or_insert((at, keys));
                }
            }
            Act::MergeRead(index) => {
                let read = self.reads[index].take_if(|read| read.answer.is_some());
                if let Some(OnItsWay { sent, answer: Some((at, keys)) }) = read {
                    let sent = self.trusted(&sent, at);
                    let walk = self.lock(index).read(&sent, at, &keys);
                    self.walks[index] = walk.map(|walk| (sent, walk, keys[0].clone()));
                }
            }
            Act::EndWalk(index) => {
                if let Some((sent, walk, newest)) = self.walks[index].take()
                    && self.at(revision(self.now())).get(&newest.key) == Some(&newest)
                {
                    self.end_walk(index, &sent, walk);
                }
            }
            Act::SendWindow | Act::SendProbe | Act::SendRead(_) => {}
        }
    }

    pub(super) fn verify_probe(&mut self) {
        let Some(OnItsWay { sent, answer: Some((at, ())) }) = &self.probe else {
            return;
        };
        self.trusted(sent, *at);
        match self.scope.verify_probe(&self.common.registry, sent, *at) {
            Probed::NotYet => return,
            Probed::Missing => {}
            Probed::Whole => self.probed += 1,
        }
        self.probe = None;
    }

    /// As a store answers [`Scope::next_read`]. It is asked for when it is sent, and nothing verifies meanwhile.
    pub(super) fn answer_window(&mut self) {
        let at = revision(self.now());
        let state = self.states.last().unwrap();
        let keys = match self.scope.next_read().wanted {
            Wanted::ChangedAfter(since) => state.values().filter(|stored| stored.modified > since).cloned().collect(),
            Wanted::Count => vec![],
            Wanted::All => unreachable!("a scope is never read whole"),
        };
        let count = state.len() as u64;
        // A read that may still be verified has to be left alone, as the driver does: one at a time.
        if let Some(read) = &mut self.window
            && self.unverified.is_none()
        {
            read.answer.get_or_insert((at, RangeAnswer { keys, count }));
        }
    }

    pub(super) fn end_walk(&mut self, index: usize, sent: &Sent, mut walk: Walk) {
        let lock = self.lock(index);
        loop {
            let stored = self.at(walk.reads_at()).get(lock.key().as_str().as_bytes());
            match walk.shown(stored.map(|stored| lock.spec().write(stored))) {
                Reading::Known(track) => return lock.walked(sent, track),
                Reading::Walk(next) => walk = next,
            }
        }
    }

    /// Has these happen. Whatever is said of the locks is true after each.
    pub(super) fn play(&mut self, acts: impl IntoIterator<Item = Act>) {
        for act in acts {
            self.act(act);
            self.check();
        }
    }

    /// Reads a lock, and ends the walk through its history that may come of it, or of the read before.
    pub(super) fn read_lock(&mut self, index: usize) {
        let walked = Act::EndWalk(index);
        self.play([walked, Act::SendRead(index), Act::AnswerRead(index), Act::MergeRead(index), walked]);
    }

    /// Once everything has been delivered and read, everything is covered.
    pub(super) fn settle(&mut self) {
        for index in [0, 1, 0, 1] {
            self.read_lock(index);
        }
        self.unverified = None;
        self.window = None;
        self.probe = None;
        self.play([Act::Resume]);
        if self.scope.watch_from().is_none() {
            self.play(WINDOW);
        }
        while self.delivered < self.now() {
            assert!(self.scope.watch_from().is_some(), "it is watched");
            self.deliver();
            self.check();
        }
        // Whatever was loaded before the window began is read once more.
        for index in [0, 1] {
            self.read_lock(index);
        }
        self.write(None, Some((3, b'z'))); // Of no lock that is tracked.
        self.play(WINDOW);
        assert!(self.unverified.is_none(), "with all events here, the read is verified");
        self.write(None, Some((3, b'y')));
        let probed = self.probed;
        self.play([Act::Deliver, Act::Deliver, Act::SendProbe, Act::AnswerProbe, Act::VerifyProbe]);
        assert_eq!(self.probed, probed + 1, "and so is the probe after it");
        for lock in self.locks.iter().flatten() {
            assert_eq!(lock.view().reach(), Some(revision(self.now())), "{lock:?} is covered");
        }
    }
}
