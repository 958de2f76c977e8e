//! What the handles of a source share with its driver: its options, and what it tracks.

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use fencepost_policy::{LockKey, Revision};

use super::common::{Common, GateMemory, Inbox};
use super::identity::StoreIdentity;
use super::kept::KeptLocks;
use super::scope::Scope;
use super::tracked::TrackedLock;
use super::trust::{StorePast, Trust};
use crate::group::{GroupOptions, MemberSystem, Membership, OwnSystem};
use crate::member::Member;

/// How a source works.
#[derive(Debug, Clone)]
pub struct SourceOptions {
    /// How often everything is read: a fifth of the smallest `max_age` of the routes. At least 1
    /// ms.
    pub period: Duration,
    /// How many templated locks that have a record are kept, beside those that somebody holds.
    pub tracked_locks_max: u64,
    /// The highest revision an earlier process has seen of the store, if that is known.
    pub highest_seen: Option<Revision>,
    /// The cluster id and Raft term of that store. If another store answers, nothing up to that
    /// revision is believed.
    pub store_seen: StoreIdentity,
    /// The revision up to which nothing is believed, if an earlier process found that the store
    /// went back and nobody has accepted that.
    pub distrusted_through: Option<Revision>,
    /// What an earlier source of this process has learnt of the store. It holds in place of what an
    /// earlier process has seen.
    pub past: Option<StorePast>,
    /// What is remembered of the gates of an earlier process. If given, each tenure asks to be
    /// recorded before it enters.
    pub memory: Option<Arc<dyn GateMemory>>,
    /// The group that shares the gates of its locks, if there is one.
    pub group: Option<GroupOptions>,
    /// Where the group's time comes from, and the names of its members.
    pub member_system: Arc<dyn MemberSystem>,
    /// Where the jitter of waits comes from.
    pub jitter_seed: u64,
}

impl Default for SourceOptions {
    fn default() -> SourceOptions {
        SourceOptions {
            period: Duration::from_secs(1),
            tracked_locks_max: 100_000,
            highest_seen: None,
            store_seen: StoreIdentity::default(),
            distrusted_through: None,
            past: None,
            memory: None,
            group: None,
            member_system: Arc::new(OwnSystem),
            jitter_seed: RandomState::new().hash_one(()),
        }
    }
}

/// The locks that are not found by a template, apart by whether they may be read, as far as is
/// known. One that may not be would keep the others from being read.
pub(crate) struct StaticToRead {
    /// Those that are read all at once.
    pub(crate) together: Vec<Arc<TrackedLock>>,
    /// Each is read by itself, since it may come to be permitted. What nothing but a request names
    /// any more is left out of these.
    pub(crate) alone: Vec<Arc<TrackedLock>>,
}

/// What handles and driver share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) common: Arc<Common>,
    pub(crate) options: SourceOptions,
    pub(crate) kept: KeptLocks,
    pub(crate) static_locks: Mutex<StaticLocks>,
    /// By their prefixes. Templates and routes hold them.
    pub(crate) scopes: Mutex<BTreeMap<String, Vec<Weak<Scope>>>>,
    /// See [`LockSource::has_started`](super::source::LockSource::has_started). Later, a lost watch
    /// does not undo it.
    has_started: AtomicBool,
    members: Mutex<Vec<Member>>,
}

/// The locks that are tracked by name.
#[derive(Debug, Default)]
pub(crate) struct StaticLocks {
    /// The cache itself keeps these alive.
    pub(crate) named: BTreeMap<LockKey, Arc<TrackedLock>>,
    /// Those that are read whole each period: the named ones, and what was named and is still held
    /// by a request.
    pub(crate) read: BTreeMap<LockKey, Weak<TrackedLock>>,
}

impl Shared {
    pub(crate) fn new(name: &str, options: SourceOptions) -> (Arc<Shared>, Inbox) {
        let trust = match &options.past {
            Some(past) => Trust::after(past),
            None => Trust::new(options.highest_seen)
                .in_store(options.store_seen.clone())
                .distrusting(options.distrusted_through),
        };
        let memory = options.memory.clone();
        let group = options.group.clone();
        let group = group.map(|group| Membership::new(group, Arc::clone(&options.member_system)));
        let (common, inbox) = Common::new(name, trust, options.period, memory, group);
        let shared = Shared {
            common: Arc::new(common),
            kept: KeptLocks::new(options.tracked_locks_max),
            options,
            static_locks: Mutex::default(),
            scopes: Mutex::default(),
            has_started: AtomicBool::new(false),
            members: Mutex::default(),
        };
        (Arc::new(shared), inbox)
    }

    /// See [`LockSource::has_started`](super::source::LockSource::has_started).
    pub(crate) fn has_started(&self) -> bool {
        if self.has_started.load(Ordering::Relaxed) {
            return true;
        }
        let (locks, scopes) = (self.static_locks().together, self.scopes());
        if locks.is_empty() && scopes.is_empty() {
            return true; // Until there is something to track.
        }
        let health = self.common.health();
        let scope_has =
            |scope: &Arc<Scope>| scope.was_watched() || health.denies_scope(scope.range());
        let has_started = health.answered.is_some()
            && scopes.iter().all(scope_has)
            && locks.iter().all(|lock| lock.was_watched());
        self.has_started.fetch_or(has_started, Ordering::Relaxed);
        has_started
    }

    pub(crate) fn named(&self) -> Vec<Arc<TrackedLock>> {
        lock_list(&self.static_locks).named.values().cloned().collect()
    }

    /// About how many locks are read whole each period.
    pub(crate) fn read_whole(&self) -> usize {
        lock_list(&self.static_locks).read.len()
    }

    /// The locks that are read whole, also those that etcd does not let us read.
    pub(crate) fn read_locks(&self) -> Vec<Arc<TrackedLock>> {
        let mut tracked = lock_list(&self.static_locks);
        tracked.read.retain(|_, lock| lock.strong_count() > 0);
        tracked.read.values().filter_map(Weak::upgrade).collect()
    }

    /// The locks that are read whole, and how.
    pub(crate) fn static_locks(&self) -> StaticToRead {
        let locks = self.read_locks();
        let denied = self.common.health().denied.clone();
        if denied.is_empty() {
            return StaticToRead { together: locks, alone: Vec::new() };
        }
        let (alone, together): (Vec<_>, Vec<_>) =
            locks.into_iter().partition(|lock| denied.contains(lock.range()));
        let tracked = lock_list(&self.static_locks);
        let is_named = |lock: &Arc<TrackedLock>| tracked.named.contains_key(lock.key());
        StaticToRead { together, alone: alone.into_iter().filter(is_named).collect() }
    }

    /// Whether any lock has to be read from the store.
    pub(crate) fn is_read_from(&self) -> bool {
        let StaticToRead { together, alone } = self.static_locks();
        !together.is_empty() || !alone.is_empty() || !self.scopes().is_empty()
    }

    pub(crate) fn scopes(&self) -> Vec<Arc<Scope>> {
        let mut scopes = lock_list(&self.scopes);
        scopes.retain(|_, of_prefix| of_prefix.iter().any(|scope| scope.strong_count() > 0));
        scopes.values().flatten().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn members(&self) -> MutexGuard<'_, Vec<Member>> {
        lock_list(&self.members)
    }
}

pub(crate) fn lock_list<T>(list: &Mutex<T>) -> MutexGuard<'_, T> {
    list.lock().expect("nothing panics while it looks at a list")
}
