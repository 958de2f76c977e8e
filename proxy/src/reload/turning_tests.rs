use std::fmt::Write;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;

/// Path, host, mode and key of a route.
type Written = (String, Option<&'static str>, &'static str, &'static str);

/// The routes of these names.
fn config(routes: &[(usize, Written)]) -> Config {
    let mut text =
        "listener = [{ address = \"127.0.0.1:0\" }]\nsource.main.kind = \"memory\"\n".to_owned();
    for (name, (path, host, mode, key)) in routes {
        let host = host.map(|host| format!("host = {host:?}\n")).unwrap_or_default();
        let more = "upstream = \"http://127.0.0.1:9\"\nlock_header = \"l\"";
        let lock = format!("lock = {{ source = \"main\", key = {key:?}, from_header = true }}");
        write!(text, "[[route]]\nname = \"r{name}\"\npath = {path:?}\n{host}mode = {mode:?}\n{more}\n{lock}\n")
            .unwrap();
    }
    Config::from_toml("f.toml", &text).unwrap_or_else(|problems| panic!("{problems}"))
}

fn written() -> impl Strategy<Value = Written> {
    let host = select(vec![None, None, Some("h"), Some("other")]);
    let mode = select(vec!["shadow", "shadow", "enforce", "enforce", "off"]);
    (
        "(/(a|A|b|[{]x[}])){1,3}/?",
        host,
        mode,
        select(vec!["/a", "/b", "/{n}", "/a-{n}", "/a/b", "/{n}/b"]),
    )
        .prop_filter("captures nothing twice", |(path, ..)| path.matches("{x}").count() < 2)
}

/// What holding each route that judges against each that watched tells.
fn by_asking_all(old: &Config, new: &Config, index: usize, lock: &Lock) -> Vec<usize> {
    let judging = &new.routes[index];
    let is_turned = |(at, route): &(usize, &Route)| {
        let Mode::Shadow(watched) = &route.mode else { return false };
        let had_it = || !old.routes[..*at].iter().any(|first| first.takes_all_of(judging));
        let has_it = || !new.routes[..index].iter().any(|first| first.takes_all_of(route));
        let takes_its_like = || judging.overlaps(route) && had_it() && has_it();
        watched.key.overlaps(&lock.key) && (route.name == judging.name || takes_its_like())
    };
    old.routes.iter().enumerate().filter(is_turned).map(|(at, _)| at).collect()
}

proptest! {
    #[test]
    fn what_has_turned_is_found_as_by_asking_all(
        before in vec(written(), 1..12),
        after in vec(written(), 1..12),
    ) {
        let old = config(&before.into_iter().enumerate().collect::<Vec<_>>());
        // Some under the names of others, and some under new ones.
        let new = config(&after.into_iter().enumerate().map(|(at, route)| (2 * at, route)).collect::<Vec<_>>());
        for (index, route) in new.routes.iter().enumerate() {
            let Mode::Enforce(lock) = &route.mode else { continue };
            let turned = Watching::new(&old, &CoverIndex::new(new.routes.iter())).turned(index, route, lock);
            let turned: Vec<usize> = turned.into_iter().map(|(at, _)| at).collect();
            prop_assert_eq!(turned, by_asking_all(&old, &new, index, lock), "{}", &route.name);
        }
    }
}
