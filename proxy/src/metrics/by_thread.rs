//! Numbers that each thread counts for itself, added up when somebody reads them.

use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A row of numbers, each of which is the sum of what threads have counted.
///
/// Every request counts several times. If all threads did so in one place, its cache line would go from processor to processor with
/// each request.
#[derive(Debug)]
pub(crate) struct Totals(Mutex<Parts>);

#[derive(Debug)]
struct Parts {
    /// What those have counted that count no more.
    ended: Box<[u64]>,
    counting: Vec<Arc<[AtomicU64]>>,
}

impl Totals {
    /// So many numbers, at zero.
    pub(crate) fn new(numbers: usize) -> Arc<Totals> {
        Arc::new(Totals(Mutex::new(Parts { ended: vec![0; numbers].into(), counting: Vec::new() })))
    }

    /// What one thread counts from now on.
    pub(crate) fn part(self: &Arc<Totals>) -> Part {
        let mut parts = self.lock();
        let counts: Arc<[AtomicU64]> = parts.ended.iter().map(|_| AtomicU64::new(0)).collect();
        parts.counting.push(Arc::clone(&counts));
        Part { counts, totals: Arc::clone(self), _of_one_thread: PhantomData }
    }

    /// All of the numbers.
    pub(crate) fn row(&self) -> Box<[u64]> {
        let parts = self.lock();
        let mut row = parts.ended.clone();
        for counts in &parts.counting {
            add_to(&mut row, counts.iter().map(|count| count.load(Ordering::Relaxed)));
        }
        row
    }

    fn lock(&self) -> MutexGuard<'_, Parts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one thread has counted.
#[derive(Debug)]
pub(crate) struct Part {
    counts: Arc<[AtomicU64]>,
    totals: Arc<Totals>,
    /// Neither it nor a reference to it gets to another thread.
    _of_one_thread: PhantomData<Rc<()>>,
}

impl Part {
    /// Counts so many more.
    pub(crate) fn add(&self, number: usize, more: u64) {
        // Nobody else writes it, so that nothing can come in between.
        let count = &self.counts[number];
        count.store(count.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
    }

    /// Counts so many less, which were counted here before.
    pub(crate) fn subtract(&self, number: usize, less: u64) {
        let count = &self.counts[number];
        count.store(count.load(Ordering::Relaxed) - less, Ordering::Relaxed);
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let mut parts = self.totals.lock();
        let Parts { ended, counting } = &mut *parts;
        add_to(ended, self.counts.iter().map(|count| count.load(Ordering::Relaxed)));
        counting.retain(|counts| !Arc::ptr_eq(counts, &self.counts));
    }
}

/// Adds a row of numbers to another one.
pub(crate) fn add_to(row: &mut [u64], more: impl Iterator<Item = u64>) {
    for (number, more) in row.iter_mut().zip(more) {
        *number = number.wrapping_add(more); // A sum of nanoseconds may begin anew, as counters do.
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn what_threads_count_adds_up_while_they_count_and_when_they_have_ended() {
        let totals = Totals::new(3);
        let here = totals.part();
        let there: Vec<_> = (0..4)
            .map(|_| {
                let totals = Arc::clone(&totals);
                thread::spawn(move || {
                    let part = totals.part();
                    for _ in 0..1_000 {
                        part.add(0, 2);
                        part.add(1, 1);
                        part.subtract(1, 1);
                    }
                })
            })
            .collect();
        // What the others add and subtract may be seen in between.
        here.add(2, 7);
        assert_eq!(totals.row()[2], 7, "whoever counts can be read");
        there.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(*totals.row(), [8_000, 0, 7]);
        drop(here);
        assert_eq!(*totals.row(), [8_000, 0, 7]);
        assert!(totals.lock().counting.is_empty(), "nothing is kept of who has ended");
    }
}
