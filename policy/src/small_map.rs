//! A map that nearly always has one entry.

use smallvec::SmallVec;

/// An ordered map that keeps one entry in its own place, and allocates for more only. There may be
/// a million gates, most of them with one tenure at the worker at most, and a `BTreeMap` that once
/// had an entry keeps 640 bytes for the next.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct SmallMap<K, V>(SmallVec<[(K, V); 1]>);

impl<K, V> Default for SmallMap<K, V> {
    fn default() -> Self {
        SmallMap(SmallVec::new())
    }
}

impl<K: Ord, V> SmallMap<K, V> {
    /// In the order of the keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.0.iter().map(|(key, value)| (key, value))
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.0.iter().map(|(_, value)| value)
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.0.iter_mut().map(|(_, value)| value)
    }

    /// The values of all lower keys.
    pub(crate) fn below(&self, key: &K) -> impl Iterator<Item = &V> {
        self.0.iter().take_while(move |(other, _)| other < key).map(|(_, value)| value)
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.0.iter_mut().find(|(other, _)| other == key).map(|(_, value)| value)
    }

    pub(crate) fn or_default(&mut self, key: K) -> &mut V
    where
        V: Default,
    {
        let at = self.0.iter().take_while(|(other, _)| *other < key).count();
        if self.0.get(at).is_none_or(|(other, _)| *other != key) {
            self.0.insert(at, (key, V::default()));
        }
        &mut self.0[at].1
    }

    pub(crate) fn remove(&mut self, key: &K) {
        if let Some(at) = self.0.iter().position(|(other, _)| other == key) {
            self.0.remove(at);
            self.0.shrink_to_fit(); // Back into its own place.
        }
    }

    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&K, &mut V) -> bool) {
        self.0.retain(|(key, value)| keep(key, value));
        self.0.shrink_to_fit(); // Back into its own place.
    }
}

impl<K, V> IntoIterator for SmallMap<K, V> {
    type Item = (K, V);
    type IntoIter = smallvec::IntoIter<[(K, V); 1]>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone, Copy)]
    enum Act {
        Add(u8),
        Remove(u8),
        RetainBelow(u8),
    }

    fn any_act() -> impl Strategy<Value = Act> {
        let of = |act: fn(u8) -> Act| (0..5u8).prop_map(act);
        prop_oneof![3 => of(Act::Add), 2 => of(Act::Remove), 1 => of(Act::RetainBelow)]
    }

    proptest! {
        #[test]
        fn it_does_what_any_ordered_map_does(acts in prop::collection::vec(any_act(), 0..30)) {
            let (mut small, mut ordered) = (SmallMap::default(), BTreeMap::new());
            for act in acts {
                match act {
                    Act::Add(key) => {
                        *small.or_default(key) += 1;
                        *ordered.entry(key).or_insert(0) += 1;
                    }
                    Act::Remove(key) => {
                        small.remove(&key);
                        ordered.remove(&key);
                    }
                    Act::RetainBelow(below) => {
                        small.retain(|key, _| *key < below);
                        ordered.retain(|key, _| *key < below);
                    }
                }
                prop_assert!(small.iter().eq(ordered.iter()));
                prop_assert!(small.values().eq(ordered.values()) && small.values_mut().eq(ordered.values_mut()));
                for key in 0..6 {
                    prop_assert!(small.below(&key).eq(ordered.range(..key).map(|(_, value)| value)));
                    prop_assert_eq!(small.get_mut(&key), ordered.get_mut(&key));
                }
                prop_assert_eq!(small.0.spilled(), ordered.len() > 1, "one entry takes no room elsewhere");
            }
        }
    }
}
