//! `arc_swap`, as far as the cache uses it.
//!
//! Loads acquire and stores release. The real one's operations are sequentially consistent on top
//! of that: what holds here holds there.

use std::ops::Deref;
use std::sync::{Arc, Mutex};

use loom::sync::atomic::{AtomicUsize, Ordering};

/// All values there ever were, and which of them is the newest.
#[derive(Debug)]
pub(crate) struct ArcSwapAny<T> {
    /// Never locked across a step of loom's.
    values: Mutex<Vec<T>>,
    newest: AtomicUsize,
}

pub(crate) type ArcSwap<T> = ArcSwapAny<Arc<T>>;

#[derive(Debug)]
pub(crate) struct Guard<T>(T);

impl<T> Deref for Guard<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Clone> ArcSwapAny<T> {
    pub(crate) fn new(value: T) -> ArcSwapAny<T> {
        ArcSwapAny { values: Mutex::new(vec![value]), newest: AtomicUsize::new(0) }
    }

    pub(crate) fn load(&self) -> Guard<T> {
        let newest = self.newest.load(Ordering::Acquire);
        Guard(self.value(newest))
    }

    pub(crate) fn swap(&self, value: T) -> T {
        let before = self.newest.swap(self.add(value), Ordering::AcqRel);
        self.value(before)
    }

    fn value(&self, index: usize) -> T {
        self.values.lock().unwrap()[index].clone()
    }

    fn add(&self, value: T) -> usize {
        let mut values = self.values.lock().unwrap();
        values.push(value);
        values.len() - 1
    }
}

impl<T: Clone + Default> Default for ArcSwapAny<T> {
    fn default() -> ArcSwapAny<T> {
        ArcSwapAny::new(T::default())
    }
}
