//! The store of such a world: what was written when, and what a restore has lost.

use bytes::Bytes;
use fencepost_policy::Revision;

use super::{Act, Keys, World, revision};
use crate::store::{Event, KeyValue};

impl World {
    pub(in crate::cache) fn now(&self) -> u64 {
        self.states.len() as u64
    }

    pub(in crate::cache) fn at(&self, at: Revision) -> &Keys {
        &self.states[at.get() as usize - 1]
    }

    /// What happens after that is not part of the history before. More is written than was lost, so that it is not seen to have gone back.
    pub(super) fn restore(&mut self, lacks: usize, key: usize) {
        self.act(Act::Fail);
        let (before, kept) = (self.states.len(), self.states.len().saturating_sub(lacks).max(1));
        self.lost_histories.push(self.states.clone());
        self.states.truncate(kept);
        self.happened.truncate(kept);
        self.write(None, Some((key, b'b')));
        self.write(None, Some((key, b'a')));
        while self.states.len() <= before {
            self.act(Act::Elsewhere);
        }
    }

    pub(in crate::cache) fn write(&mut self, gone: Option<usize>, new: Option<(usize, u8)>) {
        while self.happens_as_before(gone, new) {
            self.act(Act::Elsewhere);
        }
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
            let (created, version) = state.get(&key).map_or((at, 1), |before| (before.created, before.version + 1));
            let value = Bytes::from(vec![owner]);
            let stored = KeyValue { key: key.clone(), value, created, modified: at, version };
            state.insert(key, stored.clone());
            events.push(Event::Put(stored));
        }
        if !events.is_empty() {
            self.states.push(state);
            self.happened.push(events);
        }
    }

    /// Whether the same key would be written or deleted at the same revision as in a history that is lost: what tells those apart would be
    /// taken for one.
    fn happens_as_before(&self, gone: Option<usize>, new: Option<(usize, u8)>) -> bool {
        let at = self.states.len();
        let of_interest = gone.into_iter().chain(new.map(|(new, _)| new)).map(|key| &self.keys[key]);
        of_interest.into_iter().any(|key| {
            let mut lost = self.lost_histories.iter().filter_map(|lost| Some((lost.get(at)?, lost.get(at - 1)?)));
            lost.any(|(then, before)| then.get(key) != before.get(key))
        })
    }

    pub(super) fn lose(&mut self, key: usize) {
        let before = self.now();
        self.write(Some(key), None);
        if self.now() > before {
            self.happened.last_mut().unwrap().clear();
            self.lost.push(self.now());
        }
    }
}
