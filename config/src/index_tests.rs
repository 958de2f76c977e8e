use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::prefixes::PREFIX_BYTES_MAX;
use crate::route::Mode;
use crate::route::tests::any_route;

const PATH: &str = "(/(a|A|b|k|K|\u{212a}|\u{17f}|s|S|ä|Ä|[{][xyz][}])){0,3}/?";
const KEY: &str = "/?(a|b|a b|a%20b|ab|[{]x[}]|a[{]x[}]|ab[{]y[}]|[{]x[}]b)(/(a|b|a b|a%20b|[{]x[}]|[{]y[}]b)){0,2}";

proptest! {
    #[test]
    fn routes_are_found_as_by_asking_all(
        written in vec((PATH, select(vec![None, None, Some("h"), Some("other")])), 1..24),
        depth in select(vec![0, 0, PREFIX_BYTES_MAX / 2 - 1, PREFIX_BYTES_MAX / 2]),
    ) {
        let any_route = any_route();
        let route = |(path, host): &(String, Option<&str>)| {
            let path = PathTemplate::parse(&("/a".repeat(depth) + path)).ok()?;
            Some(Route { path, host: host.map(str::to_owned), ..any_route.clone() })
        };
        let routes: Vec<Route> = written.iter().filter_map(route).collect();
        let covers = CoverIndex::new(&routes);
        for other in &routes {
            let first = routes.iter().position(|route| route.takes_all_of(other));
            prop_assert_eq!(covers.first_that_takes_all_of(other), first, "{:?} of {:?}", other.path.as_str(), &written);
        }
    }

    #[test]
    fn lock_index_finds_the_first_of_each_overlapping_key(
        written in vec((KEY, 0..2_usize), 1..24),
    ) {
        let Mode::Enforce(any_lock) = any_route().mode else { unreachable!("it has a lock") };
        let path = PathTemplate::parse("/").unwrap();
        let lock = |(key, source): &(String, usize)| {
            Some(Lock { key: LockTemplate::parse(key, &path, true).ok()?, source: *source, ..any_lock.clone() })
        };
        let locks: Vec<Lock> = written.iter().filter_map(lock).collect();
        let index = LockIndex::new(&locks);
        let is_first = |number: &usize| locks.iter().position(|one| *one == locks[*number]) == Some(*number);
        for Lock { key, .. } in &locks {
            let overlapping = (0..locks.len()).filter(|number| locks[*number].key.overlaps(key)).filter(is_first);
            prop_assert_eq!(index.overlapping(key).collect::<Vec<_>>(), overlapping.collect::<Vec<_>>(), "{} of {:?}", key, &written);
        }
    }
}
