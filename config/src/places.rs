//! Where a configuration has its keys, for whoever finds out later that a value is of no use.

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::Arc;

use crate::problem::{Place, Problem};

/// Where each key of a configuration is written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Places {
    /// What stands in a file, by the full names of keys. Nothing does for flags.
    written: Arc<HashMap<String, Place>>,
}

impl Places {
    pub(crate) fn new(written: HashMap<String, Place>) -> Places {
        Places { written: Arc::new(written) }
    }

    /// What is wrong with the value of a key, such as `source.main.password_file`. If nobody wrote it, the place is that of its table.
    pub fn problem(&self, key: &str, text: impl Display) -> Problem {
        let tables = std::iter::successors(Some(key), |key| Some(key.rsplit_once('.').map_or("", |(table, _)| table)));
        // The top level, which has an empty name, is the last of them.
        let mut tables = tables.take(key.matches('.').count() + 2);
        let place = match tables.find_map(|table| self.written.get(table)) {
            Some(place) => place.renamed(key.to_owned()),
            None => Place::flag(&format!("--{}", key.replace('_', "-"))),
        };
        Problem::new(&place, text)
    }
}

#[cfg(test)]
mod tests {
    use crate::{Config, Flags};

    const FILE: &str = r#"
        [[listener]]
        address = "127.0.0.1:8080"
        tls = { certificate = "/t/a.pem",
                key = "/t/a.key" }
        [[route]]
        name = "a"
        path = "/"
        upstream = "http://127.0.0.1:9000"
        mode = "off"
    "#;

    #[test]
    fn a_problem_that_is_found_later_has_the_line_of_its_key_or_of_the_table_that_would_have_it() {
        let places = Config::from_toml("f.toml", FILE).unwrap().places;
        for (key, place) in [
            ("listener[0].tls.certificate", "f.toml:4: listener[0].tls.certificate: no"),
            ("listener[0].tls.crl", "f.toml:4: listener[0].tls.crl: no"),
            ("route.a.upstream", "f.toml:9: route.a.upstream: no"),
            ("state_dir", "f.toml:1: state_dir: no"),
        ] {
            assert_eq!(places.problem(key, "no").to_string(), place);
        }
    }

    #[test]
    fn a_problem_with_a_flag_that_is_found_later_has_its_name() {
        let one = |text: &str| text.to_owned();
        let flags = Flags {
            listen: vec![one("127.0.0.1:8080")],
            upstream: Some(one("http://127.0.0.1:9000")),
            etcd: vec![one("http://127.0.0.1:2379")],
            lock: Some(one("/k")),
            ..Flags::default()
        };
        let places = Config::from_flags(flags).unwrap().places;
        assert_eq!(places.problem("state_dir", "no").to_string(), "--state-dir: no");
    }
}
