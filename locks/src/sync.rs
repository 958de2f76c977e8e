//! The types of which the cache's shared state is made. The cache names them through here, because
//! `tests/interleavings` includes its files with another `sync`, whose types run every
//! interleaving. Other shared state has no effect on an answer, or only the driver uses it.

pub(crate) use std::hash::RandomState;
pub(crate) use std::sync::{Mutex, MutexGuard, RwLock};

pub(crate) use arc_swap::{ArcSwap, Guard};
pub(crate) use tokio::sync::Notify;
