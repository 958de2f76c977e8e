//! The lock that guards the requests of a route.

use fencepost_policy::Layout;

use crate::lock_template::LockTemplate;
use crate::path_template::PathTemplate;
use crate::reader::{Table, one_of};
use crate::source::{Source, SourceKind, find_source};

/// Which lock guards the requests of a route, and how its record is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lock {
    /// Which of [`Config::sources`](crate::Config::sources) keeps it.
    pub source: usize,
    /// Its key.
    pub key: LockTemplate,
    /// Whether the caller names the key, in [`Route::lock_header`](crate::Route::lock_header): it
    /// is then matched against `key` ([`LockTemplate::named_on_path`]) and not rendered from the
    /// path.
    pub from_header: bool,
    /// How a record becomes a tenure.
    pub record: Record,
}

/// How the record of a lock is read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Record {
    /// One key whose value names the owner.
    Key {
        /// Values that mean that nobody holds the lock; in order, each once.
        free_values: Vec<String>,
        /// The value is a JSON object and this field of it the owner; `None`: the value is the
        /// owner.
        owner_field: Option<String>,
    },
    /// A key of Consul's; the session that holds it is the owner.
    Session,
    /// A Lease of Kubernetes.
    Lease,
    /// etcd's Election.
    Election,
    /// etcd's Mutex.
    Mutex,
}

impl Record {
    /// The layout without its details.
    pub fn layout(&self) -> Layout {
        match self {
            Record::Key { .. } | Record::Session | Record::Lease => Layout::Key,
            Record::Election => Layout::Election,
            Record::Mutex => Layout::Mutex,
        }
    }

    /// The name of the layout in the file.
    pub fn layout_name(&self) -> &'static str {
        if *self == Record::Lease { "lease" } else { self.layout().name() }
    }
}

/// One of the layouts that records have in a source of that kind.
fn read_layout(t: &mut Table<'_>, kind: &SourceKind) -> &'static str {
    let choices: Vec<_> = kind.layouts().iter().map(|layout| (*layout, *layout)).collect();
    let default = choices[0].0;
    let layout = t.text_or("layout", default, |word| {
        let is_others = ["key", "election", "mutex", "lease"].contains(&word);
        one_of(word, &choices).map_err(|must_be| match is_others {
            true => format!("{must_be}: its source is of kind {:?}", kind.name()),
            false => must_be,
        })
    });
    layout.unwrap_or(default)
}

/// Whether a path to a field, `owner.id` or `/owner/id`, has a name that is empty.
fn has_empty_name(path: &str) -> bool {
    let (path, separator) = path.strip_prefix('/').map_or((path, '.'), |pointer| (pointer, '/'));
    path.split(separator).any(str::is_empty)
}

const SESSION_OWNER: &str = "the owner is the id of the session that holds the key";
const LEASE_OWNER: &str = "the owner is the holderIdentity of the Lease";
const ELECTION_OWNER: &str = "the owner is the value of the leader's key, as it is";
const MUTEX_OWNER: &str = "the owner is the full name of the contender's own key, since a human name would let \
    a stalled contender that queued earlier pass for its successor of the same name";

impl Lock {
    /// `lock = { … }` of a route; `path` is missing if it is wrong itself.
    pub(crate) fn read(
        t: &mut Table<'_>,
        path: Option<&PathTemplate>,
        sources: &[Source],
    ) -> Option<Lock> {
        let what = "the name of the source that keeps the lock";
        let source = t.required("source", what, |name| find_source(name, sources));
        let from_header = t.flag("from_header");
        let every_path = PathTemplate::parse("/").expect("a path");
        // Without a path, the key is right as far as can be said.
        let (path, is_free) = path.map_or((&every_path, true), |path| (path, from_header));
        let key = t.required("key", r#"the key of the lock, like "/shards/2/lock""#, |key| {
            LockTemplate::parse(key, path, is_free)
        });
        let kind = source.map_or(&SourceKind::Memory, |source| &sources[source].kind);
        let is_session = matches!(kind, SourceKind::Consul { .. })
            && t.choice("owner", &[("session", true), ("value", false)]);
        let layout = read_layout(t, kind);
        let free_values = t.list("free_values", |value| Ok(value.to_owned())).into_iter();
        let mut free_values: Vec<String> = free_values.map(|(_, value)| value).collect();
        free_values.sort();
        let owner_field = t.text("owner_field", |field| match field {
            "" => Err("must be the name of a field of the JSON object, not empty".to_owned()),
            field if has_empty_name(field) => Err(format!(
                "must name a field at each step, like \"owner.id\" or \"/owner/id\", not {field:?}"
            )),
            field => Ok(field.to_owned()),
        });
        let (record, owner) = match layout {
            "lease" => (Record::Lease, Some(LEASE_OWNER)),
            "election" => (Record::Election, Some(ELECTION_OWNER)),
            "mutex" => (Record::Mutex, Some(MUTEX_OWNER)),
            _ if is_session => (Record::Session, Some(SESSION_OWNER)),
            _ => (Record::Key { free_values, owner_field }, None),
        };
        for key in t.written(&["free_values", "owner_field"]) {
            if let Some(owner) = owner {
                let whose = match record {
                    Record::Session => "owner = \"session\"".to_owned(),
                    Record::Key { .. } | Record::Lease | Record::Election | Record::Mutex => {
                        format!("layout = {layout:?}")
                    }
                };
                t.problem(key, format_args!("is not for {whose}: there {owner}"));
            }
        }
        Some(Lock { source: source?, key: key?, from_header, record })
    }
}
