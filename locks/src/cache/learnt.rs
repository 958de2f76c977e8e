//! The locks of a scope of which something was learnt since its clock moved.

use std::collections::HashSet;

use fencepost_policy::LockKey;

/// How many are noted before it is looked whether they are tracked still.
const UNLOOKED_MAX: usize = 1024;

/// Their keys: at most twice as many as locks are tracked, and a few.
///
/// The clock may never move: what is below a prefix may be too much to read, or not permitted though each of the locks is. Then nothing
/// else takes out those that nobody has asked for in a long time. A lock that is tracked no more need not be here: when somebody
/// asks for it again it is another one, of which nothing is known until it is noted anew.
#[derive(Debug)]
pub(crate) struct Learnt {
    keys: HashSet<LockKey>,
    /// With more keys than that, those go that are tracked no more.
    keys_max: usize,
}

impl Default for Learnt {
    fn default() -> Learnt {
        Learnt { keys: HashSet::new(), keys_max: UNLOOKED_MAX }
    }
}

impl Learnt {
    /// Notes that something was learnt of a lock, which is tracked.
    pub(crate) fn note(&mut self, key: &LockKey, is_tracked: impl Fn(&LockKey) -> bool) {
        self.keys.insert(key.clone());
        if self.keys.len() > self.keys_max {
            self.keys.retain(is_tracked);
            self.keys_max = self.keys.len() * 2 + UNLOOKED_MAX;
        }
    }

    pub(crate) fn remove(&mut self, key: &LockKey) {
        self.keys.remove(key);
    }

    pub(crate) fn retain(&mut self, is_kept: impl FnMut(&LockKey) -> bool) {
        self.keys.retain(is_kept);
    }

    /// All of them, to be looked at; what is learnt from then on is noted anew.
    pub(crate) fn take(&mut self) -> HashSet<LockKey> {
        std::mem::take(self).keys
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn key(number: usize) -> LockKey {
        LockKey::new(&format!("/k/{number}")).unwrap()
    }

    /// Where nothing below the prefix of a template may be read but its locks, this grew by each that was ever asked for.
    #[test]
    fn however_many_are_asked_for_one_after_the_other_few_more_are_noted_than_are_tracked() {
        const EVER: usize = 100_000;
        const TRACKED: usize = 3_000;
        let (mut learnt, mut most, looks) = (Learnt::default(), 0, Cell::new(0));
        for number in 0..EVER {
            let is_tracked = |other: &LockKey| {
                looks.set(looks.get() + 1);
                let other: usize = other.as_str()["/k/".len()..].parse().unwrap();
                other + TRACKED > number
            };
            learnt.note(&key(number), is_tracked);
            most = most.max(learnt.keys.len());
        }
        assert!(most <= TRACKED * 2 + UNLOOKED_MAX + 1, "{most} noted");
        assert!((EVER - TRACKED..EVER).all(|number| learnt.keys.contains(&key(number))), "what is tracked stays");
        assert!(looks.get() < EVER * 3, "{} looks", looks.get());
    }
}
