//! The single things that are written down, and their form.

use std::collections::BTreeMap;
use std::time::Duration;

use fencepost_policy::{Layout, LockKey, Revision};
use serde::{Deserialize, Deserializer, Serialize};

use super::remembered::Seen;

/// One thing that is written: a line of JSON in the journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Entry {
    /// A tenure is let in.
    Lock {
        source: String,
        #[serde(with = "lock_key")]
        lock: LockKey,
        /// How its record was laid out.
        #[serde(
            with = "layout",
            default = "layout::usual",
            skip_serializing_if = "layout::is_usual"
        )]
        layout: Layout,
        #[serde(with = "maybe_revision")]
        tenure: Option<Revision>,
        #[serde(deserialize_with = "orphan_timeout")]
        orphan_timeout: Duration,
    },
    /// The store has been at this revision.
    HighestSeen {
        source: String,
        #[serde(with = "revision")]
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
        #[serde(with = "revision")]
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
    possible.ok_or_else(|| serde::de::Error::custom(format!("an orphan_timeout of {read:?}")))
}

mod lock_key {
    use super::LockKey;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(
        lock: &LockKey,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        lock.as_str().serialize(serializer)
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(
        deserializer: D,
    ) -> Result<LockKey, D::Error> {
        LockKey::new(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

mod layout {
    use super::Layout;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    /// Not written.
    pub(super) fn usual() -> Layout {
        Layout::Key
    }

    pub(super) fn is_usual(layout: &Layout) -> bool {
        *layout == usual()
    }

    pub(super) fn serialize<S: Serializer>(
        layout: &Layout,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        layout.name().serialize(serializer)
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(
        deserializer: D,
    ) -> Result<Layout, D::Error> {
        let name = String::deserialize(deserializer)?;
        let known = [Layout::Key, Layout::Election, Layout::Mutex]
            .into_iter()
            .find(|layout| layout.name() == name);
        known.ok_or_else(|| D::Error::custom(format!("a layout {name:?}")))
    }
}

mod revision {
    use super::Revision;
    use fencepost_policy::InvalidRevision;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(
        revision: &Revision,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        revision.get().serialize(serializer)
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(
        deserializer: D,
    ) -> Result<Revision, D::Error> {
        of_number(u64::deserialize(deserializer)?)
    }

    pub(super) fn of_number<E: Error>(number: u64) -> Result<Revision, E> {
        Revision::new(number).ok_or_else(|| E::custom(InvalidRevision))
    }
}

mod maybe_revision {
    use super::{Revision, revision};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(
        revision: &Option<Revision>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        revision.map(Revision::get).serialize(serializer)
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(
        deserializer: D,
    ) -> Result<Option<Revision>, D::Error> {
        Option::<u64>::deserialize(deserializer)?.map(revision::of_number).transpose()
    }
}
