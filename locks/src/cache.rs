//! The watched cache: what is known of each lock, and how well. It uses a
//! [`LockStore`](crate::LockStore), and knows nothing of the kinds of stores.
//!
//! What knows what, in the order to read it:
//!
//! | file | knows |
//! |---|---|
//! | [`record`] | how a record becomes an owner |
//! | [`knowledge`] | what reads and events of one lock add up to |
//! | [`cache_view`] | one look at a lock, and what news is worth |
//! | [`slots`], [`queue`] | who waits for a read of a lock, and who at its gate |
//! | [`tracked`] | a lock: knowledge, gate and waiters, shared by all threads |
//! | [`trust`], [`identity`] | whether the store still is the one of before, and whether a watch is up |
//! | [`scope`] | how far the watch of a template's prefix has come |
//! | [`registry`], [`kept`] | every lock that is held, and the idle ones that stay in memory |
//! | [`common`], [`shared`], [`health`] | what the locks, the handles and the driver of a source share |
//! | [`source`], [`templated`] | the handles |
//! | [`driver`], [`work`] | what calls the store: [`freshness`] and [`reading`] read it, [`watching`] watches it, [`members`] asks its members |

mod backoff;
mod cache_view;
mod common;
mod driver;
mod freshness;
mod health;
mod identity;
mod kept;
mod knowledge;
mod members;
mod queue;
mod reading;
mod record;
mod records;
mod registry;
mod scope;
mod shared;
mod slots;
mod source;
mod templated;
mod tenures;
pub(crate) mod tracked;
mod trust;
mod watching;
mod work;

#[cfg(test)]
#[path = "cache/cache_view_tests.rs"]
mod cache_view_tests;
#[cfg(test)]
#[path = "cache/knowledge_tests.rs"]
mod knowledge_tests;
#[cfg(test)]
#[path = "cache/slots_tests.rs"]
mod slots_tests;
#[cfg(test)]
#[path = "cache/trust_tests.rs"]
mod trust_tests;

pub(crate) use backoff::Backoff;
pub use cache_view::{CacheView, Timing};
pub use common::{GateMemory, Remembered};
pub use driver::Driver;
pub use identity::StoreIdentity;
pub use queue::{Aside, Queue, Queued};
pub use record::{LockSpec, OwnerIn, RecordFormat, TemplateSpec};
pub use registry::FormatConflict;
pub use shared::SourceOptions;
pub use slots::Unconfirmed;
pub use source::{LockSource, ReadCounts, SourceStatus, SpawnError, Stopped, WeakLockSource};
pub use templated::{LoadError, TemplatedLocks};
pub use tenures::TenureChange;
pub use tracked::TrackedLock;
pub use tracked::description::LockDescription;
pub use trust::StorePast;
pub(crate) use work::Work;
