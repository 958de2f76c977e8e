//! What is known of a whole scope: that nothing changed in it but what was seen.
//!
//! A read of all keys of a scope would cost as much as there are locks. This costs as much as there is change: a *windowed*
//! read asks for the keys written after `V`, the revision of the last verified read, and for the *number* of all keys. A read
//! at `R` so returns every key that was written in `(V, R]` and still exists. What it does not return are keys that were
//! deleted; the number tells of them. With
//!
//! - `count(V)`, `count(R)`: how many keys existed at `V` and at `R`,
//! - `new`: how many of the returned keys were created after `V`,
//! - `gone`: how many keys that existed at `V` were deleted in `(V, R]`,
//!
//! every key that exists at `R` existed at `V` and was not deleted since, or was created since: `count(R) = count(V) + new -
//! gone`. (A key that was deleted and created again is in both `new` and `gone`.) The watch names the deleted keys. What
//! it has named so far of `gone` can only be too little, for events come in order and none is made up. So if the equation
//! holds with what it has named, it has named them all, and verifies the read: every key that was neither returned nor named
//! is at `R` what it was at `V`, or was absent at both and came and went between them.
//!
//! Those that came and went are in neither side of the equation. So whoever has learnt of a key that was created after `V`, from
//! an event or a read of its own, must see it among the returned, or it is gone at `R` ([`super::scope`]).
//!
//! If it does not hold, the watch lags, or lost something, or is down. Then the read proves nothing by itself; the caller
//! looks again when more events are here, and at last begins a new window ([`Window::begin`]) that says nothing of what
//! was known before it.
//!
//! To answer a windowed read, a store may look at all keys all the same: etcd takes 0.1 s of CPU for 100,000. So a read of any one key
//! goes first, a *probe*: it tells the revision `R` of the store. Each write has a revision of its own. If the watch has delivered
//! something at *each* revision in `(V, R]`, it has delivered all that happened in this scope: what happened at one revision comes
//! together. Then nothing has to be asked, and the number of keys is known as well. If a revision is missing, something happened
//! elsewhere, or the watch lags, or lost something: then the windowed read tells. Nothing at all was written if `R` is `V`.
//!
//! Whether a key existed at `V` is told by its first event after `V`: a deletion, or a write of a key created up to
//! `V`, says that it did.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use fencepost_policy::Revision;

use crate::store::{Event, KeyRange, RangeAnswer, RangeRead, Wanted};

/// How many events are kept of the time since the last verified read. Beyond that a new window is begun.
const LOG_MAX: usize = 100_000;

#[derive(Debug, Default)]
pub(crate) struct Window {
    verified: Option<Verified>,
    log: VecDeque<Logged>,
    /// The revision of the newest event that was delivered.
    delivered: Option<Revision>,
    /// Events up to there were dropped from the log: it tells nothing of a window that began before.
    lost_through: Option<Revision>,
}

#[derive(Debug, Clone, Copy)]
struct Verified {
    at: Revision,
    count: u64,
}

#[derive(Debug)]
struct Logged {
    revision: Revision,
    key: Bytes,
    /// When the key was created that was written; `None` if it was deleted.
    created: Option<Revision>,
}

impl Logged {
    /// Whether the key existed then, if this is the first that happened to it since.
    fn existed_at(&self, since: Revision) -> bool {
        self.created.is_none_or(|created| created <= since)
    }
}

/// What a probe has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Probed {
    /// The watch has delivered everything.
    Whole,
    /// What is missing may still come.
    NotYet,
    /// What is missing will not come: something later is here.
    Missing,
}

/// The answer of a windowed read, as far as it matters for verifying it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shown {
    pub(crate) revision: Revision,
    count: u64,
    new: u64,
}

impl Window {
    /// What to read next.
    pub(crate) fn next_read(&self, range: &KeyRange) -> RangeRead {
        let wanted = self.verified.map_or(Wanted::Count, |verified| Wanted::ChangedAfter(verified.at));
        RangeRead { range: range.clone(), wanted }
    }

    /// What tells the store's revision at the least cost, once there is a window: a key of the range, whether or not it exists. To read
    /// any other may not be permitted.
    pub(crate) fn probe(&self, range: &KeyRange) -> Option<RangeRead> {
        let key = KeyRange::Key(range.first_key().into());
        self.verified.map(|_| RangeRead { range: key, wanted: Wanted::Count })
    }

    /// What an answer says, if there is a window that it could verify.
    pub(crate) fn shown(&self, revision: Revision, answer: &RangeAnswer) -> Shown {
        let since = self.verified.map(|verified| verified.at);
        let new = answer.keys.iter().filter(|stored| Some(stored.created) > since).count();
        Shown { revision, count: answer.count, new: new as u64 }
    }

    /// Takes note of what the watch has delivered.
    pub(crate) fn deliver(&mut self, events: &[Event]) {
        events.iter().for_each(|event| self.log(event));
    }

    fn log(&mut self, event: &Event) {
        self.delivered = self.delivered.max(Some(event.revision()));
        if self.log.len() == LOG_MAX {
            self.log.clear();
            self.lost_through = self.delivered;
        }
        let created = event.written().map(|written| written.created);
        self.log.push_back(Logged { revision: event.revision(), key: event.key().clone(), created });
    }

    /// Whether the equation holds; if so, the next window begins there. Returns where the one that has ended began.
    pub(crate) fn verify(&mut self, shown: &Shown) -> Option<Revision> {
        let verified = self.verified?;
        let holds = self.lost_through.is_none_or(|lost| lost <= verified.at)
            && shown.revision >= verified.at
            && shown.count + self.gone(verified.at, shown.revision) == verified.count + shown.new;
        if !holds {
            return None;
        }
        self.go_on(shown);
        Some(verified.at)
    }

    /// Whether everything up to `revision`, which a probe has shown, was delivered; if so, the next window begins there.
    pub(crate) fn verify_probe(&mut self, revision: Revision) -> Probed {
        let Some(verified) = self.verified.filter(|verified| verified.at <= revision) else {
            return Probed::Missing;
        };
        if self.lost_through.is_some_and(|lost| lost > verified.at) {
            return Probed::Missing;
        }
        let through = self.whole_through(verified.at);
        if through < revision {
            let is_passed = self.delivered > Some(through);
            return if is_passed { Probed::Missing } else { Probed::NotYet };
        }
        let count = self.count_at(verified, revision);
        self.go_on(&Shown { revision, count, new: 0 });
        Probed::Whole
    }

    /// The last revision up to which something was delivered at each after `since`.
    fn whole_through(&self, since: Revision) -> Revision {
        self.log.iter().fold(
            since,
            |through, Logged { revision, .. }| {
                if revision.before() == Some(through) { *revision } else { through }
            },
        )
    }

    /// How many keys there are then, everything in between having been delivered.
    fn count_at(&self, verified: Verified, through: Revision) -> u64 {
        let mut keys: HashMap<&Bytes, (bool, bool)> = HashMap::new();
        for logged in self.log.iter().filter(|logged| verified.at < logged.revision && logged.revision <= through) {
            let (_, exists) = keys.entry(&logged.key).or_insert((logged.existed_at(verified.at), false));
            *exists = logged.created.is_some();
        }
        let number = |of: fn(&(bool, bool)) -> bool| keys.values().filter(|key| of(key)).count() as u64;
        let (existed, exist) = (number(|(existed, _)| *existed), number(|(_, exists)| *exists));
        (verified.count + exist).saturating_sub(existed)
    }

    /// Begins a window at that read, whatever was before.
    pub(crate) fn begin(&mut self, shown: &Shown) {
        self.go_on(shown);
    }

    /// Begins a window where the one before ends.
    fn go_on(&mut self, shown: &Shown) {
        self.verified = Some(Verified { at: shown.revision, count: shown.count });
        self.drop_log_through(shown.revision);
    }

    /// Forgets everything: the next read only counts, and begins a window.
    pub(crate) fn forget(&mut self) {
        *self = Window::default();
    }

    /// How many keys there were when the window was last verified; `None` before the first window.
    pub(crate) fn keys(&self) -> Option<u64> {
        self.verified.map(|verified| verified.count)
    }

    /// From where the watch has to go on; `None` before the first window.
    pub(crate) fn watch_from(&self) -> Option<Revision> {
        let through = self.delivered.max(self.verified.map(|verified| verified.at));
        self.verified.and(through).map(|through| Revision::new(through.get() + 1).unwrap_or(Revision::MAX))
    }

    /// How many keys that existed at `since` were deleted up to `through`, as far as the watch has named them.
    fn gone(&self, since: Revision, through: Revision) -> u64 {
        let mut existed: HashMap<&Bytes, (bool, bool)> = HashMap::new();
        for logged in self.log.iter().filter(|logged| since < logged.revision && logged.revision <= through) {
            let (_, deleted) = existed.entry(&logged.key).or_insert((logged.existed_at(since), false));
            *deleted |= logged.created.is_none();
        }
        existed.values().filter(|(existed, deleted)| *existed && *deleted).count() as u64
    }

    fn drop_log_through(&mut self, revision: Revision) {
        while self.log.front().is_some_and(|logged| logged.revision <= revision) {
            self.log.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All events of one revision come together, and there may be more of them than are kept.
    #[test]
    fn a_probe_proves_nothing_where_the_log_has_overflowed() {
        let [began, cleared] = [1, 2].map(|number| Revision::new(number).unwrap());
        for (deleted, probed) in [(LOG_MAX, Probed::Whole), (LOG_MAX + 1, Probed::Missing)] {
            let mut window = Window::default();
            window.begin(&Shown { revision: began, count: deleted as u64, new: 0 });
            for number in 0..deleted {
                window.log(&Event::Delete { key: format!("t/{number}").into(), revision: cleared });
            }
            assert_eq!(window.verify_probe(cleared), probed, "{deleted} deleted");
        }
    }
}
