//! The routes of a configuration, and which of them may take a path.

use std::collections::BTreeMap;
use std::ops::Deref;

use crate::path_template::plain_first_segment;
use crate::route::Route;

/// The routes of a configuration in the order in which they are asked: a slice of them, and what tells quickly which have to be.
#[derive(Debug, Clone, PartialEq)]
pub struct Routes {
    in_order: Vec<Route>,
    has_locks: bool,
    fences_by_host: bool,
    /// The numbers of all.
    all: Vec<usize>,
    /// The numbers of those that may take a path whatever its first segment is: it is a capture, say.
    of_any_segment: Vec<usize>,
    /// First segments in lower case, in order, each with the numbers of the routes that may take a path which begins with it.
    by_first_segment: Vec<(String, Vec<usize>)>,
}

impl Routes {
    /// These, in that order.
    pub fn new(in_order: Vec<Route>) -> Routes {
        let mut of_any_segment = Vec::new();
        let mut by_first_segment: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (number, route) in in_order.iter().enumerate() {
            match route.path.first_segment() {
                Some(first) => {
                    by_first_segment.entry(first).or_insert_with(|| of_any_segment.clone()).push(number);
                }
                None => {
                    of_any_segment.push(number);
                    by_first_segment.values_mut().for_each(|numbers| numbers.push(number));
                }
            }
        }
        Routes {
            has_locks: in_order.iter().any(|route| route.mode.lock().is_some()),
            fences_by_host: in_order.iter().any(|route| route.host.is_some() && route.mode.lock().is_some()),
            all: (0..in_order.len()).collect(),
            of_any_segment,
            by_first_segment: by_first_segment.into_iter().collect(),
            in_order,
        }
    }

    /// Whether any has a lock.
    pub(crate) fn has_locks(&self) -> bool {
        self.has_locks
    }

    /// Whether the host of a request decides if it is fenced.
    pub(crate) fn fences_by_host(&self) -> bool {
        self.fences_by_host
    }

    /// The numbers of the routes that have to be asked for a path, in order: for each other one it is [`PathMatch::No`].
    ///
    /// [`PathMatch::No`]: crate::PathMatch::No
    pub(crate) fn that_may_take(&self, path: &str) -> &[usize] {
        if self.in_order.len() == 1 {
            return &self.all; // Asking it costs less than finding that out.
        }
        let Some(first) = plain_first_segment(path) else { return &self.all };
        let lower = || first.bytes().map(|byte| byte.to_ascii_lowercase());
        match self.by_first_segment.binary_search_by(|(known, _)| known.bytes().cmp(lower())) {
            Ok(found) => &self.by_first_segment[found].1,
            Err(_) => &self.of_any_segment,
        }
    }
}

impl Deref for Routes {
    type Target = [Route];

    fn deref(&self) -> &[Route] {
        &self.in_order
    }
}

impl<'r> IntoIterator for &'r Routes {
    type Item = &'r Route;
    type IntoIter = std::slice::Iter<'r, Route>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
