//! What `src/sync.rs` has for the product, in types that loom sees: each step of one is a step that
//! may come before or after any step of another thread, and a load shows whatever the memory model
//! lets it show.

mod arc_swap;
mod notify;

use std::hash::{BuildHasherDefault, DefaultHasher};

pub(crate) use loom::sync::{Mutex, MutexGuard, RwLock};

pub(crate) use self::arc_swap::{ArcSwap, Guard};
pub(crate) use self::notify::Notify;

/// Hashes alike in each run, because loom goes on from what the threads met in the run before.
pub(crate) type RandomState = BuildHasherDefault<DefaultHasher>;
