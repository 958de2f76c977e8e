//! The routes of a configuration, and which of them may take a path.

use std::collections::BTreeMap;
use std::ops::Deref;

use crate::path_template::plain_first_segment;
use crate::route::Route;

/// The routes of a configuration in the order in which they are asked: a slice of them, and what
/// tells quickly which have to be.
#[derive(Debug, Clone, PartialEq)]
pub struct Routes {
    in_order: Vec<Route>,
    /// Whether any has a lock.
    pub(crate) has_locks: bool,
    /// Whether the host of a request decides if it is fenced.
    pub(crate) fences_by_host: bool,
    /// The numbers of all.
    all: Vec<usize>,
    /// The numbers of those that may take a path whatever its first segment is: theirs is a
    /// capture, say.
    of_any_segment: Vec<usize>,
    /// First segments in lower case, in order, each with the numbers of the routes that begin with
    /// it.
    by_first_segment: Vec<(String, Vec<usize>)>,
}

impl Routes {
    /// These, in that order.
    pub fn new(in_order: Vec<Route>) -> Routes {
        let mut of_any_segment = Vec::new();
        let mut by_first_segment: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (number, route) in in_order.iter().enumerate() {
            match route.path.first_segment() {
                Some(first) => by_first_segment.entry(first).or_default().push(number),
                None => of_any_segment.push(number),
            }
        }
        let with_lock = || in_order.iter().filter(|route| route.mode.lock().is_some());
        Routes {
            has_locks: with_lock().next().is_some(),
            fences_by_host: with_lock().any(|route| route.host.is_some()),
            all: (0..in_order.len()).collect(),
            of_any_segment,
            by_first_segment: by_first_segment.into_iter().collect(),
            in_order,
        }
    }

    /// The numbers of the routes that have to be asked for a path, in order: for each other one it
    /// is [`PathMatch::No`].
    ///
    /// [`PathMatch::No`]: crate::PathMatch::No
    pub(crate) fn that_may_take(&self, path: &str) -> impl Iterator<Item = usize> {
        let (mut by_segment, mut of_any) = self.lists_for(path);
        std::iter::from_fn(move || {
            // An empty list has no next number, which counts as the last one of all.
            let next = |list: &[usize]| list.first().copied().unwrap_or(usize::MAX);
            let is_of_any = next(of_any) < next(by_segment);
            let list = if is_of_any { &mut of_any } else { &mut by_segment };
            list.split_off_first().copied()
        })
    }

    /// The numbers of those routes in two lists, each in order: those of the path's first segment,
    /// and those of any segment.
    fn lists_for(&self, path: &str) -> (&[usize], &[usize]) {
        if self.in_order.len() == 1 {
            return (&self.all, &[]); // Asking it costs less than finding that out.
        }
        let Some(first) = plain_first_segment(path) else { return (&self.all, &[]) };
        let lower = || first.bytes().map(|byte| byte.to_ascii_lowercase());
        let found = self.by_first_segment.binary_search_by(|(known, _)| known.bytes().cmp(lower()));
        (found.map_or(&[], |found| &self.by_first_segment[found].1), &self.of_any_segment)
    }
}

impl Deref for Routes {
    type Target = [Route];

    fn deref(&self) -> &[Route] {
        &self.in_order
    }
}

#[cfg(test)]
mod tests {
    use crate::Config;

    /// Else lists grow with the square of the number of routes: 16,000 of which half began with a
    /// capture took 0.8 GB.
    #[test]
    fn a_route_is_in_one_list_whatever_its_path_begins_with() {
        let path = |number| {
            if number % 2 == 0 { format!("/{{x}}/{number}") } else { format!("/{number}/{{x}}") }
        };
        let route = |number| {
            let (path, upstream) = (path(number), "http://127.0.0.1:9000");
            format!(
                "[[route]]\nname = \"r{number}\"\npath = \"{path}\"\nupstream = \"{upstream}\"\nmode = \"off\"\n"
            )
        };
        let listener = "[[listener]]\naddress = \"127.0.0.1:0\"\n";
        let text: String =
            std::iter::once(listener.to_owned()).chain((0..100).map(route)).collect();
        let routes = Config::from_toml("f.toml", &text).unwrap().routes;
        let listed =
            routes.by_first_segment.iter().map(|(_, numbers)| numbers.len()).sum::<usize>();
        assert_eq!((listed, routes.of_any_segment.len()), (50, 50));
        assert_eq!(
            routes.that_may_take("/51/any").next(),
            Some(0),
            "whoever is first in the file is asked first"
        );
        assert_eq!(routes.that_may_take("/51/any").collect::<Vec<_>>().len(), 51);
    }
}
