//! What goes for all keys that begin alike.

use std::collections::BTreeMap;

/// One `T` for each prefix of keys. What goes for a key is looked up once for each length that a prefix has: there may be thousands of
/// prefixes, and thousands of keys.
#[derive(Debug)]
pub(crate) struct ByPrefix<T> {
    by_length: BTreeMap<usize, BTreeMap<String, T>>,
}

impl<T> Default for ByPrefix<T> {
    fn default() -> ByPrefix<T> {
        ByPrefix { by_length: BTreeMap::new() }
    }
}

impl<T: Default> ByPrefix<T> {
    /// What goes for the keys that begin so.
    pub(crate) fn at(&mut self, prefix: &str) -> &mut T {
        self.by_length.entry(prefix.len()).or_default().entry(prefix.to_owned()).or_default()
    }
}

impl<T> ByPrefix<T> {
    /// All that goes for a key, the shortest prefix first.
    pub(crate) fn of(&self, key: &str) -> impl Iterator<Item = &T> {
        let lengths = self.by_length.range(..=key.len());
        lengths.filter_map(|(length, prefixes)| prefixes.get(key.get(..*length)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_for_a_key_is_found_by_each_prefix_that_it_has() {
        let mut map: ByPrefix<Vec<u8>> = ByPrefix::default();
        for (number, prefix) in (0..).zip(["", "a/", "a/1", "a/ä", "b/", "a/1", "a/12"]) {
            map.at(prefix).push(number);
        }
        for (key, found) in [
            ("", &[0][..]),
            ("a", &[0]),
            ("a/", &[0, 1]),
            ("a/1", &[0, 1, 2, 5]),
            ("a/123", &[0, 1, 2, 5, 6]),
            ("a/äö", &[0, 1, 3]),
            ("ä/1", &[0]),
            ("b/12", &[0, 4]),
        ] {
            assert_eq!(map.of(key).flatten().copied().collect::<Vec<u8>>(), found, "{key}");
        }
    }
}
