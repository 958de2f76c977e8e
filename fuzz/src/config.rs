//! The configuration file.

use fencepost_config::{Config, Difference};

/// Anything as a file: what is accepted means one thing, and what is not is explained.
pub(crate) fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    match Config::from_toml("fuzz.toml", text) {
        Ok(config) => {
            let again = Config::from_toml("fuzz.toml", text).expect("a file is right or wrong");
            assert_eq!(config, again);
            assert!(
                Difference::between(&config, &again).is_empty(),
                "a file does not differ from itself"
            );
            check(&config);
        }
        Err(problems) => {
            assert!(problems.iter().count() > 0, "something is wrong with it");
            for problem in problems.iter() {
                let shown = problem.to_string();
                assert!(shown.starts_with("fuzz.toml:"), "{shown:?} has no place");
                assert!(
                    !shown.contains('\n') || text.contains('\n'),
                    "{shown:?} has lines of its own"
                );
            }
        }
    }
}

/// What the rest of the program relies on.
fn check(config: &Config) {
    assert!(!config.listeners.is_empty() && !config.routes.is_empty());
    for (index, route) in config.routes.iter().enumerate() {
        assert!(
            config.routes[..index].iter().all(|other| other.name != route.name),
            "two routes are {}",
            route.name
        );
        let names = [&route.owner_header, &route.revision_header, &route.lock_header];
        assert!(names[0] != names[1] && names[1] != names[2] && names[0] != names[2], "{names:?}");
        if let Some(lock) = route.mode.lock() {
            assert!(config.sources.get(lock.source).is_some(), "{} has no source", route.name);
            assert!(route.max_age > std::time::Duration::ZERO);
        }
    }
    // Whatever path comes: none panics, on no routes.
    for path in ["/", "*", "", "/a/b/c/d/e/f/g/h/i/j", "//", "/%2f", "/..;/", "/%00", "/ü"] {
        let _ = config.route(Some("a.example:80"), path);
    }
}
