//! Where lock snapshots come from.
//!
//! - `store`: what a store can do, `LockStore`. It decides nothing: what is fresh or believed is
//!   the cache's matter.
//! - `member`: how its members are, for operators.
//! - `record_store`: what a store can do whose records name their own tenures, `RecordStore`.
//! - `etcd`, `memory`, `consul`, `zookeeper`, `sql`: the stores. They decide nothing about requests.
//! - `cache`: what is known of each lock, over any store.
//! - `group`: several proxies that share the gates of their locks.

mod cache;
#[cfg(feature = "consul")]
mod consul;
mod etcd;
mod first_to_connect;
mod group;
#[cfg(any(feature = "consul", feature = "kubernetes"))]
mod http_store;
#[cfg(feature = "kubernetes")]
mod kubernetes;
mod member;
mod memory;
mod record_store;
mod secret;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod sql;
mod store;
mod sync;
#[cfg(feature = "zookeeper")]
mod zookeeper;

pub use cache::{
    Aside, CacheView, Driver, FormatConflict, GateMemory, LoadError, LockDescription, LockSource,
    LockSpec, OwnerIn, Queue, Queued, ReadCounts, RecordFormat, Remembered, SourceOptions,
    SourceStatus, SpawnError, Stopped, StoreIdentity, StorePast, TemplateSpec, TemplatedLocks,
    TenureChange, Timing, TrackedLock, Unconfirmed, WeakLockSource,
};
#[cfg(feature = "consul")]
pub use consul::ConsulStore;
pub use etcd::{
    EtcdAccess, EtcdClient, EtcdError, EtcdOptions, EtcdStore, EtcdTls, EtcdUser, EtcdWatch,
    Within, cluster, known_stale_reads,
};
pub use first_to_connect::first_to_connect;
pub use group::{
    AskView, CLEAR_SECONDS, GroupCounts, GroupMember, GroupOptions, GroupView, MemberStateView,
    MemberSystem, MemberView, Membership, SaidByMember, group_members, may_join,
};
#[cfg(any(feature = "consul", feature = "kubernetes"))]
pub use http_store::{HttpStoreOptions, HttpStoreTls};
#[cfg(feature = "kubernetes")]
pub use kubernetes::KubernetesStore;
pub use member::{Member, MemberProblem};
pub use memory::{MemoryCalls, MemoryStore, MemoryWatch, Write};
pub use record_store::{Hint, READ_TOGETHER_MAX, RecordAnswer, RecordStore};
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub use sql::{Lapsed, SqlLogin};
#[cfg(feature = "mysql")]
pub use sql::{MysqlOptions, MysqlStore};
#[cfg(feature = "postgres")]
pub use sql::{PostgresOptions, PostgresStore, PostgresTls};
pub use store::{
    Answerer, Event, KeyRange, KeyValue, LockStore, RangeAnswer, RangeRead, RangeWatch, ReadAnswer,
    StoreError, Swap, Swapped, Wanted, Watch, WatchNews,
};
#[cfg(feature = "zookeeper")]
pub use zookeeper::{ZookeeperOptions, ZookeeperStore, ZookeeperUser};
