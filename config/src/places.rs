//! Every key of a configuration: its line, and its value in the words of the file.
//!
//! The reader records them, so that a key has one declaration. Problems that are found later get
//! their lines here, and the admin listener and a reload show the values.

use std::borrow::Cow;
use std::fmt::Display;
use std::sync::Arc;

use crate::problem::{Files, Place, Problem};
use crate::variables::Hidden;

/// Where each key of a configuration is written, and its value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Places {
    pub(crate) files: Files,
    pub(crate) tables: Arc<Vec<WrittenTable>>,
    pub(crate) hidden: Arc<Hidden>,
}

/// A table of the file with all its keys, defaults included.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct WrittenTable {
    /// `source.main`, `route.shards`, `listener[0]`, `limits`; empty at the top level.
    pub(crate) name: String,
    pub(crate) line: usize,
    pub(crate) keys: Vec<WrittenKey>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct WrittenKey {
    /// `lock` in `lock.key`; empty for a key of the table itself.
    pub(crate) parent: &'static str,
    pub(crate) key: &'static str,
    /// The table's, if the key is not written.
    pub(crate) line: usize,
    /// `None` for a table in the table.
    pub(crate) value: Option<Cow<'static, str>>,
}

impl WrittenKey {
    pub(crate) fn name(&self) -> Cow<'static, str> {
        let WrittenKey { parent, key, .. } = self;
        if parent.is_empty() { (*key).into() } else { format!("{parent}.{key}").into() }
    }
}

/// The value of a key that is not set.
pub(crate) const NONE: &str = "none";

/// A text as a value. Quoted where it could be taken for something else.
pub(crate) fn shown(text: &str) -> Cow<'static, str> {
    let is_odd = |letter: char| letter.is_control() || " ,[]\"".contains(letter);
    let is_quoted = text.is_empty() || text == NONE || text.contains(is_odd);
    if is_quoted { format!("{text:?}").into() } else { text.to_owned().into() }
}

impl Places {
    /// A problem with the value of a key, such as `source.main.password_file`. A key that nobody
    /// wrote has the line of its table.
    pub fn problem(&self, key: &str, text: impl Display) -> Problem {
        let within = |table: &&WrittenTable| match key.strip_prefix(table.name.as_str()) {
            Some(rest) => table.name.is_empty() || rest.is_empty() || rest.starts_with('.'),
            None => false,
        };
        // The whole file is the first of them, and no other table is in another.
        let line = self.tables.iter().rfind(within).map_or(0, |table| {
            let rest = key[table.name.len()..].trim_start_matches('.');
            let parent = rest.split('.').next().unwrap_or_default();
            let line_of = |name: &str| Some(table.keys.iter().find(|key| key.name() == name)?.line);
            line_of(rest).or_else(|| line_of(parent)).unwrap_or(table.line)
        });
        let text = self.hidden.hide(text.to_string());
        Problem::new(&self.files, &Place { line, key: key.to_owned() }, text)
    }

    /// A text with the file's `${NAME}` in place of what that stands for.
    pub fn shown<'t>(&self, text: impl Into<Cow<'t, str>>) -> Cow<'t, str> {
        self.hidden.hide(text)
    }

    /// Whether the file has values of the environment.
    pub fn has_variables(&self) -> bool {
        !self.hidden.is_empty()
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
    fn later_problem_has_line_of_key_or_table() {
        let places = Config::from_toml("f.toml", FILE).unwrap().places;
        for (key, place) in [
            ("listener[0].tls.certificate", "f.toml:4: listener[0].tls.certificate: no"),
            ("listener[0].tls.key", "f.toml:5: listener[0].tls.key: no"),
            ("listener[0].tls.crl", "f.toml:4: listener[0].tls.crl: no"),
            ("listener[0].tls", "f.toml:4: listener[0].tls: no"),
            ("listener.address", "f.toml:2: listener.address: no"),
            ("route.a.upstream", "f.toml:9: route.a.upstream: no"),
            ("route.a", "f.toml:6: route.a: no"),
            ("route.a.lock", "f.toml:6: route.a.lock: no"),
            ("state_dir", "f.toml:1: state_dir: no"),
            ("", "f.toml:1: no"),
        ] {
            assert_eq!(places.problem(key, "no").to_string(), place);
        }
    }

    #[test]
    fn later_problem_with_flag_has_its_name() {
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
        assert_eq!(places.problem("source.main", "no").to_string(), "--etcd: no");
    }
}
