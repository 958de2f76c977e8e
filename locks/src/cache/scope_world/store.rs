//! The store of such a world: what was written when.

use bytes::Bytes;
use fencepost_policy::Revision;

use super::{Keys, World, revision};
use crate::store::{Event, KeyValue};

impl World {
    pub(in crate::cache) fn now(&self) -> u64 {
        self.states.len() as u64
    }

    pub(in crate::cache) fn at(&self, at: Revision) -> &Keys {
        &self.states[at.get() as usize - 1]
    }

    pub(in crate::cache) fn write(&mut self, gone: Option<usize>, new: Option<(usize, u8)>) {
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

    pub(super) fn lose(&mut self, key: usize) {
        let before = self.now();
        self.write(Some(key), None);
        if self.now() > before {
            self.happened.last_mut().unwrap().clear();
            self.lost.push(self.now());
        }
    }
}
