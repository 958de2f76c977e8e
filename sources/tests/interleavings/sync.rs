//! What `src/sync.rs` has for the product, in types that loom sees: each step of one is a step that may come before or after
//! any step of another thread, and a load shows whatever the memory model lets it show.

mod arc_swap;
mod notify;

pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
pub(crate) use loom::sync::{Mutex, MutexGuard, RwLock};

pub(crate) use self::arc_swap::{ArcSwap, ArcSwapOption, Guard};
pub(crate) use self::notify::Notify;
