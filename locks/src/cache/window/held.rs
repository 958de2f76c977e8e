//! Events that are held back for a while.

use fencepost_policy::Revision;

use crate::store::Event;

/// How many are held, and how many bytes their keys and values may have: what a doubt of seconds may bring.
const EVENTS_MAX: usize = 100_000;
const BYTES_MAX: usize = 32 << 20;

#[derive(Debug, Default)]
pub(super) struct Held {
    events: Vec<Event>,
    bytes: usize,
}

impl Held {
    /// Whether there was room for them.
    pub(super) fn hold(&mut self, events: &[Event]) -> bool {
        self.bytes += events.iter().map(bytes).sum::<usize>();
        let has_room = self.events.len() + events.len() <= EVENTS_MAX && self.bytes <= BYTES_MAX;
        if has_room {
            self.events.extend_from_slice(events);
        }
        has_room
    }

    /// The revision of the newest.
    pub(super) fn through(&self) -> Option<Revision> {
        self.events.last().map(Event::revision)
    }

    pub(super) fn events(self) -> Vec<Event> {
        self.events
    }
}

fn bytes(event: &Event) -> usize {
    match event {
        Event::Put(stored) => stored.key.len() + stored.value.len(),
        Event::Delete { key, .. } => key.len(),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::store::KeyValue;

    fn put(bytes: usize) -> Event {
        let (key, value) = (Bytes::from_static(b"k"), vec![0; bytes - 1].into());
        Event::Put(KeyValue { key, value, created: Revision::MIN, modified: Revision::MIN, version: 1 })
    }

    #[test]
    fn what_is_held_has_a_limit_in_number_and_in_bytes() {
        let mut held = Held::default();
        assert!(held.hold(&vec![put(1); EVENTS_MAX - 1]) && held.hold(&[put(1)]));
        assert!(!held.hold(&[put(1)]));
        let mut held = Held::default();
        assert!(held.hold(&[put(BYTES_MAX - 1), put(1)]));
        assert!(!held.hold(&[put(1)]));
        assert_eq!(held.events().len(), 2);
    }
}
