//! A store of locks, as the rest of this crate sees it: keys with revisions and history, as etcd v3
//! has them.
//!
//! Everything that is not a plain call stands above this trait, in the watched cache, so that each
//! store (and each fake) is held to the same rules by the same code.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use fencepost_policy::Revision;

use crate::member::Member;

/// A store of locks.
///
/// # Contract
/// - Revisions count the store's writes, across all keys. A transaction writes at one revision.
/// - Every call has a deadline of its own and ends in [`StoreError`] rather than hang, however the
///   store behaves.
/// - Calls may be made side by side, and may be dropped at any point.
pub trait LockStore: 'static {
    /// What [`LockStore::watch`] returns.
    type Watch: Watch;

    /// Reads ranges, at least one, by quorum, all at one revision: the answer shows every write
    /// that was acknowledged before the call.
    fn read(&self, ranges: &[RangeRead]) -> impl Future<Output = Result<ReadAnswer, StoreError>>;

    /// Reads what a key was at an earlier revision.
    ///
    /// # Errors
    /// [`StoreError::Compacted`] if history does not reach back that far.
    fn read_at(
        &self,
        key: &[u8],
        at: Revision,
    ) -> impl Future<Output = Result<Option<KeyValue>, StoreError>>;

    /// Watches ranges, each from a revision on, over one stream. History that is compacted up to
    /// that revision, or beyond, is told as [`WatchNews::Compacted`].
    fn watch(&self, ranges: &[RangeWatch])
    -> impl Future<Output = Result<Self::Watch, StoreError>>;

    /// Writes a key or deletes it, if its newest write is the one that is expected, and reads a
    /// range at the same revision.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] if it is not known whether the key was written; it may be yet.
    fn swap(&self, swap: &Swap) -> impl Future<Output = Result<Swapped, StoreError>>;

    /// Asks each member that is configured how it is.
    fn members(&self) -> impl Future<Output = Vec<Member>>;
}

/// A running watch. Dropping it ends it.
pub trait Watch: 'static {
    /// The next news.
    ///
    /// # Cancel safety
    /// Dropping the future loses no news.
    ///
    /// # Errors
    /// Any error ends the watch: start another.
    fn next(&mut self) -> impl Future<Output = Result<WatchNews, StoreError>>;
}

/// Which keys.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum KeyRange {
    /// That one.
    Key(Arc<[u8]>),
    /// All that begin with these bytes.
    Prefix(Arc<[u8]>),
}

impl KeyRange {
    /// Whether the range has that key.
    pub fn contains(&self, key: &[u8]) -> bool {
        match self {
            KeyRange::Key(only) => **only == *key,
            KeyRange::Prefix(prefix) => key.starts_with(prefix),
        }
    }

    /// The first key that it may have.
    pub fn first_key(&self) -> &[u8] {
        match self {
            // No key is empty, so every key comes after this one.
            KeyRange::Prefix(prefix) if prefix.is_empty() => &[0],
            KeyRange::Key(start) | KeyRange::Prefix(start) => start,
        }
    }
}

/// As arguments of etcdctl, to be pasted into a shell.
impl fmt::Display for KeyRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (option, key) = match self {
            KeyRange::Key(key) => ("", key),
            KeyRange::Prefix(prefix) => ("--prefix ", prefix),
        };
        let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/_-.:@%+=,".contains(byte);
        let text = String::from_utf8_lossy(key);
        if !key.is_empty() && key.iter().all(plain) {
            return write!(f, "{option}{text}");
        }
        write!(f, "{option}'{}'", text.replace('\'', r"'\''"))
    }
}

/// What to read of a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeRead {
    /// The keys.
    pub range: KeyRange,
    /// Which of them are returned; all are counted.
    pub wanted: Wanted,
}

/// Which keys of a range a read returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// All of them.
    All,
    /// None: only count them.
    Count,
}

/// What to watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeWatch {
    /// The keys.
    pub range: KeyRange,
    /// The first revision of interest.
    pub from: Revision,
}

/// A write on a condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Swap {
    /// The key.
    pub key: Arc<[u8]>,
    /// The revision of its newest write; `None` if it is not to exist.
    pub expected: Option<Revision>,
    /// Its new value; `None` deletes it.
    pub value: Option<Bytes>,
    /// The range to read.
    pub read: KeyRange,
}

/// What came of a [`Swap`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Swapped {
    /// Whether the key was as expected, and so was written.
    pub is_written: bool,
    /// The store's revision after that.
    pub revision: Revision,
    /// The names of all keys of the range, in order, at that revision.
    pub names: Vec<Bytes>,
    /// Who answered, where the store tells.
    pub by: Option<Answerer>,
}

/// What a quorum read shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadAnswer {
    /// The store's revision at which this is exact.
    pub revision: Revision,
    /// One answer for each range asked for, in that order.
    pub ranges: Vec<RangeAnswer>,
    /// Who answered, where the store tells.
    pub by: Option<Answerer>,
}

/// Who gave an answer: what etcd has in its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answerer {
    /// The id of its cluster.
    pub cluster: u64,
    /// Its own id.
    pub member: u64,
    /// The raft term of the newest entry that it has applied; 0 if it does not know.
    pub term: u64,
}

/// What a quorum read shows of a range.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RangeAnswer {
    /// The keys wanted, in the order of their names.
    pub keys: Vec<KeyValue>,
    /// How many keys the range has, wanted or not.
    pub count: u64,
}

/// A key and what the store knows of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyValue {
    /// Its full name.
    pub key: Bytes,
    /// Its value.
    pub value: Bytes,
    /// The revision at which it came to exist.
    pub created: Revision,
    /// The revision of its newest write.
    pub modified: Revision,
    /// Which write that was since it came to exist, from 1.
    pub version: u64,
}

/// A message of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchNews {
    /// Things that happened in one of the watched ranges, in order; all events of one revision of
    /// that range come together.
    Events {
        /// Which of the ranges given to [`LockStore::watch`].
        range: usize,
        /// What happened.
        events: Vec<Event>,
    },
    /// The past of all ranges has been told: from here on, each event is told as it happens. Told
    /// once.
    CaughtUp,
    /// History from the revision asked for on is no longer there; this range's watch has ended, the
    /// others go on.
    Compacted {
        /// Which of the ranges given to [`LockStore::watch`].
        range: usize,
    },
}

/// A change of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// It was written.
    Put(KeyValue),
    /// It was deleted, or its lease ended.
    Delete {
        /// Its full name.
        key: Bytes,
        /// When.
        revision: Revision,
    },
}

impl Event {
    /// The key that changed.
    pub fn key(&self) -> &Bytes {
        match self {
            Event::Put(written) => &written.key,
            Event::Delete { key, .. } => key,
        }
    }

    /// The revision of the change.
    pub fn revision(&self) -> Revision {
        match self {
            Event::Put(written) => written.modified,
            Event::Delete { revision, .. } => *revision,
        }
    }

    /// What was written; `None` if it was deleted.
    pub fn written(&self) -> Option<&KeyValue> {
        match self {
            Event::Put(written) => Some(written),
            Event::Delete { .. } => None,
        }
    }
}

/// The most that one read returns of a range.
pub(crate) const READ_BYTES_MAX: usize = 16 << 20;

/// Why a store did not do what it was asked to.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// It could not be reached, or not in time, or has no quorum: ask again later.
    #[error("the lock store does not answer: {0}")]
    Unavailable(Arc<str>),
    /// It refused: what was asked is not allowed or makes no sense to it. Asking again will not
    /// help.
    #[error("the lock store refuses: {0}")]
    Refused(Arc<str>),
    /// It wants to know who we are, and nobody it lets in could be shown to it.
    #[error("no login to the lock store: {0}")]
    NoLogin(Arc<str>),
    /// It lets us in, but not to these keys.
    #[error(
        "{} may not read {range} in the lock store: etcdctl role grant-permission ROLE read {range}",
        user.as_ref().map_or_else(|| "who we are".to_owned(), |user| format!("user {user:?}"))
    )]
    Denied {
        /// The user that is logged in; `None`: the one that the store takes us for.
        user: Option<Arc<str>>,
        /// The keys.
        range: KeyRange,
    },
    /// What is stored there is more than is read: somebody else writes below a lock's key.
    #[error(
        "what the lock store has at {range} is too large to be read as a lock (more than {} MiB): look there with etcdctl get \
         --keys-only {range}, and delete what is no record of a lock",
        READ_BYTES_MAX >> 20
    )]
    TooLarge {
        /// The keys.
        range: KeyRange,
    },
    /// The history asked for is compacted away.
    #[error("the lock store has compacted that revision away")]
    Compacted,
    /// It is not the store that answered before.
    #[error(
        "endpoint {endpoint} belongs to cluster {found:x}, not to the pinned cluster {pinned:x}{}",
        hint_of_decimal(*found, *pinned)
    )]
    AnotherCluster {
        /// Who answered.
        endpoint: Arc<str>,
        /// Its cluster id.
        found: u64,
        /// The cluster id that was configured or seen first.
        pinned: u64,
    },
    /// An endpoint is a proxy before the store, such as etcd's gRPC proxy, which can answer with old
    /// data. It is never believed.
    #[error(
        "endpoint {endpoint} is no member of an etcd cluster: it gives watches other ids than they are to have, as etcd's gRPC proxy \
         does; such a proxy can answer with old data, so it is not believed: list the addresses of the members themselves"
    )]
    NoMember {
        /// The endpoint.
        endpoint: Arc<str>,
    },
    /// Its endpoints are not one store, and nobody has said which one is meant.
    #[error(
        "the endpoints belong to different clusters ({}): \
         set cluster_id to the one that is meant, or take the endpoints of the others out",
        belongings(endpoints)
    )]
    ManyClusters {
        /// Each that has answered, and its cluster id.
        endpoints: Arc<[(Arc<str>, u64)]>,
    },
}

impl StoreError {
    /// The keys that cannot be read, where the store refuses those alone, and reads of others go on.
    pub fn refused_range(&self) -> Option<&KeyRange> {
        match self {
            StoreError::Denied { range, .. } | StoreError::TooLarge { range } => Some(range),
            StoreError::Unavailable(_)
            | StoreError::Refused(_)
            | StoreError::NoLogin(_)
            | StoreError::Compacted
            | StoreError::AnotherCluster { .. }
            | StoreError::NoMember { .. }
            | StoreError::ManyClusters { .. } => None,
        }
    }
}

/// What to write where the pinned id is the found one in decimal, as etcdctl has it in JSON.
fn hint_of_decimal(found: u64, pinned: u64) -> String {
    let is_decimal = format!("{pinned:x}").parse() == Ok(found);
    if is_decimal { format!(": cluster_id is decimal, write \"{found:x}\"") } else { String::new() }
}

pub(crate) fn belongings(endpoints: &[(Arc<str>, u64)]) -> String {
    let told = endpoints.iter().map(|(endpoint, cluster)| format!("{endpoint} to {cluster:x}"));
    told.collect::<Vec<_>>().join(", ")
}
