//! The single things that are written down, and their form.

use std::collections::BTreeMap;
use std::time::Duration;

use fencepost_policy::{InvalidRevision, Layout, LockKey, Revision};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::remembered::Seen;

/// One thing that is written: a line of JSON in the journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Entry {
    /// A tenure is let in.
    Lock {
        source: String,
        #[serde(serialize_with = "lock_text", deserialize_with = "lock_key")]
        lock: LockKey,
        /// How its record was laid out.
        #[serde(
            serialize_with = "layout_name",
            deserialize_with = "layout",
            default = "usual_layout",
            skip_serializing_if = "is_usual"
        )]
        layout: Layout,
        #[serde(serialize_with = "maybe_number", deserialize_with = "maybe_revision")]
        tenure: Option<Revision>,
        #[serde(deserialize_with = "orphan_timeout")]
        orphan_timeout: Duration,
    },
    /// The store has been at this revision.
    HighestSeen {
        source: String,
        #[serde(serialize_with = "revision_number", deserialize_with = "revision")]
        revision: Revision,
        /// Which cluster that was, if it told.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cluster: Option<u64>,
        /// The highest raft term that each of its members had told.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        terms: BTreeMap<u64, u64>,
    },
    /// The store went back, having been seen up to this revision, and nobody has accepted that.
    Distrusted {
        source: String,
        #[serde(serialize_with = "revision_number", deserialize_with = "revision")]
        through: Revision,
    },
    /// The store went back, and that was accepted.
    Forget { source: String },
    /// A route only watches; the template of its lock's key.
    Watched {
        key: String,
        #[serde(deserialize_with = "orphan_timeout")]
        orphan_timeout: Duration,
    },
    /// Nothing is at the worker any more.
    CleanLeave,
}

impl Entry {
    pub(super) fn highest_seen(source: String, Seen { revision, store }: Seen) -> Entry {
        Entry::HighestSeen { source, revision, cluster: store.cluster, terms: store.terms }
    }
}

/// Longer than any that can be configured.
const ORPHAN_TIMEOUT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// A time that can be waited for: the end of a longer one may be beyond what a clock can say.
fn orphan_timeout<'d, D: Deserializer<'d>>(deserializer: D) -> Result<Duration, D::Error> {
    let read = Duration::deserialize(deserializer)?;
    let possible = Some(read).filter(|read| *read <= ORPHAN_TIMEOUT_MAX);
    possible.ok_or_else(|| D::Error::custom(format!("an orphan_timeout of {read:?}")))
}

fn lock_key<'d, D: Deserializer<'d>>(deserializer: D) -> Result<LockKey, D::Error> {
    LockKey::new(&String::deserialize(deserializer)?).map_err(D::Error::custom)
}

fn lock_text<S: Serializer>(lock: &LockKey, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(lock.as_str())
}

fn layout<'d, D: Deserializer<'d>>(deserializer: D) -> Result<Layout, D::Error> {
    let name = String::deserialize(deserializer)?;
    let mut layouts = [Layout::Key, Layout::Election, Layout::Mutex].into_iter();
    let known = layouts.find(|layout| layout.name() == name);
    known.ok_or_else(|| D::Error::custom(format!("a layout {name:?}")))
}

fn layout_name<S: Serializer>(layout: &Layout, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(layout.name())
}

/// Not written.
fn usual_layout() -> Layout {
    Layout::Key
}

fn is_usual(layout: &Layout) -> bool {
    *layout == usual_layout()
}

fn revision<'d, D: Deserializer<'d>>(deserializer: D) -> Result<Revision, D::Error> {
    maybe_revision(deserializer)?.ok_or_else(|| D::Error::custom(InvalidRevision))
}

fn revision_number<S: Serializer>(revision: &Revision, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(revision.get())
}

fn maybe_revision<'d, D: Deserializer<'d>>(deserializer: D) -> Result<Option<Revision>, D::Error> {
    let of_number = |number| Revision::new(number).ok_or_else(|| D::Error::custom(InvalidRevision));
    Option::<u64>::deserialize(deserializer)?.map(of_number).transpose()
}

fn maybe_number<S: Serializer>(
    revision: &Option<Revision>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    revision.map(Revision::get).serialize(serializer)
}
