//! Finds, among many templates, those that may have something in common with another.

use std::collections::BTreeMap;
use std::ops::Bound;

/// How many bytes of a text are looked at.
pub(crate) const PREFIX_BYTES_MAX: usize = 64;

/// The numbers of templates, by the text with which all begins that they name.
///
/// Of what it finds, each has to be held against the other template itself: it may have nothing in
/// common with it after all.
#[derive(Debug, Default)]
pub(crate) struct Prefixes(BTreeMap<String, Vec<usize>>);

impl Prefixes {
    pub(crate) fn insert(&mut self, number: usize, prefix: &str) {
        self.0.entry(cut(prefix).to_owned()).or_default().push(number);
    }

    /// The numbers of all whose text begins this one, in order.
    pub(crate) fn beginning(&self, prefix: &str) -> Vec<usize> {
        let prefix = cut(prefix);
        let beginnings = (0..=prefix.len()).filter_map(|end| self.0.get(prefix.get(..end)?));
        let mut found: Vec<usize> = beginnings.flatten().copied().collect();
        found.sort_unstable();
        found
    }

    /// The numbers of all whose text begins this one, or begins with it, in order.
    pub(crate) fn alike(&self, prefix: &str) -> Vec<usize> {
        let mut found = self.beginning(prefix);
        let prefix = cut(prefix);
        let longer = self.0.range::<str, _>((Bound::Excluded(prefix), Bound::Unbounded));
        let longer = longer.take_while(|(text, _)| text.starts_with(prefix));
        found.extend(longer.flat_map(|(_, numbers)| numbers));
        found.sort_unstable();
        found
    }
}

fn cut(prefix: &str) -> &str {
    &prefix[..prefix.floor_char_boundary(PREFIX_BYTES_MAX)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_begins_otherwise_is_not_found() {
        let mut prefixes = Prefixes::default();
        let texts = ["/a", "/a/", "", "/ab", "/b", "/a/ö"];
        texts.iter().enumerate().for_each(|(number, text)| prefixes.insert(number, text));
        for (text, beginning, alike) in [
            ("/a", &[0, 2][..], &[0, 1, 2, 3, 5][..]),
            ("/a/", &[0, 1, 2], &[0, 1, 2, 5]),
            ("/a/ö", &[0, 1, 2, 5], &[0, 1, 2, 5]),
            ("", &[2], &[0, 1, 2, 3, 4, 5]),
            ("/c", &[2], &[2]),
        ] {
            assert_eq!((&*prefixes.beginning(text), &*prefixes.alike(text)), (beginning, alike));
        }
    }
}
