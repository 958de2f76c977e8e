//! The watched cache: what is known of each lock, and how well.
//!
//! Read in this order: a [`record::RecordFormat`] says how a record is read; [`knowledge`] is what reads and
//! events of one lock add up to; a [`TrackedLock`] shares that, and the lock's gate, with all who ask; an [`CacheView`]
//! is one look at it. [`trust`] notices a store that went back, also by what it tells of itself ([`identity`]).
//! [`window`] and [`scope`] keep any number of locks below one prefix fresh by one small read. [`LockSource`] is the
//! handle of it all, [`driver`] does the work.

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
mod registry;
mod scope;
mod shared;
mod slots;
mod source;
mod templated;
mod tenures;
mod tracked;
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

pub use cache_view::{CacheView, Timing};
pub use common::{GateMemory, Remembered};
pub use driver::Driver;
pub use identity::StoreIdentity;
pub use queue::{Aside, Queue, Queued};
pub use record::{LockSpec, RecordFormat, TemplateSpec};
pub use registry::FormatConflict;
pub use shared::SourceOptions;
pub use slots::Unconfirmed;
pub use source::{LockSource, ReadCounts, SourceStatus, SpawnError, Stopped, WeakLockSource};
pub use templated::{LoadError, TemplatedLocks};
pub use tenures::TenureChange;
pub use tracked::TrackedLock;
pub use tracked::description::LockDescription;
pub use trust::StorePast;
