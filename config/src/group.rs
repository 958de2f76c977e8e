//! `[group]`: several processes that share the gates of their locks.

use std::time::Duration;

use crate::lock::Lock;
use crate::problem::must_be;
use crate::reader::{Table, parse_name_of};
use crate::route::{Mode, Route};
use crate::source::{Source, SourceKind, find_source};
use crate::units::{MINUTE, SECOND};

/// A group of processes that share the gates of their locks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Its name: `[A-Za-z0-9_-]{1,64}`.
    pub name: String,
    /// Which of [`Config::sources`](crate::Config::sources) has the keys of its members, and all
    /// locks that are shared.
    pub source: usize,
    /// What its keys begin with, before its name; it ends in `/`.
    pub prefix: String,
    /// For how long a member may be silent before the others give it up.
    pub member_ttl: Duration,
}

impl Group {
    /// What the keys of all its members begin with.
    pub fn members_prefix(&self) -> String {
        format!("{}{}/members/", self.prefix, self.name)
    }

    pub(crate) fn read(t: &mut Table<'_>, sources: &[Source]) -> Option<Group> {
        let what = "the name of the group, the same for all processes before one worker";
        let in_keys = "it is part of the keys in etcd";
        let name = t.required("name", what, |name| parse_name_of(name, in_keys));
        let named = t.text("source", |name| find_source(name, sources));
        let prefix = t.text_or("prefix", "/fencepost/", parse_prefix);
        let member_ttl = t.time("member_ttl", 3 * SECOND..=5 * MINUTE, 15 * SECOND);
        let is_etcd = |source: usize| matches!(sources[source].kind, SourceKind::Etcd { .. });
        let mut stores = (0..sources.len()).filter(|source| is_etcd(*source));
        let source = match (named, stores.next(), stores.next()) {
            (Some(named), ..) if is_etcd(named) => Some(named),
            (Some(_), ..) => {
                t.problem("source", r#"must be of kind "etcd": the group keeps its keys there"#);
                None
            }
            (None, Some(only), None) if !t.is_written("source") => Some(only),
            (None, None, _) => {
                t.problem(
                    "source",
                    r#"needs a [source.NAME] with kind = "etcd", which all its processes reach"#,
                );
                None
            }
            (None, Some(_), _) => {
                if !t.is_written("source") {
                    t.problem("source", "missing: which of the sources its processes share");
                }
                None
            }
        };
        Some(Group { name: name?, source: source?, prefix: prefix?, member_ttl })
    }

    /// Why requests of that route cannot be judged in the group.
    pub(crate) fn problem_of(&self, route: &Route, sources: &[Source]) -> Option<String> {
        let Mode::Enforce(Lock { source, key, .. }) = &route.mode else { return None };
        let (own, keys) = (&sources[self.source].name, format!("{}{}/", self.prefix, self.name));
        if *source != self.source {
            return Some(format!(
                "is in source {:?}, but the group shares the locks of source {own:?} only: write that one in [group], or run this route in a \
                 process without a group",
                sources[*source].name
            ));
        }
        let literal = key.literal_prefix();
        (literal.starts_with(&keys) || keys.starts_with(literal) && key.static_key().is_none()).then(|| {
            format!("{:?} may name a key of the group, below {keys:?}: write another key, or another prefix in [group]", key.as_str())
        })
    }
}

fn parse_prefix(prefix: &str) -> Result<String, String> {
    let is_prefix = prefix.ends_with('/')
        && prefix.len() <= 256
        && !prefix.contains(|letter: char| letter.is_control() || letter.is_whitespace());
    if is_prefix {
        Ok(prefix.to_owned())
    } else {
        Err(must_be(
            r#"the beginning of keys in etcd that ends in "/", like "/fencepost/""#,
            prefix,
        ))
    }
}
