//! What the cache shares between threads is made of these, and names them through here:
//! `tests/interleavings` includes the same files with a `sync` of its own, whose types run every
//! interleaving. What is not named here, threads share nothing by that an answer depends on, or
//! only the driver uses it.

pub(crate) use std::hash::RandomState;
pub(crate) use std::sync::{Mutex, MutexGuard, RwLock};

pub(crate) use arc_swap::{ArcSwap, Guard};
pub(crate) use tokio::sync::Notify;
